"""What simulated ranks send each other, and how that can go wrong."""

from __future__ import annotations

from torch import Tensor


class Deadlock(Exception):
    """All ranks wait, and none can go on."""


class BadMessage(Exception):
    """What is sent is not what is expected, or nobody expects it."""


class NotOffered(Exception):
    """A collective operation, where one is to be built."""


class Message:
    """What goes from one rank to another. Both ends may come first."""

    def __init__(self) -> None:
        self.tensor: Tensor | None = None  # the sender's, from `isend` on
        self.buffer: Tensor | None = None  # the receiver's, from `irecv` on
        self.content: Tensor | None = None  # as it was when one of them had waited

    @property
    def met(self) -> bool:
        return self.tensor is not None and self.buffer is not None

    def deliver(self) -> Tensor:
        assert self.tensor is not None
        if self.content is None:
            self.content = self.tensor.detach().clone()
        return self.content
