"""A connector to a pool: any number of engines put their blocks into a store, and look there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import Tensor

from utils.engine.core.kv_cache_utils import KVCacheBlock
from utils.engine.core.sched.output import ScheduledRequest, SchedulerOutput
from utils.engine.kv_transfer.base import KVConnectorBase, KVConnectorMetadata
from utils.engine.kv_transfer.courier import Courier
from utils.engine.kv_transfer.keys import KeyChain
from utils.engine.kv_transfer.store import KVCacheStore
from utils.engine.kv_transfer.wire import DamagedError, blocks_to_rows, pack, rows_to_blocks, unpack
from utils.engine.request import Request

MAX_VALUES = 16  # that are asked for, or sent, at a time: so long does nobody wait in vain


@dataclass
class PoolConnectorMetadata(KVConnectorMetadata):
    """Blocks to be loaded and saved in a step: key and block id."""

    loads: list[tuple[bytes, int]] = field(default_factory=list)
    saves: list[tuple[bytes, int]] = field(default_factory=list)


class PoolConnector(KVConnectorBase):
    """Saves each full block in a store, and loads what others saved.

    A store that dies, stalls, forgets or returns damaged bytes costs time, never a wrong token:
    what cannot be loaded is computed. `stats.failures` says how often that happened, and why.

    Args:
        store: where the blocks are kept. Connectors of several engines may share it.
        layers_per_value: how many layers of a block go under one name. None: all. With fewer, the
            transfer of a layer runs beside the computation of others, and costs more names.
        timeout: seconds to wait for the store, for `MAX_VALUES` values at a time.
        retry_after: seconds for which a store that failed is left alone.
    """

    def __init__(
        self,
        store: KVCacheStore,
        layers_per_value: int | None = None,
        timeout: float = 1.0,
        retry_after: float = 5.0,
    ) -> None:
        super().__init__()
        if layers_per_value is not None and layers_per_value < 1:
            raise ValueError(f"layers_per_value must be at least 1, got {layers_per_value}.")
        self.kv_store, self.layers_per_value = store, layers_per_value
        self.courier = Courier(timeout, retry_after, self.stats.failures)
        self._chains: dict[str, KeyChain] = {}
        self._loads: list[tuple[bytes, int]] = []  # the same key twice, for two requests
        self._caches: list[Tensor] = []
        self._layer_of: dict[str, int] = {}
        self._fetches: dict[int, list[tuple[list[tuple[bytes, int]], Future | None]]] = {}
        self._sendings: list[Future | None] = []
        self._failed: set[int] = set()  # blocks of this step
        self._damaged: set[bytes] = set()  # names of values that must be replaced

    @property
    def _meta(self) -> PoolConnectorMetadata:
        meta = self._metadata
        return meta if isinstance(meta, PoolConnectorMetadata) else PoolConnectorMetadata()

    # --- the scheduler's side ---------------------------------------------------------------------

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """See `KVConnectorBase`."""
        last = (request.num_tokens - 1) // self.block_size  # a token is left to be computed
        keys = self._chain(request).of(request)[num_computed_tokens // self.block_size : last]
        names = [self._name(key, self._num_values - 1) for key in keys]  # what is saved last
        found = self.courier.ask(partial(self.kv_store.count_first, names)) if names else 0
        return (found or 0) * self.block_size, False

    def update_state_after_alloc(
        self, request: Request, blocks: Sequence[KVCacheBlock], num_external_tokens: int
    ) -> None:
        """See `KVConnectorBase`."""
        chain = self._chain(request)
        end = request.num_computed_tokens // self.block_size
        chain.num_saved = end
        for i in range(end - num_external_tokens // self.block_size, end):
            self._loads.append((chain.keys[i], blocks[i].block_id))

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """See `KVConnectorBase`. A block is saved in the step that fills it."""
        loads, self._loads = self._loads, []
        saves: dict[bytes, int] = {}
        for request in scheduler_output.scheduled_requests:
            num_computed, ids = request.num_computed_tokens, request.block_ids
            chain = self._chain(request, num_computed // self.block_size)
            after = num_computed + request.num_scheduled_tokens
            end = min(after, request.num_tokens) // self.block_size  # guesses are no tokens yet
            # What could not be loaded is computed, and saved again.
            begin = min(chain.num_saved, num_computed // self.block_size)
            saves.update(zip(chain.of(request)[begin:end], ids[begin:end], strict=True))
            chain.num_saved = end
        return PoolConnectorMetadata(loads, list(saves.items()))

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, None]:
        """See `KVConnectorBase`."""
        self._chains.pop(request.request_id, None)
        return False, None

    def forget_requests(self) -> None:
        """See `KVConnectorBase`."""
        super().forget_requests()
        self._chains, self._loads = {}, []

    def _chain(self, request: Request | ScheduledRequest, num_saved: int = 0) -> KeyChain:
        new = KeyChain(self.namespace, self.block_size, num_saved)
        return self._chains.setdefault(request.request_id, new)

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        """See `KVConnectorBase`."""
        self._caches = list(kv_caches.values())
        self._layer_of = {name: layer for layer, name in enumerate(kv_caches)}
        self._group_size = min(self.layers_per_value or len(kv_caches), len(kv_caches))
        self._num_values = -(-len(kv_caches) // self._group_size)
        self.namespace += b"%d" % self._group_size  # values of other sizes are other values

    @property
    def works_layer_by_layer(self) -> bool:
        return self._num_values > 1 and bool(self._meta.loads or self._meta.saves)

    def start_load_kv(self) -> None:
        """See `KVConnectorBase`. All values are asked for at once, the first layers' first."""
        self._fetches, self._sendings, self._failed = {}, [], set()
        for group in range(self._num_values if self._meta.loads else 0):
            self._fetches[group] = []
            for part in _slices(self._meta.loads):
                names = [self._name(key, group) for key, _ in part]
                future = self.courier.send(partial(self.kv_store.retrieve_many, names))
                self._fetches[group].append((part, future))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """See `KVConnectorBase`."""
        group = self._layer_of[layer_name] // self._group_size
        begin = time.perf_counter()
        for part, future in self._fetches.pop(group, []):
            values = self.courier.result(future)
            if values is None:
                self._failed.update(block_id for _, block_id in part)
            else:
                self._put_in_place(group, part, values)
        self.stats.load_seconds += time.perf_counter() - begin

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor) -> None:
        """See `KVConnectorBase`. The bytes are copied now, and sent while the next layers run."""
        layer = self._layer_of[layer_name]
        group = layer // self._group_size
        if (layer + 1) % self._group_size and layer + 1 < len(self._caches):
            return  # the value needs the next layers, too
        if self._failed or not self._meta.saves or self.courier.is_down:
            return  # what follows from a hole must not be kept
        begin = time.perf_counter()
        for part in _slices(self._meta.saves):
            self._sendings.append(self.courier.send(self._sending(group, part)))
        self.stats.save_seconds += time.perf_counter() - begin

    def wait_for_save(self) -> None:
        """See `KVConnectorBase`."""
        begin = time.perf_counter()
        for future in self._sendings:
            num_blocks, num_bytes = self.courier.result(future) or (0, 0)
            self.stats.saved_blocks += num_blocks
            self.stats.saved_bytes += num_bytes
        self._sendings = []
        self.stats.save_seconds += time.perf_counter() - begin

    def get_block_ids_with_load_errors(self) -> set[int]:
        """See `KVConnectorBase`."""
        failed, self._failed = self._failed, set()
        self.stats.loaded_blocks += len({block for _, block in self._meta.loads} - failed)
        return failed

    def shutdown(self) -> None:
        """See `KVConnectorBase`. The store is closed, too."""
        self.courier.stop()
        self.kv_store.close()

    def _name(self, key: bytes, group: int) -> bytes:
        """A block's key is the name of its value, where there is only one."""
        return key if self._num_values == 1 else key + group.to_bytes(2, "big")

    def _layers(self, group: int) -> list[Tensor]:
        return self._caches[group * self._group_size : (group + 1) * self._group_size]

    def _put_in_place(
        self, group: int, part: list[tuple[bytes, int]], values: Sequence[bytes | None]
    ) -> None:
        """Copy what was fetched to the blocks; note those whose bytes are missing or damaged."""
        layers = self._layers(group)
        num_bytes = len(layers) * layers[0][:, 0].numel() * layers[0].itemsize
        contents, ids = [], []
        for (key, block_id), value in zip(part, values, strict=True):
            name = self._name(key, group)
            try:
                if value is None:
                    raise KeyError("The store has forgotten a value that it had just now.")
                contents.append(np.frombuffer(unpack(name, value, num_bytes), dtype=np.uint8))
                ids.append(block_id)
            except (KeyError, DamagedError) as error:
                if block_id not in self._failed:
                    self.stats.failures["missing" if value is None else "damaged"] += 1
                    self.courier.last_error = error
                    self._failed.add(block_id)
                self._damaged.update({name} if value is not None else ())
        if ids:
            rows_to_blocks(np.stack(contents), layers, ids)
        self.stats.loaded_bytes += len(ids) * num_bytes

    def _sending(self, group: int, part: list[tuple[bytes, int]]) -> Callable[[], tuple[int, int]]:
        """An errand that sends what the store lacks of these blocks, and says how many blocks and
        bytes that were. The bytes are copied now: soon there may be others in their place."""
        contents = blocks_to_rows(self._layers(group), [block_id for _, block_id in part])
        names = [self._name(key, group) for key, _ in part]
        damaged, is_last = self._damaged.intersection(names), group == self._num_values - 1
        self._damaged -= damaged

        def send() -> tuple[int, int]:
            there = self.kv_store.contains_many(names)
            items = {
                name: pack(name, row.data)
                for name, row, is_there in zip(names, contents, there, strict=True)
                if not is_there or name in damaged
            }
            if items:
                self.kv_store.store_many(items)
            return is_last * len(items), sum(map(len, items.values()))

        return send


def _slices(pairs: list[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    for begin in range(0, len(pairs), MAX_VALUES):
        yield pairs[begin : begin + MAX_VALUES]
