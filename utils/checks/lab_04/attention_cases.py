"""Paged attention on inputs of all kinds, against torch's attention over contiguous keys; and how
much memory it takes: exercise 6."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor
from torch.overrides import TorchFunctionMode

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Raised, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.contracts.inputs import laid_out
from utils.checks.kit.patience import watching
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_04.attention_mistakes import MISTAKES
from utils.timing import one_thread

# What is added to the scores, by the key's place in the text, from 0 to 1.
SLOPES = {
    "plain": (0.0, 0.0),
    "rising": (0.0, 30.0),
    "falling": (30.0, 0.0),
    "steep": (-90.0, 90.0),
    "a steep fall": (200.0, -200.0),
    "negative": (-220.0, -200.0),
    "large": (200.0, 220.0),
    "ties": (0.0, 0.0),
}
GARBAGE = (3.0, 1e4)  # the spread of numbers in slots that hold nothing of the request
TOO_LONG = 2048  # tokens at which the memory is watched


def draw(c: Choices) -> Given:
    """Prefill, decode and chunks; long texts; heads in groups; scores that rise, vanish, or tie."""
    kind = c.pick(("small",) * 20 + ("long", "long", "very long", "wide"))
    size = c.pick((2, 1, 3, 4, 16, 5))
    kv_heads, group, dim = c.pick((1, 2, 3)), c.pick((1, 2, 3)), c.pick((2, 4, 1, 8))
    seq_len = c.size(1, 14)
    if kind == "long":
        seq_len = c.integer(60, 300)
    elif kind == "very long":
        size, seq_len = c.pick((16, 64, 200)), c.integer(1000, 2100)
    elif kind == "wide":  # many queries
        size, kv_heads, group, seq_len = 16, 1, 1, c.integer(65, 130)
    most = seq_len if kind in ("small", "wide") else 2
    t_q = c.pick((1, min(2, seq_len), most, c.integer(1, most)))
    more, scale = c.pick((0, 0, 2)), c.pick((1.0, dim**-0.5, 0.3, 2.0))
    slope, unit = c.pick(tuple(SLOPES)), c.pick((1.0, 1.0, 1e-6, 1e4))
    layout, garbage, seed = c.pick(("contiguous", "a slice")), c.pick(GARBAGE), c.integer(0, 9999)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    query, key = normal(t_q, kv_heads * group, dim), normal(seq_len, kv_heads, dim)
    value = normal(seq_len, kv_heads, dim) * unit
    query[..., 0] = 1.0  # so that `scale * key[..., 0]` is added to each score
    key[..., 0] = torch.linspace(*SLOPES[slope], seq_len)[:, None] / scale
    if slope == "ties":
        query.zero_()
    num_blocks = -(-seq_len // size)
    table = torch.randperm(num_blocks + more + 2, generator=generator)[: num_blocks + more].tolist()
    caches = [normal(num_blocks + more + 2, size, kv_heads, dim) * garbage for _ in "kv"]
    for cache, numbers in zip(caches, (key, value), strict=True):
        for place, block in enumerate(table[:num_blocks]):
            piece = numbers[place * size : (place + 1) * size]
            cache[block, : len(piece)] = piece
    tensors = (laid_out(x, layout) for x in (query, *caches))
    return Given(*tensors, table, seq_len, scale)


def contiguous(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: list[int],
    seq_len: int,
    scale: float,
) -> Tensor:
    """Torch's kernel in float64, over the keys and values in a row."""
    t_q = query.shape[0]
    size = key_cache.shape[1]
    rows = [(block_table[p // size], p % size) for p in range(seq_len)]
    key, value = (torch.stack([x[row] for row in rows]) for x in (key_cache, value_cache))
    mask = torch.ones(t_q, seq_len).tril(diagonal=seq_len - t_q).bool()
    q, k, v = (t.double().transpose(0, 1)[None] for t in (query, key, value))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1).to(query.dtype)


def _wrong(expected: Tensor, got: Any, given: Given) -> Fault | None:
    """Scores of some hundred are rounded in float32; what comes of that is no mistake."""
    query, key_cache, value_cache, table, seq_len, scale = given.args
    used = table[: -(-seq_len // key_cache.shape[1])]
    scores = (query.norm(dim=-1).max() * key_cache[used, 0].norm(dim=-1).max() * scale).item()
    atol = float(value_cache[used, 0].abs().max()) * (2e-5 + 1e-6 * scores)
    says = difference(expected, got, atol=atol)
    return Fault("returns", "", expected, got, says) if says else None


def tell(given: Given) -> str:
    query, key_cache, _, table, seq_len, scale = given.args
    t_q, heads, dim = query.shape
    blocks = str(table) if len(table) < 12 else f"[{table[0]}, {table[1]}, ...] of {len(table)}"
    return (
        f"{t_q} new of {seq_len} tokens, blocks of {key_cache.shape[1]}, block table {blocks}, "
        f"{heads} over {key_cache.shape[2]} heads, head_dim {dim}, scale {scale:.4g}"
        + ("" if query.is_contiguous() else ", tensors that are slices of larger ones")
    )


CONTRACT = Contract(
    inputs=draw,
    judge=Returns(contiguous, own=True, wrong=_wrong),
    tell=tell,
    passed="",
    clauses={
        "returns": Clause(
            "This is not attention over the request's keys and values. {says}",
            "Keep `largest`, `total` and `weighted` for each query and head; divide "
            "once, at the end; only keys up to the query's own position count.",
        )
    },
    mistakes=MISTAKES,
    examples=120,
)


@one_thread()
def check(function: Any) -> str:
    """All inputs, then the memory; words of success."""
    try:
        CONTRACT.check(function)
    except Mismatch as wrong:
        with contextlib.suppress(Exception), held_output(), watching():
            wrong.figure, wrong.alt = _maps(function)
        raise
    with held_output(), watching():
        largest, everything = watch_memory(function)
    return (
        f"Equal to torch's attention over contiguous keys on {CONTRACT.examples} random inputs: "
        "prefill, decode, chunks, grouped heads, unused slots full of garbage. For a text of "
        f"{TOO_LONG} tokens, your largest tensor holds {largest} numbers, as many as for a short "
        f"one; to gather its keys would take {everything}."
    )


def _maps(function: Any) -> tuple[Figure | None, str]:
    """One-hot values turn the output into the attention weights themselves, slot by slot."""
    size, seq_len, t_q, heads, kv_heads = 4, 6, 2, 4, 2
    num_slots = 2 * size
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(t_q, heads, num_slots, generator=generator)
    key = torch.randn(num_slots, kv_heads, num_slots, generator=generator)
    value = torch.eye(num_slots)[:, None].expand(num_slots, kv_heads, num_slots).contiguous()
    keys, values = (t.unflatten(0, (2, size))[[1, 0]].contiguous() for t in (key, value))
    expected = contiguous(query, keys, values, [1, 0], seq_len, 0.5)
    yours = attempt(function, query, keys, values, [1, 0], seq_len, 0.5)
    if not difference(expected, yours):
        return None, ""
    right, mine = (x.detach().transpose(0, 1)[..., :seq_len] for x in (expected, yours))
    figure = pictures.attention_maps(right, mine, kv_heads)
    return figure, "Attention weights, expected above and yours below, one map per head."


class LargestTensor(TorchFunctionMode):
    """Watches what functions and methods of torch return, and keeps the size of the largest."""

    def __init__(self, *inputs: Tensor) -> None:
        super().__init__()
        self.inputs = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        self.numel, self.shape = 0, torch.Size()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if not isinstance(tensor, Tensor) or tensor.numel() <= self.numel:
                continue
            # A view of the cache takes no memory.
            if tensor.untyped_storage().data_ptr() not in self.inputs:
                self.numel, self.shape = tensor.numel(), tensor.shape
        return out


def watch_memory(function: Any) -> tuple[int, int]:
    """Numbers in the largest tensor that is made for a long text, and in all its keys.

    Raises:
        Mismatch: it is larger than for a short text.
    """
    size, heads, kv_heads, dim = 32, 4, 2, 8
    everything = TOO_LONG * kv_heads * dim
    for t_q in (1, 5):
        seen = []
        for seq_len in (2 * size, TOO_LONG):
            generator = torch.Generator().manual_seed(0)
            # The same table and memory for both: only `seq_len` differs.
            table = torch.randperm(TOO_LONG // size, generator=generator).tolist()
            query = torch.randn(t_q, heads, dim, generator=generator)
            cache = torch.randn(TOO_LONG // size, size, kv_heads, dim, generator=generator)
            keys, values = cache, cache.clone()
            with LargestTensor(query, keys, values) as watch:
                got = attempt(function, query, keys, values, table, seq_len, 0.5)
            if isinstance(got, Raised):
                given = f"{t_q} new of {seq_len} tokens, blocks of {size}"
                raise Mismatch(got.says, input=given, look=got.look)
            seen.append((watch.numel, tuple(watch.shape)))
        (short, _), (long, shape) = seen
        one_block = size * heads * dim
        # A number for each block of the table is no burden.
        if long > max(short, TOO_LONG // size) or long > 8 * t_q * one_block:
            raise Mismatch(
                "The result is right, but your function works on the whole text at once: it makes "
                "a tensor that grows with the number of tokens.",
                input=f"{t_q} new of {TOO_LONG} tokens in blocks of {size}, {heads} over "
                f"{kv_heads} heads, head_dim {dim}",
                expected=f"tensors of about {one_block} numbers, those of one block",
                got=f"a tensor of {long} numbers, shape {shape}",
                look="Gather nothing, and keep no list of all scores or positions. Go from block "
                "to block with three running results: maximum, sum, weighted sum.",
            )
    return long, everything
