"""The Triton kernels in Triton's interpreter: `python -m tests.engine.kernels.triton.cases`.

A program of its own: it needs Triton on its path, and TRITON_INTERPRET=1 before anything imports it
(see `utils/environments/kernels.py`). Prints a line of JSON for each case: its name, and what went
wrong, or null. What is compared is the largest difference from the reference, in parts of the
largest number.
"""

from __future__ import annotations

import importlib.util
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.scale import sized
from utils.engine.attention.paged_attention import AttentionMetadata, paged_attention_reference
from utils.engine.kernels.triton import (
    activation,
    attention_kernels,
    gptq_matmul,
    norms,
    reshape_and_cache,
    rotary,
    unified_attention,
)
from utils.engine.models import llama
from utils.quant.packing import pack_gptq, unpack_gptq
from utils.quant.rtn import rtn

FLOAT16 = 2e-3  # one rounding of numbers as large as the largest


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, in parts of the largest number."""
    assert found.shape == expected.shape
    difference = (found.float() - expected.float()).abs().max() / expected.float().abs().max()
    return float(difference)


# --- attention -----------------------------------------------------------------------------------


class Drawn:
    """A batch: requests of 1 to 5 blocks each, with prompts, chunks of prompts, single tokens."""

    def __init__(self, seed: int, decode: bool, dtype: torch.dtype = torch.float32) -> None:
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.block_size = draw.choice((16, 32))
        self.kv_heads, self.size = draw.choice((1, 2, 3)), draw.choice((16, 24, 64))
        self.heads = self.kv_heads * draw.choice((1, 2, 3, 4))
        self.seq_lens = [draw.randint(1, 5 * self.block_size) for _ in range(draw.randint(1, 4))]
        # Ends of blocks are where kernels go wrong.
        self.seq_lens[0] = draw.randint(1, 5) * self.block_size + draw.choice((-1, 0))
        self.query_lens = [1 if decode else draw.randint(1, n) for n in self.seq_lens]
        counts = [-(-n // self.block_size) for n in self.seq_lens]
        blocks = list(range(sum(counts) + 2))
        draw.shuffle(blocks)
        self.tables = [torch.tensor([blocks.pop() for _ in range(n)]) for n in counts]
        shape = (2, len(blocks) + sum(counts), self.block_size, self.kv_heads, self.size)
        self.keys, self.values = torch.randn(shape).to(dtype)
        self.query = torch.randn(sum(self.query_lens), self.heads, self.size).to(dtype)
        # Whatever lies in a block beyond a request's end must not matter.
        for table, n in zip(self.tables, self.seq_lens, strict=True):
            self.keys[table[-1], (n - 1) % self.block_size + 1 :] = 50.0
            self.values[table[-1], (n - 1) % self.block_size + 1 :] = 1e4
        self.decode, self.scale = decode, self.size**-0.5
        self.tiles = unified_attention.Tiles(
            draw.choice((16, 32)), draw.choice((16, 32, 64)), num_warps=4, num_stages=1
        )
        self.segments = draw.choice((None, 1, 4)) if decode else None

    def expected(self) -> Tensor:
        parts = self.query.float().split(self.query_lens)
        return torch.cat(
            [
                paged_attention_reference(
                    part, self.keys.float(), self.values.float(), table.tolist(), n, self.scale
                )
                for part, table, n in zip(parts, self.tables, self.seq_lens, strict=True)
            ]
        )

    def found(self) -> Tensor:
        metadata = AttentionMetadata(
            self.query_lens, self.seq_lens, self.tables, torch.empty(0, dtype=torch.int64)
        )
        starts, seq_lens, tables = metadata.as_tensors
        given = (self.query, self.keys, self.values, starts, seq_lens, tables, self.scale)
        return unified_attention.unified_attention(*given, self.decode, self.tiles, self.segments)

    def error(self) -> float:
        return error(self.found(), self.expected())


def unused_rows() -> float:
    """Rows that only fill a graph's batch look at nothing, and give zeros."""
    batch = Drawn(3, decode=True)
    batch.seq_lens, batch.segments = [0] * len(batch.seq_lens), 4
    return float(batch.found().abs().max())


# --- wrong kernels -------------------------------------------------------------------------------

# Faults of public kernels, as edits of ours: each must be seen.
WRONG = {
    "no mask in the last block": (
        'scores = tl.where(key_position[None, :] <= position[:, None], scores, float("-inf"))',
        "scores = scores + 0.0",
    ),
    "a chunk's queries stand at the beginning": (
        "position = seq_len - query_len + token",
        "position = token",
    ),
    "the keys end with the chunk": (
        "visible = seq_len - query_len + tl.minimum(",
        "visible = tl.minimum(",
    ),
    "the sum is not rescaled": ("total = total * shrink +", "total = total +"),
    "the values are not rescaled": ("weighted = weighted * shrink[:, None]", "weighted = weighted"),
    "a segment's share is not weighed": (
        "weight = tl.exp2(largest - best)",
        "weight = tl.exp2(largest * 0.0)",
    ),
    "heads of a group take another's keys": (
        "offset = (slot * kv_heads + kv_head)",
        "offset = (slot * kv_heads)",
    ),
    "a place in the sequence for a slot": (
        "slot = block.to(tl.int64) * block_size",
        "slot = (key_position // block_size) * block_size",
    ),
}


def wrong_kernels(folder: Path, number: int) -> dict[str, Any]:
    """Both kernels, one of them changed."""
    old, new = list(WRONG.values())[number]
    text = Path(attention_kernels.__file__).read_text()
    assert text.count(old) == 1, old
    file = folder / f"wrong_{number}.py"
    file.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: getattr(module, name) for name in dir(module) if name.endswith("_kernel")}


def worst_of_wrong(number: int) -> float:
    """The largest error of a wrong kernel, on batches that ours gets right."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = wrong_kernels(Path(folder), number)
        with patch.multiple(unified_attention, **wrong):
            found = [Drawn(seed, decode).error() for seed in range(4) for decode in (0, 1)]
    return max(1e9 if one != one else one for one in found)


# --- what stands between the products ------------------------------------------------------------


def norm(hidden: int, adds: bool, dtype: torch.dtype = torch.float32) -> float:
    torch.manual_seed(hidden)
    x, residual = torch.randn(2, 5, hidden).to(dtype)
    weight = torch.randn(hidden).to(dtype)
    if not adds:
        return error(norms.rms_norm(x, weight, 1e-5), llama.rms_norm(x, weight, 1e-5))
    total = residual.clone()
    found = norms.fused_add_rms_norm(x, total, weight, 1e-5)
    return max(error(total, x + residual), error(found, llama.rms_norm(x + residual, weight, 1e-5)))


def gate(size: int) -> float:
    torch.manual_seed(size)
    gate_up = torch.randn(3, 2 * size)
    return error(activation.silu_and_mul(gate_up), llama.silu_and_mul(gate_up))


def rotation(heads: int, kv_heads: int, size: int) -> float:
    """Queries rotated, keys and values in their slots; a token without a slot is not kept."""
    torch.manual_seed(size)
    qkv = torch.randn(4, (heads + 2 * kv_heads) * size)
    cos, sin = llama.rotary_cos_sin(torch.tensor([3, 7, 100, 2]), size, 1e4)
    keys, values = torch.zeros(2, 6, 16, kv_heads, size)
    slots = torch.tensor([5, 17, -1, 80])
    query = rotary.rotary_and_cache(qkv, cos, sin, keys, values, slots)
    parts = qkv.view(4, -1, size)
    rotated = llama.apply_rotary(parts[:, : heads + kv_heads], cos, sin)
    expected = torch.zeros(2, 6, 16, kv_heads, size)
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[0].flatten(0, 1)[slot] = rotated[row, heads:]
            expected[1].flatten(0, 1)[slot] = parts[row, heads + kv_heads :]
    return max(
        error(query, rotated[:, :heads]), error(keys, expected[0]), error(values, expected[1])
    )


def written() -> float:
    torch.manual_seed(0)
    parts = torch.randn(4, 7, 24)  # keys and values are parts of one tensor, as in the model
    keys, values = torch.zeros(2, 6, 16, 3, 24)
    slots = torch.tensor([5, 17, -1, 80])
    reshape_and_cache.reshape_and_cache(parts[:, 1:4], parts[:, 4:], keys, values, slots)
    expected = torch.zeros(2, 6 * 16, 3, 24)
    kept = slots >= 0
    expected[0, slots[kept]], expected[1, slots[kept]] = parts[kept, 1:4], parts[kept, 4:]
    return error(torch.stack((keys, values)).flatten(1, 2), expected)


def product(tokens: int, inputs: int, outputs: int, group_size: int, sym: bool) -> float:
    torch.manual_seed(outputs)
    offset = int(sym)  # checkpoint_format "gptq", and "gptq_v2"
    weight = rtn(torch.randn(outputs, inputs), group_size=group_size, sym=sym)
    tensors = pack_gptq(weight, zero_offset=offset)
    exact = unpack_gptq(tensors, zero_offset=offset).dequantize().float()
    x = torch.randn(tokens, inputs)
    packed = (tensors["qweight"], tensors["qzeros"], tensors["scales"])
    return error(gptq_matmul.gptq_matmul(x, *packed, group_size, offset), x @ exact.T)


def groups_that_do_not_fit() -> float:
    """Refused in words."""
    ints = torch.zeros(8, 8, dtype=torch.int32)
    for rows, group_size in ((4, 64), (8, 8), (8, 32)):
        try:
            gptq_matmul.gptq_matmul(torch.zeros(1, 64), ints[:rows], ints[:1], ints[:1], group_size)
        except ValueError as problem:
            assert "does not fit inputs of 64" in str(problem)
            continue
        return 1.0
    return 0.0


# --- the engine ----------------------------------------------------------------------------------


def engine(**options: Any) -> float:
    """How many of a tiny model's answers are others than with PyTorch's functions."""
    from tests.device.cases import PROMPTS
    from tests.engine.tiny_engines import tiny_llama
    from utils.engine import LLM, SamplingParams
    from utils.engine.kernels.triton.layers import TritonLayers

    params = SamplingParams(temperature=0, max_tokens=8)
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        tiny_llama(Path(folder), 1, vocab_size=40)
        for triton in (False, True):
            usual = {"max_model_len": 64, "num_gpu_blocks_override": 48, "block_size": 4}
            llm = LLM(Path(folder), device="cpu", **(usual | options))
            if triton:
                llm.model.all_layers = TritonLayers(16, graphs=False)
            for _ in range(2):  # the second time from the prefix cache
                outputs = llm.generate(PROMPTS, params, use_tqdm=False)
                answers.append([output.outputs[0].token_ids for output in outputs])
    return float(
        sum(a != b for a, b in zip(answers[0] + answers[1], answers[2] + answers[3], strict=True))
    )


def real_model() -> float:
    """Tokens of the bundled model that are others than with PyTorch's functions, of ten."""
    from utils.engine import LLM, SamplingParams
    from utils.engine.kernels.triton.layers import TritonLayers

    answers = []
    for triton in (False, True):
        llm = LLM(device="cpu", max_model_len=64, num_gpu_blocks_override=8)
        if triton:
            llm.model.all_layers = TritonLayers(4, graphs=False)
        params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
        [output] = llm.generate(["The capital of France is"], params, use_tqdm=False)
        answers.append(output.outputs[0].token_ids)
    return float(sum(a != b for a, b in zip(*answers, strict=True)))


def cases() -> Iterator[tuple[str, Callable[[], float], float]]:
    """Names, what gives an error, and the most that it may be; negative: the least."""
    for seed in range(sized(8, 40)):
        for decode in (False, True):
            name = f"attention, {'single tokens' if decode else 'mixed'}, {seed}"
            yield name, lambda s=seed, d=decode: Drawn(s, d).error(), 5e-6
            half = lambda s=seed, d=decode: Drawn(s, d, torch.float16).error()  # noqa: E731
            yield f"{name}, float16", half, FLOAT16
    yield "attention, rows of nobody", unused_rows, 0.0
    for number, name in enumerate(WRONG):
        yield f"wrong: {name}", lambda n=number: worst_of_wrong(n), -0.01
    for hidden in (1, 64, 576, 1000):
        for adds in (False, True):
            yield f"norm, {hidden}, {adds}", lambda h=hidden, a=adds: norm(h, a), 2e-6
    yield "norm, float16", lambda: norm(576, True, torch.float16), FLOAT16
    for size in (1, 96, 1536):
        yield f"gate, {size}", lambda n=size: gate(n), 2e-6
    for heads in ((9, 3, 64), (4, 4, 16), (8, 1, 24)):
        yield f"rotation, {heads}", lambda h=heads: rotation(*h), 1e-6
    yield "written to slots", written, 0.0
    shapes = (
        (1, 64, 40, 32, True),
        (5, 128, 72, 32, False),
        (70, 256, 64, 128, True),
        (3, 96, 32, 96, True),
    )
    for shape in shapes:
        yield f"4-bit product, {shape}", lambda s=shape: product(*s), 2e-6
    yield "4-bit product, refused", groups_that_do_not_fit, 0.0
    yield "engine", engine, 0.0
    yield "engine, in chunks", lambda: engine(max_num_batched_tokens=8, max_num_seqs=3), 0.0
    yield "engine, little memory", lambda: engine(num_gpu_blocks_override=16), 0.0
    guesses = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    yield "engine, guesses", lambda: engine(speculative_config=guesses), 0.0
    yield "engine, the real model", real_model, 0.0


def main() -> None:
    for name, run, bound in cases():
        try:
            problem, found = None, run()
            if not (found <= bound if bound >= 0 else found >= -bound):
                problem = (
                    f"{found:.2g}, expected at {'most' if bound >= 0 else 'least'} {abs(bound)}"
                )
        except Exception as raised:
            problem = f"{type(raised).__name__}: {raised}"
        print(json.dumps({"case": name, "problem": problem}), flush=True)


if __name__ == "__main__":
    main()
