"""The checks of lab 02. Oracles: transformers' caches and `generate`, and real tensors' sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from utils.checks import pictures
from utils.checks.reference import greedy, hf_greedy, reference_prompts
from utils.checks.runner import (
    Bug,
    Mismatch,
    NumberCase,
    call,
    compare_numbers,
    describe,
    exercise,
)
from utils.checks.tiny import TinyModel
from utils.engine.config import ModelConfig
from utils.engine.kv_cache import ContiguousKVCache
from utils.engine.llama import LlamaOps, silu_and_mul
from utils.engine.llm_engine import LLM

# Exercise 1


@exercise("Exercise 1: kv_cache_bytes", points=3)
def kv_cache_bytes(function: Callable[..., int]) -> str:
    """Check `kv_cache_bytes(config, num_tokens, batch_size, bytes_per_value, layers_per_cache)`."""

    def case(
        given: str, config: ModelConfig, tokens: int, batch: int = 1, width: int = 2, share: int = 1
    ) -> NumberCase:
        given = (
            f"{given}: {config.num_hidden_layers} layers, hidden_size {config.hidden_size}, "
            f"{config.num_attention_heads} query heads, {config.num_key_value_heads} KV heads, "
            f"head_dim {config.head_dim}; {tokens} tokens, batch {batch}, {width} bytes per value, "
            f"{share} layers per cache"
        )
        expected = _allocated_bytes(config, tokens, batch, width, share)
        return NumberCase(given, (config, tokens, batch, width, share), expected)

    mha = small_config(layers=1, heads=2, kv_heads=2, head_dim=4, hidden=8)
    gqa = small_config(layers=3, heads=6, kv_heads=2, head_dim=4, hidden=24)
    odd = small_config(layers=2, heads=4, kv_heads=1, head_dim=16, hidden=40)
    cases = [
        case("MHA, one token", mha, 1),
        case("GQA", gqa, 5),
        case("GQA, batch of 3, float32", gqa, 5, 3, 4),
        case("MQA with a head_dim that is not hidden_size / heads", odd, 7),
        case("every 2 layers share a cache", gqa, 5, 1, 2, 2),
        case("Llama-3-8B's shape", small_config(32, 32, 8, 128, 4096), 8192, 1, 2),
    ]
    # A real cache, filled by transformers, is the oracle's own oracle.
    for config, tokens, batch in ((mha, 1, 1), (gqa, 5, 3)):
        assert _filled_bytes(config, tokens, batch) == _allocated_bytes(config, tokens, batch, 4, 1)

    def wrong(
        *, pair: int = 2, heads: str = "kv", layers: str = "shared", batch: bool = True,
        width: str = "bytes", tokens: bool = True,
    ) -> Callable[..., int]:  # fmt: skip
        def count(c: ModelConfig, t: int, b: int, w: int, s: int) -> int:
            per_token = {
                "kv": c.num_key_value_heads * c.head_dim,
                "query": c.num_attention_heads * c.head_dim,
                "hidden": c.hidden_size,
                "divided": c.num_key_value_heads * c.hidden_size // c.num_attention_heads,
            }[heads]
            n = c.num_hidden_layers
            n = {"shared": math.ceil(n / s), "all": n, "one": 1, "floor": n // s, "times": n * s}[
                layers
            ]
            size = {"bytes": w, "bits": 8 * w, "none": 1}[width]
            return pair * n * per_token * (t if tokens else 1) * (b if batch else 1) * size

        return count

    bugs = [
        Bug("The factor 2 is missing: each token leaves a key *and* a value.",
            "`2 * layers * kv_heads * head_dim * tokens * batch * bytes`.", wrong(pair=1)),
        Bug("You count the query heads. The cache holds keys and values only, so it has "
            "`num_key_value_heads` heads.",
            "Queries are used once and thrown away.", wrong(heads="query")),
        Bug("You count hidden_size numbers per token (the d_model form). That is right only for "
            "MHA with head_dim = hidden_size / heads.",
            "`num_key_value_heads * head_dim`.", wrong(heads="hidden")),
        Bug("You compute head_dim as hidden_size / num_attention_heads. Some models choose it "
            "freely.",
            "Use `config.head_dim`.", wrong(heads="divided")),
        Bug("The layers are missing: each layer has its own keys and values.",
            "Multiply by the number of layers.", wrong(layers="one")),
        Bug("`layers_per_cache` is ignored: with cross-layer sharing, several layers use one cache.",
            "`ceil(num_hidden_layers / layers_per_cache)` caches.", wrong(layers="all")),
        Bug("The number of caches is rounded down: 3 layers in groups of 2 need 2 caches, not 1.",
            "Round up: `math.ceil(layers / layers_per_cache)`.", wrong(layers="floor")),
        Bug("Sharing makes your cache larger: you multiply by layers_per_cache.",
            "Divide, and round up.", wrong(layers="times")),
        Bug("The batch is missing: each sequence has its own cache.",
            "Multiply by `batch_size`.", wrong(batch=False)),
        Bug("You count bits, not bytes.", "`bytes_per_value` is in bytes already.",
            wrong(width="bits")),
        Bug("You count values, not bytes.", "Multiply by `bytes_per_value`.", wrong(width="none")),
        Bug("The number of tokens is missing.", "Multiply by `num_tokens`.", wrong(tokens=False)),
    ]  # fmt: skip
    compare_numbers(function, cases, bugs)
    llama = cases[-1].args[0]
    return (
        "Equal to the memory of real tensors: MHA, GQA, MQA, and layers that share a cache. By "
        f"your count, Llama-3-8B in bfloat16 keeps {int(function(llama, 1)):,} bytes per token, "
        f"{function(llama, 8192) / 2**30:g} GiB for 8,192 tokens."
    )


def small_config(layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int) -> ModelConfig:
    """A model shape for checks; only the fields that decide the size of the cache matter."""
    return ModelConfig(
        vocab_size=32, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=8192,
        tie_word_embeddings=True, eos_token_ids=(2,),
    )  # fmt: skip


def _allocated_bytes(config: ModelConfig, tokens: int, batch: int, width: int, share: int) -> int:
    """Allocate the caches (without memory) layer by layer, and add up what they take."""
    dtype = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32}[width]
    shape = (2, batch, tokens, config.num_key_value_heads, config.head_dim)
    caches = {
        layer // share: torch.empty(shape, dtype=dtype, device="meta")
        for layer in range(config.num_hidden_layers)
    }
    return sum(cache.nbytes for cache in caches.values())


def _filled_bytes(config: ModelConfig, tokens: int, batch: int) -> int:
    """Run transformers' Llama in float32, and add up the tensors in its cache."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=config.hidden_size, intermediate_size=8,
            num_hidden_layers=config.num_hidden_layers, head_dim=config.head_dim,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
        )  # fmt: skip
    )
    with torch.no_grad():
        out = model(torch.zeros(batch, tokens, dtype=torch.long), use_cache=True)
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in out.past_key_values.layers)


# Exercise 2


@exercise("Exercise 2: latent_cache_bytes", points=1)
def latent_cache_bytes(function: Callable[..., int]) -> str:
    """Check `latent_cache_bytes(num_layers, kv_lora_rank, qk_rope_head_dim, num_tokens, width)`."""

    def case(given: str, *args: int) -> NumberCase:
        layers, rank, rope, tokens, width = args
        dtype = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32}[width]
        latent = torch.empty(layers, tokens, rank, dtype=dtype, device="meta")
        rotated = torch.empty(layers, tokens, rope, dtype=dtype, device="meta")
        given = (
            f"{given}: {layers} layers, kv_lora_rank {rank}, qk_rope_head_dim {rope}, "
            f"{tokens} tokens, {width} bytes per value"
        )
        return NumberCase(given, args, latent.nbytes + rotated.nbytes)

    cases = [
        case("one token", 1, 4, 2, 1, 1),
        case("two layers, bfloat16", 2, 8, 4, 3, 2),
        case("DeepSeek-V3's shape", 61, 512, 64, 4096, 2),
    ]
    bugs = [
        Bug("You count twice, as for a key and a value. MLA stores *one* latent, and rebuilds both "
            "from it.",
            "No factor 2.",
            lambda n, r, p, t, w: 2 * n * (r + p) * t * w),
        Bug("Only the latent is counted. The part of the key that carries RoPE is stored beside "
            "it, once for all heads.",
            "`kv_lora_rank + qk_rope_head_dim` values per token and layer.",
            lambda n, r, p, t, w: n * r * t * w),
        Bug("The latent is counted twice. One latent serves keys and values.",
            "`kv_lora_rank + qk_rope_head_dim`.",
            lambda n, r, p, t, w: n * (2 * r + p) * t * w),
        Bug("The rotated part is counted twice. Only keys carry a position.",
            "`kv_lora_rank + qk_rope_head_dim`.",
            lambda n, r, p, t, w: n * (r + 2 * p) * t * w),
        Bug("Latent and rotated part are multiplied. They lie side by side.",
            "Add them.",
            lambda n, r, p, t, w: n * r * p * t * w),
        Bug("The layers are missing.", "Multiply by `num_layers`.",
            lambda n, r, p, t, w: (r + p) * t * w),
        Bug("You count values, not bytes.", "Multiply by `bytes_per_value`.",
            lambda n, r, p, t, w: n * (r + p) * t),
    ]  # fmt: skip
    compare_numbers(function, cases, bugs)
    deepseek = function(61, 512, 64, 1, 2)
    # What 128 heads of keys (128 + 64 numbers) and values (128 numbers) would take instead.
    full = 61 * 128 * (192 + 128) * 2
    return (
        "Equal to the memory of real tensors. By your count, DeepSeek-V3 keeps "
        f"{int(deepseek):,} bytes per token; with full keys and values for its 128 heads it would "
        f"be {full / deepseek:.0f} times as many."
    )


# Exercise 3


@exercise("Exercise 3: KVCache", points=4)
def kv_cache(cache_class: Callable[..., Any]) -> str:
    """Check the contract of `ContiguousKVCache`, one small story after another."""
    for story in (
        _story_append, _story_layers, _story_count, _story_truncate, _story_truncate_too_far, _story_reset, _story_overflow,
        _story_bytes, _story_two_caches, _story_no_copies, _story_against_transformers,
    ):  # fmt: skip
        story(cache_class)
    return (
        "Appends, lengths, truncate, overflow and bytes are right; nothing is copied; "
        "equal to transformers' DynamicCache over chunks of 3, 2, 1 and 5 tokens."
    )


_OWN = "Create buffers and lengths in `__init__`, as `self....`, not in the class body."
_STORY_CONFIG = {"heads": 4, "kv_heads": 2, "head_dim": 4, "hidden": 16}


def _new(cache_class: Callable[..., Any], layers: int, max_num_tokens: int, **kwargs: Any) -> Any:
    config = small_config(layers=layers, **_STORY_CONFIG)
    dtype = kwargs.get("dtype", torch.float32)
    given = f"KVCache(config with {layers} layers, max_num_tokens={max_num_tokens}, {dtype}, cpu)"
    cache = call(cache_class, config, max_num_tokens, dtype, torch.device("cpu"), given=given)
    _count(cache, f"a new cache: {given}", 0,
           "A new cache already holds tokens: two caches share their length.", _OWN)  # fmt: skip
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


def _fill(cache_class: Callable[..., Any], names: str, slots: int = 6, layers: int = 2) -> Any:
    cache = _new(cache_class, layers, slots)
    for layer in range(layers):
        _append(cache, f"a new cache, {layers} layers, {slots} slots", layer, names, names)
    return cache


def _story_count(cache_class: Callable[..., Any]) -> None:
    look = "Count tokens, not tokens times layers, and not free slots."
    cache = _fill(cache_class, "abc")
    story = "'abc' appended to both of 2 layers"
    _count(cache, story, 3, "`num_tokens` is wrong after an append to every layer.", look)


def _story_truncate(cache_class: Callable[..., Any]) -> None:
    cache = _fill(cache_class, "abcd")
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
    cache = _fill(cache_class, "abc")
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
    cache = _fill(cache_class, "abcd")
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
            raise Mismatch("The cache ignores its dtype.", input=story, expected=str(dtype),
                           got=str(keys.dtype), look="`torch.empty(..., dtype=dtype)`.")  # fmt: skip


def _story_two_caches(cache_class: Callable[..., Any]) -> None:
    first = _fill(cache_class, "abc")
    second = _new(cache_class, 2, 6)
    try:
        for layer in range(2):
            _append(second, "a second cache beside the first", layer, "xy", "xy")
            _append(first, "the first cache, after the second one was used", layer, "d", "abcd")
    except Mismatch as wrong:
        raise Mismatch(
            "Two caches share their storage: one request reads another's tokens.",
            input="'abc' into a first cache, 'xy' into a second one, 'd' into the first",
            got=str(wrong), look=_OWN,
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


# Exercise 4


@exercise("Exercise 4: generate_with_cache", points=3)
def generate_with_cache(function: Callable[..., list[int]]) -> str:
    """Check `generate_with_cache(model, kv_cache, prompt_token_ids, max_tokens, eos_token_ids)`."""
    tiny = TinyModel()
    free = tiny.greedy([3, 1, 4, 1, 5], 8)
    stop = next(t for i, t in enumerate(free[1:6], 1) if t not in free[:i])
    cases: list[tuple[list[int], int, set[int]]] = [
        ([7], 1, set()),
        ([7], 3, set()),
        ([3, 1, 4, 1, 5], 8, set()),
        ([3, 1, 4, 1, 5], 8, {stop}),
        ([stop, 3, 1], 4, {stop}),
    ]
    cache = _SimpleCache()
    fed = 0
    for index, (prompt, max_tokens, eos) in enumerate(cases):
        given = f"prompt {prompt}, max_tokens {max_tokens}, EOS {sorted(eos) or 'none'}"
        if index:
            given += f"; the cache still holds {cache.num_tokens} tokens of the request before"
        expected = tiny.greedy(prompt, max_tokens, eos)
        model = _CachedModel(tiny, given, prompt, max_tokens)
        got = call(function, model, cache, list(prompt), max_tokens, eos, given=given)
        _judge_cached(given, prompt, eos, expected, got, model)
        fed += len(model.fed)
    return (
        f"Equal to Hugging Face `generate` on {len(cases)} prompts with one cache, and only "
        f"{fed} tokens went through the model: each exactly once."
    )


class _SimpleCache:
    """The cache that exercise 4 hands to the learner: lists, no bounds."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def num_tokens(self) -> int:
        return min((keys.shape[0] for keys, _ in self.layers.values()), default=0)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self.layers:
            key = torch.cat((self.layers[layer][0], key))
            value = torch.cat((self.layers[layer][1], value))
        self.layers[layer] = (key, value)
        return key, value

    def truncate(self, num_tokens: int) -> None:
        self.layers = {n: (k[:num_tokens], v[:num_tokens]) for n, (k, v) in self.layers.items()}


class _Bridge(DynamicCache):
    """Lets transformers' Llama read and write a cache of the course's interface."""

    def __init__(self, kv_cache: Any) -> None:
        super().__init__()
        self.kv_cache = kv_cache

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        pair = self.kv_cache.append(
            layer_idx, key_states[0].transpose(0, 1), value_states[0].transpose(0, 1)
        )
        keys, values = (t.transpose(0, 1)[None] for t in pair)
        return keys, values


class _CachedModel:
    """The `model` that the learner's loop calls: it watches tokens, positions and the cache."""

    def __init__(self, tiny: TinyModel, given: str, prompt: list[int], max_tokens: int) -> None:
        self.fed: list[int] = []
        self.calls: list[list[int]] = []
        self._tiny, self._given, self._prompt, self._max = tiny, given, prompt, max_tokens
        self._newest = -1

    @torch.no_grad()
    def __call__(self, token_ids: Tensor, positions: Tensor, kv_cache: Any) -> Tensor:
        self._look_at(token_ids, positions, kv_cache)
        self.calls.append(token_ids.tolist())
        self.fed += token_ids.tolist()
        start, count = kv_cache.num_tokens, len(token_ids)
        visible = torch.ones(count, start + count).tril(diagonal=start).bool()
        out = self._tiny.hf(
            token_ids[None], position_ids=positions[None], attention_mask=visible[None, None],
            past_key_values=_Bridge(kv_cache), use_cache=True,
        )  # fmt: skip
        self._newest = int(out.logits[0, -1].argmax())
        return out.logits[0]

    def _look_at(self, token_ids: Any, positions: Any, kv_cache: Any) -> None:
        for name, tensor in (("token_ids", token_ids), ("positions", positions)):
            if not isinstance(tensor, Tensor) or tensor.dim() != 1:
                raise Mismatch(
                    f"`{name}` must be a tensor of shape [T]; the model was given "
                    f"{describe(tensor)}.",
                    input=self._given, look="`torch.tensor([token])`, `torch.arange(start, end)`.",
                )  # fmt: skip
        step = f"{self._given}; call {len(self.calls) + 1} of the model"
        if len(self.calls) > len(self._prompt) + self._max + 2:
            raise Mismatch(
                "Your loop does not stop.", input=self._given,
                look="Leave after max_tokens new tokens or after an EOS token.",
            )  # fmt: skip
        start = kv_cache.num_tokens
        if not self.calls and start:
            raise Mismatch(
                f"The cache was not reset: it still holds {start} tokens of the request before, "
                "and the new request would attend to them.",
                input=step, look="`kv_cache.truncate(0)` before the prompt goes in.",
            )  # fmt: skip
        if self.calls and start > len(self.fed):
            raise Mismatch("The cache holds more tokens than the model was given.", input=step)
        known = self._prompt[:]
        if self.calls and len(token_ids) >= len(known) and start and (
            token_ids.tolist()[: len(known)] == known and len(token_ids) > 1
        ):  # fmt: skip
            raise Mismatch(
                f"The whole sequence went through the model again: {len(token_ids)} tokens in "
                f"call {len(self.calls) + 1}, although the cache already holds {start} of them.",
                input=step, expected="only the new token", got=f"`{token_ids.tolist()}`",
                look="After the prompt, feed `torch.tensor([token])`: one token per step.",
            )  # fmt: skip
        sequence = known + [self._newest]
        wanted = sequence[start : start + len(token_ids)]
        emptied = bool(self.calls) and start == 0  # judged at the end, by what it costs
        if not emptied and start <= len(known) and token_ids.tolist() != wanted:
            raise Mismatch(
                "The last token of the prompt goes in twice: it is in the cache already."
                if token_ids.tolist() == known[-1:]
                else "These are not the tokens that come next.",
                input=f"{step}; the cache holds {start} tokens", expected=f"`{wanted}`",
                got=f"`{token_ids.tolist()}`",
                look="First the prompt; its last row of logits gives the first new token; then "
                "each new token once.",
            )  # fmt: skip
        right = list(range(start, start + len(token_ids)))
        if positions.tolist() != right:
            says = "The positions are wrong."
            if positions.numel() != token_ids.numel():
                says = f"{positions.numel()} positions for {token_ids.numel()} tokens."
            elif start and positions[0] == 0:
                says = (
                    "Positions restart at zero. A new token stands *behind* those in the cache, "
                    "and RoPE needs to know."
                )
            elif abs(int(positions[0]) - start) == 1:
                says = "Positions are off by one."
            raise Mismatch(
                says, input=f"{step}; the cache holds {start} tokens", expected=f"`{right}`",
                got=f"`{positions.tolist()}`",
                look="The first new token stands at position `kv_cache.num_tokens`.",
            )  # fmt: skip


def _judge_cached(
    given: str, prompt: list[int], eos: set[int], expected: list[int], got: Any,
    model: _CachedModel,
) -> None:  # fmt: skip
    def wrong(says: str, look: str) -> Mismatch:
        return Mismatch(
            says, input=given, expected=f"`{expected}`", got=describe(got), look=look
        )  # fmt: skip

    once = prompt + expected[:-1]
    if not isinstance(got, list) or not all(isinstance(t, int) for t in got):
        raise wrong("Expected a list of plain ints.", "`int(logits[-1].argmax())`.")
    if got == expected and len(model.fed) > len(once):
        if model.fed[: len(once)] == once:
            raise wrong(
                "The tokens are right, but the model ran once more after the last one.",
                "Stop before you feed a token whose successor nobody asked for.",
            )
        raise wrong(
            f"The tokens are right, but {len(model.fed)} tokens went through the model; "
            f"{len(once)} would do. The cache saves nothing: earlier tokens are recomputed.",
            "Feed the prompt once, then only the newest token. Empty the cache only at the start.",
        )
    if got == expected:
        return
    if got == prompt + expected:
        raise wrong("Your list begins with the prompt. Return the new tokens only.", "")
    if expected[-1] in eos and got[: len(expected)] == expected:
        raise wrong(
            "Generation goes on after the EOS token.", "Leave the loop if `token in eos_token_ids`."
        )
    if expected[-1] in eos and got == expected[:-1]:
        raise wrong(
            "The EOS token is missing at the end.", "Append the token, then ask whether it is EOS."
        )
    if got[: len(expected)] == expected:
        raise wrong("Too many tokens: max_tokens is off by one.", "`len(new) < max_tokens`.")
    if got == expected[: len(got)]:
        raise wrong(
            f"Too few tokens: {len(got)} instead of {len(expected)}.",
            "The prompt's own pass already yields the first token. A prompt may contain EOS.",
        )
    raise wrong(
        "The tokens differ from Hugging Face `generate`.",
        f"The model was fed {model.calls[:6]}: first the prompt, then one new token per call? "
        "The next token is the argmax of the last row.",
    )


# Exercise 5


@exercise("Exercise 5: max_num_requests", points=2)
def max_num_requests(function: Callable[..., int]) -> str:
    """Check `max_num_requests(memory, utilization, weights, bytes_per_token, tokens)`."""

    def case(given: str, *args: Any) -> NumberCase:
        memory, utilization, weights, per_token, tokens = args
        # Counted one by one, without a division.
        count, used = 0, weights + per_token * tokens
        while used <= memory * utilization:
            count, used = count + 1, used + per_token * tokens
        given = (
            f"{given}: {memory} bytes of memory, utilization {utilization}, weights {weights} "
            f"bytes, {per_token} bytes per token, {tokens} tokens per request"
        )
        return NumberCase(given, args, count)

    gib = 1024**3
    cases = [
        case("exact fit", 100, 1.0, 40, 3, 10),
        case("a rest that is too small", 100, 1.0, 45, 3, 10),
        case("half of the memory may be used", 200, 0.5, 40, 3, 10),
        case("the weights alone are too large", 30, 1.0, 40, 3, 10),
        case("Llama-3-8B in bfloat16 on 24 GiB", 24 * gib, 0.9, 16 * gib, 131072, 4096),
    ]

    def room(m: int, u: float, w: int) -> float:
        return m * u - w

    bugs = [
        Bug("A request that fits only in part is counted.",
            "Round down.",
            lambda m, u, w, b, t: max(0, math.ceil(room(m, u, w) / (b * t)))),
        Bug("The result is not a whole number. There is no part of a request.",
            "Round down with `//` or `int(...)`.",
            lambda m, u, w, b, t: max(0, room(m, u, w) / (b * t))),
        Bug("The weights are forgotten: they lie in the same memory.",
            "Subtract `weight_bytes` first.",
            lambda m, u, w, b, t: int(m * u // (b * t))),
        Bug("A negative number of requests. If the weights do not fit, the answer is 0.",
            "`max(0, ...)`.",
            lambda m, u, w, b, t: int(room(m, u, w) // (b * t))),
        Bug("`gpu_memory_utilization` is ignored.",
            "Only `memory_bytes * gpu_memory_utilization` may be used, weights included.",
            lambda m, u, w, b, t: max(0, int((m - w) // (b * t)))),
        Bug("The utilization is applied after the weights were subtracted. In vLLM it limits "
            "everything, weights included.",
            "`memory_bytes * gpu_memory_utilization - weight_bytes`.",
            lambda m, u, w, b, t: max(0, int((m - w) * u // (b * t)))),
        Bug("You count tokens, not requests.",
            "Divide by `tokens_per_request`, too.",
            lambda m, u, w, b, t: max(0, int(room(m, u, w) // b))),
        Bug("The length of a request is multiplied, not divided.",
            "One request takes `kv_bytes_per_token * tokens_per_request` bytes.",
            lambda m, u, w, b, t: max(0, int(room(m, u, w) // b * t))),
    ]  # fmt: skip
    compare_numbers(function, cases, bugs)
    return "Equal to counting requests one by one until the memory is full."


# Exercise 6


@exercise("Exercise 6: your cache runs the engine", points=3)
def engine(cache_class: Callable[..., Any]) -> str:
    """Check that the engine speaks as HF does with the learner's cache, and recomputes nothing."""
    if cache_class is ContiguousKVCache:
        raise Mismatch(
            "That is the engine's own cache.", look="Pass the class that you wrote: `KVCache`."
        )
    _fill(cache_class, "a")  # a class that is not written yet answers before the model is loaded
    appends = rows = 0

    def factory(*args: Any, **kwargs: Any) -> Any:
        cache = cache_class(*args, **kwargs)
        append = cache.append

        def counted_append(layer: int, key: Tensor, value: Tensor) -> Any:
            nonlocal appends
            appends += 1
            return append(layer, key, value)

        cache.append = counted_append
        return cache

    def counted_silu_and_mul(gate_up: Tensor) -> Tensor:
        nonlocal rows
        rows += gate_up.shape[0]
        return silu_and_mul(gate_up)

    prompts = reference_prompts()
    expected = hf_greedy(prompts)
    ops = LlamaOps(silu_and_mul=counted_silu_and_mul)
    llm = LLM(dtype="float32", ops=ops, kv_cache_class=factory)
    outputs = call(greedy, llm, prompts, given=f"the prompts {prompts[0]!r} and two more")
    for prompt, output, tokens in zip(prompts, outputs, expected, strict=True):
        if list(output.outputs[0].token_ids) != tokens:
            raise Mismatch(
                "The engine's text differs from Hugging Face's.",
                input=f"the prompt {prompt!r}",
                expected=repr(llm.get_tokenizer().decode(tokens)),
                got=repr(output.outputs[0].text),
                look="Run the check of exercise 3 again. The engine makes one cache per request, "
                "and appends the new tokens of each layer in turn.",
            )  # fmt: skip
    layers = llm.model_config.num_hidden_layers
    if appends < layers * sum(len(o.outputs[0].token_ids) for o in outputs):
        raise Mismatch("The engine does not use your cache in every step and layer.")
    through = rows // layers
    needed = sum(
        len(o.prompt_token_ids) + len(o.outputs[0].token_ids) - 1 for o in outputs
    )  # fmt: skip
    naive = sum(
        sum(len(o.prompt_token_ids) + i for i in range(len(o.outputs[0].token_ids)))
        for o in outputs
    )
    if through != needed:
        raise Mismatch(
            "The text is right, but tokens are computed more than once.",
            expected=f"{needed} tokens through the model", got=f"{through}",
        )  # fmt: skip
    return (
        f"Token for token what Hugging Face generates. {through} tokens went through the model, "
        f"each once; without a cache it would have been {naive:,}. "
        f"The engine says: {outputs[0].outputs[0].text.strip()!r}"
    )
