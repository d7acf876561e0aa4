"""A learner's predictors against real counters, our engine's and vLLM's: exercise 8 of lab 13."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from utils.checks.kit.contracts import Contract, Given
from utils.checks.kit.contracts.faults import Raised, attempt
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.prefix_pictures import prompts as found_blocks
from utils.checks.kit.runner import Mismatch, Passed, call, describe
from utils.checks.lab_13.evictions import PREDICT_WITH_EVICTION
from utils.checks.lab_13.hits import PREDICT_CACHED_TOKENS, Request
from utils.checks.lab_13.orders import ORDER_REQUESTS
from utils.checks.lab_13.scrapes import HIT_RATE
from utils.engine.llm import LLM
from utils.engine.sampling_params import SamplingParams
from utils.hub import BUNDLED, load_tokenizer, resolve_model
from utils.pipeline.task.messages import generate
from utils.vllm.engine_settings import EngineSettings
from utils.vllm.session import VllmSession

BLOCK_SIZE = 32  # the smallest of vLLM on a CPU
NUM_BLOCKS = 40  # for prompts of 6 tenants, whose shared parts alone have 42
MAX_MODEL_LEN = 512


@dataclass(frozen=True)
class Parts:
    """The four functions of lab 13 that meet real counters."""

    predict_cached_tokens: Callable[[list[Request], int], list[int]]
    predict_with_eviction: Callable[[list[list[int]], int, int], list[int]]
    order_requests: Callable[[list[list[int]]], list[int]]
    hit_rate: Callable[[str, str], float | None]


@dataclass(frozen=True)
class Counted:
    """What vLLM counted: tokens found per prompt, and its metrics before and after."""

    found: list[int]
    before: str
    after: str


CHECKS: tuple[tuple[int, str, Contract], ...] = (
    (1, "predict_cached_tokens", PREDICT_CACHED_TOKENS),
    (3, "predict_with_eviction", PREDICT_WITH_EVICTION),
    (4, "order_requests", ORDER_REQUESTS),
    (7, "hit_rate", HIT_RATE),
)


def salted_requests() -> list[Request]:
    """Six customers of the extraction task; the fourth and fifth belong to another tenant."""
    tokenizer = load_tokenizer(BUNDLED)
    texts = tokenizer.apply_chat_template(
        [example.messages() for example in generate("held_out", 6)],
        tokenize=False,
        add_generation_prompt=True,
    )
    salts = (None, None, None, "clinic", "clinic", None)
    return [
        (salt, tokenizer.encode(text, add_special_tokens=False))
        for salt, text in zip(salts, texts, strict=True)
    ]


def tenant_prompts() -> list[list[int]]:
    """18 prompts of six tenants that take turns; none ends at a block's end."""
    dice = random.Random(5)
    stems = [[dice.randrange(1000, 30000) for _ in range(7 * BLOCK_SIZE)] for _ in range(6)]
    return [
        stems[n % 6] + [dice.randrange(1000, 30000) for _ in range(dice.randrange(5, 30))]
        for n in range(18)
    ]


def rehearse(make_parts: Callable[[], Parts]) -> Parts:
    """Each part by its own check, then all on the real prompts; nothing is started for that.

    Here also parts that are not written yet say so.
    """
    parts = call(make_parts)
    if not isinstance(parts, Parts):
        raise Mismatch("`my_parts` must return `Parts`, as the cell above does.")
    for number, name, contract in CHECKS:
        try:
            contract.check(getattr(parts, name))
        except Mismatch as wrong:
            wrong.headline = f"Exercise {number}, `{name}`, is not right yet. {wrong.headline}"
            raise
    requests, prompts = salted_requests(), tenant_prompts()
    _on_real_prompts(parts, 0, requests, BLOCK_SIZE)
    _on_real_prompts(parts, 1, prompts, BLOCK_SIZE, NUM_BLOCKS)
    order = _on_real_prompts(parts, 2, prompts)
    _on_real_prompts(parts, 1, [prompts[i] for i in order], BLOCK_SIZE, NUM_BLOCKS)
    return parts


def _on_real_prompts(parts: Parts, which: int, items: Sequence[Any], *rest: int) -> Any:
    """What a part says of real prompts. If it is wrong, leave out what is not needed to show it."""
    number, name, contract = CHECKS[which]
    answer = getattr(parts, name)

    def fault(some: Sequence[Any]) -> Any:
        given = Given(list(some), *rest)
        return contract.judge.fault(answer, given, contract.judge.expect(given))

    with held_output():
        wrong = fault(items)
        if wrong is None:
            return attempt(answer, list(items), *rest)
        left = list(items)
        for i in reversed(range(len(items))):
            fewer = left[:i] + left[i + 1 :]
            found = fault(fewer) if fewer else None
            if found is not None:
                left, wrong = fewer, found
    lengths = [len(item[1] if isinstance(item, tuple) else item) for item in left]
    raise Mismatch(
        f"`{name}` passes exercise {number}, but on real prompts it is wrong. {wrong.says}",
        input=f"{len(left)} of the prompts of exercise 8, of {lengths} tokens"
        + (f"; the other arguments: {', '.join(map(str, rest))}" if rest else ""),
        expected=(wrong.words or (describe(wrong.expected), ""))[0],
        got=(
            wrong.words
            or ("", wrong.got.says if isinstance(wrong.got, Raised) else describe(wrong.got))
        )[1],
        look=wrong.look or "Does it use the arguments that it is given, and nothing else?",
    )


def against_our_engine(parts: Parts) -> None:
    """The course's engine answers the customers; its counters must be as predicted."""
    requests = salted_requests()
    predicted = _ask(parts.predict_cached_tokens, requests, BLOCK_SIZE)
    _must_equal("The engine of Part I", predicted, our_count(), "six customers")


@functools.lru_cache(maxsize=1)
def our_count() -> list[int]:
    """Tokens of the customers' prompts that our engine found."""
    llm = LLM(
        BUNDLED, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, num_gpu_blocks_override=64
    )
    one = SamplingParams(temperature=0.0, max_tokens=1)
    outputs = [llm.generate(prompt, one, use_tqdm=False)[0] for prompt in _asked(salted_requests())]
    return [output.num_cached_tokens or 0 for output in outputs]


def against_vllm(parts: Parts) -> Passed:
    """vLLM runs the customers, then the tenants as they came, then in the learner's order."""
    requests, prompts = salted_requests(), tenant_prompts()
    order = [int(place) for place in _ask(parts.order_requests, prompts)]
    customers, turns, ordered = vllm_count(tuple(order))
    predicted = _ask(parts.predict_cached_tokens, requests, BLOCK_SIZE)
    _must_equal("vLLM", predicted, customers.found, "six customers")
    sent = [prompts[i] for i in order]
    for name, some, counted in (("taking turns", prompts, turns), ("in your order", sent, ordered)):
        predicted = _ask(parts.predict_with_eviction, some, BLOCK_SIZE, NUM_BLOCKS)
        _must_equal("vLLM", predicted, counted.found, f"18 prompts of six tenants, {name}")
    rates = []
    for counted, some in ((turns, prompts), (ordered, sent)):
        rate = _ask(parts.hit_rate, counted.before, counted.after)
        want = sum(counted.found) / sum(map(len, some))
        if not isinstance(rate, float) or abs(rate - want) > 1e-9:
            raise Mismatch(
                "`hit_rate` reads something else from vLLM's metrics.",
                input="the lines of the prefix cache, before and after 18 prompts:\n"
                + _cache_lines(counted.before)
                + "\n\n"
                + _cache_lines(counted.after),
                expected=f"{want:.4f}",
                got=describe(rate),
            )
        rates.append(rate)
    return Passed(
        "Your predictions are vLLM's counters, exactly: six customers with and without salts "
        f"({sum(customers.found)} tokens found), and 18 prompts of six tenants in a cache that is "
        f"too small for them. Taking turns, {rates[0]:.0%} of the tokens are found; in your order, "
        f"{rates[1]:.0%}. Your `hit_rate` read both from vLLM's metrics.",
        found_blocks(
            [p for _, p in requests],
            BLOCK_SIZE,
            customers.found,
            names=[salt or "no salt" for salt, _ in requests],
        ),
        "The customers' prompts in blocks, and which of them vLLM found.",
    )


@functools.lru_cache(maxsize=8)
def vllm_count(order: tuple[int, ...]) -> tuple[Counted, Counted, Counted]:
    """One vLLM, three lists of prompts: customers, tenants in turn, tenants in this order."""
    prompts = tenant_prompts()
    share = 0.3 if torch.cuda.is_available() else 0.0  # others may use the GPU as well
    dtype = "float16" if share else "bfloat16"
    arguments = EngineSettings(dtype, MAX_MODEL_LEN, gpu_memory_utilization=share).arguments() | {
        "block_size": BLOCK_SIZE,
        "enforce_eager": True,
    }
    with VllmSession() as vllm:
        # vLLM keeps one block for itself.
        vllm.start(resolve_model(BUNDLED), num_gpu_blocks_override=NUM_BLOCKS + 1, **arguments)

        def count(asked: Sequence[Any]) -> Counted:
            vllm.reset_prefix_cache()
            before = vllm.metrics_text()
            answers = vllm.generate(asked, max_tokens=1, one_by_one=True)
            return Counted(answers.num_cached_tokens, before, vllm.metrics_text())

        sent = [prompts[i] for i in order]
        return count(_asked(salted_requests())), count(prompts), count(sent)


def _asked(requests: list[Request]) -> list[Any]:
    return [
        {"prompt_token_ids": ids} | ({} if salt is None else {"cache_salt": salt})
        for salt, ids in requests
    ]


def _ask(function: Callable[..., Any], *args: Any) -> Any:
    """What the learner's function says, of copies."""
    with held_output():
        return attempt(function, *Given(*args).copied().args)


def _cache_lines(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("vllm:prefix_cache_"))


def _must_equal(who: str, predicted: list[int], counted: list[int], given: str) -> None:
    if list(predicted) != counted:
        raise Mismatch(
            f"{who} counted something else.",
            input=given,
            expected=f"`{counted}`",
            got=f"`{predicted}`",
        )
