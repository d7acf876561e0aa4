"""Decode at batch 1: this engine against Hugging Face `generate`, in one process, by turns.

Both have the same model, the same prompt and the same number of new tokens, and neither is
compiled. A run of one is always followed by a run of the other, and the ratio is taken within
such a pair, so that a machine that slows down for a while slows both. A run with one new token is
subtracted from one with many, so prefill and set-up do not count.

    python benchmarks/decode_batch1.py [--pairs 7] [--new-tokens 64]

writes `results/decode_batch1.json`.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import write_report  # noqa: E402
from utils.engine import LLM, SamplingParams  # noqa: E402
from utils.hub import load_hf_model  # noqa: E402

PROMPT = "Write a long story about a dragon and a knight who become friends."
SEED = 0


def seconds_per_token(generate: Callable[[int], list[int]], new_tokens: int) -> float:
    """Time of one decode step: the many-token run less the one-token run, per further token."""
    times = []
    for count in (1, new_tokens):
        start = time.perf_counter()
        answer = generate(count)
        times.append(time.perf_counter() - start)
        assert len(answer) == count
    return (times[1] - times[0]) / (new_tokens - 1)


def measure(dtype: str, pairs: int, new_tokens: int) -> dict[str, Any]:
    llm = LLM(dtype=dtype, device="cpu", seed=SEED)
    hf = load_hf_model(dtype=getattr(torch, dtype), device="cpu")
    ids = llm.get_tokenizer()(PROMPT).input_ids
    batch = torch.tensor([ids])

    def ours(count: int) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        return llm.generate(ids, params, use_tqdm=False)[0].outputs[0].token_ids

    @torch.inference_mode()
    def theirs(count: int) -> list[int]:
        out = hf.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
        )
        return out[0, len(ids) :].tolist()

    same = ours(new_tokens) == theirs(new_tokens)  # warms both up, too
    runs = []
    for i in range(pairs):
        order = (ours, theirs) if i % 2 == 0 else (theirs, ours)
        seconds = {run.__name__: seconds_per_token(run, new_tokens) for run in order}
        runs.append((seconds["ours"], seconds["theirs"]))
        print(f"{dtype} pair {i + 1}: {runs[-1][0] * 1e3:.1f} ms, HF {runs[-1][1] * 1e3:.1f} ms")
    weight_bytes = sum(p.nbytes for p in llm.model.parameters())
    median = statistics.median(a for a, _ in runs)
    return {
        "ms_per_token": median * 1e3,
        "hf_ms_per_token": statistics.median(b for _, b in runs) * 1e3,
        "speedup_over_hf": statistics.median(b / a for a, b in runs),
        "weights_read_gb_per_s": weight_bytes / median / 1e9,
        "same_tokens": same,
        "pairs_ms": [[a * 1e3, b * 1e3] for a, b in runs],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(SEED)
    results = {}
    for dtype in ("float32", "bfloat16"):
        results[dtype] = measure(dtype, args.pairs, args.new_tokens)
        gc.collect()
    write_report(
        "decode_batch1",
        results,
        ["transformers"],
        benchmark="decode at batch 1, this engine against Hugging Face generate",
        model="SmolLM2-135M-Instruct",
        prompt=PROMPT,
        new_tokens=args.new_tokens,
        seed=SEED,
    )
    for dtype, result in results.items():
        print(f"{dtype}: {result['speedup_over_hf']:.2f} times as fast as Hugging Face")


if __name__ == "__main__":
    main()
