"""Weights laid out for matrix products, in the order in which these read them."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from utils.engine.kernels.fast_ops import load_fast_ops
from utils.engine.models.llama import LlamaForCausalLM

OUTPUTS_TOGETHER = 64  # a whole number of strips in csrc/products.h, on every processor

# For each number of rows, oneDNN compiles each product anew, which takes about as long as one of a
# few tokens, and half a megabyte. Both oneDNN and PyTorch's layer above it (ideep) keep the last
# 1024 of them. These are enough for the five products of a model, with 1 to 64 tokens. The
# variables are read when the first product is computed.
NUM_KEPT_PRODUCTS = 5 * 64
VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


class PackedLinear(nn.Module):
    """A linear layer without bias, whose weight lies in the order in which the product reads it.

    Such a product needs no copy of the weight into that order each time. With few tokens, where
    reading the weight is the work, it takes half the time.

    It is this engine's own product (csrc/products.h) where that is faster than oneDNN's. Where
    neither has one for bfloat16, the packed weight and the product are float32, which is several
    times faster than PyTorch's; what comes in and goes out stays bfloat16.

    The first one sets two environment variables that bound what oneDNN keeps, unless they are set.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        for variable in VARIABLES:
            os.environ.setdefault(variable, str(NUM_KEPT_PRODUCTS))
        weight = weight.detach()
        self.own = has_own_product(weight)
        if self.own:
            self.packed = torch.ops.llm_course.pack_weight(weight.contiguous())
            return
        as_multiplied = weight.float() if multiplies_in_float32(weight.dtype) else weight
        self.packed = torch.ops.mkldnn._reorder_linear_weight(as_multiplied)

    def forward(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features]"""
        if self.own:
            output: Tensor = torch.ops.llm_course.product(x, self.packed)
            return output
        output = torch.ops.mkldnn._linear_pointwise(
            x.to(self.packed.dtype), self.packed, None, "none", [], ""
        )
        return output.to(x.dtype)

    def unpacked(self) -> Tensor:
        """The weight [out_features, in_features], as it is multiplied with."""
        if not self.own:
            return self.packed.to_dense()
        weight: Tensor = torch.ops.llm_course.unpack_weight(self.packed)
        return weight


def has_own_product(weight: Tensor) -> bool:
    """Whether this engine multiplies with a weight [out_features, in_features] faster than oneDNN.

    True on processors with AVX2 or AVX-512 whose kernels are compiled, except for bfloat16 on those
    with instructions for it (see `benchmarks/ledger.md`).
    """
    return (
        torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        and (weight.dtype == torch.float32 or multiplies_in_float32(weight.dtype))
        and weight.shape[0] % OUTPUTS_TOGETHER == 0
        and load_fast_ops() is not None
    )


def multiplies_in_float32(dtype: torch.dtype) -> bool:
    """Whether float32 stands in for a type that oneDNN multiplies more slowly on this CPU.

    With AVX-512 it makes products of bfloat16 on every processor, but of many rows several times
    slower where there are no instructions for them (AVX512-BF16 or AMX).
    """
    if dtype != torch.bfloat16:
        return False
    if torch.cpu._is_avx512_supported():
        return not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_linears(model: nn.Module) -> None:
    """Replace all linear layers of a model, on a CPU, by `PackedLinear`.

    The weights as they were are let go, so that nothing is held twice; except that of `lm_head`,
    which others use, too: the embedding may be tied to it. Where oneDNN cannot work with the
    weights, the model stays as it is.
    """
    dtype = next(model.parameters()).dtype
    known = dtype in (torch.float32, torch.bfloat16)
    if not torch.backends.mkldnn.is_available() or not known:
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                packed = PackedLinear(child.weight)
                if name == "lm_head":
                    packed.weight = child.weight
                setattr(module, name, packed)
    if isinstance(model, LlamaForCausalLM):
        weights = [weight for layer in model.model.layers for weight in _weights(layer)]
        if all(weight.dtype == dtype for weight in weights):  # no float32 stands in for bfloat16
            model.model.packed_weights = weights


def _weights(layer: Any) -> list[Tensor]:
    """Of a packed decoder layer, in the order in which `FusedLayers` takes them."""
    attention, mlp = layer.self_attn, layer.mlp
    return [
        layer.input_layernorm.weight,
        attention.qkv_proj.packed,
        attention.o_proj.packed,
        layer.post_attention_layernorm.weight,
        mlp.gate_up_proj.packed,
        mlp.down_proj.packed,
    ]
