"""The fast path of a CPU: kernels in C++ (kernels.cpp), and weights laid out for matrix products.

The kernels are compiled at first use, for this very processor, and kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from utils.engine.batch import Batch, PagedBatch
from utils.engine.llama import LlamaForCausalLM, LlamaModel, LlamaOps
from utils.engine.paged_attention import AttentionMetadata
from utils.hub import cache_dir

SOURCE = Path(__file__).with_suffix(".cpp")
PARTS = ("vec", "rows", "attention", "amx", "attention_amx", "paged", "layers")
HEADERS = tuple(SOURCE.with_name(f"kernels_{name}.h") for name in PARTS)
TORCH = Path(torch.__file__).parent
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-std=c++20",
         "-shared", "-fPIC", "-fvisibility=hidden")  # fmt: skip


@cache
def load_fast_ops() -> LlamaOps | None:
    """The kernels as parts of the model: `LLM(ops=load_fast_ops())`.

    They take tensors in float32 and bfloat16 on a CPU, and heads of at most 128 numbers. The first
    call on a machine compiles them, which takes some ten seconds.

    Returns:
        None, after a warning that says why, where they cannot be compiled.
    """
    try:
        torch.ops.load_library(str(_compiled()))
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        warnings.warn(
            f"The engine's C++ kernels cannot be compiled, so it runs on PyTorch's functions, "
            f"which is slower. Install g++ 12 or later to change that. The reason: {reason}",
            stacklevel=2,
        )
        return None
    kernels = torch.ops.llm_course

    def paged_attention(
        query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata,
        scale: float,
    ) -> Tensor:  # fmt: skip
        tables = metadata.as_tensors
        output: Tensor = kernels.paged_attention(query, key_cache, value_cache, *tables, scale)
        return output

    def decoder_layers(
        model: LlamaModel, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch, scale: float,
        eps: float,
    ) -> Tensor | None:  # fmt: skip
        weights = model.packed_weights
        if not weights or not isinstance(batch, PagedBatch) or batch.metadata.tree_masks:
            return None
        cache, metadata = batch.kv_cache, batch.metadata
        output: Tensor = kernels.decoder_layers(
            x, cos, sin, weights, cache.keys, cache.values, metadata.slot_mapping,
            *metadata.as_tensors, scale, eps,
        )  # fmt: skip
        return output

    return LlamaOps(
        decoder_layers=decoder_layers,
        rms_norm=kernels.rms_norm.default,
        apply_rotary=kernels.apply_rotary.default,
        silu_and_mul=kernels.silu_and_mul.default,
        reshape_and_cache=kernels.reshape_and_cache.default,
        paged_attention=paged_attention,
    )


class PackedLinear(nn.Module):
    """A linear layer without bias, whose weight oneDNN has put into the order it reads it in.

    Such a product needs no copy of the weight into that order each time. With few tokens, where
    reading the weight is the work, it takes half the time.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features]"""
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, None, "none", [], "")
        return output


def pack_linears(model: nn.Module) -> None:
    """Replace all linear layers of a model, on a CPU, by `PackedLinear`.

    The weights as they were are let go, so that nothing is held twice; except that of `lm_head`,
    which others use, too: the embedding may be tied to it. Where oneDNN cannot work with the
    weights, the model stays as it is.
    """
    dtype = next(model.parameters()).dtype
    if not torch.backends.mkldnn.is_available() or not (
        dtype == torch.float32
        or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    ):
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                packed = PackedLinear(child.weight)
                if name == "lm_head":
                    packed.weight = child.weight
                setattr(module, name, packed)
    if isinstance(model, LlamaForCausalLM):
        model.model.packed_weights = [w for layer in model.model.layers for w in _weights(layer)]


def _weights(layer: Any) -> list[Tensor]:
    """Of a packed decoder layer, in the order in which `decoder_layers` in C++ takes them."""
    attention, mlp = layer.self_attn, layer.mlp
    return [
        layer.input_layernorm.weight, attention.qkv_proj.packed, attention.o_proj.packed,
        layer.post_attention_layernorm.weight, mlp.gate_up_proj.packed, mlp.down_proj.packed,
    ]  # fmt: skip


def _compiled() -> Path:
    """The compiled kernels, from the cache folder if they are there.

    Raises:
        OSError: there is no compiler, or the folder cannot be written to.
        subprocess.CalledProcessError: it did not compile. `stderr` says why.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise OSError("There is no C++ compiler (g++ or c++) on the PATH.")
    command = [
        compiler, *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{TORCH / 'include'}", str(SOURCE), f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10",
    ]  # fmt: skip
    sources = [path.read_text() for path in (SOURCE, *HEADERS)]
    made_from = [*command, *sources, torch.__version__, _processor()]
    name = hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:16]
    library = cache_dir() / f"kernels-{name}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        print("Compiling the engine's C++ kernels, once ...", file=sys.stderr, flush=True)
        # Several processes may do this at a time: each writes its own file, the last rename wins.
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            output = Path(folder) / library.name
            subprocess.run([*command, "-o", output], check=True, capture_output=True, text=True)
            output.replace(library)
    return library


def _processor() -> str:
    """What the processor can do: code compiled for another one may not run."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "") or (
        platform.processor()
    )
