"""Paged attention on inputs of all kinds, against torch's attention over contiguous keys; and how
much memory it takes: exercise 7."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor
from torch.overrides import TorchFunctionMode

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Fault, Given, Raised
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.inputs import laid_out
from utils.checks.kit.patience import second_chance
from utils.checks.kit.runner import Mismatch

# What is added to the scores, by the key's place in the text, from 0 to 1.
SLOPES = {
    "plain": (0.0, 0.0),
    "rising": (0.0, 30.0),
    "falling": (30.0, 0.0),
    "steep": (-90.0, 90.0),
    "a steep fall": (200.0, -200.0),
    "negative": (-220.0, -200.0),
    "far below": (-20_000.0, -20_000.0),  # -1e4 doesn't hide a key there
    "large": (200.0, 220.0),
    "ties": (0.0, 0.0),
}
GARBAGE = (3.0, 1e4)  # the spread of numbers in slots that hold nothing of the request
SHORT, LONG, SIZE = 256, 2048, 32  # tokens of the texts whose memory is compared; of a block
# Bytes that a long text may take more: some for each block of the table, which are no burden, and
# some that Python itself may need.
ALLOWED = {"tensors": 16 * LONG // SIZE, "a tensor": 16 * LONG // SIZE, "lists and arrays": 4000}


def draw_attention(c: Choices) -> Given:
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


def another_result(expected: Tensor, got: Any, given: Given) -> Fault | None:
    """Scores of some hundred are rounded in float32; what comes of that is no mistake."""
    query, key_cache, value_cache, table, seq_len, scale = given.args
    used = table[: -(-seq_len // key_cache.shape[1])]
    scores = (query.norm(dim=-1).max() * key_cache[used, 0].norm(dim=-1).max() * scale).item()
    atol = float(value_cache[used, 0].abs().max()) * (2e-5 + 1e-6 * scores)
    says = difference(expected, got, atol=atol)
    return Fault("returns", "", expected, got, says) if says else None


def tell_attention(given: Given) -> str:
    query, key_cache, _, table, seq_len, scale = given.args
    t_q, heads, dim = query.shape
    blocks = str(table) if len(table) < 12 else f"[{table[0]}, {table[1]}, ...] of {len(table)}"
    return (
        f"{t_q} new of {seq_len} tokens, blocks of {key_cache.shape[1]}, block table {blocks}, "
        f"{heads} over {key_cache.shape[2]} heads, head_dim {dim}, scale {scale:.4g}"
        + ("" if query.is_contiguous() else ", tensors that are slices of larger ones")
    )


def weight_maps(function: Any) -> tuple[Figure | None, str]:
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


class HeldMemory(TorchFunctionMode):
    """Counts the bytes of all tensors that torch's functions return and that still live.

    Attributes:
        most: at any time.
        largest: of one tensor.
    """

    def __init__(self, *inputs: Tensor) -> None:
        super().__init__()
        self.inputs = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        self.held: dict[int, tuple[int, int]] = {}  # by place in memory: tensors there, bytes
        self.most = self.largest = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            place = storage.data_ptr()
            if place in self.inputs:  # a view of the cache takes no memory
                continue
            self.held[place] = self.held.get(place, (0, 0))[0] + 1, storage.nbytes()
            self.largest = max(self.largest, storage.nbytes())
            weakref.finalize(tensor, self._drop, place)
            self.most = max(self.most, sum(size for _, size in self.held.values()))
        return out

    def _drop(self, place: int) -> None:
        number, size = self.held.pop(place)
        if number > 1:
            self.held[place] = number - 1, size


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def memory_used(function: Any, t_q: int, seq_len: int) -> dict[str, int]:
    """Bytes that are held at once: by tensors, by the largest of them, and by all else, such as
    lists and numpy's arrays.

    The block table and the caches are as large for a short text as for a long one.

    Raises:
        Mismatch: the function raises an error, or doesn't end.
    """
    heads, kv_heads, dim = 4, 2, 8
    generator = torch.Generator().manual_seed(0)
    table = torch.randperm(LONG // SIZE, generator=generator).tolist()
    query = torch.randn(t_q, heads, dim, generator=generator)
    keys = torch.randn(LONG // SIZE, SIZE, kv_heads, dim, generator=generator)
    values = keys.clone()

    def run() -> None:
        with second_chance():
            got = attempt(function, query, keys, values, table, seq_len, 0.5)
        if isinstance(got, Raised):
            raise Mismatch(got.says, input=_text(t_q, seq_len), look=got.look)

    with HeldMemory(query, keys, values) as watch:
        run()
    tracemalloc.start()
    try:
        run()
        _, else_ = tracemalloc.get_traced_memory()
        return {"tensors": watch.most, "a tensor": watch.largest, "lists and arrays": else_}
    finally:
        tracemalloc.stop()


def check_memory(function: Any) -> int:
    """The most bytes that tensors take for a long text, which are no more than for a short one.

    Raises:
        Mismatch: they are more.
    """
    most = 0
    for t_q in (1, 5):
        memory_used(function, t_q, SHORT)  # what Python keeps of a first call is no memory of it
        short, long = (memory_used(function, t_q, length) for length in (SHORT, LONG))
        for what, most_allowed in ALLOWED.items():
            if long[what] <= short[what] + most_allowed:
                continue
            raise Mismatch(
                "The result is right, but your function keeps more in memory the longer the text "
                "is.",
                input=_text(t_q, LONG),
                expected=f"no more than for {SHORT} tokens",
                got=f"{what} of {long[what]:,} bytes at once; for {SHORT} tokens, {short[what]:,}",
                look="Go from block to block with three running results (maximum, sum, weighted "
                "sum), and keep nothing else of a block: no keys, no scores, no positions.",
            )
        most = max(most, long["tensors"])
    return most


def _text(t_q: int, seq_len: int) -> str:
    return f"{t_q} new of {seq_len} tokens in blocks of {SIZE}, 4 over 2 heads, head_dim 8"
