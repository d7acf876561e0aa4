"""Where a contiguous chunk of KV memory is placed: first fit, and the buddy system.

Memory is a row of slots; one slot holds keys and values of one token. Both allocators hand out
chunks of neighbouring slots, as engines did before paging (PagedAttention paper, arXiv 2309.06180,
section 3.1).
"""

from __future__ import annotations

import bisect


class FirstFitAllocator:
    """Takes the lowest hole that is large enough; neighbouring holes become one.

    Knuth, The Art of Computer Programming, volume 1, section 2.5.

    Args:
        num_slots: size of the memory, in tokens.

    Raises:
        ValueError: `num_slots` is not positive.
    """

    def __init__(self, num_slots: int) -> None:
        _check_positive("num_slots", num_slots)
        self.num_slots = num_slots
        self._holes = [(0, num_slots)]  # (start, size), by start
        self._chunks: dict[int, int] = {}

    def chunk_size(self, num_tokens: int) -> int:
        """Slots that a request for `num_tokens` slots takes: exactly as many."""
        _check_positive("num_tokens", num_tokens)
        return num_tokens

    def allocate(self, num_tokens: int) -> int | None:
        """The first slot of a new chunk, or None if no hole is large enough.

        Raises:
            ValueError: `num_tokens` is not positive.
        """
        _check_positive("num_tokens", num_tokens)
        for index, (start, size) in enumerate(self._holes):
            if size >= num_tokens:
                if size == num_tokens:
                    del self._holes[index]
                else:
                    self._holes[index] = (start + num_tokens, size - num_tokens)
                self._chunks[start] = num_tokens
                return start
        return None

    def free(self, start: int) -> None:
        """Give back the chunk that begins at `start`.

        Raises:
            ValueError: no chunk begins there.
        """
        size = _pop_chunk(self._chunks, start)
        index = bisect.bisect(self._holes, (start,))
        if index < len(self._holes) and self._holes[index][0] == start + size:
            size += self._holes.pop(index)[1]
        if index > 0 and sum(self._holes[index - 1]) == start:
            index -= 1
            start, before = self._holes.pop(index)
            size += before
        self._holes.insert(index, (start, size))

    def holes(self) -> list[tuple[int, int]]:
        """The free pieces as (start, size), by start."""
        return list(self._holes)


class BuddyAllocator:
    """Chunks are powers of two, made by halving, and merged again with their other half.

    A chunk of size 2^k begins at a multiple of 2^k. Its buddy is the chunk with which it forms one
    of size 2^(k+1). The smallest free chunk that is large enough is halved until it just fits; the
    lowest one if there are several (Knowlton, CACM 1965). A memory whose size is no power of two
    begins as several chunks, the largest first: 12 slots are 8 and 4.

    The PagedAttention paper assumes this allocator for Orca (section 6.1).

    Args:
        num_slots: size of the memory, in tokens.

    Raises:
        ValueError: `num_slots` is not positive.
    """

    def __init__(self, num_slots: int) -> None:
        _check_positive("num_slots", num_slots)
        self.num_slots = num_slots
        # _free[k] holds the starts of the free chunks of size 2^k.
        self._free: list[set[int]] = [set() for _ in range(num_slots.bit_length())]
        self._chunks: dict[int, int] = {}  # start -> k
        start = 0
        for k in reversed(range(num_slots.bit_length())):
            if num_slots >> k & 1:
                self._free[k].add(start)
                start += 1 << k

    def chunk_size(self, num_tokens: int) -> int:
        """Slots that a request for `num_tokens` slots takes: the next power of two."""
        _check_positive("num_tokens", num_tokens)
        return next_power_of_two(num_tokens)

    def allocate(self, num_tokens: int) -> int | None:
        """The first slot of a new chunk, or None if no free chunk is large enough.

        Raises:
            ValueError: `num_tokens` is not positive.
        """
        wanted = self.chunk_size(num_tokens).bit_length() - 1
        for k in range(wanted, len(self._free)):
            if self._free[k]:
                break
        else:
            return None
        start = min(self._free[k])
        self._free[k].remove(start)
        while k > wanted:
            k -= 1
            self._free[k].add(start + (1 << k))  # the upper half stays free
        self._chunks[start] = wanted
        return start

    def free(self, start: int) -> None:
        """Give back the chunk that begins at `start`, and merge buddies as long as both are free.

        Raises:
            ValueError: no chunk begins there.
        """
        k = _pop_chunk(self._chunks, start)
        while (buddy := start ^ (1 << k)) in self._free[k]:
            self._free[k].remove(buddy)
            start = min(start, buddy)
            k += 1
        self._free[k].add(start)

    def holes(self) -> list[tuple[int, int]]:
        """The free chunks as (start, size), by start. Neighbours that are no buddies stay two."""
        return sorted((start, 1 << k) for k, starts in enumerate(self._free) for start in starts)


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is not below `n`, for n >= 1."""
    return 1 << (n - 1).bit_length()


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


def _pop_chunk(chunks: dict[int, int], start: int) -> int:
    if start not in chunks:
        raise ValueError(f"no chunk begins at slot {start}; chunks begin at {sorted(chunks)}")
    return chunks.pop(start)
