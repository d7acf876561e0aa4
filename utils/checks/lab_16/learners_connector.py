"""A connector of the engine that is made of a learner's parts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from utils.checks.lab_16.learners_parts import Pair, Parts, Scheduled, Transfers
from utils.engine.core.kv_cache_utils import KVCacheBlock
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.kv_transfer.base import KVConnectorBase, KVConnectorMetadata
from utils.engine.request import Request


class Steps(KVConnectorMetadata):
    """A learner's `Transfers`, on their way from the scheduler's side to the worker's."""

    def __init__(self, transfers: Transfers) -> None:
        self.transfers = transfers


class Stored:
    """What a store holds, for `in`; that is all it can be asked."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __contains__(self, key: object) -> bool:
        return bool(self.store.contains(key))


class LearnersConnector(KVConnectorBase):
    """Hands each call of the engine (see `KVConnectorBase`) to the learner's part.

    Args:
        parts: the learner's.
        store: of the learner's class; several connectors may share it.
    """

    def __init__(self, parts: Parts, store: Any) -> None:
        super().__init__()
        self.parts, self.kv_store = parts, store
        self.caches: list[Tensor] = []
        self.failed: set[int] = set()
        self.saved_keys: set[bytes] = set()
        self.loaded = False

    def bind_engine(self, namespace: bytes, block_size: int) -> None:
        super().bind_engine(namespace, block_size)
        self.side = self.parts.scheduler_side(
            block_size, self._keys_of, self._matched, self._to_save
        )

    def _keys_of(self, request: Request) -> list[bytes]:
        salt = repr(request.cache_salt).encode()
        namespace = hashlib.sha256(self.namespace + salt).digest()  # all of one length
        return self.parts.chunk_keys(namespace, list(request.all_token_ids), self.block_size)

    def _matched(self, request: Request, num_computed_tokens: int) -> int:
        return self.parts.matched_tokens(
            self._keys_of(request),
            Stored(self.kv_store),
            request.num_tokens,
            self.block_size,
            num_computed_tokens,
        )

    def _to_save(self, part: Scheduled) -> list[Pair]:
        return self.parts.blocks_to_save(part, self._keys_of(part.request), self.block_size)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self.side.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: Sequence[KVCacheBlock], num_external_tokens: int
    ) -> None:
        ids = [block.block_id for block in blocks]
        self.side.update_state_after_alloc(request, ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        parts = [
            Scheduled(r, list(r.block_ids), r.num_computed_tokens, r.num_scheduled_tokens)
            for r in scheduler_output.scheduled_requests
        ]
        return Steps(self.side.build_connector_meta(parts))

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.side.request_finished(request)

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        """The learner's functions want the blocks along the first axis."""
        self.caches = [cache.transpose(0, 1) for cache in kv_caches.values()]

    @property
    def _step(self) -> Transfers:
        return self._metadata.transfers if isinstance(self._metadata, Steps) else Transfers()

    def start_load_kv(self) -> None:
        self.failed, self.loaded = set(), not self._step.loads

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All layers are in one value, so the first call loads them all."""
        if self.loaded:
            return
        self.loaded = True
        for key, block_id in self._step.loads:
            payload = self.kv_store.retrieve(key)
            if payload is None or not self.parts.inject_block(self.caches, block_id, payload):
                self.failed.add(block_id)
            self.stats.loaded_blocks += 1

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor) -> None:
        """Nothing: all layers of a block are saved together, after the step."""

    def wait_for_save(self) -> None:
        if self.failed:
            return  # what follows from a hole must not be kept
        for key, block_id in self._step.saves:
            self.kv_store.store(key, self.parts.extract_block(self.caches, block_id))
            self.saved_keys.add(key)
            self.stats.saved_blocks += 1

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self.failed = self.failed, set()
        return failed
