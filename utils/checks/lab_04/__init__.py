"""The checks of lab 04. Oracles: memory laid out slot by slot, a plain queue, torch's attention
over contiguous keys, Hugging Face's `generate`, and a forward pass without any cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit import block_pictures
from utils.checks.kit.block_pictures import count
from utils.checks.kit.reference import greedy, hf_greedy, reference_prompts
from utils.checks.kit.runner import Mismatch, Passed, call, describe, exercise
from utils.checks.lab_04.growth_stories import check_growth
from utils.checks.lab_04.learners_engine import Parts, PartsManager
from utils.checks.lab_04.paged_attention_cases import compare_with_torch, largest_tensor, one_token
from utils.checks.lab_04.pool_stories import STORIES, shared_story
from utils.checks.lab_04.sharing_stories import check_copy_on_write, check_fork
from utils.engine.attention.paged_attention import paged_attention as engine_attention
from utils.engine.beam_search import BeamSearchParams
from utils.engine.core.block_pool import BlockPool
from utils.engine.llm import LLM
from utils.engine.llm_engine import LLMEngine
from utils.engine.models.llama import LlamaOps
from utils.engine.sampling_params import SamplingParams

__all__ = ["Parts"]

# Exercise 1


@exercise("Exercise 1: slot_mapping", points=2)
def slot_mapping(function: Callable[..., Any]) -> Passed:
    """Check `slot_mapping(block_ids, block_size, start, end)`."""
    cases = [
        ([3], 4, 0, 1), ([3], 4, 3, 4), ([3, 1], 4, 4, 5), ([3, 1], 4, 2, 6), ([3, 1], 4, 7, 8),
        ([4, 1, 6], 4, 0, 10), ([2, 0], 3, 0, 6), ([5, 2, 9], 1, 0, 3), ([7, 3], 16, 15, 17),
        ([2, 0], 4, 5, 5),
    ]  # fmt: skip
    answers = []
    for block_ids, size, start, end in cases:
        given = (
            f"block table {block_ids}, blocks of {size}, positions {start} to {end - 1}"
            if end > start
            else f"block table {block_ids}, blocks of {size}, start {start}, end {end}: no token"
        )
        got = call(function, list(block_ids), size, start, end, given=given)
        got = got.tolist() if isinstance(got, Tensor) else got
        if not isinstance(got, list | tuple):
            raise Mismatch(
                f"`slot_mapping` returned {describe(got)}; expected a list of slots.", input=given
            )
        answers.append((given, (block_ids, size, start, end), list(got)))
    for given, args, got in answers:
        expected = _slots(*args)
        if got != expected:
            says, look = next(
                (
                    (s, where)
                    for s, where, wrong in _SLOT_MISTAKES
                    if all(_same(wrong, *a) for a in answers)
                ),
                ("These are not the slots where the tokens lie.", "block * block_size + offset"),
            )
            block_ids, size, start, _ = args
            num_blocks = max(block_ids) + 2
            drawn = all(isinstance(slot, int) for slot in got) and num_blocks * size <= 64
            raise Mismatch(
                says, input=given, expected=describe(expected), got=describe(got), look=look,
                figure=block_pictures.slots(expected, got, start, num_blocks, size)
                if drawn else None,
                alt="The slots of memory with the tokens' positions, expected and yours.",
            )  # fmt: skip
    _refuses_a_short_table(function)
    block_ids, size, start, end = cases[5]
    mine = list(function(list(block_ids), size, start, end))
    figure = block_pictures.slots(mine, mine, start, 8, size)
    return Passed(
        f"Equal to laying out the memory slot by slot, in {len(cases)} cases. The picture: "
        f"{end} tokens of a request with the block table {block_ids}.",
        figure, "Ten tokens in three blocks of four slots, in the order 4, 1, 6.",
    )  # fmt: skip


def _slots(block_ids: Sequence[int], block_size: int, start: int, end: int) -> list[int]:
    """The oracle: write down every slot of every block in order, then cut out the piece."""
    every = [block * block_size + offset for block in block_ids for offset in range(block_size)]
    return every[start:end]


def _slot_mistake(formula: Callable[[Sequence[int], int, int], int]) -> Callable[..., list[int]]:
    def wrong(table: Sequence[int], size: int, start: int, end: int) -> list[int]:
        return [formula(table, size, position) for position in range(start, end)]

    return wrong


def _at(table: Sequence[int], place: int) -> int:
    return table[min(place, len(table) - 1)]


_SLOT_MISTAKES: list[tuple[str, str, Callable[..., list[int]]]] = [
    ("You return positions. The block table is ignored.",
     "Which block? `block_ids[position // block_size]`.",
     _slot_mistake(lambda t, s, p: p)),
    ("You count as if the blocks lay side by side behind the first one. They lie anywhere.",
     "Look up the block of *each* position: `block_ids[position // block_size]`.",
     _slot_mistake(lambda t, s, p: t[0] * s + p)),
    ("The block number is not multiplied by the block size: block 3 begins at slot "
     "3 * block_size.",
     "`block * block_size + offset`.",
     _slot_mistake(lambda t, s, p: t[p // s] + p % s)),
    ("The offset is missing: all tokens of a block get its first slot.",
     "`block * block_size + position % block_size`.",
     _slot_mistake(lambda t, s, p: t[p // s] * s)),
    ("The offset is counted from the start of the text, not from the start of the block.",
     "`position % block_size`.",
     _slot_mistake(lambda t, s, p: t[p // s] * s + p)),
    ("Off by one at a block boundary: the last token of a block is sought in the next block.",
     "Position block_size - 1 is still in block 0: `position // block_size`.",
     _slot_mistake(lambda t, s, p: _at(t, (p + 1) // s) * s + p % s)),
    ("Off by one at a block boundary: the first token of a block is sought in the block before.",
     "Position block_size is the first of block 1: `position // block_size`.",
     _slot_mistake(lambda t, s, p: t[max(0, p - 1) // s] * s + p % s)),
    ("All slots are one too high.",
     "The first token of a block lies at offset 0.",
     _slot_mistake(lambda t, s, p: t[p // s] * s + p % s + 1)),
    ("Neighbouring tokens are spread over the blocks in turn. A block holds `block_size` "
     "*consecutive* tokens.",
     "`position // block_size` says which block, `position % block_size` where in it.",
     _slot_mistake(lambda t, s, p: t[p % len(t)] * s + p // len(t))),
    ("You begin at position 0, and not at `start`.",
     "`for position in range(start, end)`.",
     lambda t, s, a, b: _slots(t, s, 0, b - a)),
    ("You return the slots of all positions from 0 to `end`. Those before `start` are in the cache "
     "already.",
     "`for position in range(start, end)`.",
     lambda t, s, a, b: _slots(t, s, 0, b)),
    ("One slot too many: `end` is not included.",
     "`range(start, end)`.",
     lambda t, s, a, b: _slots(t, s, a, b + 1)),
]  # fmt: skip


def _same(wrong: Callable[..., list[int]], _: str, args: Sequence[Any], got: list[int]) -> bool:
    return wrong(*args) == got


def _refuses_a_short_table(function: Callable[..., Any]) -> None:
    for block_ids, start, end in (([3, 1], 8, 9), ([3, 1], 6, 10), ([], 0, 1)):
        given = f"block table {block_ids}, blocks of 4, positions {start} to {end - 1}"
        try:
            got = function(list(block_ids), 4, start, end)
        except ValueError:
            continue
        except Exception as error:
            raise Mismatch(
                f"A table that is too short raised {type(error).__name__}; expected a ValueError "
                "that says what is wrong.",
                input=given, look="`if end > len(block_ids) * block_size: raise ValueError(...)`.",
            ) from None  # fmt: skip
        raise Mismatch(
            "The table is too short for these positions, and your function does not complain: "
            "the token would land in another request's block.",
            input=given, expected="ValueError", got=describe(got),
            look="`if end > len(block_ids) * block_size: raise ValueError(...)`.",
        )  # fmt: skip


# Exercise 2


@exercise("Exercise 2: BlockPool", points=4)
def block_pool(pool_class: Callable[..., Any]) -> Passed:
    """Check the contract of the pool, one small story after another."""
    for story in STORIES:
        story(pool_class)
    return Passed(
        f"Right in {len(STORIES)} stories, the last of them 300 steps at random: blocks are handed "
        "out, shared, freed and reused in order, and no failure leaves a trace. The picture: a "
        "block is free again when its last holder lets go.",
        shared_story(pool_class).picture(), "The reference count of each block, step by step.",
    )  # fmt: skip


# Exercise 3


@exercise("Exercise 3: allocate_slots", points=3)
def allocate_slots(function: Callable[..., Any]) -> Passed:
    """Check `allocate_slots(block_pool, block_table, num_tokens, block_size)`."""
    figure = check_growth(function)
    return Passed(
        "A block is taken when a token needs it, and not before: at no time does a request hold "
        "more than one block that is not full. Refused requests change nothing.",
        figure, "The slots of a request that grows token by token.",
    )  # fmt: skip


# Exercise 4


@exercise("Exercise 4: fork", points=1)
def fork(function: Callable[..., Any]) -> Passed:
    """Check `fork(block_pool, block_table)`."""
    figure = check_fork(function)
    return Passed(
        "The child has the parent's blocks in a list of its own, each with one more reference, "
        "and no block was taken.",
        figure, "Parent and child have the same two blocks.",
    )  # fmt: skip


# Exercise 5


@exercise("Exercise 5: copy_on_write", points=3)
def copy_on_write(function: Callable[..., Any]) -> Passed:
    """Check `copy_on_write(block_pool, block_table, start, end, block_size)`."""
    figure = check_copy_on_write(function)
    return Passed(
        "Shared blocks are copied before they are written to, all others are left alone, and "
        "everybody reads their own tokens. In the picture, the parent wrote last: it was the only "
        "holder left, and needed no copy.",
        figure, "Parent and child share the first block; the second is a copy in the child.",
    )  # fmt: skip


# Exercise 6


@exercise("Exercise 6: paged_attention", points=4)
def paged_attention(function: Callable[..., Any]) -> str:
    """Check attention over a block table, and that its memory does not grow with the text."""
    num_cases = compare_with_torch(function)
    largest, everything = largest_tensor(function)
    return (
        f"Equal to torch's attention over contiguous keys on {num_cases} inputs: prefill, decode, "
        "chunks, grouped heads, unused slots full of garbage. For a text of 512 tokens, your "
        f"largest tensor holds {largest} numbers; to gather its keys would take {everything}."
    )


# Exercise 7

N, WIDTH, MAX_TOKENS = 4, 4, 20
SHORT_POOL = {"max_model_len": 64, "num_gpu_blocks": 7}  # four answers would take 10 blocks
TOLERANCE = 0.02  # of a log probability; rounding changes it by less than a hundredth of this


@exercise("Exercise 7: your code runs the engine", points=4)
def engine(parts: Parts) -> Passed:
    """Check that the engine speaks as Hugging Face with the learner's parts, and that answers that
    share blocks are as probable as without any sharing or paging."""
    _written(parts)
    prompts = reference_prompts()
    attend: list[Callable[..., Tensor]] = [parts.attend]
    llm = LLM(
        enable_prefix_caching=False, ops=LlamaOps(paged_attention=lambda *args: attend[0](*args))
    )
    managers: dict[str, PartsManager] = {}

    def judge(name: str, run: Callable[[LLM], str], **settings: Any) -> None:
        def problem() -> str:
            config = replace(llm.config, **settings)
            managers[name] = PartsManager(parts, config)
            llm.llm_engine = LLMEngine(llm.model, llm.tokenizer, config, managers[name])
            return run(llm)

        if found := problem():
            attend[0] = engine_attention
            guilty = (
                "With the engine's own attention and your blocks it is wrong as well: look at the "
                "blocks. Do two requests write into the same one?"
                if problem()
                else "With the engine's own attention and your blocks it is right: look at "
                "`paged_attention`."
            )
            raise Mismatch(f"{name}: {found} {guilty}", look="Run the checks above again.")
        _judge_pool(name, managers[name])

    judge("Greedy", _greedy)
    judge(f"Parallel sampling, n={N}", _sampled)
    judge(f"Beam search, {WIDTH} beams", _beams)
    judge("A short pool", _sampled, **SHORT_POOL)
    if not managers["A short pool"].num_refused:
        raise Mismatch(
            f"A short pool: {N} answers fit into {SHORT_POOL['num_gpu_blocks']} blocks? Your code "
            "never says that there is no room."
        )
    shared = {name: m for name, m in managers.items() if name.startswith(("Parallel", "Beam"))}
    figure = block_pictures.blocks_over_steps(
        {name: (manager.used, manager.copies) for name, manager in shared.items()}
    )
    counted = "; ".join(
        f"{name}: at most {max(m.used)} blocks in use, {max(m.copies)} without sharing, "
        f"{m.num_copied} copied on write"
        for name, m in shared.items()
    )
    return Passed(
        f"Token for token what Hugging Face generates, on {len(prompts)} prompts. Answers that "
        "share blocks are as probable, token by token, as in a clean pass without blocks, also "
        f"when the pool is too small for all of them. {counted}. Every block came back.",
        figure, "Blocks in use after each step, and what copies would have taken.",
    )  # fmt: skip


def _greedy(llm: LLM) -> str:
    """What is wrong with the greedy answers; nothing if they are Hugging Face's."""
    prompts = reference_prompts()
    outputs = call(greedy, llm, prompts, given=f"the prompt {prompts[0]!r}")
    for output, expected in zip(outputs, hf_greedy(prompts), strict=True):
        if list(output.outputs[0].token_ids) != expected:
            return (
                f"the engine says {output.outputs[0].text!r}, Hugging Face "
                f"{llm.tokenizer.decode(expected)!r}."
            )
    return ""


def _sampled(llm: LLM) -> str:
    """What is wrong with the answers to one prompt; nothing if each saw its own tokens only."""
    params = SamplingParams(n=N, seed=0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0)
    (output,) = call(llm.generate, reference_prompts()[:1], params, use_tqdm=False)
    for answer in output.outputs:
        clean = _clean_log_probs(llm, output.prompt_token_ids, answer.token_ids)
        for place, (token, at) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
            if abs(at[token].logprob - clean[place]) > TOLERANCE:
                return (
                    f"answer {answer.index} read keys and values that are not its own. Its token "
                    f"number {place} has log probability {at[token].logprob:.2f} with your code, "
                    f"and {clean[place]:.2f} in a clean pass without blocks."
                )
    return ""


def _beams(llm: LLM) -> str:
    """What is wrong with the beams; nothing if each saw its own tokens only."""
    params = BeamSearchParams(beam_width=WIDTH, max_tokens=MAX_TOKENS)
    prompt = reference_prompts()[1]
    (output,) = call(llm.beam_search, prompt, params)
    prompt_token_ids = llm.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    for beam in output.sequences:
        answer = beam.tokens[len(prompt_token_ids) :]
        clean = sum(_clean_log_probs(llm, prompt_token_ids, answer))
        if abs(beam.cum_logprob - clean) > TOLERANCE:
            return (
                f"a beam read keys and values that are not its own. Its log probability is "
                f"{beam.cum_logprob:.2f} with your code, and {clean:.2f} in a clean pass without "
                "blocks."
            )
    return ""


@torch.inference_mode()
def _clean_log_probs(llm: LLM, prompt: list[int], answer: list[int]) -> list[float]:
    """Log probability of each token of an answer: one pass over all of it, without any cache."""
    ids = torch.tensor([*prompt, *answer], device=llm.config.device)
    positions = torch.arange(len(ids), device=ids.device)
    logits = llm.model.compute_logits(llm.model(ids, positions)[len(prompt) - 1 : -1])
    log_probs = logits.float().log_softmax(dim=-1)  # [answer, vocab_size]
    return log_probs.gather(1, ids[len(prompt) :, None])[:, 0].tolist()


def _written(parts: Any) -> None:
    """Call each part once on next to nothing: one that is not written yet answers at once."""
    if not isinstance(parts, Parts):
        raise Mismatch(
            f"`engine` was given {describe(parts)}; expected the parts of this lab.",
            look="`check.Parts(BlockPool, allocate_slots, fork, copy_on_write, paged_attention)`.",
        )
    if parts.BlockPool is BlockPool or parts.paged_attention is engine_attention:
        raise Mismatch("These are the engine's own parts.", look="Pass those that you wrote.")
    pool = call(parts.BlockPool, 4)
    table = list(call(pool.get_new_blocks, 1))
    call(parts.allocate_slots, pool, table, 5, 4)
    call(parts.fork, pool, table)
    call(parts.copy_on_write, pool, table, 5, 6, 4)
    call(parts.paged_attention, *one_token())


def _judge_pool(name: str, manager: PartsManager) -> None:
    """When all requests are done, every block must be free again."""
    total = manager.block_pool.num_gpu_blocks
    num_free = manager.block_pool.get_num_free_blocks()
    if num_free != total:
        leaked = total - num_free
        raise Mismatch(
            f"{name}: all requests are done, and {count(leaked, 'block')} of {total} did not come "
            "back. That is a leak: after some hours, the pool would be empty.",
            look="Every reference that is taken (get_new_blocks, touch) must be dropped once: by "
            "the end of the request, or by copy_on_write when the table leaves a block.",
        )  # fmt: skip
