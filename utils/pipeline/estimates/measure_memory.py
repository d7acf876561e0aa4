"""Measures what a training step holds in memory, tensor by tensor; the same on every machine.

The process's peak memory (`peak_memory_bytes` in a stage's manifest) also holds Python, the
libraries and what their kernels need for a moment. Tensors can be counted exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def tensor_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of all tensors together; storage that several of them share counts once."""
    storages = {}
    for tensor in tensors:
        if tensor is not None:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def model_bytes(model: torch.nn.Module) -> int:
    """Bytes of a model's weights, with the scales and tables of bitsandbytes' 4-bit weights.

    Buffers such as rotary frequencies are no weights and are not counted.
    """
    tensors: list[Tensor | None] = []
    for parameter in model.parameters():
        tensors.append(parameter)
        state = getattr(parameter, "quant_state", None)
        while state is not None:  # double quantization: the scales have a state of their own
            tensors += [state.absmax, state.code, getattr(state, "offset", None)]
            state = state.state2
    return tensor_bytes(tensors)


def saved_for_backward(model: torch.nn.Module, forward: Callable[[], Tensor]) -> tuple[int, Tensor]:
    """Bytes that `forward()` keeps for the backward pass, beside the model's own weights.

    Autograd hands each tensor that it saves to a hook; the hook counts its storage once.

    Returns:
        The bytes, and what `forward` returned.
    """
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in known:
            kept.append(tensor.detach())  # held, so that its address is not used again
        return tensor

    def unpack(tensor: Any) -> Any:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = forward()
    return tensor_bytes(kept), loss
