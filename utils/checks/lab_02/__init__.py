"""The checks of lab 02. Oracles: transformers' caches and `generate`, and real tensors' sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from utils.checks.kit.reference import greedy, hf_greedy, reference_prompts
from utils.checks.kit.runner import (
    Bug,
    Mismatch,
    NumberCase,
    call,
    compare_numbers,
    describe,
    exercise,
)
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_02.cache_stories import STORIES, fill, small_config
from utils.engine.attention.kv_cache import ContiguousKVCache
from utils.engine.config.model import ModelConfig
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps, silu_and_mul

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
        Bug("`layers_per_cache` is ignored: with cross-layer sharing, several layers use "
            "one cache.",
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
            vocab_size=32,
            hidden_size=config.hidden_size,
            intermediate_size=8,
            num_hidden_layers=config.num_hidden_layers,
            head_dim=config.head_dim,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
        )
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
    for story in STORIES:
        story(cache_class)
    return (
        "Appends, lengths, truncate, overflow and bytes are right; nothing is copied; "
        "equal to transformers' DynamicCache over chunks of 3, 2, 1 and 5 tokens."
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
            given += f"; tokens of the request before, still in the cache: {cache.num_tokens}"
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
                "The cache was not reset: the new request would attend to the one before. Tokens "
                f"still in it: {start}.",
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
        sequence = [*known, self._newest]
        wanted = sequence[start : start + len(token_ids)]
        emptied = bool(self.calls) and start == 0  # judged at the end, by what it costs
        if not emptied and start <= len(known) and token_ids.tolist() != wanted:
            raise Mismatch(
                "The last token of the prompt goes in twice: it is in the cache already."
                if token_ids.tolist() == known[-1:]
                else "These are not the tokens that come next.",
                input=f"{step}; tokens in the cache: {start}", expected=f"`{wanted}`",
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
                says, input=f"{step}; tokens in the cache: {start}", expected=f"`{right}`",
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
    fill(cache_class, "a")  # a class that is not written yet answers before the model is loaded
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
