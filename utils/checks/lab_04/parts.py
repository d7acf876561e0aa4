"""The parts that the learner wrote in lab 04, as the engine calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from utils.checks.kit.contracts import Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.runner import Mismatch
from utils.engine.attention.paged_attention import AttentionMetadata
from utils.engine.config.engine import EngineConfig
from utils.engine.core.block_pool import BlockPool
from utils.engine.core.kv_cache_manager import BlockCopies, KVCacheManager
from utils.engine.core.kv_cache_utils import KVCacheBlock
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps
from utils.engine.request import Request


def patiently(function: Callable[..., Any], *args: Any) -> Any:
    """Call the learner's code; an error, or no end, becomes feedback."""
    got = attempt(function, *args)
    if isinstance(got, Raised):
        raise Mismatch(got.says, input="a call by the engine", look=got.look)
    return got


@dataclass(eq=False)
class Parts:
    """What the engine takes from this lab: `Parts(BlockPool, allocate_slots, ...)`."""

    BlockPool: Callable[[int], Any]
    allocate_slots: Callable[..., list[KVCacheBlock] | None]
    fork: Callable[..., list[KVCacheBlock]]
    copy_on_write: Callable[..., list[tuple[int, int]] | None]
    paged_attention: Callable[..., Tensor]

    def attend(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> Tensor:
        """`paged_attention` for each request of a flat batch; arguments as the engine's."""
        queries = query.split(metadata.query_lens)
        requests = zip(queries, metadata.block_tables, metadata.seq_lens, strict=True)
        with query.device:  # where the learner's `torch.zeros` and `torch.arange` belong
            outputs = [
                patiently(
                    self.paged_attention, q, key_cache, value_cache, table.tolist(), length, scale
                )
                for q, table, length in requests
            ]
        return torch.cat(outputs)

    def llm(self) -> LLM:
        """The bundled model in an engine that runs on these parts."""
        return LLM(
            enable_prefix_caching=False,
            ops=LlamaOps(paged_attention=self.attend),
            kv_cache_manager=lambda config: PartsManager(self, config),
        )


class PartsManager(KVCacheManager):
    """A manager whose every decision is made by the learner's parts; it counts blocks.

    Attributes:
        used: per step, blocks that are in some request's table.
        copies: per step, blocks that there would be if no request shared any.
        num_copied: blocks copied on write.
        num_refused: how often there was no room.
    """

    def __init__(self, parts: Parts, config: EngineConfig) -> None:
        self._learners = _EnginePool(parts.BlockPool, config.num_gpu_blocks)
        super().__init__(
            config.num_gpu_blocks,
            config.block_size,
            False,
            block_pool=cast(BlockPool, self._learners),
        )
        self.parts = parts
        self.used: list[int] = []
        self.copies: list[int] = []
        self.num_copied = self.num_refused = 0

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock] = (),
        num_lookahead_tokens: int = 0,
    ) -> list[KVCacheBlock] | None:
        pool, table = self._learners.pool, self.req_to_blocks.get(request.request_id, [])
        start, end = request.num_computed_tokens, request.num_computed_tokens + num_new_tokens
        copies = patiently(self.parts.copy_on_write, pool, table, start, end, self.block_size)
        if copies is None:
            self.num_refused += 1
            return None
        # They stay even if the next call finds no room: the table has changed already.
        self._pending.copy += [(int(source), int(target)) for source, target in copies]
        blocks = patiently(self.parts.allocate_slots, pool, table, end, self.block_size)
        if blocks is None:
            self.num_refused += 1
        else:
            self.req_to_blocks[request.request_id] = table
        return blocks

    def fork(self, parent: Request, child: Request) -> None:
        table = self._table(parent.request_id)
        forked = patiently(self.parts.fork, self._learners.pool, table)
        self.req_to_blocks[child.request_id] = forked
        child.num_computed_tokens = parent.num_computed_tokens

    def take_block_copies(self) -> BlockCopies:
        tables = self.req_to_blocks.values()
        self.used.append(len({block.block_id for table in tables for block in table}))
        self.copies.append(sum(len(table) for table in tables))
        self.num_copied += len(self._pending.copy)
        return super().take_block_copies()


class _EnginePool:
    """The learner's pool, as the rest of the engine calls it."""

    def __init__(self, pool_class: Callable[[int], Any], num_gpu_blocks: int) -> None:
        self._pool_class, self.num_gpu_blocks = pool_class, num_gpu_blocks
        self.pool = patiently(pool_class, num_gpu_blocks)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        return patiently(self.pool.get_new_blocks, num_blocks)

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        patiently(self.pool.touch, list(blocks))

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        patiently(self.pool.free_blocks, list(ordered_blocks))

    def get_num_free_blocks(self) -> int:
        return patiently(self.pool.get_num_free_blocks)

    def get_usage(self) -> float:
        return 1.0 - self.get_num_free_blocks() / self.num_gpu_blocks

    def forget_contents(self) -> None:
        """Nothing is found by its contents here, so there is nothing to forget."""

    def reset(self) -> None:
        """Begin anew, with a pool of the same size: no block is in use."""
        self.pool = patiently(self._pool_class, self.num_gpu_blocks)
