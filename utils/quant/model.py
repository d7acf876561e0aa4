"""Quantize all linear layers of a Llama-like model, with any of the methods built here.

The embedding and the output layer stay as they are, as in every common 4-bit checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from utils.quant.awq import N_GRID, apply_clip, search_clip, search_scales
from utils.quant.calibrate import SAME_INPUT, calibrate, decoder_layers, linear_of
from utils.quant.gptq import gptq
from utils.quant.nf4 import NF4Weight, quantize_nf4
from utils.quant.packing import pack_awq, pack_gptq
from utils.quant.rtn import QuantizedWeight, rtn
from utils.quant.stats import InputStats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Quantized = QuantizedWeight | NF4Weight
Stats = dict[str, InputStats]
CalibratedLayer = tuple[int, nn.Module, Stats]

# q and k are not clipped: their product decides attention, and errors in it multiply.
NOT_CLIPPED = ("self_attn.q_proj", "self_attn.k_proj")


def quantize_model(
    model: PreTrainedModel,
    method: str,
    *,
    windows: Sequence[Sequence[int]] | None = None,
    stats: Sequence[CalibratedLayer] | None = None,
    use_tqdm: bool = True,
    **settings: Any,
) -> dict[str, Quantized]:
    """Quantize a model in place: each linear layer's weight becomes what its codes read back as.

    Args:
        model: Llama-like; float32, or float16/bfloat16.
        method: "rtn", "nf4", "gptq" or "awq".
        windows: calibration token ids [num_windows, T], for "gptq" and "awq". Each layer is then
            calibrated on what the quantized layers before it give.
        stats: in place of `windows`: `list(calibrate(..., sequential=False))`, collected once for
            several runs.
        use_tqdm: show a progress bar.
        settings: of `rtn`, `quantize_nf4`, `gptq_layer` or `awq_layer`.

    Returns:
        The quantized weights by module name, such as "model.layers.0.self_attn.q_proj".

    Raises:
        ValueError: unknown method, missing calibration, or an argument that the method refuses.
    """
    layers = decoder_layers(model)
    if method not in METHODS:
        raise ValueError(f"Unknown method {method!r}. Expected one of {', '.join(METHODS)}.")
    calibrated: Iterable[CalibratedLayer]
    if method in ("rtn", "nf4"):
        calibrated = ((number, layer, {}) for number, layer in enumerate(layers))
    elif stats is not None:
        calibrated = ((n, layers[n], layer_stats) for n, _, layer_stats in stats)
    elif windows is not None:
        calibrated = calibrate(model, windows)
    else:
        raise ValueError(f"{method!r} needs calibration data: pass `windows` or `stats`.")
    quantized: dict[str, Quantized] = {}
    bar = tqdm(calibrated, total=len(layers), desc=method, unit="layer", disable=not use_tqdm)
    for number, layer, layer_stats in bar:
        for name, weight in METHODS[method](layer, layer_stats, **settings).items():
            quantized[f"model.layers.{number}.{name}"] = weight
    return quantized


def rtn_layer(layer: nn.Module, stats: Stats, **settings: Any) -> dict[str, Quantized]:
    """RTN for one decoder layer; settings: see `rtn`."""
    return _each_weight(layer, lambda weight: rtn(weight, **settings))


def nf4_layer(layer: nn.Module, stats: Stats, **settings: Any) -> dict[str, Quantized]:
    """NF4 for one decoder layer; settings: see `quantize_nf4`."""
    return _each_weight(layer, lambda weight: quantize_nf4(weight, **settings))


@torch.no_grad()
def gptq_layer(layer: nn.Module, stats: Stats, **settings: Any) -> dict[str, Quantized]:
    """GPTQ for one decoder layer; settings: see `gptq`.

    Layers with the same input have the same Hessian. Rows do not influence each other, so their
    weights are stacked and quantized as one.
    """
    quantized: dict[str, Quantized] = {}
    for names in SAME_INPUT:
        linears = [linear_of(layer, name) for name in names]
        stacked = torch.cat([linear.weight for linear in linears])
        whole = gptq(stacked, stats[names[0]].hessian, **settings)
        sizes = [linear.out_features for linear in linears]
        parts = zip(
            whole.q.split(sizes), whole.scales.split(sizes), whole.zeros.split(sizes), strict=True
        )
        for name, linear, (q, scales, zeros) in zip(names, linears, parts, strict=True):
            quantized[name] = QuantizedWeight(q, scales, zeros, whole.g_idx, whole.bits)
            _set(linear, quantized[name])
    return quantized


@torch.no_grad()
def awq_layer(
    layer: nn.Module,
    stats: Stats,
    *,
    bits: int = 4,
    group_size: int = 64,
    clip: bool = True,
    duo_scaling: bool = True,
    n_grid: int = N_GRID,
    max_rows: int | None = None,
) -> dict[str, Quantized]:
    """AWQ for one decoder layer; settings: see `awq`.

    The inverse scales go into the operation before: the norm, or the rows of v_proj and up_proj.
    With grouped-query attention o_proj stays unscaled: it has more inputs than v_proj has rows.
    """
    grid = {"bits": bits, "group_size": group_size}
    moments: dict[str, Tensor] = {}
    for names in SAME_INPUT:
        linears = [linear_of(layer, name) for name in names]
        moment = stats[names[0]].second_moment
        before = _operation_before(layer, names[0], linears[0].in_features)
        if before is not None:
            stacked = torch.cat([linear.weight for linear in linears])
            scales = search_scales(
                stacked,
                stats[names[0]],
                duo_scaling=duo_scaling,
                n_grid=n_grid,
                max_rows=max_rows,
                **grid,
            ).scales
            _fold(scales, linears, before)
            moment = moment / torch.outer(scales, scales)
        moments |= dict.fromkeys(names, moment)
    quantized: dict[str, Quantized] = {}
    for name, moment in moments.items():
        linear = linear_of(layer, name)
        weight = linear.weight.float()
        if clip and name not in NOT_CLIPPED:
            weight = apply_clip(weight, search_clip(weight, moment, n_grid=n_grid, **grid))
        quantized[name] = rtn(weight, bits=bits, group_size=group_size, sym=False)
        _set(linear, quantized[name])
    return quantized


METHODS: dict[str, Callable[..., dict[str, Quantized]]] = {
    "rtn": rtn_layer,
    "nf4": nf4_layer,
    "gptq": gptq_layer,
    "awq": awq_layer,
}


def checkpoint_tensors(
    model: PreTrainedModel, quantized: dict[str, Quantized], layout: str
) -> dict[str, Tensor]:
    """All tensors of a 4-bit checkpoint: packed linear layers, and the rest in bfloat16.

    Args:
        model: as `quantize_model` left it.
        quantized: what it returned; RTN, GPTQ or AWQ.
        layout: "gptq" or "awq".

    Raises:
        ValueError: another layout, or weights that the layout cannot hold.
    """
    if layout not in ("gptq", "awq"):
        raise ValueError(f'Unknown layout {layout!r}. Expected "gptq" or "awq".')
    pack = pack_gptq if layout == "gptq" else pack_awq
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.removesuffix(".weight") not in quantized:
            tensors[name] = tensor.to(torch.bfloat16).contiguous()
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)  # it is the embedding
    for name, weight in quantized.items():
        if not isinstance(weight, QuantizedWeight):
            raise ValueError(f"{name} is {type(weight).__name__}; the {layout} layout has no NF4.")
        tensors |= {f"{name}.{part}": tensor for part, tensor in pack(weight).items()}
    return tensors


def _each_weight(layer: nn.Module, quantize: Callable[[Tensor], Quantized]) -> dict[str, Quantized]:
    quantized = {}
    for name in (name for names in SAME_INPUT for name in names):
        linear = linear_of(layer, name)
        quantized[name] = quantize(linear.weight.detach())
        _set(linear, quantized[name])
    return quantized


@torch.no_grad()
def _set(linear: nn.Linear, weight: Quantized) -> None:
    linear.weight.copy_(weight.dequantize())


def _operation_before(layer: nn.Module, name: str, width: int) -> nn.Module | None:
    """The operation whose output channels are the input channels of a linear layer."""
    if name == "self_attn.q_proj":
        return layer.get_submodule("input_layernorm")
    if name == "mlp.gate_proj":
        return layer.get_submodule("post_attention_layernorm")
    rows = "self_attn.v_proj" if name == "self_attn.o_proj" else "mlp.up_proj"
    before = linear_of(layer, rows)
    return before if before.out_features == width else None


def _fold(scales: Tensor, linears: list[nn.Linear], before: nn.Module) -> None:
    """Multiply input channels by `scales`, and divide the outputs of the operation before."""
    for linear in linears:
        linear.weight.mul_(scales.to(linear.weight.dtype))
    for parameter in before.parameters(recurse=False):  # a norm's weight; a layer's rows and bias
        factor = scales.to(parameter.dtype)
        parameter.div_(factor if parameter.ndim == 1 else factor[:, None])
