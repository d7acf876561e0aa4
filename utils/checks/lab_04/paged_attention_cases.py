"""Paged attention on small inputs, against torch's attention over contiguous keys; and how much
memory it takes: the check of `paged_attention`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from utils.checks.kit import pictures
from utils.checks.kit.runner import Bug, Case, Mismatch, call, compare
from utils.checks.lab_04 import paged_attention_mistakes

GARBAGE = 3.0  # the spread of numbers in slots that hold nothing of the request


def compare_with_torch(function: Callable[..., Any]) -> int:
    """Check every case, and return how many there are."""
    cases = [
        _case("1 token, 1 head, blocks of 2", [1], 1, 1, 2),
        _case("2 tokens that fill a block, newest only", [1], 1, 2, 2),
        _case("decode: 1 new token, 3 in all, blocks of 2", [2, 0], 1, 3, 2),
        _case("decode, 8 in all, blocks of 2", [3, 0, 4, 1], 1, 8, 2),
        _case("prefill: 5 tokens, blocks of 2", [4, 1, 2], 5, 5, 2),
        _case("a chunk: 3 new tokens, 7 in all, blocks of 4", [2, 1], 3, 7, 4),
        _case("the table has 2 blocks more than needed", [2, 0, 3, 1], 1, 3, 2),
        _case("decode, 9 in all, blocks of 4, 4 heads over 2", [3, 1, 0], 1, 9, 4, 4, 2),
        _case("a chunk: 4 new, 10 in all, blocks of 4, 6 heads over 3", [5, 0, 2], 4, 10, 4, 6, 3),
        _case("scale 0.3, not 1 / sqrt(head_dim)", [0, 2], 2, 6, 4, scale=0.3),
        _case("scores up to several hundred", [4, 0, 2], 3, 10, 4, scale=200.0, atol=1e-3),
    ]  # fmt: skip
    compare(_checked(function), cases, BUGS, functools.partial(_maps, function))
    return len(cases)


def one_token() -> tuple[Any, ...]:
    """The smallest arguments there are."""
    return _case("one token", [0], 1, 1, 2).args


def _case(
    given: str, table: list[int], t_q: int, seq_len: int, size: int, heads: int = 1,
    kv_heads: int = 1, scale: float | None = None, atol: float = 1e-5, dim: int = 4,
) -> Case:  # fmt: skip
    """Lay contiguous keys and values into blocks; the oracle sees them contiguous."""
    query = torch.randn(t_q, heads, dim)
    key, value = torch.randn(2, seq_len, kv_heads, dim)
    caches = torch.randn(2, max(table) + 2, size, kv_heads, dim) * GARBAGE
    for position in range(seq_len):
        block, offset = table[position // size], position % size
        caches[0, block, offset], caches[1, block, offset] = key[position], value[position]
    scale = dim**-0.5 if scale is None else scale
    given = f"{given}; block table {table}"
    args = (query, caches[0], caches[1], table, seq_len, scale)
    return Case(given, args, _contiguous(query, key, value, scale), atol=atol)


def _contiguous(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """The oracle: torch's kernel in float64 over contiguous keys."""
    t_q, t_k = query.shape[0], key.shape[0]
    mask = torch.ones(t_q, t_k).tril(diagonal=t_k - t_q).bool()
    q, k, v = (t.double().transpose(0, 1)[None] for t in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1).to(query.dtype)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The learner's function on a copy of the block table."""
    return lambda q, k, v, table, *rest: function(q, k, v, list(table), *rest)


def _bug(says: str, look: str, **switches: Any) -> Bug:
    return Bug(says, look, functools.partial(paged_attention_mistakes.paged_attention, **switches))


BUGS = [
    _bug("Nothing is rescaled. When a later block has a larger score, the sums of the blocks "
         "before are relative to an older, smaller maximum.",
         "`shrink = exp(old_maximum - new_maximum)`; multiply *both* running sums by it.",
         online="never rescaled"),
    _bug("The weighted sum is rescaled, but the sum of the exponentials is not.",
         "`total = total * shrink + ...`, like the weighted sum.", online="sum not rescaled"),
    _bug("The sum of the exponentials is rescaled, but the weighted sum is not.",
         "`weighted = weighted * shrink[..., None] + ...`, like the sum.",
         online="output not rescaled"),
    _bug("Each block has a softmax of its own, and the results are averaged. The weights of *all* "
         "keys together must add up to 1.",
         "Keep sums of exponentials over all blocks; divide once, at the end.",
         online="softmax per block"),
    _bug("The weighted sum is never divided by the sum of the exponentials.",
         "At the end: `weighted / total[..., None]`.", online="not divided"),
    _bug("Without a maximum, `exp` overflows when scores are large: exp(200) is infinite in "
         "float32.",
         "Subtract the largest score so far before `exp`.", online="no maximum"),
    _bug("The causal mask is missing: your queries attend to the future.",
         "Hide keys whose position is larger than the query's.", mask="none"),
    _bug("Your function reads beyond `seq_len`: the last block is not full, and the rest of it is "
         "garbage.",
         "The last block holds `seq_len - begin` tokens: `key_cache[block, :size]`.",
         tail="whole", mask="none"),
    _bug("The causal mask is off by the cached length: query positions are counted from 0, but "
         "the queries are the *last* T_q tokens.",
         "Query i stands at position `seq_len - T_q + i`.", mask="from zero"),
    _bug("The causal mask is off: query positions are counted back from the end of the last "
         "*block*, not from `seq_len`.",
         "Query i stands at position `seq_len - T_q + i`.", mask="padded", tail="whole"),
    _bug("A token may not see itself in your mask. It must: key position <= query position.",
         "Hide keys with `position > query position`, strictly greater.", mask="one less"),
    _bug("The mask compares query positions with offsets in the block, not with positions.",
         "The keys of a block stand at positions `begin`, `begin + 1`, ...", mask="in block"),
    _bug("Your heads are repeated in the order 0, 1, 0, 1; expected 0, 0, 1, 1. Neighbouring "
         "query heads share one KV head.",
         "`repeat_interleave(group, dim=1)` gives 0, 0, 1, 1; `repeat` gives 0, 1, 0, 1.",
         repeat="tile"),
    _bug("All query heads read KV head 0.", "Query head h reads KV head `h // (H // H_kv)`.",
         repeat="first"),
    _bug("The block table is ignored: you read blocks 0, 1, 2, ... in the order of memory.",
         "`block = block_table[place]`.", blocks="in order"),
    _bug("You read the blocks that follow the first one in memory. They belong to others.",
         "Look up each block: `block_table[place]`.", blocks="consecutive"),
    _bug("Only the last block is read.", "Go through all blocks of the table.", blocks="last only"),
    _bug("The last block is left out when it is not full.",
         "`range(0, seq_len, block_size)` begins a block for every rest, too.",
         blocks="full only"),
    _bug("The scale is missing.", "Multiply the scores by `scale`.", power=0),
    _bug("The scale is applied twice.", "Multiply the scores by `scale` once.", power=2),
    _bug("The weights multiply the keys. They must multiply the values.",
         "Scores come from query and key; the output mixes *values*.", mix="keys"),
    _bug("The maximum of the newest block is used, not the largest so far. `exp` can overflow.",
         "`larger = torch.maximum(largest, scores.amax(-1))`.", online="newest maximum"),
]  # fmt: skip


def _maps(function: Callable[..., Any], _: Case, __: Tensor) -> tuple[Figure, str]:
    """One-hot values turn the output into the attention weights themselves, slot by slot."""
    size, seq_len, t_q, heads, kv_heads = 4, 6, 2, 4, 2
    table, num_slots = [1, 0], 8
    query, key = torch.randn(t_q, heads, num_slots), torch.randn(num_slots, kv_heads, num_slots)
    value = torch.eye(num_slots)[:, None].expand(num_slots, kv_heads, num_slots).contiguous()
    expected = _contiguous(query, key[:seq_len], value[:seq_len], 0.5)
    blocks = [t.unflatten(0, (2, size))[[1, 0]].contiguous() for t in (key, value)]
    yours = function(query, *blocks, list(table), seq_len, 0.5).detach()
    maps = (expected.transpose(0, 1)[..., :seq_len], yours.transpose(0, 1)[..., :seq_len])
    figure = pictures.attention_maps(*maps, kv_heads)
    return figure, "Attention weights, expected above and yours below, one map per head."


class LargestTensor(TorchDispatchMode):
    """Watches every operation, and keeps the size of the largest tensor that it makes."""

    def __init__(self, *inputs: Tensor) -> None:
        super().__init__()
        self.inputs = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        self.numel, self.shape = 0, torch.Size()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not isinstance(tensor, Tensor) or tensor.numel() <= self.numel:
                continue
            # A view of the cache takes no memory.
            if tensor.untyped_storage().data_ptr() not in self.inputs:
                self.numel, self.shape = tensor.numel(), tensor.shape
        return out


def largest_tensor(function: Callable[..., Any]) -> tuple[int, int]:
    size, seq_len, heads, kv_heads, dim = 4, 512, 4, 2, 8
    given = f"{seq_len} tokens in blocks of {size}, 1 query, {heads} over {kv_heads} heads"
    table = torch.randperm(seq_len // size).tolist()
    case = _case(given, table, 1, seq_len, size, heads, kv_heads, dim=dim)
    query, keys, values, *rest = case.args
    watch = LargestTensor(query, keys, values)
    with watch:
        call(function, query, keys, values, *rest, given=given)
    one_block = size * heads * dim
    if watch.numel > 8 * one_block:
        raise Mismatch(
            "The result is right, but your function works on the whole text at once: it makes a "
            "tensor that grows with the number of tokens.",
            input=given, expected=f"tensors of about {one_block} numbers, those of one block",
            got=f"a tensor of {watch.numel} numbers, shape {tuple(watch.shape)}",
            look="Gather nothing, and keep no list of all scores. Go from block to block with "
            "three running results: maximum, sum, weighted sum.",
        )  # fmt: skip
    return watch.numel, seq_len * kv_heads * dim
