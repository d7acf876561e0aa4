"""Exercise 3: who attends to whom. A wrong answer is asked for its attention weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Fault, Given, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out, tensor
from utils.checks.lab_01.judging import name_of, same_tensor

HALF = (torch.bfloat16, torch.float16)
NUMBERS = ("plain", "plain", "ties", "negative")
FAR = ("", "", "", "all keys", "later keys", "later keys")  # whose scores are far from the others'
OFFSETS = (-256.0, 256.0, 0.0, -16384.0)
MOST_SCORES = 250_000
SHOWN = 6  # heads and tokens in the picture
MOST_CALLS = 8  # to find out the weights
VISIBLE = 1e-3  # a weight that is clearly not 0


def draw(c: Choices) -> Given:
    """Prefill, decode and chunks; MHA, GQA and MQA; any scale; scores that are far from zero."""
    dtype = c.pick((torch.float32, torch.float32, torch.float32, *HALF))
    kv_heads, group, dim = c.size(1, 5, small=2), c.size(1, 6, small=2), c.size(1, 130)
    t_k = c.size(1, 4100 if c.rarely(6) else 300, small=6)
    most = min(t_k, max(1, MOST_SCORES // (kv_heads * group * t_k)))
    t_q = c.pick((1, most, c.integer(1, most)))
    far = c.pick(FAR) if dtype not in HALF else ""
    plain = "ties" if far else "plain"  # of whole numbers, scores of -16384 are exact
    kinds = NUMBERS if dtype in HALF else (*NUMBERS, "tiny", "large")
    query = tensor(c, (t_q, kv_heads * group, dim), (dtype,), (plain,), ("contiguous",))
    key = tensor(c, (t_k, kv_heads, dim), (dtype,), (plain,), ("contiguous",))
    value = tensor(c, (t_k, kv_heads, dim), (dtype,), kinds, ("contiguous",))
    if far:
        scale = c.pick((1.0, 0.25, -0.5))
        _push(c, far, query, key, scale)
    else:
        scale = c.pick((dim**-0.5, dim**-0.5, 1.0, 0.3, 0.0, -0.5))
        if dtype in HALF:
            scale *= dim**-0.5  # scores are rounded, too: they must stay small
    layout = c.pick(LAYOUTS)
    return Given(*(laid_out(t, layout) for t in (query, key, value)), scale)


def _push(c: Choices, far: str, query: Tensor, key: Tensor, scale: float) -> None:
    """Add to each query's scores an offset for all keys, or one for the keys from some token on.

    So a key that a query must not see scores far above those that it may see.
    """
    if far == "all keys":
        offsets = torch.tensor([c.pick(OFFSETS) for _ in range(min(5, query[..., 0].numel()))])
        each = torch.arange(query[..., 0].numel()) % len(offsets)
        query[..., 0], key[..., 0] = offsets[each].view(query.shape[:2]) / scale, 1.0
        return
    high, first = c.pick((200.0, 20_000.0)), c.integer(0, len(key) - 1)
    query[..., 0] = 1 / scale
    key[..., 0] = high * (torch.arange(len(key)) >= first)[:, None]


def oracle(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """torch's kernel, in float64, with a mask aligned to the last key."""
    q, k, v = (t.double().transpose(0, 1)[None] for t in (query * scale, key, value))
    mask = ~_hidden(len(query), len(key))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=True)
    return out[0].transpose(0, 1).to(query.dtype)


def _hidden(t_q: int, t_k: int) -> Tensor:
    """The keys that each query must not see: [T_q, T_k]."""
    return ~torch.ones(t_q, t_k).tril(diagonal=t_k - t_q).bool()


def near(expected: Tensor, got: Any, given: Given) -> Fault | None:
    """A score of 16,384 in float32 is known to 0.002; the weights, too."""
    query, key, value, scale = given.args
    largest = float(query.float().norm(dim=-1).max() * key.float().norm(dim=-1).max() * abs(scale))
    step = torch.finfo(query.dtype).eps
    atol = float(value.float().abs().max()) * max(1e-6, 2 * step * (2 + largest))
    return same_tensor(expected, got, given, atol)


class Attends(Returns):
    """`Returns`, but wrong numbers are explained by the weights that lead to them."""

    def __init__(self) -> None:
        super().__init__(oracle, own=True, wrong=near)

    def tell(self, given: Given) -> str:
        query, key, _, scale = given.args
        return (
            f"query {tuple(query.shape)}, key and value {tuple(key.shape)}, scale {scale:.4g}, "
            f"{name_of(query.dtype)}"
        )

    def fault(self, answer: Any, given: Given, expected: Any) -> Fault | None:
        fault = super().fault(answer, given, expected)
        if fault is None or fault.clause != "numbers":
            return fault
        weights, right = weights_of(answer, given), right_weights(given)
        if weights is None:
            return fault
        clause, says = explained(weights, right)

        def picture() -> tuple[Figure | None, str]:
            own = _own(right)
            if max(own.shape) > SHOWN or not difference(own, weights, atol=VISIBLE):
                return None, ""
            figure = pictures.attention_maps(own.float(), weights.float(), right.shape[1])
            return figure, "Attention weights, expected above and yours below, one map per head."

        return Fault(clause, "", fault.expected, fault.got, says or fault.says, picture=picture)


def weights_of(answer: Callable[..., Any], given: Given) -> Tensor | None:
    """The weights [H, T_q, T_k] of an answer: what it makes of values that are rows of an identity.

    None if that takes too many calls, or if it doesn't return tensors there.
    """
    query, key, value, scale = given.args
    (t_k, kv_heads, dim), columns = value.shape, list[Tensor]()
    if t_k > MOST_CALLS * dim:
        return None
    for start in range(0, t_k, dim):
        rows = torch.zeros(t_k, dim, dtype=value.dtype)
        rows[start : start + dim] = torch.eye(dim, dtype=value.dtype)[: t_k - start]
        one_hot = rows[:, None].repeat(1, kv_heads, 1)
        got = attempt(answer, query.clone(), key.clone(), one_hot, scale)
        if not isinstance(got, Tensor) or got.shape != query.shape:
            return None
        columns.append(got.detach().to(value.dtype))
    return torch.cat(columns, dim=-1)[..., :t_k].transpose(0, 1)


def right_weights(given: Given) -> Tensor:
    """The weights of each query head if it read each of the KV heads: [H, H_kv, T_q, T_k].

    They have the dtype of the query, and so a difference is more than that dtype's rounding.
    """
    query, key, _, scale = given.args
    scores = torch.einsum("qhd,kgd->hgqk", query.double(), key.double()) * scale
    return scores.masked_fill(_hidden(len(query), len(key)), -torch.inf).softmax(-1).to(query.dtype)


def _own(right: Tensor) -> Tensor:
    """The weights of each query head with the KV head that it reads: [H, T_q, T_k]."""
    heads, kv_heads = right.shape[:2]
    return right[torch.arange(heads), torch.arange(heads) // (heads // kv_heads)]


def explained(weights: Tensor, right: Tensor) -> tuple[str, str]:
    """The clause that wrong weights break, and a sentence about it ("" if there is no better).

    Args:
        weights: [H, T_q, T_k]
        right: as `right_weights` returns
    """
    t_q, t_k = weights.shape[1:]
    hidden, own = _hidden(t_q, t_k), _own(right)
    if weights.isnan().any():
        return "numbers", ""
    if (seen := (weights.abs() > VISIBLE) & hidden).any():
        head, query, key = seen.nonzero()[0].tolist()
        return "future", _pair(weights, head, query, key, t_k - t_q)
    sums = weights.float().sum(-1)
    if bool(((sums - 1).abs() > 0.02).any()):
        head, query = ((sums - 1).abs() > 0.02).nonzero()[0].tolist()
        return "sum", f"Those of query {query} in head {head} add up to {sums[head, query]:.3g}."
    if (missed := (weights.abs() < 1e-9) & (own > VISIBLE)).any():
        head, query, key = missed.nonzero()[0].tolist()
        return "unseen", _pair(weights, head, query, key, t_k - t_q)
    return _other_weights(weights, right) if difference(own, weights) else ("values", "")


def _pair(weights: Tensor, head: int, query: int, key: int, before: int) -> str:
    return (
        f"In head {head}, query {query} stands at position {before + query} and gives the key at "
        f"position {key} the weight {weights[head, query, key]:.3g}."
    )


def _other_weights(weights: Tensor, right: Tensor) -> tuple[str, str]:
    """Whether the query heads read the KV heads in turns, or all the first; else what is wrong."""
    heads, kv_heads = right.shape[:2]
    own = [head // (heads // kv_heads) for head in range(heads)]
    for read in ([head % kv_heads for head in range(heads)], [0] * heads):
        if read != own and not difference(right[torch.arange(heads), read], weights):
            return "heads", f"Your query heads read the KV heads {read}; expected {own}."
    wanted = _own(right).float()
    off = (~torch.isclose(weights.float(), wanted, rtol=0.01, atol=VISIBLE)).nonzero().tolist()
    if not off:
        return "weights", ""
    head, query, key = off[0]
    pair = _pair(weights, head, query, key, right.shape[-1] - right.shape[-2])
    return "weights", f"{pair[:-1]}; expected {wanted[head, query, key]:.3g}."
