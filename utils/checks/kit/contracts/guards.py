"""What belongs to whom: copies for the learner, compared afterwards; state put back."""

from __future__ import annotations

import contextlib
import copy
import io
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from utils.checks.kit.runner import Mismatch

PRINTED = 600, 8  # characters and lines of the learner's own output that the feedback shows


class Once(list[Any]):
    """An argument that the learner gets as an iterator: it can be walked through once."""


def copied(value: Any, objects: bool = True) -> Any:
    """A copy for the learner: tensors keep their layout, containers their type.

    Without `objects`, what is neither a tensor nor a plain container is not copied.
    """
    if type(value) in (int, float, str, bool, type(None)):
        return value
    if isinstance(value, Once):
        return iter(copied(list(value)))
    if isinstance(value, Tensor):
        with torch.no_grad():
            new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
        return new.requires_grad_(value.requires_grad)
    if type(value) in (list, tuple, set):
        return type(value)(copied(v, objects) for v in value)
    if type(value) is dict:
        return {k: copied(v, objects) for k, v in value.items()}
    return copy.deepcopy(value) if objects else value


def same(one: Any, other: Any, objects: bool = True) -> bool:
    """Whether nothing has changed, to the bit; objects are compared by what is in them.

    Without `objects`, two objects that do not say when they are equal are two: `copied` made none.
    """
    if one is other or isinstance(one, Once):
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        alike = alike and one.requires_grad <= other.requires_grad  # a judge may turn it on
        return alike and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(
            same(a, b, objects) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k], objects) for k in one)
    if type(one).__eq__ is object.__eq__:
        mine, theirs = (getattr(value, "__dict__", None) for value in (one, other))
        return objects and same(mine, theirs)
    return bool(one == other)


def share_memory(one: Any, other: Any) -> bool:
    """Whether a change of one would show in the other."""
    mine, theirs = ({_place(v) for v in _mutable(x)} for x in (one, other))
    return bool(mine & theirs)


def _mutable(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor | list | dict | set):
        yield value
    if isinstance(value, list | tuple | set | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _mutable(part)


def _place(value: Any) -> tuple[str, int]:
    if isinstance(value, Tensor):
        return "memory", value.untyped_storage().data_ptr()
    return "object", id(value)


_AT_FIRST: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def as_at_first(answer: Any) -> Any:
    """Put back what an answer keeps in its class body or defaults: each case begins anew."""
    if isinstance(answer, types.FunctionType):
        kept = _AT_FIRST.setdefault(answer, _own_copy(answer.__defaults__))
        answer.__defaults__ = _own_copy(kept)
    if isinstance(answer, type):
        own = [c for c in answer.__mro__ if c.__module__ == answer.__module__]
        bodies = ((c, name, value) for c in own for name, value in vars(c).items())
        if answer not in _AT_FIRST:
            _AT_FIRST[answer] = [
                (owner, name, _own_copy(value))
                for owner, name, value in bodies
                if isinstance(value, list | dict | set | Tensor) and not name.startswith("__")
            ]
        for owner, name, value in _AT_FIRST[answer]:
            setattr(owner, name, _own_copy(value))
    return answer


def _own_copy(value: Any) -> Any:
    with contextlib.suppress(Exception):  # such as a lock
        return copy.deepcopy(value)
    return value


class Held(io.TextIOBase):
    """Takes what a learner's code prints; keeps the beginning."""

    text = ""

    def write(self, text: str) -> int:
        self.text = (self.text + text)[: PRINTED[0] + 1]
        return len(text)

    def shown(self) -> str:
        lines = "\n".join(self.text[: PRINTED[0]].rstrip().splitlines()[: PRINTED[1]])
        return lines + (" ..." if len(lines) < len(self.text.rstrip()) else "")


@contextlib.contextmanager
def held_output() -> Iterator[Held]:
    """Hold back what is printed: hundreds of inputs are tried, and each prints again."""
    held = Held()
    with contextlib.redirect_stdout(held):
        yield held


@contextlib.contextmanager
def methods_refuse(owner: type, methods: Sequence[str], says: str, look: str) -> Iterator[None]:
    """While this is on, these methods raise `Mismatch`: a learner's class that inherits them, or
    calls them through `super()`, cannot let them do the work."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Mismatch(says, look=look)

    with contextlib.ExitStack() as stack:
        for method in methods:
            stack.enter_context(patch.object(owner, method, refuse))
        yield
