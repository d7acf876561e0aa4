"""The kernels in C++ (csrc), as the functions that the model is built from.

They are compiled at first use, for this very processor, and kept in the cache folder.
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

import torch
from filelock import FileLock
from torch import Tensor

from utils.engine.attention.paged_attention import AttentionMetadata
from utils.engine.models.llama import LlamaOps
from utils.model_folder import cache_dir

SOURCE = Path(__file__).parent / "csrc" / "kernels.cpp"
HEADERS = tuple(sorted(SOURCE.parent.glob("*.h")))
TORCH = Path(torch.__file__).parent
FLAGS = (
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-std=c++20",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
)


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
        advice = "Install g++ 12 or later to change that. " if sys.platform == "linux" else ""
        warnings.warn(
            f"The engine's C++ kernels cannot be compiled, so it runs on PyTorch's functions, "
            f"which is slower. {advice}The reason: {reason}",
            stacklevel=2,
        )
        return None
    kernels = torch.ops.llm_course

    def paged_attention(
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> Tensor:
        tables = metadata.as_tensors
        output: Tensor = kernels.paged_attention(query, key_cache, value_cache, *tables, scale)
        return output

    return LlamaOps(
        rms_norm=kernels.rms_norm.default,
        apply_rotary=kernels.apply_rotary.default,
        silu_and_mul=kernels.silu_and_mul.default,
        reshape_and_cache=kernels.reshape_and_cache.default,
        paged_attention=paged_attention,
    )


def _compiled() -> Path:
    """The compiled kernels, from the cache folder if they are there.

    Raises:
        OSError: there is no compiler, or the folder cannot be written to, or this is not Linux:
            elsewhere PyTorch is built with another C++ library than g++'s, and they don't mix.
        subprocess.CalledProcessError: it did not compile. `stderr` says why.
    """
    if sys.platform != "linux":
        raise OSError(f"They are written for Linux and g++, and this is {sys.platform}.")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise OSError(
            "There is no C++ compiler (g++ or c++) on the PATH: see docs/troubleshooting.md."
        )
    command = [
        compiler,
        *FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{TORCH / 'include'}",
        str(SOURCE),
        f"-L{TORCH / 'lib'}",
        "-ltorch_cpu",
        "-lc10",
    ]
    sources = [path.read_text() for path in (SOURCE, *HEADERS)]
    made_from = [*command, *sources, torch.__version__, _processor()]
    name = hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:16]
    library = cache_dir() / f"kernels-{name}.so"
    if _is_whole(library):
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(library.with_name("kernels.lock")):  # of several processes, one compiles
        if not _is_whole(library):
            print("Compiling the engine's C++ kernels, once ...", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(dir=library.parent) as folder:
                output = Path(folder) / library.name
                subprocess.run([*command, "-o", output], check=True, capture_output=True, text=True)
                checksum = hashlib.sha256(output.read_bytes()).hexdigest()
                output.replace(library)
                library.with_suffix(".sha256").write_text(checksum)
    return library


def _is_whole(library: Path) -> bool:
    """Whether a compiled file is there as it was written: a piece of one would kill Python."""
    try:
        checksum = library.with_suffix(".sha256").read_text()
    except OSError:
        return False
    return library.exists() and hashlib.sha256(library.read_bytes()).hexdigest() == checksum


def _processor() -> str:
    """What the processor can do: code compiled for another one may not run."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "") or (
        platform.processor()
    )
