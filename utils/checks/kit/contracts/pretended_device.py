"""A CUDA device on a machine that has none: does the learner's code use the one it is given?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

PRETENDED = torch.device("cuda", 0)


class PretendedDevice(TorchFunctionMode):
    """Within it, tensors asked for on CUDA are made on the CPU and say that they are on CUDA.

    So do all tensors that are made from them. Unlike `device="meta"`, they hold numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._marked: dict[int, Tensor] = {}  # by storage; this keeps the storage alive

    def mark(self, tensor: Tensor) -> Tensor:
        """Say that a tensor lies on the pretended device."""
        with torch._C.DisableTorchFunction():
            self._marked[tensor.untyped_storage()._cdata] = tensor
        return tensor

    def holds(self, tensor: Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            return tensor.untyped_storage()._cdata in self._marked

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        from_marked = any(isinstance(a, Tensor) and self.holds(a) for a in _flat(args))
        if func == Tensor.device.__get__ and from_marked:
            return PRETENDED
        asked = [kwargs["device"]] if kwargs.get("device") is not None else []
        if name in ("to", "cpu", "cuda"):
            asked += [a for a in args[1:] if isinstance(a, str | torch.device)]
            asked += [name] if name != "to" and not asked else []
            dtypes = [a for a in args[1:] if isinstance(a, torch.dtype)]
            kwargs |= {"dtype": dtypes[0]} if dtypes else {}
            func, args = Tensor.to, tuple(a for a in args if isinstance(a, Tensor))
            kwargs |= {"device": "cpu", "copy": True} if asked else {}
        there = from_marked
        if asked:
            there = torch.device(asked[0]).type == "cuda"
            kwargs["device"] = "cpu"
        out = func(*args, **kwargs)
        if there:
            for tensor in _flat(out):
                if isinstance(tensor, Tensor):
                    self.mark(tensor)
        return out


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, tuple | list):
        for value in values:
            yield from _flat(value)
    else:
        yield values
