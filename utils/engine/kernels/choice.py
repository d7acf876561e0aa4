"""Which functions a model is built from."""

from __future__ import annotations

from utils.engine.kernels.fast_ops import load_fast_ops
from utils.engine.models.llama import DEFAULT_OPS, LlamaOps

DEVICE_OF = {"cpp": "cpu", "cuda_graph": "cuda"}


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
            "a CPU or cuda_graph on a card."
        )
    return (load_fast_ops() or ops) if kernels == "cpp" else ops
