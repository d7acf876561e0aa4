"""The kernels as the functions that a model is built from, for steps that go layer by layer."""

from __future__ import annotations

from utils.engine.kernels.triton.activation import silu_and_mul
from utils.engine.kernels.triton.norms import rms_norm
from utils.engine.kernels.triton.reshape_and_cache import reshape_and_cache
from utils.engine.kernels.triton.unified_attention import paged_attention
from utils.engine.models.llama import LlamaOps

TRITON_OPS = LlamaOps(
    rms_norm=rms_norm,
    silu_and_mul=silu_and_mul,
    paged_attention=paged_attention,
    reshape_and_cache=reshape_and_cache,
)
