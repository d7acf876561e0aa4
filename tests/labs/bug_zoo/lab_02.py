"""Right answers to lab 02, written differently; wrong ones are in `lab_02.yaml`."""

from __future__ import annotations

import math

import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.kit.lab.edits import edited
from utils.checks.lab_02 import answers
from utils.engine.attention.kv_cache import ContiguousKVCache

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right


@right("kv_cache_bytes")
def by_allocation(config, num_tokens, batch_size=1, bytes_per_value=2, layers_per_cache=1):
    total = 0
    for layer in range(config.num_hidden_layers):
        if layer % layers_per_cache == 0:
            for _ in ("key", "value"):
                total += math.prod(
                    (
                        batch_size,
                        num_tokens,
                        config.num_key_value_heads,
                        config.head_dim,
                        bytes_per_value,
                    )
                )
    return total


@right("kv_cache_bytes")
def as_a_float(config, num_tokens, batch_size=1, bytes_per_value=2, layers_per_cache=1):
    n = -(-config.num_hidden_layers // layers_per_cache)
    values = 2.0 * n * config.num_key_value_heads * config.head_dim
    return values * bytes_per_value * (num_tokens * batch_size)


@right("latent_cache_bytes")
def latent_summed(num_layers, kv_lora_rank, qk_rope_head_dim, num_tokens, bytes_per_value):
    row = [bytes_per_value] * kv_lora_rank + [bytes_per_value] * qk_rope_head_dim
    return sum(sum(row) for _ in range(num_layers)) * num_tokens


@right("kv_cache")
class OneBuffer:
    """Right: keys and values in one tensor, layers last, lengths in a tensor."""

    def __init__(self, config, max_num_tokens, dtype=torch.float32, device="cpu"):
        shape = (
            2,
            config.num_hidden_layers,
            max_num_tokens,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.buffer = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths = torch.zeros(config.num_hidden_layers, dtype=torch.long)

    def append(self, layer, key, value):
        start, size = int(self.lengths[layer]), len(key)
        if start + size > self.buffer.shape[2]:
            raise ValueError(f"{start} + {size} tokens do not fit")
        self.buffer[:, layer, start : start + size] = torch.stack((key, value))
        self.lengths[layer] += size
        return tuple(self.buffer[:, layer, : start + size])

    @property
    def num_tokens(self):
        return int(self.lengths.min())

    @property
    def nbytes(self):
        return self.buffer.numel() * self.buffer.element_size()

    def truncate(self, num_tokens):
        if num_tokens > self.num_tokens:
            raise ValueError("nothing there to keep")
        self.lengths.clamp_(max=num_tokens)


@right("kv_cache")
class ListPerLayer(answers.KVCache):
    """Right: one pair of tensors per layer."""

    def __init__(self, config, max_num_tokens, dtype=torch.float32, device="cpu"):
        super().__init__(config, max_num_tokens, dtype, device)
        self.keys, self.values = list(self.keys), list(self.values)

    def append(self, layer, key, value):
        start = self.lengths[layer]
        if start + len(key) > self.max_num_tokens:
            raise ValueError("full")
        for buffer, new in ((self.keys[layer], key), (self.values[layer], value)):
            buffer.narrow(0, start, len(new)).copy_(new)
        self.lengths[layer] += len(key)
        return self.keys[layer][: start + len(key)], self.values[layer][: start + len(key)]

    @property
    def nbytes(self):
        return sum(t.nbytes for t in self.keys + self.values)


wrong("engine", "engine's own `ContiguousKVCache`")(ContiguousKVCache)
wrong("engine", "Exercise 3", "returns the tensors that it was given")(
    edited(
        answers.KVCache,
        ["return self.keys[layer, :end], self.values[layer, :end] => return key, value"],
    )
)
right("engine")(OneBuffer)


@right("generate_with_cache")
def prefill_then_decode(model, kv_cache, prompt_token_ids, max_tokens, eos_token_ids):
    kv_cache.truncate(0)
    ids = torch.tensor(prompt_token_ids)
    token = model(ids, torch.arange(len(ids)), kv_cache)[-1].argmax().item()
    out = [token]
    for step in range(max_tokens - 1):
        if token in eos_token_ids:
            break
        position = torch.tensor([len(prompt_token_ids) + step])
        token = model(torch.tensor([token]), position, kv_cache)[0].argmax().item()
        out.append(token)
    return out


@right("generate_with_cache")
def prompt_one_token_at_a_time(model, kv_cache, prompt_token_ids, max_tokens, eos_token_ids):
    kv_cache.truncate(0)
    todo, new = list(prompt_token_ids), []
    while True:
        here = kv_cache.num_tokens
        logits = model(torch.tensor([todo.pop(0)]), torch.tensor([here]), kv_cache)
        if todo:
            continue
        todo = [int(logits[-1].argmax())]
        new += todo
        if len(new) == max_tokens or new[-1] in eos_token_ids:
            return new


@right("max_num_requests")
def by_counting(memory, utilization, weights, per_token, tokens):
    left, count = memory * utilization - weights, 0
    while left >= per_token * tokens:
        left, count = left - per_token * tokens, count + 1
    return count
