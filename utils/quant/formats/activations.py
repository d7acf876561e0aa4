"""What becomes of a layer's inputs when they are quantized, too (W8A8, W4A4).

Weights are quantized once, at leisure. Activations are quantized in each step, so their scales
must be cheap: the largest magnitude of each token, known as soon as the token is there.

Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
Models", 2022, https://arxiv.org/abs/2211.10438
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from utils.quant.calibrate import decoder_layers, linear_of
from utils.quant.formats.blocks import nvfp4
from utils.quant.formats.floats import E4M3

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TINY = torch.finfo(torch.float32).tiny
# Linear layers that read what a norm gives, and that norm: the norm can take the shift over.
AFTER_NORMS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}


def int8_tensor(x: Tensor) -> Tensor:
    """x rounded to 8-bit integers with one scale for all of it; float32, in its shape."""
    return _int8(x.float(), x.float().abs().max())


def int8_tokens(x: Tensor) -> Tensor:
    """x [..., channels] rounded to 8-bit integers with a scale per token; float32, in its shape."""
    return _int8(x.float(), x.float().abs().amax(-1, keepdim=True))


int8_channels = int8_tokens  # of a weight [out, in], a row is an output channel


def fp8_tokens(x: Tensor) -> Tensor:
    """x [..., channels] rounded to E4M3 with a scale per token; float32, in its shape.

    By torch's own E4M3, which is `FloatFormat`'s bit for bit, and ten times as fast.
    """
    scales = (x.float().abs().amax(-1, keepdim=True) / E4M3.max).clamp(min=TINY)
    units = (x / scales).clamp(-E4M3.max, E4M3.max)  # older versions of torch don't saturate
    return units.to(torch.float8_e4m3fn).float() * scales


def nvfp4_tokens(x: Tensor) -> Tensor:
    """x [..., channels] rounded to NVFP4, block by block; float32, in its shape.

    With the global scale of x itself. An engine fixes the global scale by calibration.
    """
    return nvfp4(x.flatten(0, -2)).dequantize().view(x.shape)


def smoothing(inputs_absmax: Tensor, weight: Tensor, alpha: float = 0.5) -> Tensor:
    """SmoothQuant's factor of each input channel: inputs are divided by it, weights multiplied.

    Args:
        inputs_absmax: the largest magnitude seen in each input channel, [in].
        weight: of one layer or of several stacked ones, [out, in].
        alpha: how much of the inputs' spread moves into the weights, from 0 (none) to 1 (all).

    Returns:
        float32 [in], positive.

    Raises:
        ValueError: alpha is out of range, or the shapes don't fit.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"{alpha=}: expected 0 to 1.")
    if inputs_absmax.shape != weight.shape[1:]:
        raise ValueError(
            f"Expected one magnitude for each of {weight.shape[1]} input channels; got "
            f"{list(inputs_absmax.shape)}."
        )
    x = inputs_absmax.float().clamp(min=1e-5)
    w = weight.detach().float().abs().amax(0).clamp(min=1e-5)
    return x**alpha / w ** (1 - alpha)


@torch.no_grad()
def smooth_model(
    model: PreTrainedModel, windows: Iterable[list[int]], alpha: float = 0.5
) -> dict[str, Tensor]:
    """Shift the spread of inputs into weights, in place, without changing what the model computes.

    Only layers behind a norm are shifted: the norm's weight is divided by the factors.

    Args:
        model: Llama-like.
        windows: token ids to look at, [num_windows, T].
        alpha: see `smoothing`.

    Returns:
        The largest magnitude of each input channel before the shift, by module name.
    """
    layers = decoder_layers(model)
    absmax: dict[str, Tensor] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            seen = args[0].flatten(0, -2).abs().amax(0).float()
            absmax[name] = torch.maximum(absmax.get(name, seen), seen)

        return hook

    hooks = [
        linear_of(layer, names[0]).register_forward_pre_hook(
            watch(f"model.layers.{number}.{names[0]}")
        )
        for number, layer in enumerate(layers)
        for names in AFTER_NORMS.values()
    ]
    try:
        for window in windows:
            model(torch.tensor([list(window)], device=model.device))
    finally:
        for handle in hooks:
            handle.remove()
    for number, layer in enumerate(layers):
        for norm, names in AFTER_NORMS.items():
            linears = [linear_of(layer, name) for name in names]
            stacked = torch.cat([linear.weight for linear in linears])
            factors = smoothing(absmax[f"model.layers.{number}.{names[0]}"], stacked, alpha)
            weight = layer.get_submodule(norm).weight
            assert isinstance(weight, Tensor)
            weight.div_(factors.to(weight.dtype))
            for linear in linears:
                linear.weight.mul_(factors.to(linear.weight.dtype))
    return absmax


@contextmanager
def rounded_inputs(model: PreTrainedModel, quantize: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within this context, each linear layer of the decoder gets its inputs quantized.

    Args:
        model: Llama-like.
        quantize: from inputs [..., channels] to what they are read back as.
    """

    def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (quantize(args[0]).to(args[0].dtype), *args[1:])

    linears = (m for layer in decoder_layers(model) for m in layer.modules())
    hooks = [m.register_forward_pre_hook(hook) for m in linears if isinstance(m, nn.Linear)]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def _int8(x: Tensor, absmax: Tensor) -> Tensor:
    scales = (absmax / 127).clamp(min=TINY)
    return (x / scales).round().clamp(-127, 127) * scales
