"""What a rank does when the engine asks it to. In vLLM: `v1/worker/gpu_worker.py`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.config.parallel import ParallelConfig
from utils.engine.core.sched.output import ModelRunnerOutput, SchedulerOutput
from utils.engine.distributed.layers import ParallelOps
from utils.engine.distributed.parallel_llama import StageRun, load_parallel_model
from utils.engine.distributed.parallel_state import initialize_model_parallel
from utils.engine.distributed.shard import Shard
from utils.engine.models.llama import LlamaOps
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.sample.sampler import Sampler
from utils.engine.worker.model_runner import ModelRunner


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that a rank holds."""

    weights: int
    kv_cache: int


class Worker:
    """This rank's part of the model, and a model runner for each engine that runs on it.

    Args:
        path: the model's folder.
        model: its shape.
        parallel: how many ranks there are.
        dtype, device, ops: see `load_model`.
    """

    def __init__(
        self,
        path: Path,
        model: ModelConfig,
        parallel: ParallelConfig,
        dtype: torch.dtype,
        device: str,
        ops: LlamaOps,
    ) -> None:
        parallel_ops = parallel.parallel_ops or ParallelOps()
        tp, pp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        self.state = initialize_model_parallel(tp, pp, parallel_ops.all_reduce)
        tp_rank, stage = self.state.tp.rank_in_group, self.state.pp.rank_in_group
        shard = Shard(model, tp_rank, tp, stage, pp)
        self.model = load_parallel_model(path, shard, self.state, dtype, device, ops, parallel_ops)
        self.runners: dict[int, ModelRunner] = {}

    def new_runner(
        self,
        number: int,
        engine: EngineConfig,
        sampler: Sampler,
        rejection_sampler: RejectionSampler,
    ) -> None:
        """For one more engine: blocks as everywhere, of this rank's layers and KV heads."""
        kv_cache = PagedKVCache.for_engine(self.model.config, engine)
        self.runners[number] = ModelRunner(
            self.model, sampler, kv_cache, rejection_sampler, seed=engine.seed
        )

    def drop_runner(self, number: int) -> None:
        self.runners.pop(number, None)

    def execute_model(self, number: int, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute a step of one of the engines (see `ModelRunner`). The first rank of the last
        stage gets all the scores, and samples; what the others return is empty."""
        runner = self.runners[number]
        return runner.execute_model(output)

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor | None:
        """Scores [T, vocab_size] after each token of a text; None on the ranks without them."""
        ids = torch.tensor(token_ids)
        hidden = self.model(ids, torch.arange(len(ids)))
        scores = None if hidden is None else self.model.compute_logits(hidden)
        return scores if scores is not None and scores.numel() else None

    # --- for those who want to know --------------------------------------------------------------

    def set_num_micro_batches(self, num_micro_batches: int) -> None:
        """Let a pipeline cut each batch into so many parts."""
        self.model.num_micro_batches = num_micro_batches

    def take_timeline(self) -> list[StageRun]:
        """What this stage did since the last call."""
        runs = list(self.model.timeline)
        self.model.timeline.clear()
        return runs

    def sent_bytes(self) -> dict[str, Counter[str]]:
        """Bytes that this rank has sent so far, by group and operation."""
        state = self.state
        return {"tp": state.tp.sent_bytes, "pp": state.pp.sent_bytes, "ep": state.ep.sent_bytes}

    def memory(self) -> MemoryUse:
        weights = sum(parameter.nbytes for parameter in self.model.parameters())
        caches: list[Any] = [runner.kv_cache for runner in self.runners.values()]
        return MemoryUse(weights, sum(cache.nbytes for cache in caches))


_worker: Any = None  # of this process


def create_worker(cls: type, *args: Any) -> None:
    """Make this process's worker. It stays there for `call_worker`."""
    global _worker
    _worker = cls(*args)
    dist.barrier()


def call_worker(only_on: int | None, method: str, *args: Any) -> Any:
    """Call a method of the worker; with `only_on`, on that rank, and nothing on the others."""
    if only_on is None or only_on == dist.get_rank():
        return getattr(_worker, method)(*args)
    return None
