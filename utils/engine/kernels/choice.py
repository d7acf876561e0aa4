"""Which functions a model is built from."""

from __future__ import annotations

import importlib.util

from utils.engine.kernels.fast_ops import load_fast_ops
from utils.engine.models.llama import DEFAULT_OPS, LlamaOps

DEVICE_OF = {"cpp": "cpu", "cuda_graph": "cuda", "triton": "cuda"}


def choose_ops(kernels: str, device: str, ops: LlamaOps = DEFAULT_OPS) -> LlamaOps:
    """The functions for `LLM(kernels=...)` on a device: "cpu" or "cuda".

    Raises:
        ValueError: unknown kernels, those of another device, or with functions of the caller's.
    """
    if kernels == "torch":
        return ops
    if DEVICE_OF.get(kernels) != device or ops is not DEFAULT_OPS:
        raise ValueError(
            f"kernels={kernels!r} on {device}: expected torch; or, without ops of your own, cpp on "
            "a CPU, triton or cuda_graph on a card."
        )
    if kernels == "triton":
        if importlib.util.find_spec("triton") is None:
            raise ValueError(
                "kernels='triton': the package triton is not here. PyTorch's builds for CUDA bring "
                "it; use kernels='cuda_graph' without."
            )
        from utils.engine.kernels.triton.ops import TRITON_OPS  # imports triton

        return TRITON_OPS
    return (load_fast_ops() or ops) if kernels == "cpp" else ops
