"""Which replica holds which block: the knowledge of a router that looks for cached prefixes.

Two kinds. `KVIndex` is told the truth by the replicas, whose events say which blocks they stored
and removed. `RoutingHistory` guesses: a replica should hold what was sent to it, until so much was
sent after it that it may be gone.

A block hash names all tokens up to the block's end. So a set of them is a prefix tree, and the
longest cached prefix is the run of leading hashes that are in it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol

from utils.routing.lru_blocks import LruBlocks, leading


class PrefixIndex(Protocol):
    """What a policy asks, and what it tells."""

    def matches(self, block_hashes: Sequence[Hashable]) -> list[int]:
        """Leading blocks of the prompt that each replica holds, by index."""

    def sent(self, replica: int, block_hashes: Sequence[Hashable]) -> None:
        """A prompt was sent to `replica`."""

    def cleared(self, replica: int) -> None:
        """The replica died, or has emptied its cache."""


class KVIndex:
    """The blocks that each replica holds, from its KV events.

    Args:
        num_replicas: replicas are numbered from 0.

    Raises:
        ValueError: `num_replicas` is not positive.
    """

    def __init__(self, num_replicas: int) -> None:
        self._held: list[set[Hashable]] = [set() for _ in range(_positive(num_replicas))]

    def __len__(self) -> int:
        """Blocks held, counted at each replica that holds them."""
        return sum(map(len, self._held))

    def stored(self, replica: int, block_hashes: Iterable[Hashable]) -> None:
        """vLLM's event `BlockStored`."""
        self._held[replica].update(block_hashes)

    def removed(self, replica: int, block_hashes: Iterable[Hashable]) -> None:
        """vLLM's event `BlockRemoved`. A block that is not held is no error."""
        self._held[replica].difference_update(block_hashes)

    def cleared(self, replica: int) -> None:
        """vLLM's event `AllBlocksCleared`; also for a replica that died."""
        self._held[replica].clear()

    def matches(self, block_hashes: Sequence[Hashable]) -> list[int]:
        found = []
        for held in self._held:
            depth = 0
            for name in block_hashes:
                if name not in held:
                    break
                depth += 1
            found.append(depth)
        return found

    def sent(self, replica: int, block_hashes: Sequence[Hashable]) -> None:
        """Changes nothing: an event will tell."""


class RoutingHistory:
    """What each replica should hold, judged by what was sent to it.

    Args:
        num_replicas: replicas are numbered from 0.
        max_blocks: blocks remembered per replica, the latest ones; None remembers all. Where it
            is more than the replica's cache, the router remembers blocks that are evicted.

    Raises:
        ValueError: an argument is not positive.
    """

    def __init__(self, num_replicas: int, max_blocks: int | None = None) -> None:
        self._sent = [LruBlocks(max_blocks) for _ in range(_positive(num_replicas))]

    def matches(self, block_hashes: Sequence[Hashable]) -> list[int]:
        return [leading(block_hashes, sent.last_use) for sent in self._sent]

    def sent(self, replica: int, block_hashes: Sequence[Hashable]) -> None:
        self._sent[replica].add(block_hashes)

    def cleared(self, replica: int) -> None:
        self._sent[replica].clear()


def _positive(num_replicas: int) -> int:
    if num_replicas < 1:
        raise ValueError(f"num_replicas must be at least 1, not {num_replicas}")
    return num_replicas
