"""A learner's predictors against real counters, our engine's and vLLM's: exercise 8 of lab 13."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from utils.checks.kit.prefix_pictures import prompts as found_blocks
from utils.checks.kit.runner import Mismatch, Passed, call, describe
from utils.checks.lab_13.hits import Request, ints
from utils.engine.llm import LLM
from utils.engine.sampling_params import SamplingParams
from utils.hub import BUNDLED, load_tokenizer, resolve_model
from utils.pipeline.task.data import generate
from utils.pipeline.vllm.engine_settings import EngineSettings
from utils.pipeline.vllm.session import VllmSession
from utils.sim.prompt_cache import find_cached_tokens

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


def salted_requests() -> list[Request]:
    """Six customers of the extraction task; the fourth and fifth belong to another tenant."""
    tokenizer = load_tokenizer(BUNDLED)
    texts = tokenizer.apply_chat_template(
        [example.messages() for example in generate("held_out", 6)],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
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
    """Ask every part once, and all of them on the real prompts; nothing is started for that.

    Here also parts that are not written yet say so.
    """
    parts = call(make_parts)
    if not isinstance(parts, Parts):
        raise Mismatch("`my_parts` must return `Parts`, as the cell above does.")
    requests, prompts = salted_requests(), tenant_prompts()
    given = "six customers, two of them with the salt of another tenant"
    got = ints(call(parts.predict_cached_tokens, list(requests), BLOCK_SIZE, given=given),
               len(requests), given)  # fmt: skip
    want = find_cached_tokens([p for _, p in requests], BLOCK_SIZE, salts=[s for s, _ in requests])
    _must_equal("predict_cached_tokens", got, want, given)
    given = f"18 prompts of six tenants that take turns, {NUM_BLOCKS} blocks"
    got = _evicting(parts, prompts, given)
    _must_equal("predict_with_eviction", got,
                find_cached_tokens(prompts, BLOCK_SIZE, NUM_BLOCKS), given)  # fmt: skip
    order = _order_of(parts, prompts)
    given = "the same prompts in the order of `order_requests`"
    ordered = [prompts[i] for i in order]
    want = find_cached_tokens(ordered, BLOCK_SIZE, NUM_BLOCKS)
    _must_equal("predict_with_eviction", _evicting(parts, ordered, given), want, given)
    if sum(want) <= sum(got):
        raise Mismatch("In the order of your `order_requests`, no more tokens would be found.",
                       input=given, expected=f"more than {sum(got)}", got=f"{sum(want)}",
                       look="Bring `order_requests` through its own check first.")  # fmt: skip
    text = 'vllm:prefix_cache_{}_total{{engine="0",model_name="m"}} {}\n'
    before, after = (
        "".join(text.format(*pair) for pair in pairs)
        for pairs in (
            (("queries", 100.0), ("hits", 50.0)), (("queries", 200.0), ("hits", 125.0)),
        )
    )  # fmt: skip
    given = "from 100 queries and 50 hits to 200 and 125"
    rate = call(parts.hit_rate, before, after, given=given)
    if not isinstance(rate, float) or abs(rate - 0.75) > 1e-9:
        raise Mismatch("`hit_rate` is wrong on the simplest pair of scrapes.", input=given,
                       expected="`0.75`", got=describe(rate),
                       look="Bring `hit_rate` through its own check first.")  # fmt: skip
    return parts


def against_our_engine(parts: Parts) -> None:
    """The course's engine answers the customers; its counters must be as predicted."""
    requests = salted_requests()
    predicted = call(parts.predict_cached_tokens, list(requests), BLOCK_SIZE)
    _must_equal("The engine of Part I", predicted, our_count(), "six customers", what="counted")


@functools.lru_cache(maxsize=1)
def our_count() -> list[int]:
    """Tokens of the customers' prompts that our engine found."""
    llm = LLM(
        BUNDLED, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, num_gpu_blocks_override=64
    )
    one = SamplingParams(temperature=0.0, max_tokens=1)
    asked: list[Any] = [
        {"prompt_token_ids": ids} | ({} if salt is None else {"cache_salt": salt})
        for salt, ids in salted_requests()
    ]
    outputs = [llm.generate(prompt, one, use_tqdm=False)[0] for prompt in asked]
    return [output.num_cached_tokens or 0 for output in outputs]


def against_vllm(parts: Parts) -> Passed:
    """vLLM runs the customers, then the tenants as they came, then in the learner's order."""
    requests, prompts = salted_requests(), tenant_prompts()
    order = _order_of(parts, prompts)
    customers, turns, ordered = vllm_count(tuple(order))
    predicted = call(parts.predict_cached_tokens, list(requests), BLOCK_SIZE)
    _must_equal("vLLM", predicted, customers.found, "six customers", what="counted")
    sent = [prompts[i] for i in order]
    for name, some, counted in (("taking turns", prompts, turns), ("in your order", sent, ordered)):
        _must_equal("vLLM", _evicting(parts, some, name), counted.found,
                    f"18 prompts of six tenants, {name}", what="counted")  # fmt: skip
    rates = []
    for counted, some in ((turns, prompts), (ordered, sent)):
        rate = call(parts.hit_rate, counted.before, counted.after, given="vLLM's own metrics")
        want = sum(counted.found) / sum(map(len, some))
        if not isinstance(rate, float) or abs(rate - want) > 1e-9:
            raise Mismatch("`hit_rate` reads something else from vLLM's metrics.",
                           input="vLLM's own metrics, before and after 18 prompts",
                           expected=f"{want:.4f}", got=describe(rate))  # fmt: skip
        rates.append(rate)
    return Passed(
        "Your predictions are vLLM's counters, exactly: six customers with and without salts "
        f"({sum(customers.found)} tokens found), and 18 prompts of six tenants in a cache that is "
        f"too small for them. Taking turns, {rates[0]:.0%} of the tokens are found; in your order, "
        f"{rates[1]:.0%}. Your `hit_rate` read both from vLLM's metrics.",
        found_blocks([p for _, p in requests], BLOCK_SIZE, customers.found,
                     names=[salt or "no salt" for salt, _ in requests]),
        "The customers' prompts in blocks, and which of them vLLM found.",
    )  # fmt: skip


@functools.lru_cache(maxsize=8)
def vllm_count(order: tuple[int, ...]) -> tuple[Counted, Counted, Counted]:
    """One vLLM, three lists of prompts: customers, tenants in turn, tenants in this order."""
    prompts = tenant_prompts()
    customers = [
        {"prompt_token_ids": ids} | ({} if salt is None else {"cache_salt": salt})
        for salt, ids in salted_requests()
    ]
    share = 0.3 if torch.cuda.is_available() else 0.0  # others may use the GPU as well
    dtype = "float16" if share else "bfloat16"
    arguments = EngineSettings(
        dtype, MAX_MODEL_LEN, gpu_memory_utilization=share
    ).arguments() | {"block_size": BLOCK_SIZE, "enforce_eager": True}  # fmt: skip
    with VllmSession() as vllm:
        # vLLM keeps one block for itself.
        vllm.start(resolve_model(BUNDLED), num_gpu_blocks_override=NUM_BLOCKS + 1, **arguments)

        def count(asked: Sequence[Any]) -> Counted:
            vllm.reset_prefix_cache()
            before = vllm.metrics_text()
            answers = vllm.generate(asked, max_tokens=1, one_by_one=True)
            return Counted(answers.num_cached_tokens, before, vllm.metrics_text())

        return count(customers), count(prompts), count([prompts[i] for i in order])


def _evicting(parts: Parts, prompts: list[list[int]], given: str) -> list[int]:
    copies = [list(prompt) for prompt in prompts]
    got = call(parts.predict_with_eviction, copies, BLOCK_SIZE, NUM_BLOCKS, given=given)
    return ints(got, len(prompts), given)


def _order_of(parts: Parts, prompts: list[list[int]]) -> list[int]:
    order = call(parts.order_requests, [list(p) for p in prompts], given="18 prompts")
    if not isinstance(order, list) or sorted(order) != list(range(len(prompts))):
        raise Mismatch("`order_requests` must return each place once.", got=describe(order),
                       look="Bring `order_requests` through its own check first.")  # fmt: skip
    return order


def _must_equal(
    who: str, got: list[int], want: list[int], given: str, what: str = "is wrong here"
) -> None:
    if got == want:
        return
    if what == "counted":
        raise Mismatch(f"{who} counted something else.", input=given, expected=f"`{want}`",
                       got=f"`{got}`")  # fmt: skip
    raise Mismatch(
        f"`{who}` {what}: the numbers differ from the block manager's.", input=given,
        expected=f"`{want}`", got=f"`{got}`",
        look=f"Bring `{who}` through its own check first. Does it use the `block_size` that it is "
        "given?",
    )  # fmt: skip
