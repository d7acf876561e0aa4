"""Wrong and right answers to lab 16, each as a learner might write it."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_16.learners_parts import Parts, Transfers

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right

# 1 chunk_keys


@right("chunk_keys")
def chained(namespace, token_ids, block_size):
    keys, parent = [], namespace
    for end in range(block_size, len(token_ids) + 1, block_size):
        hasher = hashlib.sha256(parent)
        for token in token_ids[end - block_size : end]:
            hasher.update(token.to_bytes(4, "little"))
        parent = hasher.digest()
        keys.append(parent)
    return keys


@right("chunk_keys")
def with_numpy(namespace, token_ids, block_size):
    rows = np.array(token_ids[: len(token_ids) // block_size * block_size], dtype="<u4")
    blocks = (row.tobytes() for row in rows.reshape(-1, block_size))
    keys = itertools.accumulate(
        blocks, lambda key, row: hashlib.sha256(key + row).digest(), initial=namespace
    )
    return list(keys)[1:]


@wrong("chunk_keys", "8 bytes")
def int64(namespace, token_ids, block_size):
    keys, parent = [], namespace
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        block = np.array(token_ids[start : start + block_size], dtype=np.int64)
        parent = hashlib.sha256(parent + block.tobytes()).digest()
        keys.append(parent)
    return keys


@wrong("chunk_keys", "not those that the contract describes")
def pythons_hash(namespace, token_ids, block_size):
    ends = range(block_size, len(token_ids) + 1, block_size)
    return [hash(tuple(token_ids[:end])).to_bytes(32, "little", signed=True) for end in ends]


# 2 matched_tokens


@right("matched_tokens")
def walk(keys, stored, num_tokens, block_size, num_computed_tokens):
    at = num_computed_tokens
    while at + block_size < num_tokens and keys[at // block_size] in stored:
        at += block_size
    return at - num_computed_tokens


@right("matched_tokens")
def takewhile(keys, stored, num_tokens, block_size, num_computed_tokens):
    some = keys[num_computed_tokens // block_size : (num_tokens - 1) // block_size]
    return block_size * len(list(itertools.takewhile(lambda key: key in stored, some)))


@wrong("matched_tokens", "You count blocks")
def blocks(keys, stored, num_tokens, block_size, num_computed_tokens):
    return walk(keys, stored, num_tokens, block_size, num_computed_tokens) // block_size


@wrong("matched_tokens", "not iterable")
def lists_the_store(keys, stored, num_tokens, block_size, num_computed_tokens):
    return walk(keys, set(stored), num_tokens, block_size, num_computed_tokens)


# 3 LRUStore


@right("lru_store")
class WithADict:
    def __init__(self, max_bytes):
        self.max_bytes, self.values = max_bytes, {}

    @property
    def num_bytes(self):
        return sum(map(len, self.values.values()))

    def store(self, key, value):
        self.values.pop(key, None)
        if len(value) <= self.max_bytes:
            self.values[key] = value
            while self.num_bytes > self.max_bytes:
                del self.values[next(iter(self.values))]

    def retrieve(self, key):
        if key in self.values:
            self.values[key] = self.values.pop(key)
        return self.values.get(key)

    def contains(self, key):
        return key in self.values


@wrong("lru_store", "first in, first out")
class Fifo(WithADict):
    def retrieve(self, key):
        return self.values.get(key)


# 4 SchedulerSide


@right("scheduler_side")
class ByPlaces:
    def __init__(self, block_size, keys_of, matched_tokens):
        self.size, self.keys_of, self.matched_tokens = block_size, keys_of, matched_tokens
        self.waiting = []

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.matched_tokens(request, num_computed_tokens), False

    def update_state_after_alloc(self, request, block_ids, num_external_tokens):
        end = request.num_computed_tokens
        keys = self.keys_of(request)
        for at in range(end - num_external_tokens, end, self.size):
            self.waiting.append((keys[at // self.size], block_ids[at // self.size]))

    def build_connector_meta(self, scheduled):
        loads, self.waiting = self.waiting, []
        saves = []
        for part in scheduled:
            keys = self.keys_of(part.request)
            for at in range(part.num_scheduled_tokens):
                done = part.num_computed_tokens + at + 1
                if done % self.size == 0:
                    i = done // self.size - 1
                    saves.append((keys[i], part.block_ids[i]))
        return Transfers(loads, saves)

    def request_finished(self, request):
        return False, None


@wrong("scheduler_side", "`get_num_new_matched_tokens` returns")
class OnlyANumber(ByPlaces):
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.matched_tokens(request, num_computed_tokens)


# 5 extract_block, inject_block


@right("extract_block")
def joined(kv_caches, block_id):
    parts = (cache[block_id].contiguous().view(torch.uint8) for cache in kv_caches)
    return b"".join(part.numpy().tobytes() for part in parts)


@right("extract_block")
def stacked(kv_caches, block_id):
    block = torch.stack([cache[block_id] for cache in kv_caches])
    return bytes(block.flatten().view(torch.uint8).tolist())


@wrong("extract_block", "converted")
def in_float32(kv_caches, block_id):
    return torch.stack([cache[block_id].float() for cache in kv_caches]).numpy().tobytes()


@wrong("extract_block", "not those of the block")
def in_memorys_order(kv_caches, block_id):
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[kv_caches[0].element_size()]
    blocks = (cache.view(whole)[block_id].numpy() for cache in kv_caches)
    return b"".join(block.tobytes(order="A") for block in blocks)


@right("inject_block")
def stacked_back(kv_caches, block_id, payload):
    first = kv_caches[0][block_id]
    if len(payload) != len(kv_caches) * first.numel() * first.element_size():
        return False
    numbers = torch.frombuffer(bytearray(payload), dtype=first.dtype)
    for cache, layer in zip(kv_caches, numbers.view(-1, *first.shape), strict=True):
        cache[block_id].copy_(layer)
    return True


@right("inject_block")
def bytes_of_bytes(kv_caches, block_id, payload):
    size = kv_caches[0][block_id].numel() * kv_caches[0].element_size()
    if len(payload) != size * len(kv_caches):
        return False
    for i, cache in enumerate(kv_caches):
        part = np.frombuffer(payload[i * size : (i + 1) * size], dtype=np.uint8).copy()
        cache[block_id] = torch.from_numpy(part).view(cache.dtype).view(cache[block_id].shape)
    return True


@wrong("inject_block", "into a copy")
def reshaped(kv_caches, block_id, payload):
    return stacked_back([cache.clone() for cache in kv_caches], block_id, payload)


# 6 fetch_or_compute


@right("fetch_or_compute")
def by_the_paper(num_tokens, shape, machine):
    p, layers, d = num_tokens, shape.num_layers, shape.hidden_size
    num_bytes = p * layers * (2 * d / shape.heads_per_kv_head) * shape.bytes_per_number
    flops = layers * (4 * p**2 * d + 22 * p * d**2)
    fetch = machine.round_trip_seconds + num_bytes / machine.bytes_per_second
    return fetch, flops / machine.flops_per_second


@wrong("fetch_or_compute", "times are exchanged")
def exchanged(num_tokens, shape, machine):
    return by_the_paper(num_tokens, shape, machine)[::-1]


# 7 engine


def parts(**changes):
    """Right parts, and what is changed in them."""
    fields = {
        "chunk_keys": chained,
        "matched_tokens": walk,
        "store": WithADict,
        "scheduler_side": ByPlaces,
        "extract_block": joined,
        "inject_block": stacked_back,
    } | changes
    return Parts(**fields)


@right("engine")
def all_right():
    return parts()


@right("engine")
def written_otherwise():
    return parts(
        chunk_keys=with_numpy,
        matched_tokens=takewhile,
        extract_block=stacked,
        inject_block=bytes_of_bytes,
    )


@wrong("engine", "says something else")
def nothing_arrives():
    return parts(inject_block=reshaped)


@wrong("engine", "Another tenant finds")
def tenants_share():
    return parts(chunk_keys=lambda namespace, ids, size: chained(b"", ids, size))


@wrong("engine", "more than its budget")
def endless_room():
    return parts(store=lambda max_bytes: WithADict(1 << 40))


@wrong("engine", "finds other tokens than predicted")
def saves_nothing():
    class Silent(ByPlaces):
        def build_connector_meta(self, scheduled):
            return Transfers(super().build_connector_meta(scheduled).loads, [])

    return parts(scheduler_side=Silent)


@wrong("engine", "must return `Parts`")
def no_parts():
    return chained, walk
