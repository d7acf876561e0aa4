"""Causal attention with grouped heads: exercise 3."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out, tensor
from utils.checks.lab_01.attention_mistakes import MISTAKES

HALF = (torch.bfloat16, torch.float16)
NUMBERS = ("plain", "plain", "ties", "negative")
FAR = (-256.0, 256.0, 0.0, -16384.0)
MOST_SCORES = 250_000
SHOWN = 6  # heads and tokens in the picture


def draw(c: Choices) -> Given:
    """Prefill, decode and chunks; MHA, GQA and MQA; any scale; all scores far from zero."""
    dtype = c.pick((torch.float32, torch.float32, torch.float32, *HALF))
    kv_heads, group, dim = c.size(1, 5, small=2), c.size(1, 6, small=2), c.size(1, 130)
    t_k = c.size(1, 4100 if c.rarely(6) else 300, small=6)
    most = min(t_k, max(1, MOST_SCORES // (kv_heads * group * t_k)))
    t_q = c.pick((1, most, c.integer(1, most)))
    kinds = NUMBERS if dtype in HALF else (*NUMBERS, "tiny", "large")
    size = (t_k, kv_heads, dim)
    far = dtype not in HALF and c.rarely(3)  # scores far from zero, by the same for all keys
    plain = "ties" if far else "plain"  # whole numbers: scores of -16384 are exact
    query = tensor(c, (t_q, kv_heads * group, dim), (dtype,), (plain,), ("contiguous",))
    key = tensor(c, size, (dtype,), (plain,), ("contiguous",))
    value = tensor(c, size, (dtype,), kinds, ("contiguous",))
    scale = c.pick((dim**-0.5, dim**-0.5, 1.0, 0.3, 0.0, -0.5))
    if dtype in HALF:
        scale = scale * dim**-0.5  # scores are rounded, too: they must stay small
    elif far:
        scale = c.pick((1.0, 0.25, -0.5))
        offsets = [c.pick(FAR) for _ in range(min(5, t_q * kv_heads * group))]
        query[..., 0] = (
            torch.tensor(offsets)
            .repeat(t_q * kv_heads * group)[: t_q * kv_heads * group]
            .view(t_q, -1)
            / scale
        )
        key[..., 0] = 1.0
    layout = c.pick(LAYOUTS)
    return Given(*(laid_out(t, layout) for t in (query, key, value)), scale)


def oracle(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """torch's kernel, in float64, with a mask aligned to the last key."""
    t_q, t_k = query.shape[0], key.shape[0]
    mask = torch.ones(t_q, t_k).tril(diagonal=t_k - t_q).bool()
    q, k, v = (t.double().transpose(0, 1)[None] for t in (query * scale, key, value))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=True)
    return out[0].transpose(0, 1).to(query.dtype)


def wrong(expected: Tensor, got: Any, given: Given) -> Fault | None:
    """A score of 16,384 in float32 is known to 0.002; the weights, too."""
    query, key, value, scale = given.args
    largest = float(query.float().norm(dim=-1).max() * key.float().norm(dim=-1).max() * abs(scale))
    step = torch.finfo(query.dtype).eps
    atol = float(value.float().abs().max()) * max(1e-6, 2 * step * (2 + largest))
    says = difference(expected, got, atol=atol)
    return Fault("returns", "", expected, got, says) if says else None


class Attends(Returns):
    """`Returns`, with a picture of the weights on the smallest input."""

    def fault(self, answer: Any, given: Given, expected: Any) -> Fault | None:
        fault = super().fault(answer, given, expected)
        if fault is None or fault.clause != "returns":
            return fault
        return Fault(
            "returns",
            fault.where,
            fault.expected,
            fault.got,
            fault.says,
            fault.look,
            picture=lambda: weights_of(answer, given),
        )


def weights_of(answer: Callable[..., Any], given: Given) -> tuple[Figure | None, str]:
    """One-hot values turn the output into the attention weights themselves."""
    query, key, _, scale = given.args
    (t_q, heads, dim), (t_k, kv_heads, _) = query.shape, key.shape
    more = max(0, t_k - dim)
    query, key = (F.pad(t.float(), (0, more)) for t in (query, key))
    value = torch.eye(t_k, dim + more)[:, None].repeat(1, kv_heads, 1)
    expected = oracle(query, key, value, scale)
    yours = attempt(answer, query.clone(), key.clone(), value, scale)
    if max(t_q, t_k, heads) > SHOWN or not difference(expected, yours):
        return None, ""
    with contextlib.suppress(AttributeError):
        yours = yours.detach()
    expected, yours = (t[..., :t_k].transpose(0, 1) for t in (expected, yours))
    figure = pictures.attention_maps(expected, yours, kv_heads)
    return figure, "Attention weights, expected above and yours below, one map per head."


ATTENTION = Contract(
    inputs=draw,
    judge=Attends(oracle, own=True, wrong=wrong),
    passed="Equal to torch's scaled_dot_product_attention on 150 random inputs: prefill, decode, "
    "chunks after earlier tokens; MHA, GQA, MQA; scores down to -16,384; half precision.",
    tell=lambda given: "query {}, key and value {}, scale {:.4g}, {}".format(
        *(tuple(t.shape) for t in given.args[:2]),
        given.args[3],
        str(given.args[0].dtype).removeprefix("torch."),
    ),
    clauses={
        "returns": Clause(
            "This is not the mix of values that causal attention makes. {says}",
            "Query i stands at position T_k - T_q + i and sees the keys up to its "
            "own; query head h reads KV head h // (H // H_kv). The mask comes after "
            "the scale and before the softmax.",
        )
    },
    mistakes=MISTAKES,
)
