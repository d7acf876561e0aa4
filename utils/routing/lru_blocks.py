"""A bounded set of named blocks that forgets as a prefix cache does.

It stands for a replica's cache in the simulator, and for a router's guess of one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Hashable, Iterator, Sequence


class LruBlocks:
    """Blocks by name: least recently used first out, and of one prompt the tail first.

    Of a block that is held, all blocks before it are held, too: they were used at least as lately.
    So the cached prefix's length is found by bisection. And nothing moves when a block is used: it
    gets the number of the prompt that used it, and counts as old when its turn comes to be evicted
    under that number. That is what makes a million requests affordable.

    Blocks of running requests can be evicted here, as in a cache beside the GPU's memory. In an
    engine they cannot; where the cache is much larger than what runs at once, it never comes to it.

    Attributes:
        last_use: the blocks held, each with the number of the prompt that used it last.

    Args:
        capacity: how many blocks it holds; None for no limit.

    Raises:
        ValueError: `capacity` is not positive.
    """

    def __init__(self, capacity: int | None) -> None:
        if capacity is not None and capacity < 1:
            raise ValueError(f"capacity must be at least 1 block, or None; it is {capacity}")
        self.capacity = capacity
        self.last_use: dict[Hashable, int] = {}
        self._uses: deque[tuple[int, Sequence[Hashable]]] = deque()  # oldest first
        self._oldest: Sequence[Hashable] = ()  # what is left of the oldest use
        self._oldest_number = self._number = 0

    def __len__(self) -> int:
        return len(self.last_use)

    def __contains__(self, name: Hashable) -> bool:
        return name in self.last_use

    def __iter__(self) -> Iterator[Hashable]:
        """The blocks held, in no order of use."""
        return iter(self.last_use)

    def match(self, names: Sequence[Hashable]) -> int:
        """How many leading blocks are held."""
        return leading(names, self.last_use)

    def use(self, names: Sequence[Hashable]) -> tuple[int, list[Hashable]]:
        """A prompt is computed: how many leading blocks were held, and what had to go for the rest.

        A prompt larger than the cache leaves only its beginning.

        Args:
            names: of the prompt's full blocks; not to be changed afterwards.
        """
        return self.match(names), self.add(names)

    def add(self, names: Sequence[Hashable]) -> list[Hashable]:
        """As `use`, without looking what was held; returns what had to go."""
        last_use, evicted = self.last_use, list[Hashable]()
        self._number += 1
        last_use.update(dict.fromkeys(names, self._number))
        if self.capacity is None:
            return evicted
        self._uses.append((self._number, names))
        too_many = len(last_use) - self.capacity
        while too_many > 0:
            if not self._oldest:
                self._oldest_number, self._oldest = self._uses.popleft()
            number = self._oldest_number
            unused = [name for name in self._oldest if last_use.get(name) == number]
            going = unused[-too_many:]
            self._oldest = unused[: len(unused) - len(going)]
            for name in reversed(going):
                del last_use[name]
                evicted.append(name)
            too_many -= len(going)
        if len(self._uses) > 2 * self.capacity:  # most uses are of blocks that were used again
            self._uses = deque(
                use for use in self._uses if any(last_use.get(name) == use[0] for name in use[1])
            )
        return evicted

    def clear(self) -> None:
        self.last_use.clear()
        self._uses.clear()
        self._oldest = ()


def leading(names: Sequence[Hashable], held: Container[Hashable]) -> int:
    """How many leading names are held, where whoever holds one holds all before it."""
    low, high = 0, len(names)
    while low < high:
        middle = (low + high) >> 1
        if names[middle] in held:
            low = middle + 1
        else:
            high = middle
    return low
