"""What the engine's own parts cost and save: scheduling, and guessing tokens ahead."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from utils.engine import LLM, SamplingParams, SpeculativeConfig  # noqa: E402
from utils.engine.worker.model_runner import SampledToken  # noqa: E402
from utils.pipeline.drafts.distill import ensure_draft_model  # noqa: E402
from utils.pipeline.task.data import generate  # noqa: E402


def scheduler_cost(
    prompts: list[list[int]], batches: tuple[int, ...], steps: int = 32
) -> dict[str, Any]:
    """Microseconds per step that scheduling and booking take; no model runs; all write one word."""
    llm = LLM(dtype="float32", device="cpu", max_model_len=512)
    (word,) = llm.get_tokenizer().encode(" the", add_special_tokens=False)
    params = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
    result = {}
    for batch in batches:
        engine = llm.new_engine(changes={
            "max_num_seqs": batch, "max_num_batched_tokens": 300 * batch,
            "num_gpu_blocks": 8 * batch + 32,  # the prefix is shared
        })  # fmt: skip
        engine.runner.execute_model = lambda output: [  # type: ignore[method-assign]
            SampledToken(request, word, None) for request in output.scheduled_requests
        ]
        engine.step_trace = []
        for i, prompt in enumerate(prompts[:batch]):
            engine.add_request(str(i), prompt, params)
        while engine.has_unfinished_requests():
            engine.advance()
        decode = [r for r in engine.step_trace if all(t.num_new == 1 for t in r.tokens.values())]
        result[str(batch)] = 1e6 * statistics.median(
            (r.scheduled - r.start) + (r.processed - r.executed) for r in decode
        )
    return result


def scheduler_share(dtype: str, prompts: list[list[int]], batch: int = 64) -> float:
    """The part of a decode step's time that scheduling and booking take, with the real model."""
    llm = LLM(dtype=dtype, device="cpu", max_model_len=512, kernels="cpp")
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    llm.llm_engine.step_trace = []
    llm.generate(prompts[:batch], params, use_tqdm=False)
    decode = [r for r in llm.llm_engine.step_trace if len(r.tokens) == batch][2:]
    return statistics.median(
        ((r.scheduled - r.start) + (r.processed - r.executed)) / (r.end - r.start) for r in decode
    )


def speculation(dtype: str, num_examples: int, pairs: int) -> dict[str, Any]:
    """Seconds for the course's extraction task at batch 1, plain and with guesses, by turns.

    The fine-tuned model where the pipeline has made one, else the bundled one.
    """
    tuned = ROOT / "artifacts" / "merge" / "model"
    model = tuned if tuned.is_dir() else "bundled"
    llm = LLM(model, dtype=dtype, device="cpu", max_model_len=1024, kernels="cpp")
    guessers = {
        "ngram, k = 4": SpeculativeConfig("ngram", 4),
        "draft model, k = 3": SpeculativeConfig("draft_model", 3, model=ensure_draft_model()),
    }
    engines = {"plain": llm.llm_engine} | {
        name: llm.new_engine(changes={"speculative_config": config})
        for name, config in guessers.items()
    }
    messages = [example.messages() for example in generate("held_out", num_examples)]
    params = SamplingParams(temperature=0, max_tokens=80)
    runs: list[dict[str, float]] = []
    answers: dict[str, list[str]] = {}
    for i in range(pairs + 1):  # the first round warms up
        runs.append({})
        for name, engine in list(engines.items())[:: 1 if i % 2 else -1]:
            llm.llm_engine = engine
            start = perf_counter()
            answers[name] = [
                llm.chat(message, params, use_tqdm=False)[0].outputs[0].text for message in messages
            ]
            runs[-1][name] = perf_counter() - start
    result: dict[str, Any] = {
        "model": "fine-tuned" if tuned.is_dir() else "bundled",
        "answers": num_examples,
        "seconds": {name: statistics.median(run[name] for run in runs[1:]) for name in engines},
    }
    for name in guessers:
        stats = engines[name].spec_decoding_stats
        pairs_of_answers = zip(answers["plain"], answers[name], strict=True)
        result[name] = {
            "speedup": statistics.median(run["plain"] / run[name] for run in runs[1:]),
            "acceptance_rate": stats.acceptance_rate,
            "mean_acceptance_length": stats.mean_acceptance_length,
            "same_answers": sum(a == b for a, b in pairs_of_answers),
        }
    return result
