"""The checks of lab 01. Each compares with an oracle that this repository did not write.

Oracles: transformers' Llama modules and logits processors, torch's scaled_dot_product_attention,
torch's FLOP counter, and Hugging Face `generate`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.models.llama.modeling_llama import (
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from utils.checks.kit import model_mistakes, pictures
from utils.checks.kit.reference import greedy, hf_greedy, reference_prompts
from utils.checks.kit.runner import (
    Bug,
    Case,
    Mismatch,
    NumberCase,
    call,
    compare,
    compare_numbers,
    describe,
    exercise,
)
from utils.checks.kit.tiny_model import TinyModel
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps
from utils.hub import load_tokenizer

# Exercise 1


@exercise("Exercise 1: rms_norm", points=2)
def rms_norm(function: Callable[[Tensor, Tensor, float], Tensor]) -> str:
    """Check `rms_norm(x [T, hidden], weight [hidden], eps) -> [T, hidden]`."""

    def case(given: str, x: Tensor, weight: Tensor, eps: float, **tolerance: float) -> Case:
        oracle = LlamaRMSNorm(weight.numel(), eps)
        oracle.weight.data = weight
        with torch.no_grad():
            return Case(given, (x, weight, eps), oracle(x), **tolerance)

    half = {"rtol": 2e-2, "atol": 2e-2}
    large = torch.tensor([[300.0, -200.0, 100.0, 50.0]])
    cases = [
        case("one token `x = [[3, 4]]`, weight [1, 1], eps 0",
             torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0),
        case("one token `x = [[3, 4]]`, weight [1, 10], eps 0",
             torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 10.0]), 0.0),
        case("a tiny vector `x = [[0.003, -0.004]]`, weight [1, 1], eps 1e-5",
             torch.tensor([[3e-3, -4e-3]]), torch.ones(2), 1e-5),
        case("2 tokens, hidden 2, `x = [[1, 2], [30, 40]]`, weight [1, 2], eps 1e-5",
             torch.tensor([[1.0, 2.0], [30.0, 40.0]]), torch.tensor([1.0, 2.0]), 1e-5),
        case("3 tokens, hidden 8, random, mean not zero",
             torch.randn(3, 8) + 2, torch.randn(8), 1e-5),
        case("1 token, hidden 4, bfloat16",
             torch.randn(1, 4).bfloat16(), torch.randn(4).bfloat16(), 1e-5, **half),
        case("one large token in float16, `x = [[300, -200, 100, 50]]`",
             large.half(), torch.ones(4).half(), 1e-5, **half),
    ]  # fmt: skip

    def rms(x: Tensor, eps: float, dim: Any = -1) -> Tensor:
        return (x.float().pow(2).mean(dim, keepdim=True) + eps).sqrt()

    bugs = [
        Bug("The epsilon stands outside of the square root: it belongs inside, "
            "next to the mean of squares.",
            "`rsqrt(mean(x**2) + eps)`, not `1 / (sqrt(mean(x**2)) + eps)`. With tiny inputs the "
            "two differ a lot.",
            lambda x, w, e: (x.float() / (rms(x, 0.0) + e)).to(x.dtype) * w),
        Bug("The epsilon is missing: a vector of almost zero is blown up.",
            "Add `eps` to the mean of squares before the square root.",
            lambda x, w, e: (x.float() / rms(x, 0.0)).to(x.dtype) * w),
        Bug("The mean runs over the wrong dimension: over the tokens, not over the hidden "
            "dimension.",
            "Each token is normalised on its own: `mean(dim=-1, keepdim=True)`.",
            lambda x, w, e: (x.float() / rms(x, e, 0)).to(x.dtype) * w),
        Bug("The mean runs over all numbers at once. One token's size must not change another's.",
            "Each token is normalised on its own: `mean(dim=-1, keepdim=True)`.",
            lambda x, w, e: (x.float() / (x.float().pow(2).mean() + e).sqrt()).to(x.dtype) * w),
        Bug("The weight is added. It must be multiplied.",
            "The last step is `weight * normalised`.",
            lambda x, w, e: (x.float() / rms(x, e)).to(x.dtype) + w),
        Bug("The weight is multiplied as `1 + weight`. That is Gemma's RMSNorm; Llama's multiplies "
            "with the weight itself.",
            "The last step is `weight * normalised`.",
            lambda x, w, e: (x.float() / rms(x, e)).to(x.dtype) * (1 + w)),
        Bug("The weight is missing.",
            "The last step is `weight * normalised`.",
            lambda x, w, e: (x.float() / rms(x, e)).to(x.dtype)),
        Bug("You divide by the mean of squares, without its square root.",
            "RMS is the *root* of the mean of squares: `rsqrt` does root and division in one.",
            lambda x, w, e: (x.float() / rms(x, e).pow(2)).to(x.dtype) * w),
        Bug("You divide by the norm, the root of the *sum* of squares. RMS takes their mean.",
            "`x.pow(2).mean(...)`, not `.sum(...)` and not `x.norm(...)`.",
            lambda x, w, e: (x.float() / (x.float().pow(2).sum(-1, keepdim=True) + e).sqrt())
            .to(x.dtype) * w),
        Bug("You subtract the mean first. That is LayerNorm; RMSNorm does not centre.",
            "Use the mean of `x**2`, and leave `x` itself where it is.",
            lambda x, w, e: F.layer_norm(x.float(), x.shape[-1:], None, None, e).to(x.dtype) * w),
        Bug("The square of a large number overflows: 300 squared does not fit into float16.",
            "Convert with `x.float()` before you square, and back with `.to(x.dtype)`.",
            lambda x, w, e: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + e) * w),
    ]  # fmt: skip
    compare(function, cases, bugs)
    return "Equal to transformers' LlamaRMSNorm on 7 inputs, float16 and bfloat16 included."


# Exercise 2


@exercise("Exercise 2: apply_rotary", points=2)
def apply_rotary(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str:
    """Check `apply_rotary(x [T, heads, head_dim], cos [T, head_dim], sin [T, head_dim])`."""

    def case(given: str, positions: list[int], heads: int, head_dim: int) -> Case:
        config = LlamaConfig(
            hidden_size=heads * head_dim, num_attention_heads=heads, head_dim=head_dim
        )
        x = torch.randn(len(positions), heads, head_dim)
        cos, sin = LlamaRotaryEmbedding(config)(x, torch.tensor([positions]))
        batched = x.transpose(0, 1)[None]
        expected = apply_rotary_pos_emb(batched, batched, cos, sin)[0][0].transpose(0, 1)
        return Case(given, (x, cos[0], sin[0]), expected.contiguous())

    cases = [
        case("1 token at position 1, 1 head, head_dim 2", [1], 1, 2),
        case("1 token at position 3, 1 head, head_dim 4", [3], 1, 4),
        case("2 tokens at positions 0 and 1, 2 heads, head_dim 4", [0, 1], 2, 4),
        case("3 tokens at positions 5, 6, 7, 2 heads, head_dim 8", [5, 6, 7], 2, 8),
        case(
            "4 tokens at positions 0, 9, 100, 2000, 3 heads, head_dim 16", [0, 9, 100, 2000], 3, 16
        ),
    ]

    def wide(angles: Tensor) -> Tensor:
        return angles[:, None, :]

    bugs = [
        Bug("You rotate neighbouring numbers (0 with 1, 2 with 3). Llama's checkpoints pair number "
            "i with number i + head_dim / 2.",
            "Split the last dimension into two halves with `chunk(2, dim=-1)`; do not take every "
            "second number.",
            lambda x, c, s: x * wide(c) + model_mistakes.swap_neighbours(x) * wide(s)),
        Bug("You rotate neighbouring numbers (0 with 1, 2 with 3). Llama's checkpoints pair number "
            "i with number i + head_dim / 2.",
            "Split the last dimension into two halves with `chunk(2, dim=-1)`; do not take every "
            "second number.",
            lambda x, c, s: x * wide(model_mistakes.neighbour_angles(c))
            + model_mistakes.swap_neighbours(x) * wide(model_mistakes.neighbour_angles(s))),
        Bug("The sign is wrong: you turn by minus the angle.",
            "The minus stands before the *second* half, which moves to the front: "
            "`cat((-second, first))`.",
            lambda x, c, s: x * wide(c) - model_mistakes.swap(x) * wide(s)),
        Bug("The minus sign is missing: without it this is no rotation, and lengths change.",
            "`cat((-second, first))`: one half changes its sign, the other does not.",
            lambda x, c, s: x * wide(c) + x.roll(x.shape[-1] // 2, -1) * wide(s)),
        Bug("The halves are not swapped before they are multiplied with the sine.",
            "The sine multiplies `cat((-second, first))`, not `cat((first, -second))`.",
            lambda x, c, s: x * wide(c) + torch.cat(
                (-x.chunk(2, -1)[0], x.chunk(2, -1)[1]), -1) * wide(s)),
        Bug("The halves are not swapped before they are multiplied with the sine.",
            "The sine multiplies `cat((-second, first))`, not `x` itself.",
            lambda x, c, s: x * wide(c) + x * wide(s)),
        Bug("Cosine and sine are exchanged.",
            "`x * cos + rotated * sin`.",
            lambda x, c, s: x * wide(s) + model_mistakes.swap(x) * wide(c)),
        Bug("The angles run along the heads, not along the tokens: head h got the angle of "
            "token h.",
            "`x` is [T, heads, D] and `cos` is [T, D]. Make it [T, 1, D] with `cos.unsqueeze(1)`, "
            "or torch lines up T with the heads.",
            lambda x, c, s: x * c + model_mistakes.swap(x) * s),
        Bug("Every token is rotated by the angle of the first one: positions are lost.",
            "Row t of `cos` and `sin` belongs to token t.",
            lambda x, c, s: x * wide(c[:1]) + model_mistakes.swap(x) * wide(s[:1])),
        Bug("You rotate as if the first token stood at position 0. Its position is already in "
            "`cos` and `sin`.",
            "Use the rows of `cos` and `sin` as they come; compute no angles of your own.",
            model_mistakes.restarted),
    ]  # fmt: skip

    def picture(case: Case, got: Tensor) -> tuple[Figure, str]:
        x, _, _ = case.args
        pairs = min(2, x.shape[-1] // 2)
        half = x.shape[-1] // 2

        def as_pairs(t: Tensor) -> Tensor:
            one = t[:3, 0]
            return torch.stack((one[:, :half], one[:, half:]), dim=-1)[:, :pairs]

        figure = pictures.rotation(as_pairs(x), as_pairs(case.expected), as_pairs(got))
        return figure, "Arrows of the pairs before, expected and yours."

    compare(function, cases, bugs, picture)
    return "Equal to transformers' apply_rotary_pos_emb, at positions up to 2000."


# Exercise 3


@exercise("Exercise 3: attention", points=4)
def attention(function: Callable[[Tensor, Tensor, Tensor, float], Tensor]) -> str:
    """Check causal GQA of one request; query i stands at position T_k - T_q + i."""

    def case(
        given: str, t_q: int, t_k: int, heads: int, kv_heads: int, dim: int,
        scale: float | None = None, dtype: torch.dtype = torch.float32, **tolerance: float,
    ) -> Case:  # fmt: skip
        query = torch.randn(t_q, heads, dim, dtype=dtype)
        key = torch.randn(t_k, kv_heads, dim, dtype=dtype)
        value = torch.randn(t_k, kv_heads, dim, dtype=dtype)
        scale = dim**-0.5 if scale is None else scale
        return Case(given, (query, key, value, scale), _sdpa(query, key, value, scale), **tolerance)

    half = {"rtol": 5e-2, "atol": 5e-2}
    cases = [
        case("2 tokens, 1 head, head_dim 2", 2, 2, 1, 1, 2),
        case("decode: 1 new token, 3 keys, 1 head", 1, 3, 1, 1, 2),
        case("2 new tokens, 4 keys (2 from earlier), 1 head", 2, 4, 1, 1, 4),
        case("3 tokens, 4 query heads over 2 KV heads", 3, 3, 4, 2, 4),
        case("2 new tokens, 5 keys, 6 query heads over 3 KV heads", 2, 5, 6, 3, 8),
        case("3 tokens, 3 query heads over 1 KV head (MQA)", 3, 3, 3, 1, 4),
        case("4 tokens, 2 heads, scale 0.3 (not 1 / sqrt(head_dim))", 4, 4, 2, 2, 4, 0.3),
        case("3 tokens, 2 heads, scores up to several hundred", 3, 3, 2, 2, 4, 200.0, atol=1e-3),
        case("3 tokens, 4 over 2 heads, bfloat16", 3, 3, 4, 2, 8, None, torch.bfloat16, **half),
    ]
    bugs = [
        Bug("The causal mask is missing: your queries attend to the future.",
            "Query i stands at position `T_k - T_q + i` and may see keys up to that position.",
            functools.partial(model_mistakes.attention, mask="none")),
        Bug("The mask is off by the number of earlier tokens: you count query positions from 0, "
            "but query 0 stands at position T_k - T_q.",
            "Compare key positions `arange(T_k)` with query positions `arange(T_q) + T_k - T_q`. "
            "(`torch.tril(ones(T_q, T_k))` and `is_causal=True` both count from 0.)",
            functools.partial(model_mistakes.attention, mask="from zero")),
        Bug("A token may not see itself in your mask. It must: key position <= query position.",
            "Hide keys with `position > query position`, strictly greater.",
            functools.partial(model_mistakes.attention, mask="strict")),
        Bug("The mask is upside down: your queries see the future and not the past.",
            "Keep keys with position <= query position; fill the others with -inf.",
            functools.partial(model_mistakes.attention, mask="future")),
        Bug("You mask after the softmax. The weights of a row then no longer add up to 1.",
            "Put -inf into the *scores* and take the softmax afterwards.",
            functools.partial(model_mistakes.attention, mask="after softmax")),
        Bug("Masked scores are 0 and not -inf: exp(0) = 1, so the future still gets weight.",
            "`scores.masked_fill(hidden, float('-inf'))`.",
            functools.partial(model_mistakes.attention, mask="zero")),
        Bug("Your heads are repeated in the order 0, 1, 0, 1; expected 0, 0, 1, 1. Neighbouring "
            "query heads share one KV head.",
            "`repeat_interleave(group, dim=1)` gives 0, 0, 1, 1; `repeat` gives 0, 1, 0, 1.",
            functools.partial(model_mistakes.attention, repeat="tile")),
        Bug("All query heads read KV head 0.",
            "Query head h reads KV head `h // (H // H_kv)`.",
            functools.partial(model_mistakes.attention, repeat="first")),
        Bug("The scale is missing.",
            "Multiply the scores by `scale` before the softmax.",
            functools.partial(model_mistakes.attention, power=0)),
        Bug("The scale is applied twice.",
            "Multiply the scores by `scale` once. (torch's scaled_dot_product_attention has a "
            "scale of its own.)",
            functools.partial(model_mistakes.attention, power=2)),
        Bug("You divide by the scale. It is a factor: `scale` is already 1 / sqrt(head_dim).",
            "`scores = (query . key) * scale`.",
            functools.partial(model_mistakes.attention, power=-1)),
        Bug("You use 1 / sqrt(head_dim) and ignore the argument `scale`.",
            "Some models use another scale; the caller decides.",
            functools.partial(model_mistakes.attention, power=None)),
        Bug("The softmax runs over the wrong dimension: over the queries.",
            "For each query the weights over all *keys* add up to 1: the dimension of length T_k.",
            functools.partial(model_mistakes.attention, softmax_dim=-2)),
        Bug("The softmax runs over the wrong dimension: over the heads.",
            "For each query the weights over all *keys* add up to 1: the dimension of length T_k.",
            functools.partial(model_mistakes.attention, softmax_dim=0)),
        Bug("Your softmax overflows when scores are large: exp(200) is infinite in float32.",
            "Subtract the row's maximum before `exp`, or use `torch.softmax`.",
            functools.partial(model_mistakes.attention, safe=False)),
        Bug("The weights multiply the keys. They must multiply the values.",
            "Scores come from query and key; the output mixes *values*.",
            lambda q, k, v, s: model_mistakes.attention(q, k, k, s)),
    ]  # fmt: skip

    def picture(_: Case, __: Tensor) -> tuple[Figure, str]:
        # One-hot values turn the output into the attention weights themselves.
        t_q, t_k, heads, kv_heads = 2, 4, 4, 2
        query, key = torch.randn(t_q, heads, t_k), torch.randn(t_k, kv_heads, t_k)
        value = torch.eye(t_k)[:, None, :].expand(t_k, kv_heads, t_k).contiguous()
        expected = _sdpa(query, key, value, 0.5).transpose(0, 1)
        yours = function(query, key, value, 0.5).transpose(0, 1).detach()
        figure = pictures.attention_maps(expected, yours, kv_heads)
        return figure, "Attention weights, expected above and yours below, one map per head."

    compare(function, cases, bugs, picture)
    return (
        "Equal to torch's scaled_dot_product_attention on 9 inputs: prefill, decode, "
        "a chunk after earlier tokens, MHA, GQA, MQA."
    )


def _sdpa(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """The oracle: torch's kernel, in float32, with a mask aligned to the last key."""
    t_q, t_k = query.shape[0], key.shape[0]
    mask = torch.ones(t_q, t_k).tril(diagonal=t_k - t_q).bool()
    q, k, v = (t.float().transpose(0, 1)[None] for t in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1).to(query.dtype)


# Exercise 4


@exercise("Exercise 4: silu_and_mul", points=1)
def silu_and_mul(function: Callable[[Tensor], Tensor]) -> str:
    """Check `silu_and_mul(gate_up [T, 2 * I]) -> [T, I]`."""

    def case(given: str, x: Tensor, **tolerance: float) -> Case:
        size = x.shape[-1] // 2
        # Written with exp, so that the oracle shares no kernel with the usual answer.
        gate, up = x[:, :size].double(), x[:, size:].double()
        return Case(given, (x,), (gate / (1 + (-gate).exp()) * up).to(x.dtype), **tolerance)

    cases = [
        case("`gate_up = [[1, 3]]` (gate 1, up 3)", torch.tensor([[1.0, 3.0]])),
        case("`gate_up = [[1, -2, 3, 4]]` (gate 1, -2, up 3, 4)",
             torch.tensor([[1.0, -2.0, 3.0, 4.0]])),
        case("2 tokens, I = 2", torch.randn(2, 4) * 2),
        case("5 tokens, I = 8", torch.randn(5, 16) * 2),
        case("2 tokens, I = 4, bfloat16", torch.randn(2, 8).bfloat16(), rtol=3e-2, atol=3e-2),
    ]  # fmt: skip

    def halves(f: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: f(*x.chunk(2, dim=-1))

    bugs = [
        Bug("SiLU is on the wrong half: the first half is the gate, and it is the gate that goes "
            "through SiLU.",
            "`gate, up = gate_up.chunk(2, dim=-1)`, then `silu(gate) * up`.",
            halves(lambda g, u: g * F.silu(u))),
        Bug("That is GELU. Llama's gate uses SiLU: x * sigmoid(x).",
            "`torch.nn.functional.silu`.",
            halves(lambda g, u: F.gelu(g) * u)),
        Bug("That is GELU (its tanh form). Llama's gate uses SiLU: x * sigmoid(x).",
            "`torch.nn.functional.silu`.",
            halves(lambda g, u: F.gelu(g, approximate="tanh") * u)),
        Bug("You use the sigmoid alone (GLU). SiLU is x * sigmoid(x).",
            "`torch.nn.functional.silu`.",
            halves(lambda g, u: g.sigmoid() * u)),
        Bug("That is ReLU. Llama's gate uses SiLU: x * sigmoid(x).",
            "`torch.nn.functional.silu`.",
            halves(lambda g, u: g.relu() * u)),
        Bug("Both halves go through SiLU. Only the gate does.",
            "`silu(gate) * up`.",
            halves(lambda g, u: F.silu(g) * F.silu(u))),
        Bug("The halves are added. They must be multiplied.",
            "`silu(gate) * up`.",
            halves(lambda g, u: F.silu(g) + u)),
        Bug("You take every second number as the gate. The gate is the first half, the up "
            "projection the second.",
            "`gate_up.chunk(2, dim=-1)`.",
            lambda x: F.silu(x[..., 0::2]) * x[..., 1::2]),
    ]  # fmt: skip
    compare(function, cases, bugs)
    return "Equal to gate / (1 + exp(-gate)) * up, computed in float64."


# Exercise 5


@exercise("Exercise 5: token_probabilities", points=3)
def token_probabilities(function: Callable[..., Tensor]) -> str:
    """Check `token_probabilities(logits [vocab], temperature, top_k, top_p) -> [vocab]`."""

    def case(given: str, logits: Tensor, t: float = 1.0, k: int = 0, p: float = 1.0) -> Case:
        given = f"{given}, temperature {t:g}, top_k {k}, top_p {p:g}"
        return Case(given, (logits, t, k, p), _hf_probabilities(logits, t, k, p))

    three = torch.tensor([1.0, 0.0, 2.0])
    ranked = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    peaked = torch.tensor([0.1, 0.7, 0.2]).log()
    wide = torch.randn(50) * 2
    cases = [
        case("logits [1, 0, 2]", three),
        case("logits [1, 0, 2]", three, t=0.5),
        case("logits [1, 0, 2]", three, t=3.0),
        case("logits [1, 0, 2]", three, t=0.0),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, k=2),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, k=9),
        case("probabilities [0.1, 0.7, 0.2]", peaked, p=0.5),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, p=0.6),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, p=0.8),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, t=2.0, p=0.6),
        case("probabilities [0.1, 0.5, 0.15, 0.25]", ranked, k=3, p=0.78),
        case("50 random logits", wide, t=0.7, k=20, p=0.9),
    ]
    bugs = [
        Bug("Top-p drops the token that crosses the threshold. The nucleus is the *smallest set "
            "that reaches* top_p, so that token belongs to it.",
            "Keep a token while the sum of the tokens *before* it is below top_p: "
            "`cumulative - p < top_p`.",
            functools.partial(model_mistakes.probabilities, nucleus="drop")),
        Bug("Top-p drops the token that crosses the threshold, and keeps only the most likely one "
            "as an exception. The nucleus is the *smallest set that reaches* top_p.",
            "Keep a token while the sum of the tokens *before* it is below top_p: "
            "`cumulative - p < top_p`.",
            functools.partial(model_mistakes.probabilities, nucleus="drop but first")),
        Bug("Top-p keeps one token too many: it stops after the sum has been *passed* for a whole "
            "token.",
            "Keep a token while the sum of the tokens *before* it is below top_p: "
            "`cumulative - p < top_p`.",
            functools.partial(model_mistakes.probabilities, nucleus="extra")),
        Bug("Top-p adds up tokens in the order of the vocabulary. It must start with the most "
            "likely one.",
            "Sort by probability, largest first, and take the cumulative sum of that.",
            functools.partial(model_mistakes.probabilities, nucleus="unsorted")),
        Bug("Your probabilities come out sorted. Entry i must be the probability of token i.",
            "Undo the sort: `torch.zeros_like(p).scatter(0, order, sorted_p)`.",
            functools.partial(model_mistakes.probabilities, nucleus="not scattered")),
        Bug("Top-p keeps each token whose own probability is at least 1 - top_p. The nucleus "
            "counts a sum, not single tokens.",
            "Sort, take the cumulative sum, keep the smallest set that reaches top_p.",
            functools.partial(model_mistakes.probabilities, nucleus="single")),
        Bug("Top-p has no effect.",
            "Sort, take the cumulative sum, keep the smallest set that reaches top_p.",
            functools.partial(model_mistakes.probabilities, nucleus="off")),
        Bug("The temperature is applied after the softmax. It must divide the *logits*.",
            "First `logits / temperature`, then everything else.",
            functools.partial(model_mistakes.probabilities, heat="after softmax")),
        Bug("The temperature is applied after the softmax; after renormalising it has no effect.",
            "First `logits / temperature`, then everything else.",
            functools.partial(model_mistakes.probabilities, heat="off")),
        Bug("You multiply by the temperature. A *high* temperature must make the distribution "
            "flatter.",
            "`logits / temperature`.",
            functools.partial(model_mistakes.probabilities, heat="times")),
        Bug("Temperature 0 divides by zero.",
            "Treat 0 on its own: it means greedy, all probability on the largest logit.",
            functools.partial(model_mistakes.probabilities, heat="no zero")),
        Bug("Temperature 0 is treated as temperature 1. It means greedy: all probability on the "
            "largest logit.",
            "Treat 0 on its own, before you divide.",
            functools.partial(model_mistakes.probabilities, heat="zero is one")),
        Bug("What is left does not add up to 1: renormalise after filtering.",
            "Set filtered *logits* to -inf before the softmax, or divide by the sum at the end.",
            functools.partial(model_mistakes.probabilities, normalise=False)),
        Bug("Top-k keeps the k *least* likely tokens.",
            "`torch.topk(logits, k)` gives the largest.",
            functools.partial(model_mistakes.probabilities, topk="smallest")),
        Bug("Top-k keeps one token too many.",
            "Keep logits that are >= the k-th largest.",
            functools.partial(model_mistakes.probabilities, topk="extra")),
        Bug("Top-k keeps one token too few.",
            "Keep logits that are >= the k-th largest, not only those above it.",
            functools.partial(model_mistakes.probabilities, topk="fewer")),
        Bug("Top-k has no effect.",
            "Set every logit below the k-th largest to -inf.",
            functools.partial(model_mistakes.probabilities, topk="off")),
        Bug("Top-p comes before top-k. The order here, as in vLLM and transformers: temperature, "
            "top-k, top-p; top-p then works on what top-k left, renormalised.",
            "Filter with top-k, take the softmax, then find the nucleus.",
            functools.partial(model_mistakes.probabilities, order="p first")),
        Bug("Top-p looks at the probabilities before the temperature.",
            "First `logits / temperature`, then the filters.",
            functools.partial(model_mistakes.probabilities, order="p before heat")),
        Bug("Top-p sums probabilities from before top-k. After top-k they must be renormalised, "
            "so that they add up to 1 again.",
            "Filter with top-k, take the softmax of what is left, then find the nucleus.",
            functools.partial(model_mistakes.probabilities, order="p on old sum")),
    ]  # fmt: skip

    def picture(case: Case, got: Tensor) -> tuple[Figure, str]:
        figure = pictures.bars(
            case.expected, got, "token id", "probability", "The distribution to draw from"
        )
        return figure, "Bars of the expected and of your probabilities."

    compare(function, cases, bugs, picture)
    return "Equal to transformers' temperature, top-k and top-p warpers on 12 settings."


def _hf_probabilities(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """The oracle; greedy at temperature 0, as in vLLM."""
    if temperature == 0.0:
        return F.one_hot(logits.argmax(), logits.numel()).to(logits.dtype)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    return warpers(torch.zeros(1, 1, dtype=torch.long), logits[None])[0].softmax(-1)


# Exercise 6


@exercise("Exercise 6: generate", points=3)
def generate(function: Callable[..., list[int]]) -> str:
    """Check `generate(model, prompt_token_ids, max_tokens, eos_token_ids) -> list[int]`."""
    tiny = TinyModel()
    long = tiny.greedy([3, 1, 4, 1, 5], 8)
    stop = next(t for i, t in enumerate(long[1:6], 1) if t not in long[:i])
    free = set(range(tiny.vocab_size)) - set(long) - {3, 1, 4, 5}
    low, high = min(free), max(free)
    prompt = [3, 1, 4, 1, 5]
    with_eos = [low, 3, 1]
    cases: list[tuple[str, list[int], int, set[int]]] = [
        ("prompt [7], max_tokens 1, no EOS", [7], 1, set()),
        (f"prompt {prompt}, max_tokens 8, no EOS", prompt, 8, set()),
        (f"prompt {prompt}, max_tokens 8, EOS {stop}", prompt, 8, {stop}),
        (f"prompt {prompt}, max_tokens 8, EOS {low} or {stop}", prompt, 8, {low, stop}),
        (f"prompt {prompt}, max_tokens 8, EOS {stop} or {high}", prompt, 8, {stop, high}),
        (f"prompt {with_eos} (it contains EOS), max_tokens 4, EOS {low}", with_eos, 4, {low}),
    ]
    for given, prompt, max_tokens, eos in cases:
        expected = tiny.greedy(prompt, max_tokens, eos)
        model = _CountedModel(tiny, limit=max_tokens + 2, eos=eos)
        given_prompt = list(prompt)
        got = call(function, model, given_prompt, max_tokens, eos, given=given)
        if given_prompt != prompt:
            raise Mismatch(
                "Your function changes the caller's prompt: it appended to the list it was given.",
                input=given, expected=f"`{prompt}`", got=f"`{given_prompt}`",
                look="Work on a copy: `token_ids = list(prompt_token_ids)`.",
            )  # fmt: skip
        _judge_tokens(tiny, given, prompt, max_tokens, eos, expected, got)
        if len(model.calls) != len(expected):
            raise Mismatch(
                f"The tokens are right, but the model ran {len(model.calls)} times for "
                f"{len(expected)} new tokens. One call per new token is enough.",
                input=given, look="Do not call the model again after the last token.",
            )  # fmt: skip
    return "Equal to Hugging Face `generate(do_sample=False)` on 6 inputs, with one call per token."


class _CountedModel:
    """The `model` that the learner's loop calls: checks its input, counts, refuses to run on."""

    def __init__(self, tiny: TinyModel, limit: int, eos: set[int]) -> None:
        self.calls: list[list[int]] = []
        self._tiny, self._limit, self._eos = tiny, limit, eos

    def __call__(self, token_ids: Tensor) -> Tensor:
        if not isinstance(token_ids, Tensor):
            raise Mismatch(
                f"The model was given a {type(token_ids).__name__}; it takes a tensor.",
                look="`model(torch.tensor(token_ids))`.",
            )
        if token_ids.dim() != 1:
            raise Mismatch(
                f"The model was given token ids of shape {tuple(token_ids.shape)}; it takes [T], "
                "without a batch dimension.",
                look="`model(torch.tensor(token_ids))`, no `[None]` and no extra brackets.",
            )
        if len(self.calls) >= self._limit:
            raise Mismatch(
                f"Your loop does not stop: it called the model more than {self._limit} times.",
                look="Leave the loop after max_tokens new tokens or after an EOS token, "
                "whichever comes first.",
            )
        self.calls.append(token_ids.tolist())
        return self._tiny(token_ids)


def _judge_tokens(
    tiny: TinyModel, given: str, prompt: list[int], max_tokens: int, eos: set[int],
    expected: list[int], got: Any,
) -> None:  # fmt: skip
    """Compare token lists, and name the mistake."""
    if not isinstance(got, list) or not all(isinstance(t, int) for t in got):
        kind = f"a list of {type(got[0]).__name__}" if isinstance(got, list) and got else repr(got)
        raise Mismatch(
            f"Expected a list of plain ints; you returned {kind}.",
            input=given, expected=f"`{expected}`",
            look="`int(logits[-1].argmax())` makes a plain int of a tensor.",
        )  # fmt: skip
    if got == expected:
        return
    free = tiny.greedy(prompt, max_tokens + 1)
    ends = expected[-1] in eos
    first, last_only = _replay(tiny, prompt, len(got), 0), _replay_last(tiny, prompt, len(got))
    known = [
        (got == prompt + expected,
         "Your list begins with the prompt. Return the new tokens only.",
         "`token_ids[len(prompt_token_ids):]`, or collect new tokens in a list of their own."),
        (got == free[: len(got)] and ends and len(got) > len(expected),
         "Generation goes on after the EOS token.",
         "After adding a token, leave the loop if `token in eos_token_ids`."),
        (ends and got == expected[:-1],
         "The EOS token is missing at the end. vLLM and transformers both return it, so that the "
         "caller can see why generation stopped.",
         "Append the token first, then ask whether it is an EOS token."),
        (bool(set(prompt) & eos) and len(got) < len(expected),
         "Your loop stops because the *prompt* contains an EOS token. Chat prompts do: each turn "
         "ends with one.",
         "Ask about the new token only, not about the whole list."),
        (len(got) == max_tokens + 1 and got == free,
         "One token too many: max_tokens is off by one.",
         "`for _ in range(max_tokens)` runs exactly max_tokens times."),
        (len(got) < len(expected) and got == expected[: len(got)],
         f"Too few tokens: {len(got)} instead of {len(expected)}. Do you count the prompt as part "
         "of max_tokens?",
         "max_tokens limits the *new* tokens."),
        (got == first,
         "You read the logits of the first position. The next token follows from the last one.",
         "`logits[-1]`: row t predicts token t + 1."),
        (got == last_only,
         "After the first step the model sees only the newest token: it has forgotten the prompt.",
         "Without a KV cache, feed the prompt and everything generated so far in each step."),
        (got == _replay(tiny, prompt, len(got), None),
         "Every step sees only the prompt: the new token is not appended to the model's input.",
         "Append the new token to `token_ids` before the next step."),
    ]  # fmt: skip
    for matches, says, look in known:
        if matches:
            raise Mismatch(says, input=given, expected=f"`{expected}`", got=f"`{got}`", look=look)
    raise Mismatch(
        "The tokens differ from Hugging Face `generate`.",
        input=given, expected=f"`{expected}`", got=f"`{got}`",
        look="The next token is the argmax of the last row of logits.",
    )  # fmt: skip


def _replay(tiny: TinyModel, prompt: list[int], steps: int, row: int | None) -> list[int]:
    """Tokens of a loop that reads the wrong row, or (row None) never extends its input."""
    tokens = list(prompt)
    for _ in range(steps):
        logits = tiny(torch.tensor(tokens if row is not None else prompt))
        tokens.append(int(logits[-1 if row is None else row].argmax()))
    return tokens[len(prompt) :]


def _replay_last(tiny: TinyModel, prompt: list[int], steps: int) -> list[int]:
    """Tokens of a loop that feeds the prompt once and single tokens afterwards."""
    fed, out = list(prompt), []
    for _ in range(steps):
        fed = [int(tiny(torch.tensor(fed))[-1].argmax())]
        out += fed
    return out


# Exercise 7


@exercise("Exercise 7: forward_cost", points=2)
def forward_cost(function: Callable[..., tuple[int, int]]) -> str:
    """Check `forward_cost(config, num_tokens, bytes_per_parameter) -> (flops, bytes)`."""
    small = LlamaConfig(
        vocab_size=11, hidden_size=4, intermediate_size=6, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=2, tie_word_embeddings=True,
    )  # fmt: skip
    shapes = [
        ("a tiny model, 1 layer, MHA, 1 token, 1 byte", small, 1, 1),
        ("a tiny model, 3 layers, 4 query heads over 2 KV heads, head_dim 6, 5 tokens, 2 bytes",
         LlamaConfig(vocab_size=13, hidden_size=8, intermediate_size=10, num_hidden_layers=3,
                     num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                     tie_word_embeddings=False), 5, 2),
        ("SmolLM2-135M's shape, 512 tokens, 2 bytes",
         LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536,
                     num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                     head_dim=64, tie_word_embeddings=True), 512, 2),
    ]  # fmt: skip
    cases = [
        NumberCase(f"{given} ({_shape_words(c)})", (c, n, width), _measured_cost(c, n, width))
        for given, c, n, width in shapes
    ]
    compare_numbers(function, cases, _cost_bugs())
    _, config, num_tokens, width = shapes[-1]
    prefill, decode = (
        flops / size for flops, size in (function(config, n, width) for n in (num_tokens, 1))
    )
    return (
        "FLOPs as torch's FLOP counter sees them, bytes as the weights occupy. By your count, "
        f"SmolLM2-135M in bfloat16 does {decode:g} FLOP per byte in decode, and {prefill:g} in a "
        f"prefill of {num_tokens} tokens."
    )


def _measured_cost(config: LlamaConfig, num_tokens: int, width: int) -> tuple[int, int]:
    """The oracle: build the model without memory, count its matmul FLOPs and linear weights."""
    with torch.device("meta"):
        model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, num_tokens, dtype=torch.long))
    counts = counter.get_flop_counts()["Global"]
    aten = torch.ops.aten
    flops = sum(counts.get(op, 0) for op in (aten.mm, aten.addmm))
    linear = (m for m in model.modules() if isinstance(m, torch.nn.Linear))
    return int(flops), width * sum(m.weight.numel() for m in linear)


def _cost_bugs() -> list[Bug]:
    def miscounted(**mistake: Any) -> Callable[[Any, int, int], tuple[int, int]]:
        def wrong(c: Any, t: int, w: int) -> tuple[int, int]:
            weights = model_mistakes.linear_weights(c, **mistake)
            return 2 * t * weights, w * weights

        return wrong

    count = model_mistakes.linear_weights
    return [
        Bug("Key and value projections are counted with as many heads as the query has. With GQA "
            "they are smaller.",
            "K and V have `num_key_value_heads * head_dim` outputs.",
            miscounted(kv="query heads")),
        Bug("All four attention projections are counted as hidden x hidden.",
            "Q and O: `num_attention_heads * head_dim`; K and V: `num_key_value_heads * head_dim`. "
            "head_dim need not be hidden_size / num_attention_heads.",
            miscounted(kv="square")),
        Bug("The MLP is counted with two matrices. SwiGLU has three: gate, up and down.",
            "`3 * hidden_size * intermediate_size` per layer.",
            miscounted(mlp=2)),
        Bug("The LM head is missing: hidden x vocabulary, once per model.",
            "Tied embeddings save memory, not the multiplication.",
            miscounted(head=0)),
        Bug("The embedding table is counted as a multiplication. It is a lookup: only the LM head "
            "multiplies.",
            "Count `vocab_size * hidden_size` once.",
            miscounted(head=2)),
        Bug("Only one layer is counted.",
            "Multiply by `num_hidden_layers`.",
            miscounted(one_layer=True)),
        Bug("The attention projections are missing.",
            "q, k, v and o, in every layer.",
            miscounted(attention=0)),
        Bug("The FLOPs lack a factor of 2: a weight costs one multiplication *and* one addition "
            "per token.",
            "`2 * weights * num_tokens`.",
            lambda c, t, w: (t * count(c), w * count(c))),
        Bug("The FLOPs do not grow with the number of tokens.",
            "`2 * weights * num_tokens`.",
            lambda c, t, w: (2 * count(c), w * count(c))),
        Bug("The bytes grow with the number of tokens. Weights are read *once per pass*, however "
            "many tokens share it: that is the whole point.",
            "`weights * bytes_per_parameter`.",
            lambda c, t, w: (2 * t * count(c), t * w * count(c))),
        Bug("The bytes ignore `bytes_per_parameter`.",
            "`weights * bytes_per_parameter`.",
            lambda c, t, w: (2 * t * count(c), count(c))),
        Bug("The pair is in the wrong order: FLOPs first, bytes second.",
            "`return flops, num_bytes`.",
            lambda c, t, w: (w * count(c), 2 * t * count(c))),
    ]  # fmt: skip


def _shape_words(c: Any) -> str:
    return (
        f"vocab_size {c.vocab_size}, hidden_size {c.hidden_size}, intermediate_size "
        f"{c.intermediate_size}, {c.num_hidden_layers} layers, heads {c.num_attention_heads}, "
        f"KV heads {c.num_key_value_heads}, head_dim {c.head_dim}"
    )


# Exercise 8


@exercise("Exercise 8: your functions run the engine", points=3)
def engine(build_ops: Callable[[], Any]) -> str:
    """Check `build_ops() -> LlamaOps`: with the learner's functions the engine speaks as HF."""
    ops = call(build_ops)
    if not isinstance(ops, LlamaOps):
        raise Mismatch(
            f"`build_ops` returned {describe(ops)}; expected a LlamaOps.",
            look="`return LlamaOps(rms_norm=rms_norm, ...)`.",
        )
    # `paged_attention` is left: unless it is given, the engine calls `attention`.
    names = [field.name for field in fields(LlamaOps) if field.default is not None]
    left = [name for name in names if getattr(ops, name) is getattr(LlamaOps(), name)]
    if left:
        raise Mismatch(
            f"The engine's own code still runs for: {', '.join(left)}.",
            look=f"Pass yours: `{left[0]}={left[0]}`.",
        )
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Tensor]:
        def run(*args: Any, **kwargs: Any) -> Tensor:
            calls[name] += 1
            return getattr(ops, name)(*args, **kwargs)

        return run

    prompts = reference_prompts()
    expected = hf_greedy(prompts)
    wrapped: dict[str, Any] = {name: counted(name) for name in names}
    llm = LLM(dtype="float32", ops=LlamaOps(**wrapped))
    outputs = [o.outputs[0] for o in call(greedy, llm, prompts, given=f"the prompt {prompts[0]!r}")]
    for prompt, output, tokens in zip(prompts, outputs, expected, strict=True):
        if list(output.token_ids) != tokens:
            guilty = _guilty(ops, names, prompt, tokens)
            raise Mismatch(
                "The engine's text differs from Hugging Face's. "
                + (f"The difference comes from: {', '.join(guilty)}." if guilty else ""),
                input=f"the prompt {prompt!r}",
                expected=repr(load_tokenizer().decode(tokens)), got=repr(output.text),
                look="Put one function at a time into LlamaOps, and look again at its check above.",
            )  # fmt: skip
    unused = [name for name in names if not calls[name]]
    if unused:
        raise Mismatch(f"The engine never called: {', '.join(unused)}.")
    return (
        f"Token for token what Hugging Face generates, on {len(prompts)} prompts. "
        f"The engine says: {outputs[0].text.strip()!r}"
    )


def _guilty(ops: Any, names: list[str], prompt: str, tokens: list[int]) -> list[str]:
    """Which functions, each put into the engine alone, change the text."""
    guilty = []
    for name in names:
        llm = LLM(dtype="float32", ops=replace(LlamaOps(), **{name: getattr(ops, name)}))
        if list(call(greedy, llm, [prompt])[0].outputs[0].token_ids) != tokens:
            guilty.append(name)
    return guilty
