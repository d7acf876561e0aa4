"""Blocks of host memory, where a preempted request's keys and values can wait."""

from __future__ import annotations


class SwapSpace:
    """Which host blocks are free, and which request has which.

    Args:
        num_cpu_blocks: how many there are; 0 for no swapping.
    """

    def __init__(self, num_cpu_blocks: int) -> None:
        if not isinstance(num_cpu_blocks, int) or num_cpu_blocks < 0:
            raise ValueError(f"num_cpu_blocks must be 0 or more, got {num_cpu_blocks!r}.")
        self.num_cpu_blocks = num_cpu_blocks
        self._free = list(range(num_cpu_blocks))
        self._tables: dict[str, list[int]] = {}

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def allocate(self, request_id: str, num_blocks: int) -> list[int] | None:
        """Take host blocks for a request; None if too few are free."""
        if num_blocks > len(self._free):
            return None
        if request_id in self._tables:
            raise ValueError(f"Request {request_id} is swapped out already.")
        self._tables[request_id] = [self._free.pop() for _ in range(num_blocks)]
        return self._tables[request_id]

    def __contains__(self, request_id: str) -> bool:
        """Whether a request is swapped out."""
        return request_id in self._tables

    def block_ids(self, request_id: str) -> list[int]:
        """The host blocks of a request. Raises a ValueError if it is not swapped out."""
        if request_id not in self._tables:
            raise ValueError(f"Request {request_id} is not swapped out.")
        return self._tables[request_id]

    def free(self, request_id: str) -> None:
        """Give a request's host blocks back. Does nothing if it has none."""
        self._free += self._tables.pop(request_id, [])
