"""The engine's Triton kernels on a card: are they right, and how near is each to its floor?

    python benchmarks/card_kernels.py [--out FILE] [--tiles]

Each kernel is compared with the reference in float32, in each type. Its time stands beside the
least that this card allows: the bytes that must be read and written over the bandwidth of a copy,
or the FLOPs over the rate of a large product, both measured here. Attention reads caches by turns
that together are larger than the card's L2. --tiles tries how attention is best cut.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks.card import copy_bandwidth, matmul_flops  # noqa: E402
from utils.engine.attention.paged_attention import AttentionMetadata, paged_attention  # noqa: E402
from utils.engine.kernels.triton import activation, norms, rotary  # noqa: E402
from utils.engine.kernels.triton.gptq_matmul import gptq_matmul  # noqa: E402
from utils.engine.kernels.triton.unified_attention import Tiles, unified_attention  # noqa: E402
from utils.engine.models import llama  # noqa: E402
from utils.quant.packing import pack_gptq, unpack_gptq  # noqa: E402
from utils.quant.rtn import rtn  # noqa: E402
from utils.timing import median_seconds  # noqa: E402

HEADS = {"bundled": (9, 3, 64), "8B": (32, 8, 128)}  # H, H_kv, D
DECODES = [
    ("bundled", 1, 512),
    ("bundled", 64, 320),
    ("bundled", 64, 2048),
    ("bundled", 256, 512),
    ("8B", 1, 4096),
    ("8B", 8, 4096),
    ("8B", 64, 1024),
    ("8B", 64, 4096),
]
PROMPTS = [("bundled", 8, 256), ("bundled", 1, 2048), ("8B", 4, 1024)]
BLOCK, BEYOND_L2 = 16, 256 << 20
TILES = [
    Tiles(16, keys, warps, stages)
    for keys in (32, 64, 128)
    for warps in (2, 4)
    for stages in (1, 3)
]


def on_a_graph(calls: list[Callable[[], object]]) -> float:
    """Seconds of one call, of many in a row, started together."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    return median_seconds(graph.replay, 7) / len(calls)


class Requests:
    """Keys and values of requests, in several layers, and what asks for them."""

    def __init__(self, heads: str, batch: int, context: int, query_len: int, dtype: torch.dtype):
        self.heads, self.kv_heads, self.size = HEADS[heads]
        blocks = batch * -(-context // BLOCK)
        layer = 2 * blocks * BLOCK * self.kv_heads * self.size * dtype.itemsize
        self.layers = max(2, -(-BEYOND_L2 // layer))
        shape = (self.layers, 2, blocks, BLOCK, self.kv_heads, self.size)
        self.caches = torch.randn(shape, device="cuda", dtype=dtype)
        self.query = torch.randn(
            batch * query_len, self.heads, self.size, device="cuda", dtype=dtype
        )
        tables = list(torch.randperm(blocks, device="cuda").view(batch, -1))
        self.metadata = AttentionMetadata(
            [query_len] * batch, [context] * batch, tables, torch.empty(0)
        )
        self.is_decode = query_len == 1
        self.scale = self.size**-0.5
        self.bytes = 2 * batch * context * self.kv_heads * self.size * dtype.itemsize
        seen = context if self.is_decode else (2 * context - query_len + 1) / 2
        self.flops = 4 * batch * query_len * seen * self.heads * self.size

    def attend(self, layer: int, **cut: Any) -> Tensor:
        starts, lens, tables = self.metadata.as_tensors
        keys, values = self.caches[layer]
        return unified_attention(
            self.query, keys, values, starts, lens, tables, self.scale, self.is_decode, **cut
        )

    def gathered(self, layer: int) -> Tensor:
        return paged_attention(self.query, *self.caches[layer], self.metadata, self.scale)

    def seconds(self, **cut: Any) -> float:
        return on_a_graph([lambda i=i: self.attend(i, **cut) for i in range(self.layers)])

    def error(self) -> float:
        """The largest difference from the gathered way in float32, over the largest number."""
        fresh = dataclasses.replace(self.metadata, decode_groups=[])  # they hold masks of a type
        expected = paged_attention(self.query.float(), *self.caches[0].float(), fresh, self.scale)
        return ((self.attend(0).float() - expected).abs().max() / expected.abs().max()).item()


def attention_lines(bandwidth: float, flops: float) -> Iterator[dict[str, Any]]:
    for heads, batch, context in DECODES:
        yield attention_line("attention, decode", heads, batch, context, 1, bandwidth, flops)
    for heads, batch, context in PROMPTS:
        yield attention_line("attention, prompts", heads, batch, context, context, bandwidth, flops)


def attention_line(
    kernel: str,
    heads: str,
    batch: int,
    context: int,
    query_len: int,
    bandwidth: float,
    flops: float,
) -> dict[str, Any]:
    requests = Requests(heads, batch, context, query_len, torch.bfloat16)
    floor = max(requests.bytes / bandwidth, requests.flops / flops)
    seconds = requests.seconds()
    return {
        "kernel": kernel,
        "model": heads,
        "requests": batch,
        "tokens": context,
        "us": 1e6 * seconds,
        "floor_us": 1e6 * floor,
        "of_floor": floor / seconds,
        "gathered_us": 1e6 * median_seconds(lambda: requests.gathered(0), 7),
        "error": requests.error(),
    }


def exact_lines() -> Iterator[dict[str, Any]]:
    """The largest relative error of attention in each type, prompts and single tokens mixed."""
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        requests = Requests("bundled", 6, 100, 1, dtype)
        lens = [1, 100, 17, 64, 1, 33]
        requests.metadata = AttentionMetadata(
            lens, [100, 100, 77, 65, 1, 96], requests.metadata.block_tables, torch.empty(0)
        )
        requests.is_decode = False
        requests.query = torch.randn(sum(lens), 9, 64, device="cuda", dtype=dtype)
        torch.backends.cuda.matmul.allow_tf32 = False
        yield {"kernel": "attention, mixed", "dtype": str(dtype), "error": requests.error()}


def small_lines(bandwidth: float) -> Iterator[dict[str, Any]]:
    for heads, hidden, inner in (("bundled", 576, 1536), ("8B", 4096, 14336)):
        for tokens in (64, 2048):
            for name, (call, num_bytes, expected) in small(heads, hidden, inner, tokens).items():
                error = (call().float() - expected).abs().max() / expected.abs().max()
                seconds = on_a_graph([call] * 20)
                yield {
                    "kernel": name,
                    "model": heads,
                    "tokens": tokens,
                    "us": 1e6 * seconds,
                    "floor_us": 1e6 * num_bytes / bandwidth,
                    "error": error.item(),
                }


def small(
    heads: str, hidden: int, inner: int, tokens: int
) -> dict[str, tuple[Callable[[], Tensor], float, Tensor]]:
    """What stands between the products: a call, the bytes it must move, and what it should give."""
    count, kv_heads, size = HEADS[heads]

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    x, residual, weight = random(tokens, hidden), random(tokens, hidden), random(hidden)
    gate = random(tokens, 2 * inner)
    qkv = random(tokens, (count + 2 * kv_heads) * size)
    places = torch.arange(tokens, device="cuda")
    cos, sin = llama.rotary_cos_sin(places, size, 1e4, torch.bfloat16)
    keys, values = random(2, tokens // BLOCK, BLOCK, kv_heads, size)
    slots = torch.randperm(tokens, device="cuda")
    queries = qkv.view(tokens, -1, size)[:, :count]
    return {
        "norm with sum": (
            lambda: norms.fused_add_rms_norm(x, residual, weight, 1e-5),
            4 * x.nbytes,
            llama.rms_norm(x + residual, weight, 1e-5).float(),
        ),
        "gate": (
            lambda: activation.silu_and_mul(gate),
            1.5 * gate.nbytes,
            llama.silu_and_mul(gate).float(),
        ),
        "rotation and cache": (
            lambda: rotary.rotary_and_cache(qkv, cos, sin, keys, values, slots),
            2 * qkv.nbytes + 2 * cos.nbytes,
            llama.apply_rotary(queries, cos, sin).float(),
        ),
    }


def packed_lines(bandwidth: float) -> Iterator[dict[str, Any]]:
    """A product with 4-bit weights beside PyTorch's with 16-bit ones, weights by turns."""
    for inputs, outputs in ((576, 1536), (4096, 14336)):
        count = max(2, -(-BEYOND_L2 // (2 * inputs * outputs)))
        weights = torch.randn(count, outputs, inputs, device="cuda")
        codes = [pack_gptq(rtn(weight, group_size=64)) for weight in weights[:2].cpu()]
        there = [
            [tensors[name].cuda() for name in ("qweight", "qzeros", "scales")]
            for tensors in codes * (2 * count)  # each a quarter of the bytes
        ]
        half = weights.to(torch.bfloat16)
        for tokens in (1, 16, 64):
            x = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16)
            expected = x.float() @ unpack_gptq(codes[0]).dequantize().float().cuda().T
            error = (gptq_matmul(x, *there[0], 64).float() - expected).abs().max()
            calls = [lambda w=w, x=x: gptq_matmul(x, *w, 64) for w in there]
            seconds = on_a_graph(calls)
            yield {
                "kernel": "4-bit product",
                "shape": [tokens, inputs, outputs],
                "us": 1e6 * seconds,
                "floor_us": 1e6 * sum(tensor.nbytes for tensor in there[0]) / bandwidth,
                "bfloat16_us": 1e6 * on_a_graph([lambda w=w, x=x: F.linear(x, w) for w in half]),
                "error": (error / expected.abs().max()).item(),
            }


def tile_lines() -> Iterator[dict[str, Any]]:
    """Attention, cut in each way, best first."""
    for heads, batch, context in DECODES[:3] + DECODES[4:5] + DECODES[6:]:
        requests = Requests(heads, batch, context, 1, torch.bfloat16)
        found = sorted((1e6 * requests.seconds(tiles=tiles), str(tiles)) for tiles in TILES)
        yield {"tiles of": [heads, batch, context], "us": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiles", action="store_true", help="try how attention is best cut")
    options = parser.parse_args()
    torch.manual_seed(0)
    bandwidth = copy_bandwidth("cuda", 1 << 32)
    flops = matmul_flops("cuda", torch.bfloat16, 8192)
    lines: list[dict[str, Any]] = []
    with torch.inference_mode():
        for source in (
            [tile_lines()]
            if options.tiles
            else [
                exact_lines(),
                small_lines(bandwidth),
                packed_lines(bandwidth),
                attention_lines(bandwidth, flops),
            ]
        ):
            for line in source:
                lines.append(line)
                print(json.dumps(line), flush=True)
                if options.out:
                    options.out.write_text(json.dumps({"kernels": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
