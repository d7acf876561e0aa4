"""The engine's end of the ranks: a model and a KV cache that live in other processes.

One scheduler and one KV cache manager decide; each rank does the same steps with its own part of
the model, and in its own part of the same blocks. In vLLM: `v1/executor/multiproc_executor.py`.
"""

from __future__ import annotations

import itertools
import pickle
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from torch import Tensor

from utils.engine.attention.batch import PagedBatch
from utils.engine.attention.paged_attention import AttentionMetadata
from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.config.parallel import ParallelConfig
from utils.engine.core.kv_cache_utils import BlockCopies
from utils.engine.distributed.launcher import RankProcesses
from utils.engine.distributed.worker import MemoryUse, StageRun, Worker, call_worker, create_worker
from utils.engine.models.llama import LlamaOps

PROCESS_BYTES = 350 << 20  # of a Python that has imported PyTorch


class MultiprocExecutor:
    """Runs a method of the worker on all ranks.

    Args:
        parallel: how many ranks.
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


class RemotePagedKVCache:
    """Stands for the ranks' caches: each has the same blocks, of its own layers and KV heads."""

    _numbers = itertools.count()

    def __init__(
        self,
        executor: MultiprocExecutor,
        num_gpu_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_cpu_blocks: int = 0,
    ) -> None:
        self.executor, self.number = executor, next(self._numbers)
        self.num_gpu_blocks, self.block_size = num_gpu_blocks, block_size
        self.keys = torch.empty(0)  # batches are made here, on this process's device
        executor.collective_rpc(
            "new_kv_cache", self.number, num_gpu_blocks, block_size, dtype, device, num_cpu_blocks
        )
        weakref.finalize(self, _free_cache, executor, self.number)

    @property
    def nbytes(self) -> int:
        """Bytes of all ranks' parts of all caches."""
        uses: list[MemoryUse] = self.executor.collective_rpc("memory")
        return sum(use.kv_cache for use in uses)

    def copy_blocks(self, copies: BlockCopies) -> None:
        if copies.swap_out or copies.copy or copies.swap_in:
            self.executor.collective_rpc("copy_blocks", self.number, copies)

    def move(self, from_slots: list[int], to_slots: list[int]) -> None:
        self.executor.collective_rpc("move", self.number, from_slots, to_slots)


def _free_cache(executor: MultiprocExecutor, number: int) -> None:
    if executor.ranks.alive:
        executor.collective_rpc("free_kv_cache", number)


class ParallelModel:
    """A model that several ranks run together. The engine takes it as any other.

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
        self.config, self.ops, self.parallel = config, ops, parallel
        self.num_micro_batches = 1
        self.executor = MultiprocExecutor(
            parallel, parallel.world_size, Worker,
            path, config, parallel, engine.dtype, str(engine.device), ops,
        )  # fmt: skip
        # Where batches are made and tokens are sampled.
        self.lm_head = SimpleNamespace(weight=torch.empty(0, dtype=engine.dtype))
        # The rank that answers: of the last stage, the first.
        self._answers = parallel.world_size - parallel.tensor_parallel_size

    def new_kv_cache(self, _: ModelConfig, *settings: Any) -> RemotePagedKVCache:
        return RemotePagedKVCache(self.executor, *settings)

    def __call__(self, input_ids: Tensor, positions: Tensor, batch: Any) -> Tensor:
        """As `LlamaForCausalLM`: hidden states [T, hidden]."""
        if not isinstance(batch, PagedBatch):
            raise ValueError("Several ranks need a paged KV cache.")
        cache: Any = batch.kv_cache
        # Views of one tensor would be sent with all of it, each time.
        metadata = AttentionMetadata(
            batch.metadata.query_lens, batch.metadata.seq_lens,
            [table.clone() for table in batch.metadata.block_tables],
            batch.metadata.slot_mapping.clone(), batch.metadata.tree_masks,
        )  # fmt: skip
        answers = self.executor.collective_rpc(
            "forward", cache.number, input_ids.clone(), positions.clone(), metadata,
            self.num_micro_batches,
        )  # fmt: skip
        return answers[self._answers]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """As `LlamaForCausalLM`: scores [N, vocab_size]."""
        return self.executor.collective_rpc("compute_logits", hidden)[self._answers]

    def sent_bytes(self) -> list[dict[str, Counter[str]]]:
        """What each rank has sent so far, by group ("tp", "pp") and operation."""
        return self.executor.collective_rpc("sent_bytes")

    def memory(self) -> list[MemoryUse]:
        """Bytes of weights and of KV cache on each rank."""
        return self.executor.collective_rpc("memory")

    def take_timeline(self) -> list[StageRun]:
        """What the stages did since the last call."""
        return [run for runs in self.executor.collective_rpc("take_timeline") for run in runs]


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
