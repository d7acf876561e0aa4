"""Rings as they go wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import mistake
from utils.engine.distributed.collectives import ring_all_gather, ring_reduce_scatter


def exchange(group: Any, tensor: Tensor, buffer: Tensor, way: int = 1) -> Tensor:
    rank, size = group.rank_in_group, group.world_size
    works = [group.irecv(buffer, (rank - way) % size), group.isend(tensor, (rank + way) % size)]
    for work in works:
        work.wait()
    return buffer


def reduce_from_own(group: Any, chunks: list[Tensor]) -> Tensor:
    """Starts with its own chunk, which so ends one rank too early."""
    rank, size = group.rank_in_group, group.world_size
    travelling = chunks[rank]
    for step in range(size - 1):
        own = chunks[(rank - 1 - step) % size]
        travelling = own + exchange(group, travelling, torch.empty_like(own))
    return travelling


def reduce_without_own(group: Any, chunks: list[Tensor]) -> Tensor:
    rank, size = group.rank_in_group, group.world_size
    travelling = chunks[(rank - 1) % size]
    for step in range(size - 1):
        own = chunks[(rank - 2 - step) % size]
        travelling = exchange(group, travelling, torch.empty_like(own))
    return travelling


def reduce_one_step_short(group: Any, chunks: list[Tensor]) -> Tensor:
    rank, size = group.rank_in_group, group.world_size
    travelling = chunks[(rank - 1) % size]
    for step in range(size - 2):
        own = chunks[(rank - 2 - step) % size]
        travelling = own + exchange(group, travelling, torch.empty_like(own))
    return travelling


def reduce_too_many_steps(group: Any, chunks: list[Tensor]) -> Tensor:
    rank, size = group.rank_in_group, group.world_size
    travelling = chunks[rank]
    for step in range(size):
        own = chunks[(rank - 1 - step) % size]
        travelling = own + exchange(group, travelling, torch.empty_like(own))
    return travelling


def reduce_in_place(group: Any, chunks: list[Tensor]) -> Tensor:
    rank, size = group.rank_in_group, group.world_size
    for step in range(size - 1):
        own = chunks[(rank - 2 - step) % size]
        own += exchange(group, chunks[(rank - 1 - step) % size], torch.empty_like(own))
    return chunks[rank]


def send_first(group: Any, tensor: Tensor, buffer: Tensor) -> Tensor:
    rank, size = group.rank_in_group, group.world_size
    group.send(tensor, (rank + 1) % size)
    group.recv(buffer, (rank - 1) % size)
    return buffer


def reduce_send_first(group: Any, chunks: list[Tensor]) -> Tensor:
    rank, size = group.rank_in_group, group.world_size
    travelling = chunks[(rank - 1) % size]
    for step in range(size - 1):
        own = chunks[(rank - 2 - step) % size]
        travelling = own + send_first(group, travelling, torch.empty_like(own))
    return travelling


def reduce_equal_chunks(group: Any, chunks: list[Tensor]) -> Tensor:
    """The buffer has the size of what is sent, not of what comes."""
    rank, size = group.rank_in_group, group.world_size
    travelling = chunks[(rank - 1) % size]
    for step in range(size - 1):
        own = chunks[(rank - 2 - step) % size]
        travelling = own + exchange(group, travelling, torch.empty_like(travelling))
    return travelling


REDUCE_SCATTER = (
    mistake(
        "Each chunk ends one rank too early: rank `r` has the sum of another chunk.",
        "A chunk goes `world_size - 1` steps. To end at rank `r`, chunk `r` starts at `r + 1`: "
        "a rank begins with chunk `rank - 1`.",
        reduce_from_own,
    ),
    mistake(
        "Nothing is added on the way.",
        "Whoever gets a chunk adds his own to it before he passes it on.",
        reduce_without_own,
    ),
    mistake(
        "One step is missing: a sum lacks a rank's part.",
        "`world_size - 1` steps.",
        reduce_one_step_short,
    ),
    mistake(
        "One step too many: a rank's part is counted twice.",
        "`world_size - 1` steps.",
        reduce_too_many_steps,
    ),
    mistake(
        "Your code adds into the chunks that it was given.",
        "`own + received` is a new tensor; `own += received` is not.",
        reduce_in_place,
    ),
    mistake(
        "All ranks wait to send, and nobody receives: a deadlock.",
        "`isend` and `irecv` first; then wait for both.",
        reduce_send_first,
    ),
    mistake(
        "The buffer has the size of the chunk that you send; what comes is another chunk.",
        "`torch.empty_like` of your own chunk with the number that comes.",
        reduce_equal_chunks,
    ),
)


def gather_own_only(group: Any, own: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Sends its own tensor in every step."""
    rank, size = group.rank_in_group, group.world_size
    gathered = [own] * size
    for step in range(size - 1):
        source = (rank - step - 1) % size
        gathered[source] = exchange(group, own, torch.empty_like(own))
    return gathered


def gather_rotated(group: Any, own: Tensor, like: list[Tensor]) -> list[Tensor]:
    rank, size = group.rank_in_group, group.world_size
    gathered = [own]
    for step in range(size - 1):
        buffer = torch.empty_like(like[(rank - step - 1) % size])
        gathered.append(exchange(group, gathered[-1], buffer))
    return gathered


def gather_without_own(group: Any, own: Tensor, like: list[Tensor]) -> list[Tensor]:
    gathered = ring_all_gather(group, own, like)
    gathered[group.rank_in_group] = torch.zeros_like(own)
    return gathered


def gather_into_like(group: Any, own: Tensor, like: list[Tensor]) -> list[Tensor]:
    rank, size = group.rank_in_group, group.world_size
    like[rank] = own
    for step in range(size - 1):
        exchange(group, like[(rank - step) % size], like[(rank - step - 1) % size])
    return like


def gather_send_first(group: Any, own: Tensor, like: list[Tensor]) -> list[Tensor]:
    rank, size = group.rank_in_group, group.world_size
    gathered = [torch.empty_like(t) for t in like]
    gathered[rank] = own
    for step in range(size - 1):
        source = (rank - step - 1) % size
        send_first(group, gathered[(rank - step) % size], gathered[source])
    return gathered


def gather_to_all(group: Any, own: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Everybody sends to everybody: right, and no ring."""
    rank, size = group.rank_in_group, group.world_size
    gathered = [torch.empty_like(t) for t in like]
    gathered[rank] = own
    others = [other for other in range(size) if other != rank]
    works = [group.irecv(gathered[other], other) for other in others]
    works += [group.isend(own, other) for other in others]
    for work in works:
        work.wait()
    return gathered


ALL_GATHER = (
    mistake(
        "You send your own tensor in every step. So everybody only learns his neighbour's.",
        "Pass on what came in the step before.",
        gather_own_only,
    ),
    mistake(
        "The tensors are in the order in which they came, not in that of the ranks.",
        "What comes in step `s` is that of rank `(rank - s - 1) % world_size`: put it there.",
        gather_rotated,
    ),
    mistake(
        "Your own tensor is missing from the result.", "`gathered[rank] = own`.", gather_without_own
    ),
    mistake(
        "Your code receives into `like`, which it was given for the shapes only.",
        "`torch.empty_like(...)` makes a buffer.",
        gather_into_like,
    ),
    mistake(
        "All ranks wait to send, and nobody receives: a deadlock.",
        "`isend` and `irecv` first; then wait for both.",
        gather_send_first,
    ),
    mistake(
        "Everybody sends to everybody. In a ring a rank talks to its neighbours only.",
        "Send to `(rank + 1) % world_size`.",
        gather_to_all,
    ),
)


def reduce_by_gathering(group: Any, tensor: Tensor) -> Tensor:
    """Gathers everybody's whole tensor, and adds up at home."""
    everybody = ring_all_gather(group, tensor.contiguous(), [tensor] * group.world_size)
    rank = group.rank_in_group
    total = everybody[rank].clone()
    for other in range(1, group.world_size):
        total = total + everybody[(rank + other) % group.world_size]
    return total


def reduce_flat(group: Any, tensor: Tensor) -> Tensor:
    chunks = tensor.contiguous().flatten().tensor_split(group.world_size)
    own = ring_reduce_scatter(group, chunks)
    return torch.cat(ring_all_gather(group, own, chunks))


def reduce_rest_lost(group: Any, tensor: Tensor) -> Tensor:
    """Chunks of `numel // world_size` numbers: what is left over keeps this rank's own value."""
    size = group.world_size
    flat, each = tensor.contiguous().flatten().clone(), tensor.numel() // size
    chunks = list(flat[: each * size].split(each)) if each else [flat[:0]] * size
    own = ring_reduce_scatter(group, chunks)
    flat[: each * size] = torch.cat(ring_all_gather(group, own, chunks))
    return flat.view(tensor.shape)


def reduce_mean(group: Any, tensor: Tensor) -> Tensor:
    return reduce_flat(group, tensor).view(tensor.shape) / group.world_size


def reduce_only_scatter(group: Any, tensor: Tensor) -> Tensor:
    return ring_reduce_scatter(group, tensor.contiguous().flatten().tensor_split(group.world_size))


def reduce_chunk(group: Any, tensor: Tensor) -> Tensor:
    """`Tensor.chunk` may make fewer chunks than there are ranks."""
    chunks = list(tensor.contiguous().flatten().chunk(group.world_size))
    own = ring_reduce_scatter(group, chunks)
    return torch.cat(ring_all_gather(group, own, chunks)).view(tensor.shape)


def reduce_view(group: Any, tensor: Tensor) -> Tensor:
    """`view` of a tensor that does not lie in one piece."""
    chunks = tensor.view(-1).tensor_split(group.world_size)
    own = ring_reduce_scatter(group, chunks)
    return torch.cat(ring_all_gather(group, own, chunks)).view(tensor.shape)


ALL_REDUCE = (
    mistake(
        "Each rank gathers all tensors and adds them up by itself: N - 1 whole tensors on the "
        "wire, and other bits on each rank.",
        "Reduce-scatter first: each rank adds up one chunk only.",
        reduce_by_gathering,
    ),
    mistake("The sum has lost its shape.", "`.view(tensor.shape)` at the end.", reduce_flat),
    mistake(
        "What is left over when the tensor is cut into equal chunks is not added up.",
        "`tensor_split(world_size)` makes chunks that differ by one at most.",
        reduce_rest_lost,
    ),
    mistake("You divide by the number of ranks: that is the mean.", "The sum.", reduce_mean),
    mistake(
        "You return your chunk of the sum, not all of it.",
        "The all-gather is missing.",
        reduce_only_scatter,
    ),
    mistake(
        "`chunk` makes fewer chunks than there are ranks if the numbers are few.",
        "`tensor_split` always makes as many as you ask for.",
        reduce_chunk,
    ),
    mistake(
        "`view` fails on a tensor whose numbers do not lie in one piece.",
        "`.contiguous().flatten()`, or `.reshape(-1)`.",
        reduce_view,
    ),
)
