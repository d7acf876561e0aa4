"""Small stories about a KV cache, each told to the learner's class: the check of `KVCache`.

A token is a letter, so that the feedback can say which token lies where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from utils.checks.kit import pictures
from utils.checks.kit.runner import Mismatch, call, describe
from utils.engine.config.model import ModelConfig

OWN = "Create buffers and lengths in `__init__`, as `self....`, not in the class body."
STORY_CONFIG = {"heads": 4, "kv_heads": 2, "head_dim": 4, "hidden": 16}


def small_config(layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int) -> ModelConfig:
    """A model shape for checks; only the fields that decide the size of the cache matter."""
    return ModelConfig(
        vocab_size=32, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=8192,
        tie_word_embeddings=True, eos_token_ids=(2,),
    )  # fmt: skip


def _new(cache_class: Callable[..., Any], layers: int, max_num_tokens: int, **kwargs: Any) -> Any:
    config = small_config(layers=layers, **STORY_CONFIG)
    dtype = kwargs.get("dtype", torch.float32)
    given = f"KVCache(config with {layers} layers, max_num_tokens={max_num_tokens}, {dtype}, cpu)"
    cache = call(cache_class, config, max_num_tokens, dtype, torch.device("cpu"), given=given)
    _count(cache, f"a new cache: {given}", 0,
           "A new cache already holds tokens: two caches share their length.", OWN)  # fmt: skip
    return cache


def _tokens(names: str, layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values [T, 2, 4] that carry their token's letter, so that a reader can name it."""
    code = torch.tensor([float(ord(name) - ord("a") + 1) for name in names])[:, None, None]
    offset = 100 * layer + torch.arange(8.0).view(1, 2, 4) / 100
    return code + offset, -(code + offset)


def _names(rows: Any, sign: int) -> list[str]:
    """The labels of what lies in a tensor made by `_tokens`: k or v, letter, layer."""
    labels = []
    for row in rows.detach().float().reshape(rows.shape[0], -1)[:, 0].tolist():
        kind, number = ("k" if row > 0 else "v"), abs(row)
        layer, letter = int(number // 100), round(number % 100)
        labels.append(f"{kind}:{chr(ord('a') + letter - 1)}{layer}" if 0 < letter < 27 else "?")
    return labels


def _append(cache: Any, story: str, layer: int, new: str, held: str) -> None:
    """Append tokens `new` to a layer that then must hold `held`; judge what comes back."""
    key, value = _tokens(new, layer)
    story = f"{story}; now append({layer}, {new!r})"
    got = call(cache.append, layer, key, value, given=story)
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise Mismatch(
            f"`append` returned {describe(got)}; expected a pair (all_keys, all_values).",
            input=story, look="`return keys, values`: all tokens of this layer, old and new.",
        )  # fmt: skip
    want = _tokens(held, layer)
    if all(isinstance(g, Tensor) and g.shape == w.shape and torch.equal(g, w)
           for g, w in zip(got, want, strict=True)):  # fmt: skip
        return
    says, look = _explain_append(got, layer, new, held)
    figure = None
    if all(isinstance(g, Tensor) and g.dim() == 3 for g in got):
        figure = pictures.cache_rows(
            [_names(want[0], 1), _names(want[1], -1)],
            [_names(got[0], 1)[:12], _names(got[1], -1)[:12]],
            ["keys", "values"],
        )
    raise Mismatch(
        says, input=story + " (one letter per token, the digit is the layer)",
        expected=_listing(want), got=_listing(got), look=look,
        figure=figure, alt="The slots of the cache, expected and yours.",
    )  # fmt: skip


def _listing(pair: Sequence[Any]) -> str:
    parts = []
    for name, tensor in zip(("keys", "values"), pair, strict=True):
        if isinstance(tensor, Tensor) and tensor.dim() == 3:
            inside = " ".join(_names(tensor, 1)[:12]) or "nothing"
            parts.append(f"{name} {inside}, shape {tuple(tensor.shape)}")
        else:
            parts.append(f"{name} {describe(tensor)}")
    return "; ".join(parts)


def _explain_append(got: Sequence[Any], layer: int, new: str, held: str) -> tuple[str, str]:
    for tensor in got:
        if not isinstance(tensor, Tensor) or tensor.dim() != 3:
            return (f"`append` returned {describe(tensor)} where a tensor [L, H_kv, D] belongs.",
                    "Slice the buffer: `self.keys[layer, :length]`.")  # fmt: skip
    keys, values = got
    want_keys, want_values = _tokens(held, layer)
    new_keys, _ = _tokens(new, layer)

    def same(a: Tensor, b: Tensor) -> bool:
        return a.shape == b.shape and torch.equal(a, b)

    old = len(held) - len(new)
    if same(keys, want_values) or same(values, want_keys):
        return ("Keys and values are exchanged, or both are written to the same place.",
                "Two buffers: key into `self.keys`, value into `self.values`, returned in that "
                "order.")  # fmt: skip
    if old and same(keys, new_keys):
        return ("`append` returns only the new tokens. Attention needs all of them, old and new.",
                "Return everything from slot 0 to the new length.")  # fmt: skip
    if old and keys.shape[0] == old:
        return ("`append` returns the tokens as they were *before* the new ones.",
                "Advance the length first, then slice up to it.")  # fmt: skip
    if keys.shape[0] == len(held):
        if old and same(keys[: len(new)], new_keys):
            return ("New tokens are written at the start, over the old ones.",
                    "Write at the current length: `[length : length + T]`.")  # fmt: skip
        return ("The number of tokens is right, but not what lies in them.",
                "Write the new tokens behind the old ones, in order: "
                "`[length : length + T]`.")  # fmt: skip
    if keys.shape[0] > len(held):
        missing = _names(keys, 1)
        if "?" in missing[: len(held)]:
            return (f"Layer {layer} returns {keys.shape[0]} slots; it holds {len(held)} tokens. "
                    "It starts with slots that were never written: does another layer's append "
                    "move the place where this layer writes? (One length for all layers, advanced "
                    "by each of them.)",
                    "Keep one length per layer: `self.lengths[layer]`.")  # fmt: skip
        if "?" in missing:
            return (f"`append` returns {keys.shape[0]} slots, but only {len(held)} tokens are "
                    "held: empty slots come back too.",
                    "Return `[:length]`, not the whole buffer.")  # fmt: skip
        return (f"Layer {layer} returns {keys.shape[0]} tokens; it holds {len(held)}. Old tokens, "
                "or tokens of another layer, are among them.",
                "Is the length of this layer right after `truncate` and after appends to other "
                "layers?")  # fmt: skip
    return (f"`append` returns {keys.shape[0]} tokens; expected {len(held)}.",
            "Return everything from slot 0 to the new length.")  # fmt: skip


def _count(cache: Any, story: str, expected: int, says: str, look: str) -> None:
    got = call(lambda: cache.num_tokens, given=story)
    if callable(got):
        raise Mismatch(
            "`num_tokens` is a method; the engine reads it without parentheses.",
            input=story, look="Put `@property` above `def num_tokens(self)`.",
        )  # fmt: skip
    if got != expected:
        raise Mismatch(
            says, input=story, expected=f"num_tokens `{expected}`", got=f"`{got}`", look=look
        )


def _story_append(cache_class: Callable[..., Any]) -> None:
    cache = _new(cache_class, 1, 6)
    story = "a new cache, 1 layer, 6 slots"
    _append(cache, story, 0, "a", "a")
    _append(cache, story + ", holds a", 0, "b", "ab")
    _append(cache, story + ", holds a b", 0, "cde", "abcde")


def _story_layers(cache_class: Callable[..., Any]) -> None:
    cache = _new(cache_class, 3, 6)
    held = ""
    for new in ("ab", "c"):
        for layer in range(3):
            others = f"layers before {layer} have {held + new!r}, the others {held!r}"
            _append(cache, f"3 layers, 6 slots; {others}", layer, new, held + new)
        held += new


def fill(cache_class: Callable[..., Any], names: str, slots: int = 6, layers: int = 2) -> Any:
    cache = _new(cache_class, layers, slots)
    for layer in range(layers):
        _append(cache, f"a new cache, {layers} layers, {slots} slots", layer, names, names)
    return cache


def _story_count(cache_class: Callable[..., Any]) -> None:
    look = "Count tokens, not tokens times layers, and not free slots."
    cache = fill(cache_class, "abc")
    story = "'abc' appended to both of 2 layers"
    _count(cache, story, 3, "`num_tokens` is wrong after an append to every layer.", look)


def _story_truncate(cache_class: Callable[..., Any]) -> None:
    cache = fill(cache_class, "abcd")
    story = "2 layers hold a b c d; then truncate(3)"
    call(cache.truncate, 3, given=story)
    got = cache.num_tokens
    known = {
        4: "`truncate` leaves `num_tokens` as it was.",
        1: "`truncate(n)` drops n tokens. It must *keep* the first n.",
        0: "`truncate` empties the cache. It must keep the first n tokens.",
    }
    _count(cache, story, 3, known.get(got, "`num_tokens` is wrong after `truncate(3)`."),
           "`truncate(n)` sets the length of every layer to n.")  # fmt: skip
    for layer in range(2):
        _append(cache, story, layer, "x", "abcx")


def _story_truncate_too_far(cache_class: Callable[..., Any]) -> None:
    cache = fill(cache_class, "abc")
    story = "2 layers with 6 slots hold a b c; then truncate(5)"
    try:
        cache.truncate(5)
    except ValueError:
        return
    except Exception as error:
        raise Mismatch(
            f"`truncate` past the end raised {type(error).__name__}; expected a ValueError.",
            input=story, look="Check `n > self.num_tokens` first.",
        ) from None  # fmt: skip
    raise Mismatch(
        "`truncate` past the end passes silently. It can only forget tokens; slots that were never "
        "written would become tokens.",
        input=story, expected="ValueError", got=f"num_tokens `{cache.num_tokens}`",
        look="Check `n > self.num_tokens` first.",
    )  # fmt: skip


def _story_reset(cache_class: Callable[..., Any]) -> None:
    cache = fill(cache_class, "abcd")
    story = "2 layers hold a b c d; then truncate(0), for the next request"
    call(cache.truncate, 0, given=story)
    _count(cache, story, 0, "`truncate(0)` must empty the cache: the next request starts clean.",
           "`truncate(n)` sets the length of every layer to n. Is n = 0 treated as 'nothing to "
           "do'?")  # fmt: skip
    for layer in range(2):
        _append(cache, story, layer, "xy", "xy")


def _story_overflow(cache_class: Callable[..., Any]) -> None:
    cache = _new(cache_class, 1, 4)
    story = "1 layer, 4 slots"
    _append(cache, story, 0, "abc", "abc")
    key, value = _tokens("xy", 0)
    story += ", holds a b c; now append(0, 'xy'), one token too many"
    try:
        got = cache.append(0, key, value)
    except ValueError:
        pass
    except Exception as error:
        raise Mismatch(
            f"Overflow raised {type(error).__name__}: {error}. Expected a ValueError that says "
            "what is wrong.",
            input=story, look="Check `length + T > max_num_tokens` before you write.",
        ) from None  # fmt: skip
    else:
        raise Mismatch(
            "Overflow passes silently. A full cache must refuse with a ValueError; to grow, or to "
            "drop tokens without a word, gives wrong text later.",
            input=story, expected="ValueError", got=_listing(got),
            look="Check `length + T > max_num_tokens` before you write.",
        )  # fmt: skip
    _count(cache, story + " (refused)", 3, "A refused append must change nothing.",
           "Check before you write or count.")  # fmt: skip
    _append(cache, "after a refused append, a b c are held and 1 slot is free", 0, "d", "abcd")


def _story_bytes(cache_class: Callable[..., Any]) -> None:
    for dtype, width in ((torch.float32, 4), (torch.bfloat16, 2)):
        cache = _new(cache_class, 2, 5, dtype=dtype)
        story = f"2 layers, 5 slots, 2 KV heads, head_dim 4, {dtype}"
        expected = 2 * torch.empty(2, 5, 2, 4, dtype=dtype).nbytes
        got = call(lambda c=cache: c.nbytes, given=story)
        if callable(got):
            raise Mismatch("`nbytes` is a method; the engine reads it without parentheses.",
                           look="Put `@property` above `def nbytes(self)`.")  # fmt: skip
        if got != expected:
            says = {
                expected // 2: "`nbytes` counts keys or values, not both.",
                expected * 2: "`nbytes` is twice too large. Do you count query heads, or float32?",
                expected // width: "`nbytes` counts values, not bytes.",
                0: "`nbytes` is 0 for an empty cache. It is the memory *reserved*, used or not.",
            }.get(got, "`nbytes` is wrong. It is the memory reserved for keys and values.")
            raise Mismatch(says, input=story, expected=f"`{expected}`", got=f"`{got}`",
                           look="`self.keys.nbytes + self.values.nbytes`.")  # fmt: skip
        key, value = (t.to(dtype) for t in _tokens("a", 0))
        keys, _ = call(cache.append, 0, key, value, given=story)
        if keys.dtype != dtype:
            raise Mismatch(
                "The cache ignores its dtype.", input=story,
                expected=str(dtype), got=str(keys.dtype), look="`torch.empty(..., dtype=dtype)`.",
            )  # fmt: skip


def _story_two_caches(cache_class: Callable[..., Any]) -> None:
    first = fill(cache_class, "abc")
    second = _new(cache_class, 2, 6)
    try:
        for layer in range(2):
            _append(second, "a second cache beside the first", layer, "xy", "xy")
            _append(first, "the first cache, after the second one was used", layer, "d", "abcd")
    except Mismatch as wrong:
        raise Mismatch(
            "Two caches share their storage: one request reads another's tokens.",
            input="'abc' into a first cache, 'xy' into a second one, 'd' into the first",
            got=str(wrong), look=OWN,
        ) from None  # fmt: skip


def _story_no_copies(cache_class: Callable[..., Any]) -> None:
    cache = _new(cache_class, 1, 6)
    places = []
    for name in "abc":
        keys, _ = cache.append(0, *_tokens(name, 0))
        places.append((keys, keys.data_ptr()))
    if len({place for _, place in places}) > 1:
        raise Mismatch(
            "Every append copies all earlier keys to a new place: the result is right, but the "
            "work grows with the length again.",
            input="three appends of one token to one layer",
            expected="three views of one buffer", got="three different tensors",
            look="Reserve [layers, max_num_tokens, H_kv, D] once, write into it, return a slice. "
            "`torch.cat` and `clone` copy.",
        )  # fmt: skip


def _story_against_transformers(cache_class: Callable[..., Any]) -> None:
    cache, oracle = _new(cache_class, 3, 16), DynamicCache()
    for size in (3, 2, 1, 5):
        for layer in range(3):
            key, value = torch.randn(2, size, 2, 4)
            got = call(cache.append, layer, key, value)
            want = oracle.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None], layer)
            for name, mine, theirs in zip(("keys", "values"), got, want, strict=True):
                if not torch.equal(mine, theirs[0].transpose(0, 1)):
                    raise Mismatch(
                        f"The {name} differ from transformers' DynamicCache.",
                        input=f"chunks of 3, 2, 1, 5 tokens; chunk of {size}, layer {layer}",
                    )


STORIES: tuple[Callable[[Callable[..., Any]], None], ...] = (
    _story_append,
    _story_layers,
    _story_count,
    _story_truncate,
    _story_truncate_too_far,
    _story_reset,
    _story_overflow,
    _story_bytes,
    _story_two_caches,
    _story_no_copies,
    _story_against_transformers,
)
