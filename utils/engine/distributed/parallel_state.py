"""Which ranks work together, and at what. Names as in vLLM's `distributed/parallel_state.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from utils.engine.distributed.collectives import Work, ring_all_gather, ring_all_reduce

AllReduce = Callable[["GroupCoordinator", Tensor], Tensor]


class GroupCoordinator:
    """Some ranks that talk to each other. It counts every byte that this rank sends.

    All processes must make all groups in the same order, also those they don't belong to.

    Args:
        ranks: the members' numbers in the whole world. None: everybody.
        all_reduce: adds up tensors, in place of `ring_all_reduce`.
    """

    def __init__(
        self, ranks: Sequence[int] | None = None, all_reduce: AllReduce = ring_all_reduce
    ) -> None:
        self.ranks = list(range(dist.get_world_size()) if ranks is None else ranks)
        self.device_group = dist.new_group(self.ranks)
        self.rank = dist.get_rank()
        self.rank_in_group = self.ranks.index(self.rank) if self.rank in self.ranks else -1
        self._all_reduce = all_reduce
        self._operation = "send"
        self.sent_bytes: Counter[str] = Counter()  # by operation
        self.num_messages: Counter[str] = Counter()

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def is_first_rank(self) -> bool:
        return self.rank_in_group == 0

    # --- from one rank to another ----------------------------------------------------------------

    def isend(self, tensor: Tensor, dst: int) -> Work:
        """Begin to send. `dst` counts within the group. Don't change the tensor before `wait()`."""
        self.sent_bytes[self._operation] += tensor.nbytes
        self.num_messages[self._operation] += 1
        work = dist.isend(tensor.contiguous(), self.ranks[dst], group=self.device_group)
        assert work is not None
        return work

    def irecv(self, buffer: Tensor, src: int) -> Work:
        """Begin to receive into `buffer`. Don't read it before `wait()`."""
        work = dist.irecv(buffer, self.ranks[src], group=self.device_group)
        assert work is not None
        return work

    def send(self, tensor: Tensor, dst: int) -> None:
        self.isend(tensor, dst).wait()

    def recv(self, buffer: Tensor, src: int) -> Tensor:
        self.irecv(buffer, src).wait()
        return buffer

    # --- all together ----------------------------------------------------------------------------

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of everybody's tensor, for everybody."""
        with self._counted_as("all_reduce"):
            return tensor if self.world_size == 1 else self._all_reduce(self, tensor)

    def all_gather(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """Everybody's tensor, laid side by side along `dim`. All have the same shape."""
        with self._counted_as("all_gather"):
            gathered = ring_all_gather(self, tensor.contiguous(), [tensor] * self.world_size)
            return torch.cat(gathered, dim)

    def gather(self, tensor: Tensor, sizes: Sequence[int], dst: int = 0) -> Tensor | None:
        """Everybody's tensor, laid side by side along the last dimension, for one rank.

        Args:
            sizes: each rank's last dimension.
            dst: who gets it, within the group. The others get None.
        """
        with self._counted_as("gather"):
            if self.rank_in_group != dst:
                self.send(tensor, dst)
                return None
            parts = [tensor.new_empty((*tensor.shape[:-1], size)) for size in sizes]
            works = [self.irecv(part, src) for src, part in enumerate(parts) if src != dst]
            for work in works:
                work.wait()
            parts[dst] = tensor
            return torch.cat(parts, dim=-1)

    def all_to_all(self, outgoing: Sequence[Tensor], num_incoming: Sequence[int]) -> list[Tensor]:
        """Send each rank its rows, and get one's own from each.

        Args:
            outgoing: for each rank, rows [n, ...]. There may be none for some.
            num_incoming: how many rows come from each rank (see `exchange_counts`).

        Returns:
            For each rank, the rows that came from there.
        """
        with self._counted_as("all_to_all"):
            return self._exchange(outgoing, num_incoming)

    def exchange_counts(self, counts: Tensor) -> Tensor:
        """Tell each rank its row of numbers: row `r` of the result is what rank `r` had for us.

        Args:
            counts: [world_size, n] int64.
        """
        with self._counted_as("counts"):
            return torch.stack(
                [row.flatten() for row in self._exchange(list(counts.split(1)), [1] * len(counts))]
            )

    def _exchange(self, outgoing: Sequence[Tensor], num_incoming: Sequence[int]) -> list[Tensor]:
        me, shape = self.rank_in_group, outgoing[0].shape[1:]
        incoming = [outgoing[0].new_empty((num, *shape)) for num in num_incoming]
        incoming[me] = outgoing[me]
        others = [rank for rank in range(self.world_size) if rank != me]
        works = [self.irecv(incoming[rank], rank) for rank in others if num_incoming[rank]]
        works += [self.isend(outgoing[rank], rank) for rank in others if len(outgoing[rank])]
        for work in works:
            work.wait()
        return incoming

    @contextmanager
    def _counted_as(self, operation: str) -> Iterator[None]:
        self._operation, before = operation, self._operation
        try:
            yield
        finally:
            self._operation = before


@dataclass(frozen=True)
class ParallelState:
    """The groups that this rank belongs to.

    Args:
        tp: ranks that hold parts of the same layers.
        pp: ranks that hold successive layers.
        ep: ranks that hold different experts; in their other layers they work on different tokens.
    """

    tp: GroupCoordinator
    pp: GroupCoordinator
    ep: GroupCoordinator


def initialize_model_parallel(
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    all_reduce: AllReduce = ring_all_reduce,
) -> ParallelState:
    """Divide the world into groups: neighbours share layers, then come the stages, then replicas.

    With 8 ranks, TP 2 and PP 2: TP groups [0 1] [2 3] [4 5] [6 7], PP groups [0 2] [1 3] [4 6]
    [5 7], and what is left over, replicas (data parallel, and expert parallel): [0 4] [1 5] ...

    Raises:
        ValueError: the number of ranks is not a multiple of the two sizes' product.
    """
    world, tp, pp = dist.get_world_size(), tensor_parallel_size, pipeline_parallel_size
    if world % (tp * pp):
        raise ValueError(f"{world} ranks cannot be divided into groups of {tp} times {pp}.")
    layout = torch.arange(world).view(-1, pp, tp)  # [replicas, stages, parts of a layer]

    def group_of_this_rank(rows: Tensor) -> GroupCoordinator:
        groups = [GroupCoordinator(row, all_reduce) for row in rows.tolist()]
        return next(group for group in groups if group.rank_in_group >= 0)

    return ParallelState(
        tp=group_of_this_rank(layout.view(-1, tp)),
        pp=group_of_this_rank(layout.transpose(1, 2).reshape(-1, pp)),
        ep=group_of_this_rank(layout.permute(1, 2, 0).reshape(-1, world // (tp * pp))),
    )
