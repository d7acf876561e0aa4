"""Right answers to lab 16, written differently, and wrong ones that are no edits of the right."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace

import numpy as np
import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.kit.lab.edits import edited
from utils.checks.lab_16 import answers
from utils.checks.lab_16.learners_parts import Parts, Transfers

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right


@right("chunk_keys")
def with_numpy(namespace, token_ids, block_size):
    rows = np.array(token_ids[: len(token_ids) // block_size * block_size], dtype="<u4")
    blocks = (row.tobytes() for row in rows.reshape(-1, block_size))
    keys = itertools.accumulate(
        blocks, lambda key, row: hashlib.sha256(key + row).digest(), initial=namespace
    )
    return list(keys)[1:]


@right("matched_tokens")
def takewhile(keys, stored, num_tokens, block_size, num_computed_tokens):
    some = keys[num_computed_tokens // block_size : (num_tokens - 1) // block_size]
    return block_size * len(list(itertools.takewhile(lambda key: key in stored, some)))


@wrong("matched_tokens", "RecursionError")
def block_by_block(keys, stored, num_tokens, block_size, num_computed_tokens):
    after = num_computed_tokens + block_size
    if after >= num_tokens or keys[num_computed_tokens // block_size] not in stored:
        return 0
    return block_size + block_by_block(keys, stored, num_tokens, block_size, after)


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


@right("blocks_to_save")
def token_by_token(scheduled, keys, block_size):
    pairs, done = [], scheduled.num_computed_tokens
    for _ in range(scheduled.num_scheduled_tokens):
        done += 1
        if done % block_size == 0:
            place = done // block_size - 1
            pairs.append((keys[place], scheduled.block_ids[place]))
    return pairs


@right("scheduler_side")
class InTheStep:
    """Notes only what was settled, and finds keys and blocks in the step itself."""

    def __init__(self, size, keys_of, matched_tokens, blocks_to_save):
        self.size, self.functions, self.settled = size, (keys_of, matched_tokens), []
        self.to_save = blocks_to_save

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.functions[1](request, num_computed_tokens), False

    def update_state_after_alloc(self, request, block_ids, num_external_tokens):
        self.settled.append((request, block_ids, num_external_tokens))

    def build_connector_meta(self, scheduled):
        loads = []
        for request, block_ids, num_external_tokens in self.settled:
            keys, end = self.functions[0](request), request.num_computed_tokens
            for place in range((end - num_external_tokens) // self.size, end // self.size):
                loads.append((keys[place], block_ids[place]))
        self.settled.clear()
        return Transfers(loads, [pair for part in scheduled for pair in self.to_save(part)])

    def request_finished(self, request):
        return False, None


@right("extract_block")
def layer_by_layer(kv_caches, block_id):
    parts = (cache[block_id].contiguous().view(-1).view(torch.uint8) for cache in kv_caches)
    return b"".join(bytes(part.tolist()) for part in parts)


@right("inject_block")
def bytes_of_bytes(kv_caches, block_id, payload):
    size = kv_caches[0][block_id].numel() * kv_caches[0].element_size()
    if len(payload) != size * len(kv_caches):
        return False
    for i, cache in enumerate(kv_caches):
        part = np.frombuffer(payload[i * size : (i + 1) * size], dtype=np.uint8).copy()
        cache[block_id].copy_(torch.from_numpy(part).view(cache.dtype).view(cache[0].shape))
    return True


@right("fetch_or_compute")
def by_the_paper(num_tokens, shape, machine):
    p, layers, d = num_tokens, shape.num_layers, shape.hidden_size
    num_bytes = p * layers * (2 * d / shape.heads_per_kv_head) * shape.bytes_per_number
    flops = layers * (4 * p**2 * d + 22 * p * d**2)
    fetch = machine.round_trip_seconds + num_bytes / machine.bytes_per_second
    return fetch, flops / machine.flops_per_second


@right("engine")
def written_otherwise():
    return Parts(
        with_numpy, takewhile, WithADict, token_by_token, InTheStep, layer_by_layer, bytes_of_bytes
    )


@wrong("engine", "Exercise 7", "into a copy")
def nothing_arrives():
    copies = "cache[block_id] = layer.to(cache.device) => cache[block_id].clone().copy_(layer)"
    return replace(written_otherwise(), inject_block=edited(answers.inject_block, [copies]))


@wrong("engine", "Exercise 1", "Key number 0")
def tenants_share():
    def chunk_keys(namespace, token_ids, block_size):
        return with_numpy(b"", token_ids, block_size)

    return replace(written_otherwise(), chunk_keys=chunk_keys)


@wrong("engine", "must return `Parts`")
def no_parts():
    return with_numpy, takewhile
