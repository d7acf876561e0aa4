"""The engine's end of the ranks: workers in other processes, and an engine that runs on them.

One scheduler and one KV cache manager decide; each rank does the same steps with its own part of
the model, and in its own part of the same blocks. In vLLM: `v1/executor/multiproc_executor.py`.
"""

from __future__ import annotations

import itertools
import pickle
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from torch import Tensor

from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.config.parallel import ParallelConfig
from utils.engine.core.sched.output import ModelRunnerOutput, SchedulerOutput
from utils.engine.distributed.worker import Worker, call_worker, create_worker
from utils.engine.models.llama import LlamaOps
from utils.processes.ranks import RankProcesses

PROCESS_BYTES = 350 << 20  # of a Python that has imported PyTorch


class Workers:
    """A worker in each of several processes.

    Args:
        parallel: how long a rank may take.
        world_size: how many ranks.
        worker_cls: with the arguments it is made with.
    """

    def __init__(self, parallel: ParallelConfig, world_size: int, worker_cls: type, *args: Any):
        self.ranks = RankProcesses(world_size, parallel.rank_timeout)
        try:
            self.ranks.call(create_worker, worker_cls, *args)
        except BaseException:
            self.ranks.close()
            raise

    def collective_rpc(self, method: str, *args: Any, only_on: int | None = None) -> list[Any]:
        """Call a method of the worker on all ranks, or on one.

        Returns:
            What it returned on each rank; None from those that were not asked.

        Raises:
            RankError: one of them failed.
        """
        return self.ranks.send(pickle.dumps((call_worker, (only_on, method, *args), {})))

    def shutdown(self) -> None:
        self.ranks.close()


class ModelWorkers(Workers):
    """The workers of a model that several ranks run together.

    Args:
        path: the model's folder.
        config: its shape.
        engine: gives dtype and device.
        parallel: how many ranks.
        ops: functions to build the model from.

    Raises:
        ValueError: the model cannot be divided like this, or memory is short.
        RankError: a rank did not start, or could not read its part.
    """

    def __init__(
        self,
        path: Path,
        config: ModelConfig,
        engine: EngineConfig,
        parallel: ParallelConfig,
        ops: LlamaOps,
    ) -> None:
        parallel.check(config, engine.device)
        _check_memory(path, config, engine, parallel)
        self.config = config
        self.unused: list[int] = []  # runners whose engines are gone
        # The rank that samples: of the last stage, the first.
        self.answering_rank = parallel.world_size - parallel.tensor_parallel_size
        super().__init__(
            parallel,
            parallel.world_size,
            Worker,
            path,
            config,
            parallel,
            engine.dtype,
            str(engine.device),
            ops,
        )

    def collective_rpc(self, method: str, *args: Any, only_on: int | None = None) -> list[Any]:
        """See `Workers`."""
        while self.unused:
            super().collective_rpc("drop_runner", self.unused.pop())
        return super().collective_rpc(method, *args, only_on=only_on)


class MultiprocExecutor:
    """Computes an engine's steps on ranks, each with one message to all of them.

    Args:
        workers: of the model. Several engines may share them.
        engine: gives the size of the KV cache.
        sampler, rejection_sampler: see `ModelRunner`. They are sent to the ranks.

    Raises:
        RankError: see `Workers.collective_rpc`.
    """

    kv_cache = None  # it lies on the ranks
    _numbers = itertools.count()

    def __init__(
        self, workers: ModelWorkers, engine: EngineConfig, sampler: Any, rejection_sampler: Any
    ) -> None:
        self.workers, self.number = workers, next(self._numbers)
        self.hidden_states: dict[str, Tensor] = {}  # they stay on the ranks
        settings = replace(engine, speculative_config=None)  # guesses are made in this process
        workers.ranks.call(
            call_worker, None, "new_runner", self.number, settings, sampler, rejection_sampler
        )
        # The ranks are told later: Python may find an engine unused in the midst of a message.
        weakref.finalize(self, workers.unused.append, self.number)

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """See `ModelRunner`."""
        answers = self.workers.collective_rpc("execute_model", self.number, output)
        result: ModelRunnerOutput = answers[self.workers.answering_rank]
        return result


def _check_memory(
    path: Path, config: ModelConfig, engine: EngineConfig, parallel: ParallelConfig
) -> None:
    """Raise a ValueError if this machine has too little memory for all ranks."""
    on_disk = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    weights = on_disk * engine.dtype.itemsize // config.dtype.itemsize
    cache = engine.num_gpu_blocks * engine.block_size * config.kv_bytes_per_token(engine.dtype)
    needed = weights + cache + parallel.world_size * PROCESS_BYTES
    available = psutil.virtual_memory().available
    if engine.device.type == "cpu" and needed > available:
        raise ValueError(
            f"{parallel.world_size} ranks need about {needed / 1e9:.1f} GB, and "
            f"{available / 1e9:.1f} GB are available. Use fewer ranks, or a smaller "
            f"kv_cache_memory_bytes."
        )
