"""What the engine's own work costs: scheduling a step, and booking what came of it."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from utils.engine import LLM, SamplingParams  # noqa: E402
from utils.engine.core.sched.output import ModelRunnerOutput  # noqa: E402


def scheduler_cost(
    prompts: list[list[int]], batches: tuple[int, ...], steps: int = 32
) -> dict[str, Any]:
    """Microseconds per step that scheduling and booking take; no model runs; all write one word."""
    llm = LLM(dtype="float32", device="cpu", max_model_len=512)
    (word,) = llm.get_tokenizer().encode(" the", add_special_tokens=False)
    params = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
    result = {}
    for batch in batches:
        engine = llm.new_engine(
            changes={
                "max_num_seqs": batch,
                "max_num_batched_tokens": 300 * batch,
                "num_gpu_blocks": 8 * batch + 32,  # the prefix is shared
            }
        )
        engine.executor.execute_model = lambda output: ModelRunnerOutput(  # type: ignore[method-assign]
            {request.request_id: [word] for request in output.scheduled_requests}
        )
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
