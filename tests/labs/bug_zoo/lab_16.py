"""Right answers to lab 16, written differently, and wrong ones that are no edits of the right."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.kit.lab.edits import edited
from utils.checks.lab_16 import answers
from utils.checks.lab_16.learners_parts import Parts, Transfers

zoo = Zoo(answers)
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


@wrong("chunk_keys", "Key number 0")
def pythons_hash(namespace, token_ids, block_size):
    ends = range(block_size, len(token_ids) + 1, block_size)
    return [hash(tuple(token_ids[:end])).to_bytes(32, "little", signed=True) for end in ends]


@wrong("chunk_keys", "RecursionError")
def the_rest_by_itself(namespace, token_ids, block_size):
    if len(token_ids) < block_size:
        return []
    [key] = chained(namespace, token_ids[:block_size], block_size)
    return [key, *the_rest_by_itself(key, token_ids[block_size:], block_size)]


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


@wrong("matched_tokens", "not iterable")
def lists_the_store(keys, stored, num_tokens, block_size, num_computed_tokens):
    return walk(keys, set(stored), num_tokens, block_size, num_computed_tokens)


@wrong("matched_tokens", "RecursionError")
def block_by_block(keys, stored, num_tokens, block_size, num_computed_tokens):
    after = num_computed_tokens + block_size
    if after >= num_tokens or keys[num_computed_tokens // block_size] not in stored:
        return 0
    return block_size + block_by_block(keys, stored, num_tokens, block_size, after)


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


@wrong("lru_store", "RecursionError")
class MakesRoomByItself(answers.LRUStore):
    def store(self, key, value):
        if self.num_bytes + len(value) > self.max_bytes >= len(value) and key not in self._values:
            _, gone = self._values.popitem(last=False)
            self.num_bytes -= len(gone)
            return self.store(key, value)
        return super().store(key, value)


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


@right("scheduler_side")
class InTheStep(ByPlaces):
    """Notes only who was settled, and finds keys and blocks in the step itself."""

    def update_state_after_alloc(self, request, block_ids, num_external_tokens):
        self.waiting.append((request, block_ids, num_external_tokens))

    def build_connector_meta(self, scheduled):
        settled, self.waiting = self.waiting, []
        for request, block_ids, num_external_tokens in settled:
            super().update_state_after_alloc(request, block_ids, num_external_tokens)
        return super().build_connector_meta(scheduled)


@wrong("scheduler_side", "`loads` is")
class OfThoseWhoCompute(answers.SchedulerSide):
    """Tells a request's loads only when the request computes something."""

    def __init__(self, *functions):
        super().__init__(*functions)
        self.by_request = {}

    def update_state_after_alloc(self, request, block_ids, num_external_tokens):
        super().update_state_after_alloc(request, block_ids, num_external_tokens)
        self.by_request[request.request_id], self.loads = self.loads, []

    def build_connector_meta(self, scheduled):
        for part in scheduled:
            self.loads += self.by_request.pop(part.request.request_id, [])
        return super().build_connector_meta(scheduled)


@wrong("scheduler_side", "`loads` is")
class LoadsOnce(answers.SchedulerSide):
    """A request that comes again loads nothing."""

    def __init__(self, *functions):
        super().__init__(*functions)
        self.known = set()

    def update_state_after_alloc(self, request, block_ids, num_external_tokens):
        if num_external_tokens and request.request_id not in self.known:
            self.known.add(request.request_id)
            super().update_state_after_alloc(request, block_ids, num_external_tokens)

    def request_finished(self, request):
        self.known.discard(request.request_id)
        return super().request_finished(request)


@wrong("scheduler_side", "`loads` is")
class ForgetsTheLoadsOfOthers(answers.SchedulerSide):
    """At a request's end, drops what is still to be loaded under its keys, whoever waits for it."""

    def request_finished(self, request):
        keys = self.keys_of(request)
        self.loads = [pair for pair in self.loads if pair[0] not in keys]
        return super().request_finished(request)


@wrong("scheduler_side", "A later call changes")
class OneTransfersForAll(answers.SchedulerSide):
    def __init__(self, *functions):
        super().__init__(*functions)
        self.step = Transfers()

    def build_connector_meta(self, scheduled):
        step = super().build_connector_meta(scheduled)
        self.step.loads, self.step.saves = step.loads, step.saves
        return self.step


# 5 and 6 extract_block, inject_block


@right("extract_block")
def joined(kv_caches, block_id):
    parts = (cache[block_id].contiguous().view(torch.uint8) for cache in kv_caches)
    return b"".join(part.numpy().tobytes() for part in parts)


@right("extract_block")
def stacked(kv_caches, block_id):
    block = torch.stack([cache[block_id] for cache in kv_caches])
    return bytes(block.flatten().view(torch.uint8).tolist())


@wrong("extract_block", "aren't the block's bytes")
def in_memorys_order(kv_caches, block_id):
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    blocks = (cache.view(whole[cache.element_size()])[block_id].numpy() for cache in kv_caches)
    return b"".join(block.tobytes(order="A") for block in blocks)


REMEMBERED = {}


@wrong("extract_block", "The second call returns the bytes that were in the block")
def remembers_by_address(kv_caches, block_id):
    place = tuple(cache.data_ptr() for cache in kv_caches), block_id
    if place not in REMEMBERED:
        REMEMBERED.clear()
        REMEMBERED[place] = joined(kv_caches, block_id)
    return REMEMBERED[place]


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


# 7 fetch_or_compute


@right("fetch_or_compute")
def by_the_paper(num_tokens, shape, machine):
    p, layers, d = num_tokens, shape.num_layers, shape.hidden_size
    num_bytes = p * layers * (2 * d / shape.heads_per_kv_head) * shape.bytes_per_number
    flops = layers * (4 * p**2 * d + 22 * p * d**2)
    fetch = machine.round_trip_seconds + num_bytes / machine.bytes_per_second
    return fetch, flops / machine.flops_per_second


# 8 engine


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


@wrong("engine", "Exercise 1", "Key number 0")
def tenants_share():
    return parts(chunk_keys=lambda namespace, ids, size: chained(b"", ids, size))


@wrong("engine", "Exercise 6", "into a copy")
def nothing_arrives():
    copies = "cache[block_id] = layer.to(cache.device) => cache[block_id].clone().copy_(layer)"
    return parts(inject_block=edited(answers.inject_block, [copies]))


@wrong("engine", "must return `Parts`")
def no_parts():
    return chained, walk
