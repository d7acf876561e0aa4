"""Exercise 8: a learner's predictions against real counters, those of our engine and of vLLM."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from utils.checks.kit.contracts import Given
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.pictures.prefixes import prompts as found_blocks
from utils.checks.kit.runner import Mismatch, Passed, describe
from utils.engine.llm import LLM
from utils.engine.sampling_params import SamplingParams
from utils.hub import BUNDLED, load_tokenizer, resolve_model
from utils.pipeline.task.messages import generate
from utils.vllm.engine_settings import EngineSettings
from utils.vllm.session import VllmSession

Request = tuple[str | None, list[int]]  # salt, token ids

BLOCK_SIZE = 32  # the smallest of vLLM on a CPU
NUM_BLOCKS = 40  # for prompts of 6 tenants, whose shared parts alone have 42
MAX_MODEL_LEN = 512
RANDOM_LENGTHS = 48, 400  # tokens
NUM_ROUNDS = 5


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


@dataclass(frozen=True)
class Round:
    """Seconds to the first token, all measured one right after the other.

    Attributes:
        points: (tokens, seconds) of two random prompts, of which nothing was found
        customers: seconds of the six customers, sent without salts to the same cache
    """

    points: tuple[tuple[int, float], tuple[int, float]]
    customers: list[float]


_rounds: list[Round] = []


@functools.lru_cache(maxsize=1)
def salted_requests() -> list[Request]:
    """Six customers of the extraction task, two of them with a salt."""
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


def against_our_engine(parts: Parts) -> None:
    """The course's engine answers the customers; its counters must be as predicted."""
    predicted = ask(parts.predict_cached_tokens, salted_requests(), BLOCK_SIZE)
    must_equal("The engine of Part I", predicted, our_count(), "six customers")


@functools.lru_cache(maxsize=1)
def our_count() -> list[int]:
    """Tokens of the customers' prompts that our engine found."""
    llm = LLM(
        BUNDLED, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, num_gpu_blocks_override=64
    )
    one = SamplingParams(temperature=0.0, max_tokens=1)
    sent = with_salts(salted_requests())
    outputs = [llm.generate(prompt, one, use_tqdm=False)[0] for prompt in sent]
    return [output.num_cached_tokens or 0 for output in outputs]


def against_vllm(parts: Parts) -> Passed:
    """vLLM runs the customers, then the tenants as they came, then in the learner's order."""
    requests, prompts = salted_requests(), tenant_prompts()
    order = [int(place) for place in ask(parts.order_requests, prompts)]
    customers, turns, ordered = vllm_count(tuple(order))
    predicted = ask(parts.predict_cached_tokens, requests, BLOCK_SIZE)
    must_equal("vLLM", predicted, customers.found, "six customers")
    rates = []
    sent = [prompts[i] for i in order]
    for name, some, counted in (("taking turns", prompts, turns), ("in your order", sent, ordered)):
        predicted = ask(parts.predict_with_eviction, some, BLOCK_SIZE, NUM_BLOCKS)
        must_equal("vLLM", predicted, counted.found, f"18 prompts of six tenants, {name}")
        rates.append(rate_of(parts, counted, sum(counted.found) / sum(map(len, some))))
    return Passed(
        "Your predictions are vLLM's counters, exactly: for six customers with and without salts "
        f"({sum(customers.found)} tokens found), and for 18 prompts of six tenants in a cache that "
        f"is too small for them. When the tenants take turns, vLLM finds {rates[0]:.0%} of the "
        f"tokens. In your order, it finds {rates[1]:.0%}. Your `hit_rate` read both numbers from "
        "vLLM's metrics.",
        found_blocks(
            [p for _, p in requests],
            BLOCK_SIZE,
            customers.found,
            names=[salt or "no salt" for salt, _ in requests],
        ),
        "The customers' prompts in blocks, and which of the blocks vLLM found.",
    )


def rate_of(parts: Parts, counted: Counted, want: float) -> float:
    """What `hit_rate` reads from vLLM's metrics; it must be `want`, which single counts say."""
    rate = ask(parts.hit_rate, counted.before, counted.after)
    if isinstance(rate, float) and abs(rate - want) <= 1e-9:
        return rate
    lines = [
        "\n".join(line for line in text.splitlines() if line.startswith("vllm:prefix_cache_"))
        for text in (counted.before, counted.after)
    ]
    raise Mismatch(
        "`hit_rate` reads something else from vLLM's metrics.",
        input="the prefix cache's lines before and after 18 prompts:\n" + "\n\n".join(lines),
        expected=f"{want:.4f}",
        got=describe(rate),
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
        counts = count(with_salts(salted_requests())), count(prompts), count(sent)
        _rounds[:] = [measure(vllm) for _ in range(NUM_ROUNDS)]
    return counts


def measure(vllm: VllmSession) -> Round:
    """One round of times. Points and customers take turns, so a slow minute hits both."""
    vllm.reset_prefix_cache()
    random_ids = [[1000 + (n + k * k) % 20_000 for k in range(n)] for n in RANDOM_LENGTHS]
    customers = [ids for _, ids in salted_requests()]
    answers = vllm.generate([*random_ids, *customers], max_tokens=1, one_by_one=True)
    short, long, *seconds = answers.ttfts
    return Round(((RANDOM_LENGTHS[0], short), (RANDOM_LENGTHS[1], long)), seconds)


def ttft_rounds() -> list[Round]:
    """The times that the check of exercise 8 measured at its end, while its vLLM was running.

    Raises:
        RuntimeError: the check has not been run in this process.
    """
    if not _rounds:
        raise RuntimeError("Nothing is measured yet. Run the check of exercise 8 first.")
    return list(_rounds)


def with_salts(requests: list[Request]) -> list[Any]:
    """Prompts as vLLM, and our engine, take them."""
    return [
        {"prompt_token_ids": ids} | ({} if salt is None else {"cache_salt": salt})
        for salt, ids in requests
    ]


def ask(function: Callable[..., Any], *args: Any) -> Any:
    """What the learner's function says, of copies."""
    with held_output():
        return attempt(function, *Given(*args).copied().args)


def must_equal(who: str, predicted: list[int], counted: list[int], given: str) -> None:
    """The learner's prediction must be what an engine counted."""
    if list(predicted) != counted:
        raise Mismatch(
            f"{who} counted something else.",
            input=given,
            expected=f"`{counted}`",
            got=f"`{predicted}`",
        )
