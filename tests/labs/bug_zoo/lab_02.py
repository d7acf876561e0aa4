"""Wrong and right answers to lab 02, each as a learner might write it."""

from __future__ import annotations

import math

import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.engine.attention.kv_cache import ContiguousKVCache

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right

# 1, 2, 5: formulas that are wrong. A name, words that the feedback must contain, the formula.


def up(config, share):
    return math.ceil(config.num_hidden_layers / share)


def row(config):
    return 2 * config.num_key_value_heads * config.head_dim


def formulas(exercise, parameters, *wrong_ones):
    for name, says, expression in wrong_ones:
        answer = eval(f"lambda {parameters}: {expression}", globals())
        answer.__name__ = name
        wrong(exercise, says)(answer)


formulas(
    "kv_cache_bytes",
    "config, num_tokens, batch_size=1, bytes_per_value=2, layers_per_cache=1",
    (
        "sharing_multiplied",
        "2 times what it should be",
        "config.num_hidden_layers * "
        "layers_per_cache * row(config) * num_tokens * batch_size * bytes_per_value",
    ),
    (
        "in_bits",
        "8 times what it should be",
        "up(config, layers_per_cache) * row(config) * "
        "num_tokens * batch_size * bytes_per_value * 8",
    ),
    (
        "per_token_only",
        "0.5 times what it should be",
        "up(config, layers_per_cache) * row(config) * batch_size * bytes_per_value",
    ),
)

formulas(
    "latent_cache_bytes",
    "layers, rank, rope, tokens, width",
    ("latent_key_and_value", "one* latent", "2 * layers * (rank + rope) * tokens * width"),
)

formulas(
    "max_num_requests",
    "memory, part, weights, per_token, tokens",
    (
        "rounded_up",
        "fits only in part",
        "max(0, math.ceil((memory * part - weights) / (per_token * tokens)))",
    ),
)


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


# 3 KVCache. Each mutant changes one thing of a class that is right.


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


class Base:
    def __init__(self, config, max_num_tokens, dtype=torch.float32, device="cpu"):
        shape = (
            config.num_hidden_layers,
            max_num_tokens,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.max_num_tokens = max_num_tokens
        self.lengths = [0] * config.num_hidden_layers

    def append(self, layer, key, value):
        start = self.lengths[layer]
        end = start + key.shape[0]
        if end > self.max_num_tokens:
            raise ValueError("full")
        self.keys[layer, start:end] = key
        self.values[layer, start:end] = value
        self.lengths[layer] = end
        return self.keys[layer, :end], self.values[layer, :end]

    @property
    def num_tokens(self):
        return min(self.lengths)

    @property
    def nbytes(self):
        return self.keys.nbytes + self.values.nbytes

    def truncate(self, num_tokens):
        if num_tokens > self.num_tokens:
            raise ValueError("cannot grow")
        self.lengths = [num_tokens] * len(self.lengths)


@right("kv_cache")
class ListPerLayer(Base):
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


class ReturnsOnlyNew(Base):
    def append(self, layer, key, value):
        super().append(layer, key, value)
        return key, value


@wrong("kv_cache", "all tokens of this layer, old and new")
class ReturnsTheOldOnes(Base):
    def append(self, layer, key, value):
        start = self.lengths[layer]
        super().append(layer, key, value)
        if start == 0:
            return self.keys[layer, : len(key)], self.values[layer, : len(key)]
        return self.keys[layer, :start], self.values[layer, :start]


class SharedLength(Base):
    def __init__(self, config, max_num_tokens, *args):
        super().__init__(config, max_num_tokens, *args)
        self.length = 0

    def append(self, layer, key, value):
        self.lengths = [self.length] * len(self.lengths)
        out = super().append(layer, key, value)
        self.length += len(key)
        return out


@wrong("kv_cache", "`nbytes` is wrong", "2 times")
class IgnoresDtype(Base):
    def __init__(self, config, max_num_tokens, dtype=None, device="cpu"):
        super().__init__(config, max_num_tokens, torch.float32, device)


@wrong("kv_cache", "wrong after `truncate`", "also if n is 0")
class TruncateDoesNothing(Base):
    def truncate(self, num_tokens):
        if num_tokens > self.num_tokens:
            raise ValueError("cannot grow")


@wrong("kv_cache", "wrong after `truncate`", "*keep*")
class TruncateEmpties(Base):
    def truncate(self, num_tokens):
        if num_tokens > self.num_tokens:
            raise ValueError("cannot grow")
        self.lengths = [0] * len(self.lengths)


@wrong("kv_cache", "raised ValueError", "fit behind those that are held")
class TruncateForgetsTheBuffer(Base):
    """num_tokens follows, the place to write does not."""

    def __init__(self, *args):
        super().__init__(*args)
        self.shown = None

    def append(self, layer, key, value):
        out = super().append(layer, key, value)
        self.shown = None
        return out

    @property
    def num_tokens(self):
        return min(self.lengths) if self.shown is None else self.shown

    def truncate(self, num_tokens):
        if num_tokens > self.num_tokens:
            raise ValueError("cannot grow")
        self.shown = num_tokens


@wrong("kv_cache", "wrong after `truncate`", "also if n is 0")
class ZeroIsFalse(Base):
    """A reset that never happens: 0 is taken for "not given"."""

    def truncate(self, num_tokens=None):
        if num_tokens:
            super().truncate(num_tokens)


@wrong("kv_cache", "raise a ValueError if")
class LetsTorchComplain(Base):
    def append(self, layer, key, value):
        start, end = self.lengths[layer], self.lengths[layer] + len(key)
        self.keys[layer, start:end] = key
        self.values[layer, start:end] = value
        self.lengths[layer] = end
        return self.keys[layer, :end], self.values[layer, :end]


@wrong("kv_cache", "refused append must change nothing")
class CountsBeforeItChecks(Base):
    def append(self, layer, key, value):
        self.lengths[layer] += len(key)
        end = self.lengths[layer]
        if end > self.max_num_tokens:
            raise ValueError("full")
        self.keys[layer, end - len(key) : end] = key
        self.values[layer, end - len(key) : end] = value
        return self.keys[layer, :end], self.values[layer, :end]


@wrong("kv_cache", "raised ValueError")
class RefusesAnExactFit(Base):
    def append(self, layer, key, value):
        if self.lengths[layer] + len(key) >= self.max_num_tokens:
            raise ValueError("full")
        return super().append(layer, key, value)


@wrong("kv_cache", "`nbytes` is wrong", "0.5 times")
class CountsKeysOnly(Base):
    @property
    def nbytes(self):
        return self.keys.nbytes


@wrong("kv_cache", "`nbytes` is wrong", "in bytes")
class CountsValues(Base):
    @property
    def nbytes(self):
        return self.keys.numel() + self.values.numel()


@wrong("kv_cache", "*reserved*")
class CountsOnlyWhatIsUsed(Base):
    @property
    def nbytes(self):
        return self.keys[:, : self.num_tokens].nbytes + self.values[:, : self.num_tokens].nbytes


@wrong("kv_cache", "is a method")
class NumTokensAsAMethod(Base):
    def num_tokens(self):
        return min(self.lengths)


@wrong("kv_cache", "`num_tokens` is wrong after an append")
class CountsTokensTimesLayers(Base):
    @property
    def num_tokens(self):
        return sum(self.lengths)


@wrong("kv_cache", "share their length")
class LengthsInTheClassBody(Base):
    lengths = [0] * 8

    def __init__(self, config, *args):
        super().__init__(config, *args)
        del self.lengths

    @property
    def num_tokens(self):
        return min(self.lengths[: len(self.keys)])


# 6 engine


wrong("engine", "engine's own cache")(ContiguousKVCache)
wrong("engine", "Exercise 3", "only the new tokens")(ReturnsOnlyNew)
wrong("engine", "One length for all layers")(SharedLength)
right("engine")(OneBuffer)

# 4 generate_with_cache


def positions_after(kv_cache, count):
    return torch.arange(kv_cache.num_tokens, kv_cache.num_tokens + count)


@wrong("generate_with_cache", "cache was not reset")
def no_reset(model, kv_cache, prompt_token_ids, max_tokens, eos_token_ids):
    fed, new = list(prompt_token_ids), []
    while len(new) < max_tokens:
        logits = model(torch.tensor(fed), positions_after(kv_cache, len(fed)), kv_cache)
        fed = [int(logits[-1].argmax())]
        new += fed
        if fed[0] in eos_token_ids:
            break
    return new


@wrong("generate_with_cache", "ran once more")
def feeds_the_last_token_too(model, kv_cache, prompt_token_ids, max_tokens, eos_token_ids):
    kv_cache.truncate(0)
    fed, new = list(prompt_token_ids), []
    while len(new) < max_tokens:
        logits = model(torch.tensor(fed), positions_after(kv_cache, len(fed)), kv_cache)
        fed = [int(logits[-1].argmax())]
        new += fed
        if fed[0] in eos_token_ids:
            break
    model(torch.tensor(fed), positions_after(kv_cache, 1), kv_cache)
    return new


@wrong("generate_with_cache", "not the tokens that come next")
def feeds_the_last_prompt_token_twice(model, kv_cache, prompt_token_ids, max_tokens, eos_token_ids):
    kv_cache.truncate(0)
    model(torch.tensor(prompt_token_ids), torch.arange(len(prompt_token_ids)), kv_cache)
    fed, new = [prompt_token_ids[-1]], []
    while len(new) < max_tokens:
        logits = model(torch.tensor(fed), positions_after(kv_cache, 1), kv_cache)
        fed = [int(logits[-1].argmax())]
        new += fed
        if fed[0] in eos_token_ids:
            break
    return new


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
