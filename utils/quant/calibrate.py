"""Walk through a model layer by layer, and collect what its linear layers are given.

Only one decoder layer's statistics are alive at a time, so a large model needs little more memory
than itself. The caller may replace a layer's weights before going on: then the next layer is
calibrated on what the quantized layers really give it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from utils.quant.stats import InputStats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Linear layers of a decoder layer that get the same input: one set of statistics serves them all.
SAME_INPUT = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


class _Stop(Exception):
    """The first decoder layer's input is known; the rest of the forward pass is not needed."""


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of a Llama-like model (Llama, Mistral, SmolLM2).

    Raises:
        ValueError: the model has other layers.
    """
    layers = getattr(getattr(model, "model", None), "layers", None)
    names = [name for names in SAME_INPUT for name in names]
    if layers is None or not all(_has_linear(layers[0], name) for name in names):
        raise ValueError(
            f"{type(model).__name__} is no Llama-like model: expected model.layers, each with "
            f"the linear layers {', '.join(names)}, in 16 or 32 bits."
        )
    return layers


@torch.no_grad()
def calibrate(
    model: PreTrainedModel,
    windows: Sequence[Sequence[int]],
    *,
    sequential: bool = True,
    batch_size: int = 2,
) -> Iterator[tuple[int, nn.Module, dict[str, InputStats]]]:
    """Yield (number, decoder layer, statistics by linear layer's name) from the first to the last.

    Args:
        model: Llama-like, see `decoder_layers`.
        windows: token ids, all windows of one length, [num_windows, T].
        sequential: pass on what the layer gives *after* the caller had it, so that changes to its
            weights count. It costs a second forward pass. False: what it gave before.
        batch_size: windows per forward pass.

    Raises:
        ValueError: no windows, windows of several lengths, or an unknown architecture.
    """
    layers = decoder_layers(model)
    batches = _batches(windows, batch_size, model.device)
    inputs, context = _first_inputs(model, layers[0], batches)
    for number, layer in enumerate(layers):
        with _collecting(layer) as stats:
            outputs = [_run(layer, x, kw) for x, kw in zip(inputs, context, strict=True)]
        yield number, layer, stats
        if sequential:
            outputs = [_run(layer, x, kw) for x, kw in zip(inputs, context, strict=True)]
        inputs = outputs


def linear_of(layer: nn.Module, name: str) -> nn.Linear:
    """One linear layer of a decoder layer, such as "mlp.down_proj"."""
    linear = layer.get_submodule(name)
    if not isinstance(linear, nn.Linear):
        raise ValueError(f"{name} is a {type(linear).__name__}; expected a linear layer.")
    return linear


def _batches(windows: Sequence[Sequence[int]], size: int, device: torch.device) -> list[Tensor]:
    lengths = {len(window) for window in windows}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"Calibration needs windows of one length; got {len(windows)} windows with lengths "
            f"{sorted(lengths)}."
        )
    ids = torch.tensor([list(window) for window in windows], device=device)
    return list(ids.split(size))


def _first_inputs(
    model: PreTrainedModel, first: nn.Module, batches: list[Tensor]
) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """What the model gives its first decoder layer: hidden states, and rotations, masks, ..."""
    inputs: list[Tensor] = []
    context: list[dict[str, Any]] = []

    def catch(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kwargs = dict(kwargs)
        inputs.append(args[0] if args else kwargs.pop("hidden_states"))
        context.append(kwargs)
        raise _Stop

    hook = first.register_forward_pre_hook(catch, with_kwargs=True)
    try:
        for ids in batches:
            with contextlib.suppress(_Stop):
                model(ids, use_cache=False)
    finally:
        hook.remove()
    return inputs, context


def _run(layer: nn.Module, hidden: Tensor, context: dict[str, Any]) -> Tensor:
    out = layer(hidden, **context)
    return out[0] if isinstance(out, tuple) else out


@contextlib.contextmanager
def _collecting(layer: nn.Module) -> Iterator[dict[str, InputStats]]:
    """Collect the inputs' statistics of all linear layers while the context is open."""
    stats: dict[str, InputStats] = {}
    hooks = []
    for names in SAME_INPUT:
        linear = linear_of(layer, names[0])
        shared = InputStats(linear.in_features, linear.weight.device)
        stats |= dict.fromkeys(names, shared)
        hooks.append(
            linear.register_forward_pre_hook(lambda _, args, shared=shared: shared.add(args[0]))
        )
    try:
        yield stats
    finally:
        for hook in hooks:
            hook.remove()


def _has_linear(layer: nn.Module, name: str) -> bool:
    try:
        return type(layer.get_submodule(name)) is nn.Linear
    except AttributeError:
        return False
