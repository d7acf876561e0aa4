"""One right answer for each exercise of lab 16, as in the solution. Mistakes are edits of these."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor

from utils.checks.lab_16.learners_parts import Machine, Scheduled, Shape, Transfers


def chunk_keys(namespace: bytes, token_ids: list[int], block_size: int) -> list[bytes]:
    keys, parent = [], namespace
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        block = token_ids[start : start + block_size]
        packed = b"".join(token.to_bytes(4, "little") for token in block)
        parent = hashlib.sha256(parent + packed).digest()
        keys.append(parent)
    return keys


def matched_tokens(
    keys: list[bytes],
    stored: Container[bytes],
    num_tokens: int,
    block_size: int,
    num_computed_tokens: int,
) -> int:
    first = num_computed_tokens // block_size
    last = (num_tokens - 1) // block_size  # the block of the last token is left
    found = 0
    for key in keys[first:last]:
        if key not in stored:
            break
        found += 1
    return found * block_size


class LRUStore:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._values: OrderedDict[bytes, bytes] = OrderedDict()  # the least recently used in front

    def store(self, key: bytes, value: bytes) -> None:
        self.num_bytes -= len(self._values.pop(key, b""))
        if len(value) > self.max_bytes:
            return
        while self.num_bytes + len(value) > self.max_bytes:
            _, gone = self._values.popitem(last=False)
            self.num_bytes -= len(gone)
        self._values[key] = value
        self.num_bytes += len(value)

    def retrieve(self, key: bytes) -> bytes | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def contains(self, key: bytes) -> bool:
        return key in self._values


def blocks_to_save(
    scheduled: Scheduled, keys: list[bytes], block_size: int
) -> list[tuple[bytes, int]]:
    first = scheduled.num_computed_tokens // block_size
    last = (scheduled.num_computed_tokens + scheduled.num_scheduled_tokens) // block_size
    return list(zip(keys[first:last], scheduled.block_ids[first:last], strict=True))


class SchedulerSide:
    def __init__(
        self,
        block_size: int,
        keys_of: Callable[[Any], list[bytes]],
        matched_tokens: Callable[[Any, int], int],
        blocks_to_save: Callable[[Scheduled], list[tuple[bytes, int]]],
    ) -> None:
        self.block_size, self.keys_of = block_size, keys_of
        self.matched_tokens, self.blocks_to_save = matched_tokens, blocks_to_save
        self.loads: list[tuple[bytes, int]] = []

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        return self.matched_tokens(request, num_computed_tokens), False

    def update_state_after_alloc(
        self, request: Any, block_ids: list[int], num_external_tokens: int
    ) -> None:
        end = request.num_computed_tokens // self.block_size
        first = end - num_external_tokens // self.block_size
        self.loads += list(zip(self.keys_of(request), block_ids, strict=False))[first:end]

    def build_connector_meta(self, scheduled: list[Scheduled]) -> Transfers:
        step, self.loads = Transfers(self.loads), []
        for part in scheduled:
            step.saves += self.blocks_to_save(part)
        return step

    def request_finished(self, request: Any) -> tuple[bool, None]:
        return False, None


def extract_block(kv_caches: list[Tensor], block_id: int) -> bytes:
    layers = torch.stack([cache[block_id] for cache in kv_caches])  # [layers, ...]
    return layers.contiguous().view(torch.uint8).cpu().numpy().tobytes()


def inject_block(kv_caches: list[Tensor], block_id: int, payload: bytes) -> bool:
    block = kv_caches[0][block_id]
    if len(payload) != len(kv_caches) * block.numel() * block.element_size():
        return False
    numbers = torch.frombuffer(bytearray(payload), dtype=block.dtype)
    for cache, layer in zip(kv_caches, numbers.view(-1, *block.shape), strict=True):
        cache[block_id] = layer.to(cache.device)
    return True


def fetch_or_compute(num_tokens: int, shape: Shape, machine: Machine) -> tuple[float, float]:
    n, layers, d = num_tokens, shape.num_layers, shape.hidden_size
    num_bytes = n * layers * 2 * d / shape.heads_per_kv_head * shape.bytes_per_number
    flops = layers * (4 * n * n * d + 22 * n * d * d)
    fetch = machine.round_trip_seconds + num_bytes / machine.bytes_per_second
    return fetch, flops / machine.flops_per_second
