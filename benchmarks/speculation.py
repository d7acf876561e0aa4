"""What guessing ahead gains on the course's own task: one request at a time, with and without.

    python benchmarks/speculation.py [--name NAME]

writes `results/NAME.json` (NAME: speculation). Takes about 7 minutes. The target is the model that
the pipeline fine-tuned for the task, so `make pipeline` comes first. All ways run by turns, and
each answers the same customers' messages; a speed-up is a ratio within a round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from tqdm.auto import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import write_report  # noqa: E402
from utils.engine import LLM, SamplingParams, SpeculativeConfig  # noqa: E402
from utils.pipeline.__main__ import default_out  # noqa: E402
from utils.pipeline.drafts.distill import ensure_draft_model  # noqa: E402
from utils.pipeline.task.messages import generate  # noqa: E402

PLAIN = "plain"
ANSWERS, ROUNDS, MAX_TOKENS = 8, 2, 80


def ways(draft_model: Path) -> dict[str, SpeculativeConfig]:
    """The guessers that are compared, by name."""
    of_draft = {
        f"draft model, k = {k}": SpeculativeConfig("draft_model", k, model=draft_model)
        for k in (3, 5, 6)
    }
    adaptive = SpeculativeConfig("draft_model", 8, model=draft_model, adaptive=True)
    ngram = SpeculativeConfig("ngram", 4)
    return {"ngram, k = 4": ngram} | of_draft | {"draft model, k up to 8": adaptive}


def compare(llm: LLM, guessers: dict[str, SpeculativeConfig], bar: tqdm) -> dict[str, Any]:
    """Seconds of each round, and what came of the guesses, by the guesser's name."""
    engines = {PLAIN: llm.llm_engine} | {
        name: llm.new_engine(changes={"speculative_config": config})
        for name, config in guessers.items()
    }
    messages = [example.messages() for example in generate("held_out", ANSWERS)]
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    runs: list[dict[str, float]] = []
    answers: dict[str, list[str]] = {}
    for i in range(ROUNDS + 1):  # the first round warms up
        runs.append({})
        for name, engine in list(engines.items())[:: 1 if i % 2 else -1]:
            bar.set_description(f"{llm.config.dtype}: {name}")
            llm.llm_engine = engine
            start = perf_counter()
            answers[name] = [
                llm.chat(message, params, use_tqdm=False)[0].outputs[0].text for message in messages
            ]
            runs[-1][name] = perf_counter() - start
            bar.update()
    result: dict[str, Any] = {PLAIN: {"seconds": [run[PLAIN] for run in runs[1:]]}}
    for name in guessers:
        stats = engines[name].spec_decoding_stats
        result[name] = {
            "seconds": [run[name] for run in runs[1:]],
            "speedup": statistics.median(run[PLAIN] / run[name] for run in runs[1:]),
            "acceptance_rate": stats.acceptance_rate,
            "mean_acceptance_length": stats.mean_acceptance_length,
            "same_answers": sum(a == b for a, b in zip(answers[PLAIN], answers[name], strict=True)),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="speculation", help="of the file in results/")
    args = parser.parse_args()
    target = default_out() / "merge" / "model"
    if not target.is_dir():
        parser.error(f"{target} is missing: the fine-tuned model is the target. Run: make pipeline")
    guessers, results = ways(ensure_draft_model()), {}
    with tqdm(total=2 * (ROUNDS + 1) * (len(guessers) + 1), unit="run") as bar:
        for dtype in ("bfloat16", "float32"):
            llm = LLM(target, dtype=dtype, device="cpu", max_model_len=1024, kernels="cpp")
            results[dtype] = compare(llm, guessers, bar)
            for name in guessers:
                tqdm.write(f"{dtype}, {name}: {results[dtype][name]['speedup']:.2f} x plain")
    write_report(
        args.name,
        results,
        ["transformers"],
        model="SmolLM2-135M-Instruct, fine-tuned",
        answers=ANSWERS,
        max_tokens=MAX_TOKENS,
    )


if __name__ == "__main__":
    main()
