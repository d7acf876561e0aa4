"""The Triton kernels compiled for cards that aren't here: `python -m
tests.engine.kernels.triton.compiled`.

Prints a line of JSON for each kernel, card and type: what the compiler says that a program takes.
A program of its own: it needs Triton on its path, and no TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.engine.kernels.triton.limits import CARDS
from tests.scale import sized
from utils.engine.kernels.triton import (
    activation,
    attention_kernels,
    gptq_matmul,
    norms,
    reshape_and_cache,
    rotary,
    unified_attention,
)

PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
HEADS = {"bundled": (9, 3, 64, 576, 1536), "8B": (32, 8, 128, 4096, 14336)}


def kernels(
    model: str, dtype: str, card: int
) -> dict[str, tuple[Any, dict[str, str], dict[str, Any], Any]]:
    """Each kernel with the types of its arguments, its constants, and Triton's options."""
    heads, kv_heads, size, hidden, inner = HEADS[model]
    own = f"*{dtype}"
    precision = "ieee" if dtype == "fp32" else "tf32"
    found: dict[str, tuple[Any, dict[str, str], dict[str, Any], Any]] = {
        "norm": (
            norms._rms_norm_kernel,
            dict.fromkeys(("out", "x", "residual", "weight"), own) | {"eps": "fp32"},
            {"hidden": hidden, "padded": triton.next_power_of_2(hidden), "adds": True},
            {},
        ),
        "gate": (
            activation._silu_and_mul_kernel,
            {"out": own, "gate_up": own},
            {"size": inner, "block": activation.BLOCK},
            {},
        ),
        "rotation": (
            rotary._rotary_and_cache_kernel,
            dict.fromkeys(("query", "keys", "values", "qkv", "cos", "sin"), own)
            | {"slots": "*i64"},
            {
                "heads": heads,
                "kv_heads": kv_heads,
                "half": size // 2,
                "padded_heads": triton.next_power_of_2(heads + 2 * kv_heads),
                "padded_half": size // 2,
            },
            {},
        ),
        "writing": (
            reshape_and_cache._reshape_and_cache_kernel,
            dict.fromkeys(("key", "value", "keys", "values"), own)
            | dict.fromkeys(("slots",), "*i64")
            | dict.fromkeys(("key_stride", "value_stride"), "i64"),
            {"numbers": kv_heads * size, "padded": triton.next_power_of_2(kv_heads * size)},
            {},
        ),
        "4-bit product": (
            gptq_matmul._gptq_matmul_kernel,
            {"out": own, "x": own, "qweight": "*i32", "qzeros": "*i32", "scales": "*fp16"}
            | {"tokens": "i32"},
            {
                "inputs": hidden,
                "outputs": inner,
                "group_size": 64,
                "zero_offset": 1,
                "rows": 16,
                "columns": 32,
                "depth": 64,
                "precision": precision,
            },
            {},
        ),
        "merging": (
            attention_kernels.merge_segments_kernel,
            dict.fromkeys(("weighted_in", "largest_in", "total_in"), "*fp32")
            | {"out": own, "seq_lens": "*i64"},
            {"heads": heads, "size": size, "padded_size": size, "tile_keys": 64, "segments": 8},
            {"num_warps": 1},
        ),
    }
    small = dtype == "fp32" or card < 80
    for name, tiles in (
        ("attention, single tokens", unified_attention.DECODE),
        ("attention, mixed", unified_attention.PROMPT),
    ):
        decode = tiles is unified_attention.DECODE
        tiles = unified_attention.SMALL if small else tiles  # as `cut` says
        found[name] = (
            attention_kernels.unified_attention_kernel,
            dict.fromkeys(("out", "query", "keys", "values"), own)
            | dict.fromkeys(("weighted_out", "largest_out", "total_out"), "*fp32")
            | dict.fromkeys(("block_tables", "seq_lens", "query_start_loc"), "*i64")
            | {"scale": "fp32", "num_requests": "i32", "table_stride": "i32"},
            {
                "heads": heads,
                "kv_heads": kv_heads,
                "size": size,
                "padded_size": size,
                "block_size": 16,
                "rows": tiles.rows,
                "tokens_of_tile": tiles.rows // (heads // kv_heads),
                "tile_keys": tiles.keys,
                "segments": 4 if decode else 1,
                "is_decode": decode,
                "precision": precision,
            },
            {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages},
        )
    return found


def compiled(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], options: Any, card: int
) -> dict[str, Any]:
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, constants)
    found = triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(found.asm["ptx"])
        arch = re.search(r"\.target (sm_\w+)", found.asm["ptx"])
        assert arch
        command = [str(PTXAS), "-v", f"--gpu-name={arch[1]}", str(file), "-o", f"{folder}/out"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr

    def number(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, said)))

    return {
        "registers": number(r"Used (\d+) registers"),
        "spilled_bytes": number(r"(\d+) bytes spill stores"),
        "shared_bytes": found.metadata.shared,
        "tf32": "tf32" in found.asm["ptx"],
    }


def main() -> None:
    models = list(HEADS)[: sized(1, 2)]
    for model in models:
        for card in CARDS:
            for dtype in ("fp16", "bf16", "fp32"):
                if dtype == "bf16" and card < 80:  # that card has none
                    continue
                if dtype == "fp32" and card != 80 and model == "bundled" and len(models) == 1:
                    continue  # one card shows it
                for name, given in kernels(model, dtype, card).items():
                    line = {"kernel": name, "model": model, "card": card, "dtype": dtype}
                    print(json.dumps(line | compiled(*given, card)), flush=True)


if __name__ == "__main__":
    main()
