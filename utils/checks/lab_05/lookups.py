"""What lab 05 says of lookups, freeing and predictions: exercises 3, 5 and 7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from utils.checks.kit import prefix_pictures
from utils.checks.kit.runner import Mismatch, Passed, call, describe
from utils.checks.lab_05 import learners_engine
from utils.checks.lab_05.hashes import BareRequest
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_utils import KVCacheBlock

# Exercise 3


class _ComputedPool:
    """A pool that only answers lookups: the hash of block i is i."""

    def __init__(self, cached: Sequence[bool], given: str) -> None:
        self.blocks = [KVCacheBlock(i) for i in range(len(cached))]
        self._cached, self._given = cached, given

    def get_cached_block(self, block_hash: int) -> KVCacheBlock | None:
        return self.blocks[block_hash] if self._cached[block_hash] else None

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        raise Mismatch(
            "A lookup must not touch the blocks. The engine touches them when the request really "
            "starts; touched twice, they would never become free again.",
            input=self._given, look="Only `get_cached_block` is needed.",
        )  # fmt: skip


class _Lookup(NamedTuple):
    """A prompt, and which of its full blocks are in the pool."""

    num_tokens: int
    cached: tuple[bool, ...]


def judge_get_computed_blocks(function: Callable[..., tuple[list[Any], int]]) -> str:
    """Check `get_computed_blocks(request, block_size, block_pool)`."""
    size = 4
    cases = [
        _Lookup(n, tuple(mark == "x" for mark in marks))
        for n, marks in (
            (3, ""), (9, ".."), (9, "x."), (9, "xx"), (8, "xx"), (4, "x"), (13, "x.x"), (14, ".xx"),
            (13, "xxx"), (12, "xxx"), (16, "xx.x"), (17, "xx.x"),
        )
    ]  # fmt: skip

    def expected(case: _Lookup) -> tuple[list[int], int]:
        best = 0  # brute force over all prefixes of whole blocks
        for count in range(len(case.cached) + 1):
            if all(case.cached[:count]) and count * size < case.num_tokens:
                best = count
        return list(range(best)), best * size

    def run(case: _Lookup) -> int:
        return (*case.cached, False).index(False)

    def told(case: _Lookup) -> str:
        marks = ", ".join("in the pool" if c else "not there" for c in case.cached) or "none"
        return f"{case.num_tokens} tokens, block_size {size}; full blocks: {marks}"

    last_token = (
        "`max_num_blocks = (request.num_tokens - 1) // block_size`: the last token is never looked "
        "up."
    )
    stop = "Leave the loop at the first block that is not there: `break`."

    def upto(count: Callable[[_Lookup], int]) -> Callable[[_Lookup], Any]:
        return lambda case: (list(range(count(case))), count(case) * size)

    def holes(case: _Lookup) -> Any:
        most = (case.num_tokens - 1) // size
        ids = [i for i, cached in enumerate(case.cached[:most]) if cached]
        return ids, len(ids) * size

    def from_the_end(case: _Lookup) -> Any:
        most = (case.num_tokens - 1) // size
        found = [i for i, cached in enumerate(case.cached[:most]) if cached]
        ids = [i if case.cached[i] else None for i in range(max(found, default=-1) + 1)]
        return ids, len(ids) * size

    def right(case: _Lookup, tokens: Callable[[_Lookup], int]) -> Any:
        return expected(case)[0], tokens(case)

    def full(case: _Lookup) -> bool:
        return run(case) * size == case.num_tokens

    bugs: list[tuple[Callable[[_Lookup], Any], str, str]] = [
        (upto(run),
         "When the whole prompt is found, no token is left to compute. Without one there are no "
         "logits, and the engine has nothing to sample from.", last_token),
        (holes, "Your lookup goes on after the first miss. The blocks behind a gap are no prefix: "
         "what lies in the gap is not computed.", stop),
        (from_the_end, "You search from the end, and take all blocks before the last hit. Some of "
         "them are not in the pool: they were evicted.", stop),
        (upto(lambda c: max(0, run(c) - 1)),
         "The last found block is always thrown away. That is needed only when nothing else would "
         "be left to compute.", last_token),
        (upto(lambda c: min(run(c), max(0, len(c.cached) - 1))),
         "The prompt's last full block is never used, even when other tokens follow.", last_token),
        (lambda c: right(c, lambda d: c.num_tokens - 1 if full(c) else expected(d)[1]),
         "The number of tokens is not that of the blocks: it ends within a block that is not among "
         "them.", "Return `len(blocks) * block_size`, after the last token was left out."),
        (lambda c: (list(range(run(c))), c.num_tokens - 1 if full(c) else run(c) * size),
         "You keep the last block and compute its last token again: that writes into a block that "
         "others may be reading.", last_token),
        (lambda c: right(c, lambda d: len(expected(d)[0])),
         "The second value counts blocks. The engine expects tokens.",
         "`len(blocks) * block_size`."),
        (lambda c: right(c, lambda d: 0),
         "The blocks are right, but you report 0 computed tokens: positions would restart at zero, "
         "and the prompt would be computed again.", "`len(blocks) * block_size`."),
    ]  # fmt: skip

    def ask(case: _Lookup) -> Any:
        pool = _ComputedPool(case.cached, told(case))
        request = BareRequest(range(case.num_tokens), range(len(case.cached)))
        got = call(function, request, size, pool, given=told(case))
        if not isinstance(got, tuple) or len(got) != 2 or not isinstance(got[0], list):
            raise Mismatch(
                f"Your function returned {describe(got)}; expected a pair: a list of blocks, and "
                "how many tokens they hold.",
                input=told(case), look="`return blocks, len(blocks) * block_size`.",
            )  # fmt: skip
        return [getattr(block, "block_id", block) for block in got[0]], got[1]

    answers = [ask(case) for case in cases]
    for case, (ids, tokens) in zip(cases, answers, strict=True):
        want = expected(case)
        if (ids, tokens) == want:
            continue
        says, look = "These are not the blocks of the longest computed prefix.", stop
        for wrong, words, where in bugs:
            if all(wrong(c) == answer for c, answer in zip(cases, answers, strict=True)):
                says, look = words, where
                break
        raise Mismatch(
            says, input=told(case), expected=f"blocks {want[0]}, {want[1]} tokens",
            got=f"blocks {ids}, {tokens} tokens", look=look,
            figure=prefix_pictures.lookup(case.cached, want[0], ids) if case.cached else None,
            alt="The blocks of the prompt: in the pool, expected, and yours.",
        )  # fmt: skip
    return (
        f"The longest computed prefix in {len(cases)} situations, gaps and fully cached prompts "
        "included. At least one token is always left to compute."
    )


# Exercise 5


def judge_free_request(function: Callable[..., None]) -> str:
    """Check `free_request(block_pool, block_table)`."""
    for size in (1, 3, 5):
        for taken in range(1, size + 1):
            _judge_eviction(function, size, taken)
    pool, table = _cached_prefix(3)
    pool.touch(table[:2])  # another request holds the first two blocks
    given = "3 blocks, of which another request holds the first two"
    call(function, pool, list(table), given=given)
    if [block.ref_cnt for block in table] != [1, 1, 0]:
        raise Mismatch(
            "Another request's blocks are taken away, or this request's are kept.", input=given,
            expected="reference counts `[1, 1, 0]`",
            got=f"`{[block.ref_cnt for block in table]}`",
            look="Leave the counting to `block_pool.free_blocks`, for all blocks of the table.",
        )  # fmt: skip
    return (
        "The tail is evicted first. After each eviction, what is left is a prefix that the next "
        "request can use in full."
    )


def _cached_prefix(size: int) -> tuple[BlockPool, list[KVCacheBlock]]:
    """The engine's pool, full: a request that holds `size` findable blocks. Hash of block i: i."""
    pool = BlockPool(size)
    table = pool.get_new_blocks(size)[::-1]  # block numbers that tell nothing about the order
    pool.cache_full_blocks(table, list(range(size)), 0, size)  # type: ignore[arg-type]
    return pool, table


def _judge_eviction(function: Callable[..., None], size: int, taken: int) -> None:
    pool, table = _cached_prefix(size)
    given = (
        f"a request that holds all {size} blocks of the pool ends; then another one takes {taken}"
    )
    call(function, pool, list(table), given=given)
    if pool.get_num_free_blocks() != size:
        raise Mismatch(
            f"Only {pool.get_num_free_blocks()} of {size} blocks are free after the request ended.",
            input=given, look="Every block of the table goes to `block_pool.free_blocks`.",
        )  # fmt: skip
    pool.get_new_blocks(taken)
    left = [pool.get_cached_block(i) is not None for i in range(size)]  # type: ignore[arg-type]
    hits = (*left, False).index(False)
    if hits == size - taken:
        return
    says = "The wrong blocks are evicted first."
    if left == [False] * taken + [True] * (size - taken):
        says = (
            "The head of the prefix is evicted first. What is left cannot be used by anybody: "
            f"{size - taken} blocks are still there, and the next request finds {hits}."
        )
    raise Mismatch(
        says, input=given, expected=f"{size - taken} blocks found by the next request",
        got=f"{hits}",
        look="`free_blocks` takes the block that shall be reused first at the front. The longer a "
        "prefix, the fewer requests share it: the last block of the table goes first.",
        figure=prefix_pictures.eviction([i < size - taken for i in range(size)], left),
        alt="The prefix after the eviction: which blocks are left, and which can be found.",
    )  # fmt: skip


# Exercise 7


class _Prediction(NamedTuple):
    """Prompts that are sent one after another."""

    block_size: int
    prompts: list[list[int]]


def found_tokens(prompts: Sequence[Sequence[int]], block_size: int) -> list[int]:
    """Brute force: compare each prompt with each earlier one, token by token."""
    found = []
    for number, prompt in enumerate(prompts):
        common = 0
        for earlier in prompts[:number]:
            # What an earlier prompt leaves behind are its full blocks.
            end = len(earlier) // block_size * block_size
            same = 0
            while same < min(end, len(prompt)) and earlier[same] == prompt[same]:
                same += 1
            common = max(common, same)
        found.append(min(common, len(prompt) - 1) // block_size * block_size)
    return found


def judge_predict_num_cached_tokens(function: Callable[..., list[int]]) -> Passed:
    """Check `predict_num_cached_tokens(prompts, block_size)` by brute force, then by the engine."""
    a, b, c = [1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]
    cases = [
        _Prediction(4, [[*a, 5]]),
        _Prediction(4, [[*a, 5], [*a, 5]]),
        _Prediction(4, [[*a, 5], [*a, 6, 7]]),
        _Prediction(4, [[1, 2, 3], [1, 2, 3]]),
        _Prediction(4, [a + b, a + b]),
        _Prediction(4, [a + b + c, a + c + c, a + b + c + [1]]),
        _Prediction(4, [a + b, c + b + a]),
        _Prediction(4, [c + b, a + b, a + c]),
        _Prediction(4, [[*a, 5, 6], [*a, 5, 6, 7, 8, 9]]),
        _Prediction(4, [a + b + c, c, a + b + [1, 2]]),
        _Prediction(2, [a + b, a + c, [1, 2, 9, 9], a]),
        _Prediction(1, [a, a, [1, 2, 5]]),
    ]
    answers = []
    for case in cases:
        given = f"block_size {case.block_size}, prompts {case.prompts}"
        got = call(function, [list(p) for p in case.prompts], case.block_size, given=given)
        if not isinstance(got, list) or len(got) != len(case.prompts):
            raise Mismatch(
                f"Your function returned {describe(got)}; expected a list with one number per "
                "prompt.",
                input=given,
            )  # fmt: skip
        answers.append(got)
    for case, got in zip(cases, answers, strict=True):
        want = found_tokens(case.prompts, case.block_size)
        if got == want:
            continue
        says, look = _explain_prediction(cases, answers)
        raise Mismatch(
            says, input=f"block_size {case.block_size}, prompts {case.prompts}",
            expected=f"`{want}`", got=f"`{got}`", look=look,
            figure=prefix_pictures.prompts(case.prompts, case.block_size, want, got),
            alt="Each prompt in blocks, and which of them are found.",
        )  # fmt: skip
    prompts, size = learners_engine.example_prompts(), learners_engine.BLOCK_SIZE
    predicted = call(function, [list(p) for p in prompts], size, given="the prompts of the engine")
    counted = learners_engine.count_hits(prompts)
    if predicted != counted:
        raise Mismatch("The engine counted something else.", expected=f"`{counted}`",
                       got=f"`{predicted}`")  # fmt: skip
    return Passed(
        f"Right on {len(cases)} lists of prompts. Then the engine ran {len(prompts)} prompts of "
        f"{min(map(len, prompts))} to {max(map(len, prompts))} tokens, in blocks of {size}. You "
        f"predicted {predicted}; its own counters say {counted}.",
        prefix_pictures.prompts(prompts, size, counted),
        "The engine's prompts in blocks, and which of them were found.",
    )


def _explain_prediction(
    cases: Sequence[_Prediction], answers: Sequence[list[int]]
) -> tuple[str, str]:
    def per_prompt(rule: Callable[[list[list[int]], list[int], int], int]) -> Any:
        return lambda c: [rule(c.prompts[:i], p, c.block_size) for i, p in enumerate(c.prompts)]

    def common(earlier: Sequence[Sequence[int]], p: Sequence[int]) -> int:
        best = 0
        for e in earlier:
            same = 0
            while same < min(len(e), len(p)) and e[same] == p[same]:
                same += 1
            best = max(best, same)
        return best

    def anywhere(earlier: list[list[int]], p: list[int], size: int) -> int:
        seen = {tuple(e[i : i + size]) for e in earlier for i in range(0, len(e) - size + 1, size)}
        count = 0
        while count < (len(p) - 1) // size and tuple(p[count * size :][:size]) in seen:
            count += 1
        return count * size

    def including_partial(earlier: list[list[int]], p: list[int], size: int) -> int:
        return min(common(earlier, p), len(p) - 1)

    bugs = [
        (per_prompt(lambda e, p, s: common(e, p) // s * s),
         "A prompt that is found as a whole leaves no token to compute. At least one is always "
         "computed, and with it its whole block.",
         "`min(found, len(prompt) - 1)`, then round down to whole blocks."),
        (per_prompt(lambda e, p, s: min(common(e, p) // s * s, len(p) - 1)),
         "The rounding comes too early. When the last token must be computed, its whole block is.",
         "First `min(found, len(prompt) - 1)`, then round down to whole blocks."),
        (per_prompt(including_partial),
         "You count single tokens. Only full blocks are found.",
         "Round down: `// block_size * block_size`."),
        (per_prompt(lambda e, p, s: min(-(-common(e, p) // s) * s, (len(p) - 1) // s * s)),
         "You round up. A block that is equal only in part is not found.",
         "Round down: `// block_size * block_size`."),
        (per_prompt(lambda e, p, s: min(common(e[-1:], p), len(p) - 1) // s * s),
         "Only the prompt just before is searched. The cache keeps all earlier ones.",
         "Compare with every earlier prompt."),
        (per_prompt(lambda e, p, s: min(common(e[:1], p), len(p) - 1) // s * s),
         "Only the very first prompt is searched. The cache keeps all earlier ones.",
         "Compare with every earlier prompt."),
        (per_prompt(anywhere),
         "Blocks are compared without what comes before them. Equal tokens behind another prefix "
         "have other keys and values.",
         "Compare prefixes, from the first token on."),
        (per_prompt(lambda e, p, s: min(common(e, p), len(p) - 1) // s),
         "You count blocks; expected tokens.", "Multiply by `block_size`."),
        (per_prompt(lambda e, p, s: max(0, common(e, p) // s * s - s)),
         "One block too few: the last found block is always left out. That is needed only when "
         "nothing else would be left to compute.",
         "`min(found, len(prompt) - 1)`, then round down to whole blocks."),
        (lambda c: [(len(p) - 1) // c.block_size * c.block_size for p in c.prompts],
         "The first prompt finds itself. Only *earlier* prompts are in the cache.",
         "Look the prompt up first, then remember it."),
    ]  # fmt: skip
    for wrong, says, look in bugs:
        if all(wrong(case) == got for case, got in zip(cases, answers, strict=True)):
            return says, look
    return (
        "The prediction is wrong.",
        "Longest common prefix with any earlier prompt, in full blocks.",
    )
