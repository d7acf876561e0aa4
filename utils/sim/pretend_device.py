"""A device that computes nothing, and takes its time: it shows what Python does meanwhile."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from utils.engine import LLM, LLMEngine
from utils.engine.core.sched.output import ModelRunnerOutput, SchedulerOutput


class PretendDevice:
    """An executor in place of the model. Like a GPU, it needs none of this processor.

    Args:
        seconds: that a step takes, whatever is in it.
        token_id: that all requests get, in every step.
    """

    kv_cache = None

    def __init__(self, seconds: float, token_id: int) -> None:
        self.seconds, self.token_id = seconds, token_id
        self.last_hidden: dict[str, Tensor] = {}

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """See `Executor`."""
        time.sleep(self.seconds)
        tokens = {r.request_id: [self.token_id] for r in output.scheduled_requests if r.is_complete}
        return ModelRunnerOutput(tokens)


def engine_on_device(llm: LLM, seconds: float, **changes: Any) -> LLMEngine:
    """An engine whose steps take so many seconds on a pretend device. It records its steps.

    Args:
        llm: brings tokenizer and settings. Its model is not run.
        changes: fields of `EngineConfig` that are to differ from the LLM's.
    """
    engine = llm.new_engine({"enable_prefix_caching": False, **changes})
    (word,) = llm.get_tokenizer().encode(" the", add_special_tokens=False)
    engine.executor = engine.step_runner.executor = PretendDevice(seconds, word)
    engine.step_trace = []
    return engine
