"""What a rank does when the engine asks it to. In vLLM: `v1/worker/gpu_worker.py`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from utils.engine.attention.batch import PagedBatch
from utils.engine.attention.paged_attention import AttentionMetadata
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.config.model import ModelConfig
from utils.engine.config.parallel import ParallelConfig
from utils.engine.core.kv_cache_utils import BlockCopies
from utils.engine.distributed.collectives import Work
from utils.engine.distributed.layers import ParallelOps
from utils.engine.distributed.parallel_llama import IntermediateTensors, load_parallel_model
from utils.engine.distributed.parallel_state import initialize_model_parallel
from utils.engine.distributed.shard import Shard
from utils.engine.models.llama import LlamaOps


@dataclass(frozen=True)
class StageRun:
    """A stage's work on one micro-batch: when it began and ended, in `perf_counter` seconds."""

    stage: int
    micro_batch: int
    begin: float
    end: float


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that a rank holds."""

    weights: int
    kv_cache: int


class Worker:
    """This rank's part of the model, with its part of each KV cache.

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
        self.stage = self.state.pp.rank_in_group
        self.shard = Shard(model, self.state.tp.rank_in_group, tp, self.stage, pp)
        self.model = load_parallel_model(
            path, self.shard, self.state, dtype, device, ops, parallel_ops
        )
        # Only this rank's answers are looked at: the last stage's first.
        self.answers = self.shard.has_lm_head and self.state.tp.is_first_rank
        self.dtype = dtype
        self.kv_caches: dict[int, PagedKVCache] = {}
        self.timeline: list[StageRun] = []

    def new_kv_cache(self, number: int, num_gpu_blocks: int, *rest: Any) -> None:
        """Blocks as everywhere, of this rank's layers and KV heads. See `PagedKVCache`."""
        self.kv_caches[number] = PagedKVCache(self.model.config, num_gpu_blocks, *rest)

    def free_kv_cache(self, number: int) -> None:
        self.kv_caches.pop(number, None)

    def copy_blocks(self, number: int, copies: BlockCopies) -> None:
        self.kv_caches[number].copy_blocks(copies)

    def move(self, number: int, from_slots: list[int], to_slots: list[int]) -> None:
        self.kv_caches[number].move(from_slots, to_slots)

    @torch.inference_mode()
    def forward(
        self,
        number: int,
        input_ids: Tensor,
        positions: Tensor,
        metadata: AttentionMetadata,
        num_micro_batches: int = 1,
    ) -> Tensor | None:
        """Run a flat batch through this rank's layers.

        With several micro-batches, this stage works on the next one while the stage after it works
        on this one. Hidden states [T, hidden] from the rank that answers; None from the others.
        """
        pp, hidden = self.state.pp, self.shard.model.hidden_size
        outputs: list[Tensor] = []
        on_their_way: list[Work] = []
        for i, (rows, part) in enumerate(split_metadata(metadata, num_micro_batches)):
            received = None
            if not pp.is_first_rank:
                buffer = torch.empty(rows.stop - rows.start, hidden, dtype=self.dtype)
                received = IntermediateTensors({"hidden_states": pp.recv(buffer, self.stage - 1)})
            begin = perf_counter()
            batch = PagedBatch(self.kv_caches[number], part)
            done = self.model.run_stage(input_ids[rows], positions[rows], batch, received)
            self.timeline.append(StageRun(self.stage, i, begin, perf_counter()))
            if isinstance(done, IntermediateTensors):
                tensor = done.tensors["hidden_states"]
                on_their_way.append(pp.isend(tensor, self.stage + 1))
                outputs.append(tensor)  # must not change, nor be freed, before it has arrived
            else:
                outputs.append(done)
        for work in on_their_way:
            work.wait()
        return torch.cat(outputs) if self.answers else None

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor | None:
        """Scores [N, vocab_size] from the rank that answers."""
        scores = self.model.lm_head(hidden) if self.shard.has_lm_head else None
        return scores if self.answers else None

    # --- for those who want to know --------------------------------------------------------------

    def take_timeline(self) -> list[StageRun]:
        """What this stage did since the last call."""
        runs, self.timeline = self.timeline, []
        return runs

    def sent_bytes(self) -> dict[str, Counter[str]]:
        """Bytes that this rank has sent so far, by group and operation."""
        state = self.state
        return {"tp": state.tp.sent_bytes, "pp": state.pp.sent_bytes, "ep": state.ep.sent_bytes}

    def memory(self) -> MemoryUse:
        weights = sum(parameter.nbytes for parameter in self.model.parameters())
        return MemoryUse(weights, sum(cache.nbytes for cache in self.kv_caches.values()))


def split_metadata(
    metadata: AttentionMetadata, num_parts: int
) -> list[tuple[slice, AttentionMetadata]]:
    """Cut a flat batch between requests, into at most `num_parts` parts of about as many tokens.

    Returns:
        For each part, its rows in the flat batch, and what attention must know of them.
    """
    if num_parts <= 1 or len(metadata.query_lens) == 1:
        return [(slice(0, sum(metadata.query_lens)), metadata)]
    share = sum(metadata.query_lens) / num_parts
    cuts, tokens = [0], 0
    for i, length in enumerate(metadata.query_lens):
        if tokens >= share * len(cuts) and len(cuts) < num_parts:
            cuts.append(i)
        tokens += length
    parts, row = [], 0
    for first, last in zip(cuts, [*cuts[1:], len(metadata.query_lens)], strict=True):
        rows = slice(row, row + sum(metadata.query_lens[first:last]))
        parts.append((rows, AttentionMetadata(
            metadata.query_lens[first:last],
            metadata.seq_lens[first:last],
            metadata.block_tables[first:last],
            metadata.slot_mapping[rows],
            {i - first: mask for i, mask in metadata.tree_masks.items() if first <= i < last},
        )))  # fmt: skip
        row = rows.stop
    return parts


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
