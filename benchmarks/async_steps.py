"""What asynchronous scheduling gains: the time of a decode step with it and without, by turns.

    python benchmarks/async_steps.py [--rounds 5] [--name NAME]

writes `results/NAME.json` (NAME: async_steps). Takes some five minutes.

A step is two times: s, which Python needs to schedule it and to book what came of it, and f, which
the model needs. A step at a time takes s + f. With async scheduling the next step is scheduled
while the model runs, so a step should take max(s, f). Both are measured with a step at a time.

- "model": the bundled model on this processor, with our C++ kernels. While they run, Python has
  nothing to do, but they have no core to spare either.
- "device": a pretend device in place of the model. It takes f without any of this processor, as a
  GPU would, and all write one word.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import write_report  # noqa: E402
from utils.engine import LLM, SamplingParams  # noqa: E402
from utils.engine.core.step_record import StepRecord  # noqa: E402
from utils.profiles import fast_dtype  # noqa: E402
from utils.sim.batching import engine_on_device  # noqa: E402

STEPS, WARM_UP = 40, 4
BATCHES = (1, 16, 64)
DEVICE_MS = (1, 3, 10)


def decode_steps(llm: LLM, batch: int, is_async: bool, device_ms: float | None) -> list[StepRecord]:
    """The records of the steps in which all requests decode, the first of them left out."""
    changes = {
        "async_scheduling": is_async,
        "enable_prefix_caching": False,
        "max_num_seqs": batch,
        "max_num_batched_tokens": 64 * batch,
    }
    if device_ms is None:
        engine = llm.new_engine(changes)
        engine.step_trace = []
    else:
        engine = engine_on_device(llm, device_ms / 1000, **changes)
    params = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True)
    for i in range(batch):
        engine.add_request(str(i), [1000 + i, *range(300, 331)], params)
    while engine.has_unfinished_requests():
        engine.advance()
    full = [record for record in engine.step_trace if len(record.tokens) == batch]
    return [r for r in full if all(t.num_new == 1 for t in r.tokens.values())][WARM_UP:]


def compare(llm: LLM, batch: int, device_ms: float | None, rounds: int) -> dict[str, Any]:
    """Milliseconds: s and f of a step at a time, the step both ways, and what was predicted."""
    found: dict[str, list[float]] = {"s": [], "f": [], "one at a time": [], "ahead": []}
    for round_ in range(rounds):
        for is_async in (False, True) if round_ % 2 else (True, False):
            records = decode_steps(llm, batch, is_async, device_ms)
            ends = [record.end for record in records]
            step = 1000 * statistics.median(b - a for a, b in itertools.pairwise(ends))
            found["ahead" if is_async else "one at a time"].append(step)
            if not is_async:
                f = 1000 * statistics.median(r.executed - r.started for r in records)
                found["f"].append(f)
                found["s"].append(step - f)
    ratios = [b / a for a, b in zip(found["one at a time"], found["ahead"], strict=True)]
    middle = {name: statistics.median(values) for name, values in found.items()}
    return {
        **middle,
        "predicted": max(middle["s"], middle["f"]),
        "ratios": sorted(ratios),  # ahead, of one at a time, round by round
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default="async_steps", help="of the file in results/")
    options = parser.parse_args()
    dtype = str(fast_dtype()).removeprefix("torch.")
    llm = LLM(dtype=dtype, device="cpu", max_model_len=256, kernels="cpp")
    cases = [("model", batch, None) for batch in BATCHES]
    cases += [("device", batch, ms) for batch in BATCHES for ms in DEVICE_MS]
    results: dict[str, Any] = {}
    for kind, batch, ms in tqdm(cases, desc="cases"):
        name = f"{kind}, {batch} requests" + (f", {ms} ms" if ms is not None else "")
        results[name] = found = compare(llm, batch, ms, options.rounds)
        numbers = ", ".join(f"{key} {value:.2f}" for key, value in found.items() if key != "ratios")
        tqdm.write(f"{name}: {numbers} ms; ratios {[round(r, 3) for r in found['ratios']]}")
    print(write_report(options.name, results, ["transformers"], dtype=dtype, steps=STEPS))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
