"""What lab 05 says of block hashes: exercises 1, 2 and 6."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from utils.checks.kit.runner import Mismatch, call, describe

# Exercise 1


class _Spy:
    """SHA-256 that remembers what it answered."""

    def __init__(self) -> None:
        self.answers: set[bytes] = set()

    def __call__(self, data: bytes) -> bytes:
        answer = hashlib.sha256(data).digest()
        self.answers.add(answer)
        return answer


def judge_hash_block_tokens(function: Callable[..., bytes]) -> str:
    """Check `hash_block_tokens(hash_function, parent_block_hash, token_ids, extra_keys)`."""
    spy = _Spy()

    def hashed(parent: bytes | None, tokens: Sequence[int], extra: tuple[str, ...] | None) -> bytes:
        given = f"parent {_short(parent)}, tokens {list(tokens)}, extra_keys {extra}"
        got = call(function, spy, parent, list(tokens), extra, given=given)
        if not isinstance(got, bytes):
            raise Mismatch(
                f"Your function returned {describe(got)}; expected bytes.",
                input=given, look="Return what `hash_function(...)` returns.",
            )  # fmt: skip
        return got

    one, two = (hashlib.sha256(name).digest() for name in (b"one", b"two"))
    if hashed(None, [1, 2], None) != hashed(None, [1, 2], None):
        raise Mismatch(
            "The same block has two different hashes.", input="the same call, twice",
            look="Nothing but the arguments may enter: no counter, no `id`.",
        )  # fmt: skip
    if not spy.answers:
        raise Mismatch(
            "`hash_function` is never called.", input="hash_function = SHA-256",
            look="Bring all parts together in one `bytes` object, and return "
            "`hash_function(data)`. Python's own `hash` differs from process to process.",
        )  # fmt: skip
    small = ([1, 2, 3, 4], None)
    cases: list[tuple[tuple[Any, ...], tuple[Any, ...], str, str]] = [
        ((one, *small), (two, *small),
         "The hash ignores what came before: two blocks with equal tokens and different parents "
         "have the same hash. Their keys and values differ.",
         "`parent_block_hash` must enter, too."),
        ((None, *small), (one, *small),
         "A first block and a later block with the same tokens have the same hash.",
         "Without a parent, let a constant stand in its place: `NONE_HASH`."),
        ((None, [1, 2, 3, 4], None), (None, [1, 2, 3, 5], None),
         "Blocks that differ in their last token have the same hash.", "All tokens must enter."),
        ((None, [1, 2, 3, 4], None), (None, [4, 3, 2, 1], None),
         "The order of the tokens does not matter to your hash.",
         "No `sum`, no `sorted`, no `set`: position is part of the content."),
        ((None, [1, 23], None), (None, [12, 3], None),
         "[1, 23] and [12, 3] have the same hash: written one behind the other, both are 123.",
         "Give each token a fixed width, `token.to_bytes(4, 'little')`, or keep a separator."),
        ((None, [5, 5], None), (None, [261, 5], None),
         "Token 5 and token 261 have the same hash: only one byte of a token enters.",
         "A token id needs 4 bytes: vocabularies have more than 65,536 tokens."),
        ((None, [5, 5], None), (None, [65541, 5], None),
         "Token 5 and token 65541 have the same hash: only two bytes of a token enter.",
         "A token id needs 4 bytes: vocabularies have more than 65,536 tokens."),
        ((None, [1, 2], None), (None, [1, 2], ("ada",)),
         "`extra_keys` is ignored: two tenants share their blocks.",
         "Append, for example, `repr(extra_keys).encode()`."),
        ((None, [1, 2], ("ada",)), (None, [1, 2], ("bob",)),
         "`extra_keys` is seen, but what is in it is ignored.",
         "Append, for example, `repr(extra_keys).encode()`."),
        ((None, [1, 2], ("ab", "c")), (None, [1, 2], ("a", "bc")),
         "('ab', 'c') and ('a', 'bc') have the same hash: joined, both are 'abc'.",
         "`repr(extra_keys)` keeps quotes and commas."),
        ((one, [1, 2], None), (one, [1, 2], ("ada",)),
         "`extra_keys` is ignored where there is a parent.", "The parts enter independently."),
    ]  # fmt: skip
    for left, right, says, look in cases:
        if hashed(*left) == hashed(*right):
            raise Mismatch(
                says, input=f"{_block(left)}  and  {_block(right)}",
                expected="two different hashes", got="the same hash", look=look,
            )  # fmt: skip
    first = hashed(hashed(None, [1, 2], None), [3, 4], None)
    if first == hashed(hashed(None, [3, 4], None), [1, 2], None):
        raise Mismatch(
            "Two blocks in the opposite order end in the same hash: 1 2 | 3 4 and 3 4 | 1 2.",
            look="Do not add or XOR hashes. Hash the parent's hash and the tokens *together*.",
        )
    if first not in spy.answers:
        raise Mismatch(
            "The result is not what `hash_function` returned.",
            expected="32 bytes, with SHA-256", got=f"{len(first)} bytes",
            look="Bring all parts together first, then call `hash_function` last.",
        )  # fmt: skip
    return (
        f"{len(cases)} pairs of blocks that are easily confused have different hashes, and the "
        "same block always has the same hash. So a hash stands for all tokens so far."
    )


def _short(digest: bytes | None) -> str:
    return "None" if digest is None else digest.hex()[:6]


def _block(arguments: Sequence[Any]) -> str:
    parent, tokens, extra = arguments
    return f"(parent {_short(parent)}, tokens {tokens}, extra_keys {extra})"


# Exercise 2


class BareRequest:
    """A request with the fields that the exercises use."""

    def __init__(
        self, token_ids: Sequence[int], hashes: Sequence[Any] = (), salt: str | None = None
    ) -> None:
        self.all_token_ids, self.block_hashes = list(token_ids), list(hashes)
        self.cache_salt = salt

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


class Link(NamedTuple):
    """A block hash that can be read: what exercise 2 calls a hash."""

    parent: Any
    token_ids: tuple[int, ...]
    extra_keys: Any


def judge_request_block_hasher(function: Callable[..., list[Any]]) -> str:
    """Check `request_block_hasher(request, block_size, hash_block)`."""
    cases = [(3, 4, 0), (4, 4, 0), (5, 4, 0), (8, 4, 0), (11, 4, 0), (3, 1, 0), (8, 4, 1),
             (15, 4, 2), (9, 4, 2)]  # fmt: skip
    for num_tokens, block_size, num_hashed in cases:
        tokens = list(range(10, 10 + num_tokens))
        _judge_hashes(function, tokens, block_size, num_hashed)
    _judge_salt(function)
    return (
        "Full blocks only, each hashed once, each chained to the one before, also while the "
        "request grows. Requests with different salts have no hash in common."
    )


def _chain(tokens: Sequence[int], block_size: int, count: int) -> list[Link]:
    links: list[Link] = []
    for i in range(count):
        parent = links[-1] if links else None
        links.append(Link(parent, tuple(tokens[i * block_size : (i + 1) * block_size]), None))
    return links


def _hashes(
    function: Callable[..., Any], request: BareRequest, block_size: int, given: str
) -> tuple[list[Link], int]:
    """What the learner's function makes of a request, and how often it hashed."""
    calls = 0

    def hash_block(parent: Any, token_ids: Sequence[int], extra_keys: Any = None) -> Link:
        nonlocal calls
        calls += 1
        return Link(parent, tuple(token_ids), extra_keys)

    before = list(request.block_hashes)
    got = call(function, request, block_size, hash_block, given=given)
    if request.block_hashes != before:
        raise Mismatch(
            "Your function changes `request.block_hashes`. The engine appends what you return, so "
            "each hash would be there twice.",
            input=given, look="Collect the new hashes in a list of your own.",
        )  # fmt: skip
    if not isinstance(got, list) or not all(isinstance(link, Link) for link in got):
        raise Mismatch(
            f"Your function returned {describe(got)}; expected a list of hashes from `hash_block`.",
            input=given,
        )
    return got, calls


def _judge_hashes(
    function: Callable[..., Any], tokens: list[int], block_size: int, num_hashed: int
) -> None:
    have = _chain(tokens, block_size, num_hashed)
    given = (
        f"{len(tokens)} tokens {tokens}, block_size {block_size}, {num_hashed} of its blocks hashed"
    )
    got, calls = _hashes(function, BareRequest(tokens, have), block_size, given)
    num_full = len(tokens) // block_size
    expected = _chain(tokens, block_size, num_full)[num_hashed:]

    def wrong(says: str, look: str) -> Mismatch:
        return Mismatch(says, input=given, expected=_shown(expected), got=_shown(got), look=look)

    ends = "The last full block begins at `num_tokens - block_size`, and that one counts."
    if got and len(got[-1].token_ids) != block_size and len(got) == len(expected) + 1:
        raise wrong(
            "A partial block gets a hash, as if it were full. Its next token would change what it "
            "holds.",
            "Only full blocks: `num_tokens // block_size` of them.",
        )
    if num_hashed and len(got) == num_full:
        raise wrong(
            "Blocks that have a hash already are hashed again.",
            "Begin at token `len(request.block_hashes) * block_size`.",
        )
    if len(got) == len(expected) - 1:
        raise wrong("The last full block is missing.", ends)
    if len(got) != len(expected):
        raise wrong(f"{len(got)} new hashes; expected {len(expected)}.", ends)
    previous = have[-1] if have else None
    for place, (link, want) in enumerate(zip(got, expected, strict=True), num_hashed):
        if place and list(link.token_ids) == tokens[: (place + 1) * block_size]:
            raise wrong(
                "Each hash takes in the whole prompt up to its block: n blocks cost n² work. The "
                "parent's hash stands for all that came before.",
                "`hash_block(parent, the tokens of this block only, extra_keys)`.",
            )
        if link.token_ids != want.token_ids:
            raise wrong(
                f"Block {place} has the wrong tokens.",
                "Block i holds the tokens `[i * block_size : (i + 1) * block_size]` of the whole "
                "request.",
            )
        if link.parent is None and previous is not None:
            raise wrong(
                f"Block {place} has no parent: the chain is broken, and the block would be found "
                "behind any other prefix.",
                "The parent of the first *new* block is `request.block_hashes[-1]`, if there is "
                "one; then each hash is the parent of the next.",
            )
        if link.parent != previous:
            raise wrong(
                f"Block {place} has the wrong parent. It must be the hash of block {place - 1}.",
                "`parent = hash_block(parent, ...)` in the loop.",
            )
        previous = link
    if calls > len(expected):
        raise wrong(
            f"{calls} blocks are hashed for {len(expected)} new ones.",
            "The engine calls this after each new token: hash only what is new.",
        )


def _shown(links: Sequence[Link]) -> str:
    """The blocks, each with the last token of its parent."""
    words = [
        f"{list(link.token_ids)} after "
        + ("nothing" if link.parent is None else f"..., {link.parent.token_ids[-1]}")
        for link in links
    ]
    return "; ".join(words) or "no blocks"


def _judge_salt(function: Callable[..., Any]) -> None:
    tokens = list(range(10, 22))

    def hashes(salt: str | None) -> list[Link]:
        given = f"12 tokens, block_size 4, cache_salt {salt!r}"
        return _hashes(function, BareRequest(tokens, (), salt), 4, given)[0]

    ada, bob, none = hashes("ada"), hashes("bob"), hashes(None)
    look = "`extra_keys = (request.cache_salt,)` for the request's first block, else None."
    for first, second, names in (
        (ada, none, "with salt 'ada', and without a salt"),
        (ada, bob, "with salt 'ada' and with salt 'bob'"),
    ):
        same = [one == other for one, other in zip(first, second, strict=True)]
        if all(same):
            raise Mismatch("The salt is ignored: two tenants find each other's blocks.",
                           input=f"the same 12 tokens, {names}", look=look)  # fmt: skip
        if any(same):
            raise Mismatch(
                f"The salt comes too late: block {same.index(True)} has the same hash for both "
                "tenants. From one block, an attacker learns how a prompt begins.",
                input=f"the same 12 tokens, {names}", look=look,
            )  # fmt: skip
    given = "8 of 12 tokens hashed, then the request grows; cache_salt 'ada'"
    later, _ = _hashes(function, BareRequest(tokens, ada[:2], "ada"), 4, given)
    if later != ada[2:]:
        raise Mismatch(
            "A request that grows gets other hashes than one that has all tokens at once: it would "
            "never find its own blocks.",
            input=given, look="The first block of the *request* takes the salt, not the first new "
            "block of each call: `begin == 0`.",
        )  # fmt: skip


# Exercise 6


def judge_block_hash(key_class: Callable[..., Any]) -> str:
    """Check `__eq__` and `__hash__` of `BlockHash(digest, parent, token_ids, extra_keys)`."""

    def chain(*blocks: Sequence[int], extra: Any = None, digest: bytes = b"same") -> Any:
        parent = None
        for place, tokens in enumerate(blocks):
            arguments = (digest, parent, tuple(tokens), extra if place == 0 else None)
            parent = call(key_class, *arguments, given=f"BlockHash{arguments}")
        return parent

    def equal(one: Any, other: Any, given: str) -> bool:
        return bool(call(lambda: one == other, given=given))

    given = "the same two blocks, hashed for two requests"
    one, other = chain([1, 2], [3, 4]), chain([1, 2], [3, 4])
    if not equal(one, other, given):
        raise Mismatch(
            "Two hashes of the same contents are not equal: nothing would ever be found.",
            input=given, look="Compare what is in the two, not whether they are one object.",
        )  # fmt: skip
    if call(hash, one, given=given) != call(hash, other, given=given):
        raise Mismatch(
            "Two equal hashes have different `hash(...)`: a dictionary would not find one by the "
            "other.",
            input=given, look="`__hash__` returns `hash(self.digest)`.",
        )  # fmt: skip
    pairs = [
        (chain([1, 2]), chain([1, 2], digest=b"other"), "two different digests",
         "Different digests count as equal.", ""),
        (chain([1, 2]), chain([5, 6]), "tokens 1 2 and tokens 5 6",
         "The digest alone decides. Two prompts whose digests collide get each other's keys and "
         "values.", "Compare `token_ids`, too."),
        (chain([1, 2], extra=("ada",)), chain([1, 2], extra=("bob",)),
         "salt 'ada' and salt 'bob'", "The salts are not compared: with a collision, a tenant "
         "finds another tenant's blocks.", "Compare `extra_keys`, too."),
        (chain([1, 2], [7, 8]), chain([5, 6], [7, 8]), "1 2 | 7 8 and 5 6 | 7 8",
         "Only the block's own tokens are compared. The block before it differs, so the keys and "
         "values do, too.", "Compare the parents as well, all the way to the beginning."),
        (chain([1, 2], [7, 8], [9, 9]), chain([5, 6], [7, 8], [9, 9]),
         "1 2 | 7 8 | 9 9 and 5 6 | 7 8 | 9 9",
         "The comparison stops at the parent. The block before the parent differs.",
         "Walk back until there is no parent."),
        (chain([7, 8]), chain([1, 2], [7, 8]), "7 8 and 1 2 | 7 8",
         "A first block equals a later one with the same tokens.",
         "If one of the two has no parent left, both must have none."),
        (chain([1, 2], [7, 8], extra=("ada",)), chain([1, 2], [7, 8], extra=("bob",)),
         "1 2 | 7 8 with salt 'ada' and with salt 'bob'",
         "The salt of the first block is not compared when a later block is looked up.",
         "Walk back until there is no parent, and compare `extra_keys` at each step."),
    ]  # fmt: skip
    for one, other, names, says, look in pairs:
        given = f"{names}; the digests are equal, by a collision"
        if names == "two different digests":
            given = "tokens 1 2, with two different digests"
        if equal(one, other, given) or equal(other, one, given):
            raise Mismatch(says, input=given, expected="not equal", got="equal", look=look)
    if equal(chain([1, 2]), None, "a BlockHash and None"):
        raise Mismatch("A BlockHash equals None.", look="`isinstance(other, BlockHash)` first.")
    _judge_long_chain(chain, equal)
    return (
        f"{len(pairs) - 1} collisions are seen through, however far back the difference lies, and "
        "prompts of 1,500 blocks are compared without trouble."
    )


def _judge_long_chain(chain: Callable[..., Any], equal: Callable[..., bool]) -> None:
    given = "two prompts of 1,500 equal blocks"
    blocks = [[i, i] for i in range(1500)]
    one, other = chain(*blocks), chain(*blocks)
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(min(limit, 1000))  # Python's default; some kernels raise it
        same = equal(one, other, given)
    except Mismatch as wrong:
        if "RecursionError" not in wrong.headline:
            raise
        raise Mismatch(
            "A long prompt breaks your comparison: RecursionError. `==` on the parents calls "
            "`__eq__` again, once per block, and Python stops after about 1,000 calls.",
            input=given, look="Walk back in a loop: `a, b = a.parent, b.parent`.",
        ) from None  # fmt: skip
    finally:
        sys.setrecursionlimit(limit)
    if not same:
        raise Mismatch("Two equal prompts are not equal if they are long.", input=given)
