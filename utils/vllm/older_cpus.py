"""A plugin that lets vLLM serve on CPUs without AVX-512, which most laptops are.

vLLM's build for such a CPU has no kernel for 4-bit weights, and multiplies bfloat16 several times
slower than float32. So there its linear layers keep their weights in float32, read back from 4
bits where they come so, and vLLM's own product of float32 takes them. What goes in and comes out is
what the layers are asked for: bfloat16. Memory is what it costs.

vLLM finds `register` by its entry point (pyproject.toml, `vllm.general_plugins`) in each of its
processes. Where its own kernels work, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from utils.quant.packing import unpack_int4
from utils.quant.rtn import QuantizedWeight


def register() -> None:
    """Called by vLLM, once or more in each process."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from utils.profiles import fast_dtype

    if not _has_four_bit_kernel():
        _register_four_bit_kernel()
    if fast_dtype() == "float32":
        _multiply_in_float32()


def read_back(packed: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
    """The weight that 4-bit codes stand for, float32 [out, in].

    Args:
        packed: int32 [in / 8, out], eight inputs to a number, the first in the lowest bits.
        scales: [groups, out]
        zeros: int32 [groups, out / 8]. None: the grid is symmetric, and its zero is 8.
    """
    codes = unpack_int4(packed.t().contiguous())  # [out, in]
    scales = scales.t().float()  # [out, groups]
    zero = torch.full_like(scales, 8) if zeros is None else unpack_int4(zeros).t()
    group_size = codes.shape[1] // scales.shape[1]
    groups = torch.arange(codes.shape[1], dtype=torch.int32) // group_size
    zero, codes = zero.to(torch.uint8), codes.to(torch.uint8)
    return QuantizedWeight(codes, scales, zero, groups, 4).dequantize()


def _has_four_bit_kernel() -> bool:
    """Whether the build that vLLM loaded for this CPU has one."""
    import vllm._custom_ops  # noqa: F401  (loads it)

    return hasattr(torch.ops._C, "cpu_gemm_wna16")


def _register_four_bit_kernel() -> None:
    from vllm.model_executor.kernels.linear import _POSSIBLE_KERNELS
    from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
    from vllm.platforms import PlatformEnum

    class ReadBackLinearKernel(CPUWNA16LinearKernel):
        """Takes the same layers as vLLM's own, and keeps what their weights stand for."""

        def process_weights_after_loading(self, layer: Any) -> None:
            packed, scales, zeros = self._get_weight_params(layer)
            if packed.input_dim == 1:  # stored as [out, in], as compressed-tensors does
                packed = packed.t()
            if scales.output_dim == 0:
                scales = scales.t()
            if not self.config.zero_points:
                zeros = None
            elif zeros.output_dim == 0:
                zeros = zeros.t()
            layer.product = _product(read_back(packed, scales, zeros))
            for name in (self.w_q_name, self.w_s_name, self.w_zp_name):
                if name is not None and getattr(layer, name, None) is not None:
                    getattr(layer, name).data = torch.empty(0)

        def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            output: Tensor = layer.product(x, bias)
            return output

    kernels = _POSSIBLE_KERNELS[PlatformEnum.CPU]
    if not any(kernel.__name__ == ReadBackLinearKernel.__name__ for kernel in kernels):
        kernels.insert(0, ReadBackLinearKernel)


def _multiply_in_float32() -> None:
    """Replace vLLM's choice of a product for bfloat16 layers that are not quantized."""
    from vllm.model_executor.layers import utils

    choose = utils.dispatch_cpu_unquantized_gemm
    if choose.__module__ == __name__:
        return

    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        if weight.is_meta or weight.ndim != 2 or weight.dtype != torch.bfloat16:
            choose(layer, remove_weight)
            return
        product = _product(weight.detach().float())
        layer.cpu_linear = lambda x, _, bias: product(x, bias)
        if remove_weight:
            layer.weight = nn.Parameter(torch.empty(0, dtype=weight.dtype), requires_grad=False)

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


def _product(weight: Tensor) -> Callable[[Tensor, Tensor | None], Tensor]:
    """x W^T + b for a float32 weight [out, in], as vLLM multiplies float32; the type of x stays.

    It lays the weight out for oneDNN once. PyTorch's product does so in each call, which for the
    few rows of a decode step is most of the time.
    """
    from vllm.model_executor.layers import utils

    layer: Any = nn.Module()
    layer.weight = nn.Parameter(weight, requires_grad=False)
    utils.dispatch_cpu_unquantized_gemm(layer, True)

    def product(x: Tensor, bias: Tensor | None) -> Tensor:
        bias = None if bias is None else bias.float()
        output: Tensor = layer.cpu_linear(x.float(), layer.weight, bias)
        return output.to(x.dtype)

    return product
