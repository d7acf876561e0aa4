"""Where an engine's steps are computed.

In this process that is the model runner itself; on several ranks, one in each of their processes
(`distributed/executor.py`). In vLLM: `v1/executor/abstract.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from utils.engine.attention.kv_cache import KVCache
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.core.sched.output import ModelRunnerOutput, SchedulerOutput


class Executor(Protocol):
    """Computes what was scheduled.

    Attributes:
        hidden_states: see `ModelRunner`. Empty where the model is in other processes.
        kv_cache: see `ModelRunner`. None where it is in other processes.
    """

    @property
    def hidden_states(self) -> dict[str, Tensor]: ...

    @property
    def kv_cache(self) -> PagedKVCache | Mapping[str, KVCache] | None: ...

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput: ...
