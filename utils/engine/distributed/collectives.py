"""Collective operations, built from sending to the next rank of a ring and receiving from the last.

Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations". Each
takes a group: anything with `rank_in_group`, `world_size`, `isend` and `irecv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Work(Protocol):
    """A message on its way."""

    def wait(self) -> object: ...


class Group(Protocol):
    """Ranks that can send each other tensors. They are numbered from 0 within the group."""

    @property
    def rank_in_group(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def isend(self, tensor: Tensor, dst: int) -> Work: ...

    def irecv(self, buffer: Tensor, src: int) -> Work: ...


def ring_reduce_scatter(group: Group, chunks: Sequence[Tensor]) -> Tensor:
    """Add up everybody's chunks; rank `r` gets the sum of all chunks `r`.

    Chunk `r` starts at rank `r + 1` and goes round. Whoever has it adds his own, and passes it on.

    Args:
        chunks: one for each rank. Chunk `i` has the same shape everywhere. They are not changed.
    """
    rank, size = group.rank_in_group, group.world_size
    travelling = chunks[(rank - 1) % size]
    for step in range(size - 1):
        own = chunks[(rank - 2 - step) % size]
        travelling = own + _pass_on(group, travelling, torch.empty_like(own))
    return travelling


def ring_all_gather(group: Group, own: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Give everybody's tensor to everybody.

    Args:
        own: this rank's.
        like: tensors with the shapes and dtypes of all ranks'. What is in them does not matter.

    Returns:
        All ranks' tensors, in their order.
    """
    rank, size = group.rank_in_group, group.world_size
    gathered = [torch.empty_like(shape) for shape in like]
    gathered[rank] = own
    for step in range(size - 1):
        source = (rank - step - 1) % size
        _pass_on(group, gathered[(rank - step) % size], gathered[source])
    return gathered


def ring_all_reduce(group: Group, tensor: Tensor) -> Tensor:
    """Add up everybody's tensor, and give the sum to everybody: shape and dtype as `tensor`.

    Each rank sends `2 (N - 1) / N` of the tensor's bytes, however many ranks there are. Each sum is
    made at one place and copied from there, so that all ranks have the same bits.
    """
    chunks = tensor.contiguous().flatten().tensor_split(group.world_size)
    own = ring_reduce_scatter(group, chunks)
    return torch.cat(ring_all_gather(group, own, chunks)).view(tensor.shape)


def library_all_reduce(group: Group, tensor: Tensor) -> Tensor:
    """The same, by `torch.distributed`: gloo or NCCL. What it sends cannot be counted from here."""
    total = tensor.clone()
    dist.all_reduce(total, group=getattr(group, "device_group", None))
    return total


def _pass_on(group: Group, tensor: Tensor, buffer: Tensor) -> Tensor:
    """Send to the next rank while receiving from the previous one. Returns what came, `buffer`."""
    rank, size = group.rank_in_group, group.world_size
    # Everybody sends and receives at once: if all first waited to send, all would wait for ever.
    incoming = group.irecv(buffer, (rank - 1) % size) if buffer.numel() else None
    outgoing = group.isend(tensor.contiguous(), (rank + 1) % size) if tensor.numel() else None
    for work in (incoming, outgoing):
        if work is not None:
            work.wait()
    return buffer
