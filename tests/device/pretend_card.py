"""A pretend CUDA card on a CPU build of PyTorch, so that device bugs show without a GPU.

Import this before torch and before the course, then call `insert()`. From then on `device="cuda"`
works, slowly. A `Card` tensor says that it is on cuda:0, and holds its numbers in an ordinary
tensor. Every operation passes through one dispatch mode. It computes on the CPU, and raises what
CUDA would raise: for tensors on two devices, a generator of the wrong device, `.numpy()` on the
card, and a card that is full. A CUDA graph records operations and repeats them on the same memory;
whatever waits for the card cannot be recorded. Copies between the card and the CPU are counted.

There are no CUDA kernels in it, no float rounding of a GPU, and no `backward()`: the autograd
engine of a CPU build asks for an accelerator, and takes none that is declared here.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# A CPU build of PyTorch knows no CUDA device. These lines of C++ give it one that does nothing.
GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace c10::impl { C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>) }
"""


def _register_guard() -> None:
    if "torch" in sys.modules:
        raise RuntimeError("Import pretend_card before torch: it must be there when torch starts.")
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    torch_home = Path(spec.submodule_search_locations[0])
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "guard.cpp", Path(folder) / "guard.so"
        source.write_text(GUARD)
        command = [
            "g++",
            "-std=c++20",
            "-shared",
            "-fPIC",
            f"-I{torch_home / 'include'}",
            str(source),
            "-o",
            str(library),
            f"-L{torch_home / 'lib'}",
            f"-Wl,-rpath,{torch_home / 'lib'}",
            "-Wl,--no-as-needed",
            "-lc10",
            "-ltorch_cpu",
        ]
        subprocess.run(command, check=True)
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


_register_guard()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_map  # noqa: E402

# Inference mode can make no view of a wrapper. The course's functions ask for it when defined.
torch.inference_mode = (  # type: ignore[assignment, misc]
    lambda mode=True: torch.no_grad()(mode) if callable(mode) else torch.no_grad()
)
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
# Where CUDA takes a tensor of the CPU too: in copies, as indices, and, without dimensions, as a
# number.
COPIES = {"aten::copy_", "aten::_to_copy", "aten::set_", "aten::_copy_from"}
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
TAKE_NUMBERS = {
    "aten::masked_fill",
    "aten::masked_fill_",
    "aten::fill",
    "aten::fill_",
    "aten::where",
}


@dataclass
class Memory:
    """Bytes of the card. `live` counts the tensors that share a storage, and has its size."""

    total: int = 0
    used: int = 0
    peak: int = 0
    live: dict[int, tuple[int, int]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)

    def take(self, storage: torch.UntypedStorage) -> None:
        with self.lock:
            count, size = self.live.get(storage._cdata, (0, 0))
            if not count:
                size = storage.nbytes()
                if self.used + size > self.total:
                    raise torch.OutOfMemoryError(
                        f"CUDA out of memory. Tried to allocate {size / 2**20:.0f} MiB. "
                        f"{(self.total - self.used) / 2**20:.0f} MiB of the pretend card are free."
                    )
                self.used += size
                self.peak = max(self.peak, self.used)
            self.live[storage._cdata] = (count + 1, size)

    def give(self, key: int) -> None:
        with self.lock:
            count, size = self.live.pop(key)
            if count > 1:
                self.live[key] = (count - 1, size)
            else:
                self.used -= size


memory = Memory()
generators: set[int] = set()  # those of the card


@dataclass
class Copies:
    """How often numbers went to the card, and came from it: there the CPU waits."""

    to_card: int = 0
    to_cpu: int = 0


copies = Copies()


class Graph:
    """`torch.cuda.CUDAGraph`: what was recorded, as (function, arguments, results).

    A real graph knows addresses, not tensors. What was made while it was recorded belongs to it;
    all else that it reads must be held by somebody as long as it is replayed.
    """

    recording: Graph | None = None

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, dict[str, Any], Any]] = []
        self.own: dict[int, Card] = {}  # by the storage
        self.others: set[int] = set()

    def record(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        for x in tree_flatten((args, kwargs))[0]:
            if isinstance(x, Card) and storage_of(x) not in self.own:
                self.others.add(storage_of(x))
        for x in tree_flatten(out)[0]:
            if isinstance(x, Card) and storage_of(x) not in self.others:
                self.own.setdefault(storage_of(x), x)
        # The numbers are kept, so that no other storage can get the same name; the tensors aren't.
        self.calls.append((func, *(tree_map(bare, part) for part in (args, kwargs, out))))

    def replay(self) -> None:
        if not self.others <= memory.live.keys():
            raise RuntimeError(
                "CUDA error: an illegal memory access was encountered: a tensor that was there "
                "when the graph was recorded is gone, and nobody else holds its memory"
            )
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            results = zip(tree_flatten(out)[0], tree_flatten(again)[0], strict=True)
            for old, new in results if not func._schema.is_mutable else ():
                old.copy_(new)


class Stream:
    """`torch.cuda.Stream`: there is one only, and it is always in order."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, stream: Stream) -> None:
        pass


class Recording:
    """`torch.cuda.graph`: what happens inside goes into the graph."""

    def __init__(self, graph: Graph, pool: object = None) -> None:
        self.graph = graph

    def __enter__(self) -> None:
        Graph.recording = self.graph

    def __exit__(self, *_: Any) -> None:
        Graph.recording = None


class _Life:
    """Gives memory back when its tensor goes. A tensor itself may bear no weak reference."""

    def __init__(self, key: int) -> None:
        self.key = key

    def __del__(self) -> None:
        if memory is not None:  # else the interpreter is going
            memory.give(self.key)


class Card(torch.Tensor):
    """A tensor on the pretend card."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    _data_: torch.Tensor
    _life_: _Life

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> Card:
        card = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            device=CUDA,
        )
        memory.take(data.untyped_storage())
        card._data_, card._life_ = data, _Life(data.untyped_storage()._cdata)
        return card

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )

    __array__ = data_ptr = numpy

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        data: Any = Card(self._data_.clone())
        if getattr(self, "_is_param", False):
            data = torch.nn.Parameter(data, self.requires_grad)
        return memo.setdefault(id(self), data)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(self.cpu()).replace("tensor(", "card(", 1)


def refused(func: Any, args: Any, kwargs: Any, plain: list[torch.Tensor]) -> bool:
    """Would CUDA refuse these tensors of the CPU beside tensors of the card?"""
    name = func._schema.name
    if name in COPIES:
        return False
    if name in INDEXED:  # the first on the card; indices anywhere; values there, or a number
        values = args[2] if len(args) > 2 else None
        on_cpu = isinstance(values, torch.Tensor) and not isinstance(values, Card)
        return not isinstance(args[0], Card) or (on_cpu and values.dim() > 0)
    takes_numbers = torch.Tag.pointwise in func.tags or name in TAKE_NUMBERS
    changes_cpu = func._schema.is_mutable and not isinstance(args[0], Card)
    return changes_cpu or not (takes_numbers and all(tensor.dim() == 0 for tensor in plain))


def crossing(
    func: Any, args: Any, cards: list[Card], plain: list[torch.Tensor], on_card: bool
) -> str | None:
    """Do numbers go "to_card" or "to_cpu" in this operation?"""
    name = func._schema.name
    if cards and (not on_card or name == "aten::_local_scalar_dense"):
        return "to_cpu"
    if name in COPIES | INDEXED and any(tensor.dim() for tensor in plain):
        return "to_card" if not cards or isinstance(args[0], Card) else "to_cpu"
    return None


def storage_of(card: Card) -> int:
    """Its key in `memory.live`."""
    return card._data_.untyped_storage()._cdata


def bare(x: Any) -> Any:
    return x._data_ if isinstance(x, Card) else x


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, where its tensors are, or where `device` asks for."""
    flat = tree_flatten((args, kwargs))[0]
    cards = [x for x in flat if isinstance(x, Card)]
    plain = [x for x in flat if isinstance(x, torch.Tensor) and not isinstance(x, Card)]
    device = kwargs.get("device")
    on_card = bool(cards) if device is None else torch.device(device).type == "cuda"
    if not cards and not on_card:
        return func(*args, **kwargs)
    if where := crossing(func, args, cards, plain, on_card):
        if Graph.recording:
            raise RuntimeError(
                f"CUDA error: operation not permitted when stream is capturing ({func})"
            )
        setattr(copies, where, getattr(copies, where) + 1)
    if cards and plain and refused(func, args, kwargs, plain):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
            f"and cpu! ({func})"
        )
    generator = next((x for x in flat if isinstance(x, torch._C.Generator)), None)
    if generator is not None and (generator._cdata in generators) != on_card:
        wanted, found = ("cuda", "cpu") if on_card else ("cpu", "cuda")
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")
    if device is not None:
        kwargs = kwargs | {"device": CPU}
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    if func._schema.name == "aten::zeros":  # numpy's take no memory until they are written to
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        size = int(np.prod(args[0])) * dtype.itemsize
        out = torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(args[0])
    else:
        out = func(*tree_map(bare, args), **tree_map(bare, kwargs))
    result = on_the_card(func, args, kwargs, out) if on_card else out
    if Graph.recording:
        Graph.recording.record(func, args, kwargs, result)
    return result


def on_the_card(func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> Any:
    """What an operation returns there: new tensors, or, in place, the very one that came in."""
    if func._schema.is_mutable:
        if "out" in kwargs:
            return kwargs["out"]
        if isinstance(args[0], Card) and isinstance(out, torch.Tensor):
            if (args[0].shape, args[0].stride()) == (out.shape, out.stride()):
                return args[0]
            raise NotImplementedError(f"{func} changes a tensor's shape in place")
    return tree_map(lambda x: Card(x) if isinstance(x, torch.Tensor) else x, out)


class OneCard(TorchDispatchMode):
    """Sends every operation through `run`; composite ones in their parts."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        key = "CompositeImplicitAutograd"
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        return run(func, args, kwargs)


class Generator(torch.Generator):
    """`torch.Generator("cuda")`, which a CPU build refuses to make."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        generator = super().__new__(cls)
        generator.where = torch.device(device)
        generators.discard(generator._cdata)  # of one that is gone
        if generator.where.type == "cuda":
            generators.add(generator._cdata)
        return generator

    def __init__(self, device: Any = "cpu") -> None:
        pass

    device = property(lambda self: CUDA if self.where.type == "cuda" else CPU)  # type: ignore[assignment]


def insert(
    size: float = 15.6e9, name: str = "Tesla T4", capability: tuple[int, int] = (7, 5)
) -> Any:
    """Put a card of `size` bytes into this computer, and return the mode that computes for it."""
    import torch._dynamo  # it reads torch.cuda, so it comes before that is changed

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    memory.total = int(size)
    about = SimpleNamespace(
        name=name,
        total_memory=int(size),
        major=capability[0],
        minor=capability[1],
        multi_processor_count=40,
    )
    cuda: Any = torch.cuda
    for function in (
        "_lazy_init",
        "synchronize",
        "empty_cache",
        "manual_seed",
        "manual_seed_all",
        "init",
        "ipc_collect",
        "reset_peak_memory_stats",
        "set_device",
    ):
        setattr(cuda, function, nothing)
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.device_count, cuda.current_device = (lambda: 1), (lambda: 0)
    cuda.mem_get_info = lambda device=None: (memory.total - memory.used, memory.total)
    cuda.memory_allocated = lambda device=None: memory.used
    cuda.max_memory_allocated = lambda device=None: memory.peak
    cuda.get_device_name = lambda device=None: name
    cuda.get_device_capability = lambda device=None: capability
    cuda.get_device_properties = lambda device=None: about
    cuda.CUDAGraph, cuda.graph = Graph, Recording
    cuda.Stream, cuda.current_stream = Stream, lambda *_: Stream()
    cuda.stream = lambda stream: contextlib.nullcontext()
    torch.Tensor.pin_memory = lambda self: self  # type: ignore[method-assign, assignment]
    torch.Generator = Generator  # type: ignore[misc]
    torch.__future__.set_swap_module_params_on_conversion(True)  # a Parameter becomes a Card
    torch._C._set_only_lift_cpu_tensors(True)
    mode = OneCard()
    mode.__enter__()
    return mode
