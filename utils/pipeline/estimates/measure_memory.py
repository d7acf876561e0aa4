"""Measures what a training step holds in memory, tensor by tensor; the same on every machine.

The process's peak memory (`peak_memory_bytes` in a stage's manifest) also holds Python, the
libraries and what their kernels need for a moment. Tensors can be counted exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
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


def count_step(model: Any, token_ids: Tensor) -> dict[str, int]:
    """Take one step of mixed-precision training, and count its tensors. The weights stay.

    Args:
        model: of transformers; what requires a gradient is trained.
        token_ids: [B, T]. Their loss has no meaning, but its memory is that of a real one.

    Returns:
        Bytes of "weights", "gradients", "optimizer" (float32 copies and Adam's running means) and
        "activations" (what the forward pass keeps for the backward pass, the loss included).
    """

    def loss_of() -> Tensor:
        logits = model(input_ids=token_ids, use_cache=False).logits.flatten(0, 1)
        return F.cross_entropy(logits.float(), token_ids.flatten())  # any target will do

    trained = [p for p in model.parameters() if p.requires_grad]
    saved, loss = saved_for_backward(model, loss_of)
    loss.backward()
    counted = {"weights": model_bytes(model), "gradients": tensor_bytes(p.grad for p in trained)}
    masters = [p.detach().float() for p in trained]
    for master, parameter in zip(masters, trained, strict=True):
        assert parameter.grad is not None
        master.grad, parameter.grad = parameter.grad.float(), None
    adam = torch.optim.AdamW(masters)
    adam.step()
    states = [s[key] for s in adam.state.values() for key in ("exp_avg", "exp_avg_sq")]
    return counted | {"optimizer": tensor_bytes([*masters, *states]), "activations": saved}
