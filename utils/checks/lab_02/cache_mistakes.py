"""What learners' caches get wrong, and the words for it: exercise 3."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Clause, Contract, InLockstep, mistake
from utils.checks.lab_02.cache_play import draw_story, play
from utils.engine.attention.kv_cache import ContiguousKVCache

KEPT = "`truncate(n)` sets the length of every layer to n, and only looks at `num_tokens`."
FITS = "Check `length + T > max_num_tokens` before you write or count."
OWN = "Create buffers and lengths in `__init__`, as `self....`, not in the class body."
BYTES = "`self.keys.nbytes + self.values.nbytes`."
ORDER = "New tokens go to `[length : length + T]`; then everything up to the new length comes back."

CLAUSES = {
    "new": Clause("`KVCache(config, max_num_tokens, dtype, device)` gives no cache."),
    "new: num_tokens": Clause(
        "A new cache already holds tokens: two caches share their length.", OWN
    ),
    "other: num_tokens": Clause(
        "What is done to one cache changes another: two caches share their length.", OWN
    ),
    "append": Clause(
        "{says} `append` must return a pair of tensors [L, H_kv, D], or raise a "
        "ValueError if the new tokens do not fit behind those that are held.",
        FITS,
    ),
    "dtype": Clause("The cache ignores its dtype.", "`torch.empty(..., dtype=dtype)`."),
    "shape": Clause(
        "Tokens come first, then KV heads, then head_dim: [L, H_kv, D].",
        "`self.keys[layer, :length]` has this shape if the buffer is "
        "[layers, max_num_tokens, H_kv, D].",
    ),
    "tokens": Clause(
        "`append` must return all tokens of this layer, old and new, in order: keys, then values.",
        ORDER,
    ),
    "device": Clause("The cache ignores its device.", "`torch.empty(..., device=device)`."),
    "place": Clause(
        "`append` must return slices of the memory that was reserved at first. A copy "
        "is right too, but its work grows with the length.",
        "Reserve once, write into it, return a slice. `torch.cat`, `clone` and `+` copy.",
    ),
    "append: num_tokens": Clause(
        "`num_tokens` is wrong after an append. It is how many tokens "
        "*every* layer holds: the smallest of their lengths, not that of "
        "one layer, and not all added up.",
        "`min(self.lengths)`.",
    ),
    "refused: num_tokens": Clause("A refused append must change nothing.", FITS),
    "truncate": Clause(
        "`truncate(n)` keeps n tokens of every layer. It can only forget: if a "
        "layer holds fewer, it raises a ValueError.",
        "Check `n > self.num_tokens` first.",
    ),
    "truncate: num_tokens": Clause(
        "`num_tokens` is wrong after `truncate`: it must *keep* the "
        "first n tokens of every layer, also if n is 0.",
        KEPT,
    ),
    "nbytes": Clause(
        "`nbytes` is wrong. It is the memory *reserved* for keys and values, in "
        "bytes, used or not. {says}",
        BYTES,
    ),
}


class Base:
    """A right cache, for mistakes to change one thing of."""

    def __init__(
        self, config: Any, max_num_tokens: int, dtype: Any = torch.float32, device: Any = "cpu"
    ) -> None:
        size = (max_num_tokens, config.num_key_value_heads, config.head_dim)
        shape = (config.num_hidden_layers, *size)
        self.keys = torch.full(shape, torch.nan, dtype=dtype, device=device)
        self.values = torch.full(shape, torch.nan, dtype=dtype, device=device)
        self.slots, self.lengths = max_num_tokens, [0] * shape[0]

    def append(self, layer: int, key: Tensor, value: Tensor) -> Any:
        if self.lengths[layer] + len(key) > self.slots:
            raise ValueError("full")
        return self.write(layer, key, value)

    def write(self, layer: int, key: Tensor, value: Tensor) -> Any:
        end = self.lengths[layer] + len(key)
        self.keys[layer, end - len(key) : end] = key
        self.values[layer, end - len(key) : end] = value
        self.lengths[layer] = end
        return self.keys[layer, :end], self.values[layer, :end]

    @property
    def num_tokens(self) -> int:
        return min(self.lengths)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def truncate(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError("cannot grow")
        self.keep(num_tokens)

    def keep(self, n: int) -> None:
        self.lengths = [n] * len(self.lengths)


def but(**changes: Any) -> type[Base]:
    """The right cache with other methods."""
    return type("Changed", (Base,), {"__module__": __name__, **changes})


def _write_shared(self: Any, layer: int, key: Tensor, value: Tensor) -> Any:
    self.lengths[layer] = self.__dict__.setdefault("total", 0)
    both = Base.write(self, layer, key, value)
    self.total += len(key)
    return both


def _append_shared(self: Any, layer: int, key: Tensor, value: Tensor) -> Any:
    self.lengths = [self.__dict__.setdefault("total", 0)] * len(self.lengths)
    both = Base.append(self, layer, key, value)
    self.total += len(key)
    return both


def _write_at_start(self: Any, layer: int, key: Tensor, value: Tensor) -> Any:
    self.keys[layer, : len(key)], self.values[layer, : len(key)] = key, value
    self.lengths[layer] += len(key)
    end = self.lengths[layer]
    return self.keys[layer, :end], self.values[layer, :end]


def _append_grows(self: Any, layer: int, key: Tensor, value: Tensor) -> Any:
    while self.lengths[layer] + len(key) > self.keys.shape[1]:
        self.keys, self.values = (torch.cat((t, t), dim=1) for t in (self.keys, self.values))
    return self.write(layer, key, value)


def _append_drops(self: Any, layer: int, key: Tensor, value: Tensor) -> Any:
    over = self.lengths[layer] + len(key) - self.slots
    if over > 0:
        for buffer in (self.keys, self.values):
            buffer[layer] = buffer[layer].roll(-over, 0)
        self.lengths[layer] -= over
    return self.write(layer, key, value)


def _write_grown(self: Any, layer: int, key: Tensor, value: Tensor) -> Any:
    start, parts = self.lengths[layer], self.__dict__.setdefault("parts", {})
    old = parts.get(layer, (key[:0], value[:0]))
    parts[layer] = tuple(torch.cat((o[:start], n)) for o, n in zip(old, (key, value), strict=True))
    self.lengths[layer] += len(key)
    return parts[layer]


def _truncate_longest(self: Any, n: int) -> None:
    if not 0 <= n <= max(self.lengths):
        raise ValueError("cannot grow")
    self.keep(n)


def _keep_as_many_fewer(self: Any, n: int) -> None:
    fewer = self.num_tokens - n
    self.lengths = [length - fewer for length in self.lengths]


def _one_buffer(self: Any, *args: Any, **kwargs: Any) -> None:
    Base.__init__(self, *args, **kwargs)
    self.values = self.keys


def _pooled(
    self: Any, config: Any, slots: int, dtype: Any = torch.float32, device: Any = "cpu"
) -> None:
    Base.__init__(self, config, slots, dtype, device)
    key = (self.keys.shape, dtype, device)
    self.keys, self.values = self.pool.setdefault(key, (self.keys, self.values))


MISTAKES = (
    mistake(
        "`append` returns only the new tokens. Attention needs all of them, old and new.",
        "Return everything from slot 0 to the new length.",
        but(write=lambda s, n, k, v: (Base.write(s, n, k, v), (k.clone(), v.clone()))[1]),
    ),
    mistake(
        "`append` returns all slots: empty slots come back too.",
        "Return `[:length]`, not the whole buffer.",
        but(write=lambda s, n, k, v: (Base.write(s, n, k, v), (s.keys[n], s.values[n]))[1]),
    ),
    mistake(
        "New tokens are written at the start, over the old ones.",
        "Write at the current length: `[length : length + T]`.",
        but(write=_write_at_start),
    ),
    mistake(
        "Keys and values are exchanged, or both are written to the same place.",
        "Two buffers: key into `self.keys`, value into `self.values`, returned in that order.",
        but(write=lambda s, n, k, v: Base.write(s, n, k, v)[::-1]),
        but(__init__=_one_buffer),
    ),
    mistake(
        "Does another layer's append move the place where this layer writes? (One length for "
        "all layers, advanced by each of them.)",
        "Keep one length per layer: `self.lengths[layer]`.",
        but(write=_write_shared),
        but(append=_append_shared),
    ),
    mistake(
        "`truncate(n)` drops n tokens. It must *keep* the first n.",
        KEPT,
        but(keep=lambda s, n: setattr(s, "lengths", [x - n for x in s.lengths])),
    ),
    mistake(
        "`truncate` past the end passes silently. It can only forget tokens; slots that were "
        "never written would become tokens.",
        "Check `n > self.num_tokens` first.",
        but(truncate=Base.keep),
        but(truncate=lambda s, n: s.keep(min(n, s.num_tokens))),
    ),
    mistake(
        "In mid-step, the layers hold different numbers of tokens. `truncate` is refused if "
        "*any* layer holds fewer, and leaves all at n.",
        KEPT,
        but(truncate=_truncate_longest),
        but(keep=_keep_as_many_fewer),
    ),
    mistake(
        "Overflow passes silently. A full cache must refuse with a ValueError; to grow, or to "
        "drop tokens without a word, gives wrong text later.",
        FITS,
        but(append=_append_grows),
        but(append=_append_drops),
    ),
    mistake(
        "Two caches share their storage: one request reads another's tokens.",
        OWN,
        but(__init__=_pooled, pool={}),
    ),
    mistake(
        "Every append copies all earlier keys to a new place: the result is right, but the "
        "work grows with the length again.",
        "Reserve [layers, max_num_tokens, H_kv, D] once, "
        "write into it, return a slice. `torch.cat` and `clone` copy.",
        but(write=_write_grown),
        but(write=lambda s, n, k, v: tuple(t.clone() for t in Base.write(s, n, k, v))),
    ),
)

KV_CACHE = Contract(
    inputs=draw_story,
    judge=InLockstep(play, ContiguousKVCache),
    passed="Appends, lengths, truncate, overflow, bytes and device are right in 200 random "
    "stories of one and two caches; nothing is copied.",
    clauses=CLAUSES,
    mistakes=MISTAKES,
    examples=200,
)
