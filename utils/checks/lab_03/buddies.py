"""Chunks that are powers of two, halved and merged: exercise 3."""

from __future__ import annotations

from utils.checks.kit.contracts import Contract, InLockstep, mistake
from utils.checks.lab_03.chunks import clauses, draw_story, play
from utils.checks.lab_03.first_fit import PlainFirstFit


class PlainBuddy(PlainFirstFit):
    """Slow and plain: only the chunks are kept. A free piece is the largest power of two that lies
    at a multiple of itself, in memory, and touches no chunk."""

    def chunk_size(self, num_tokens: int) -> int:
        super().chunk_size(num_tokens)
        size = 1
        while size < num_tokens:
            size *= 2
        return size

    def holes(self) -> list[tuple[int, int]]:
        return [piece for hole in super().holes() for piece in self.cut(*hole)]

    def cut(self, start: int, room: int) -> list[tuple[int, int]]:
        """A free stretch as aligned pieces, the largest first at each place."""
        pieces = []
        while room:
            size = 1
            while start % (2 * size) == 0 and 2 * size <= room:
                size *= 2
            pieces.append((start, size))
            start, room = start + size, room - size
        return pieces

    def chosen(self, fitting: list[tuple[int, int]], size: int) -> int:
        return min(fitting, key=lambda hole: (hole[1], hole[0]))[0]


class _Lowest(PlainBuddy):
    def chosen(self, fitting: list[tuple[int, int]], size: int) -> int:
        return fitting[0][0]


class _Largest(PlainBuddy):
    def chosen(self, fitting: list[tuple[int, int]], size: int) -> int:
        return min(fitting, key=lambda hole: (-hole[1], hole[0]))[0]


class _UpperHalf(PlainBuddy):
    def chosen(self, fitting: list[tuple[int, int]], size: int) -> int:
        start, room = min(fitting, key=lambda hole: (hole[1], hole[0]))
        return start + room - size


class _HighestOfEqual(PlainBuddy):
    def chosen(self, fitting: list[tuple[int, int]], size: int) -> int:
        return min(fitting, key=lambda hole: (hole[1], -hole[0]))[0]


class _RoundedDown(PlainBuddy):
    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        while self.num_slots & (self.num_slots - 1):
            self.num_slots &= self.num_slots - 1


class _RoundedUp(PlainBuddy):
    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self.num_slots = self.chunk_size(num_slots)


class _AlwaysDoubled(PlainBuddy):
    def chunk_size(self, num_tokens: int) -> int:
        super().chunk_size(num_tokens)
        return int(1 << int(num_tokens).bit_length())


class _Kept(PlainBuddy):
    """Keeps its free pieces, and merges them in its own way."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self.kept = set(self.cut(0, num_slots))

    def holes(self) -> list[tuple[int, int]]:
        return sorted(self.kept)

    def place(self, num_tokens: int) -> int | None:
        start = super().place(num_tokens)
        if start is None:
            return None
        size, room = self.chunks[start], dict(self.kept)[start]
        self.kept.remove((start, room))
        while room > size:
            room //= 2
            self.kept.add((start + room, room))
        return start

    def free(self, start: int) -> None:
        size = self.chunks.get(start, 0)
        super().free(start)
        self.kept.add(self.merged(start, size))

    def merged(self, start: int, size: int) -> tuple[int, int]:
        return start, size


class _OnlyOnce(_Kept):
    def merged(self, start: int, size: int) -> tuple[int, int]:
        if (start ^ size, size) in self.kept:
            self.kept.remove((start ^ size, size))
            start, size = min(start, start ^ size), 2 * size
        return start, size


class _OnlyUp(_Kept):
    def merged(self, start: int, size: int) -> tuple[int, int]:
        while start % (2 * size) == 0 and (start + size, size) in self.kept:
            self.kept.remove((start + size, size))
            size *= 2
        return start, size


class _AnyNeighbour(_Kept):
    def merged(self, start: int, size: int) -> tuple[int, int]:
        while True:
            if (start + size, size) in self.kept:
                self.kept.remove((start + size, size))
            elif (start - size, size) in self.kept:
                self.kept.remove((start - size, size))
                start -= size
            else:
                return start, size
            size *= 2


BUDDY = Contract(
    inputs=draw_story,
    judge=InLockstep(play, PlainBuddy),
    passed="Right in random stories of two memories: what was halved is whole again when both "
    "halves are free.",
    clauses=clauses(
        "The smallest free piece that is large enough, the lowest of equal ones, is halved until "
        "it just fits; its lower half is taken on. Freed, buddies merge as often as they can."
    ),
    mistakes=(
        mistake(
            "The lowest piece that is large enough is taken. Buddies take the *smallest*, so "
            "that large ones stay whole.",
            "Compare sizes first, then starts.",
            _Lowest,
        ),
        mistake(
            "The largest piece is halved, although a smaller one would do.",
            "Compare sizes first, then starts.",
            _Largest,
        ),
        mistake("Of the halves, the upper one is taken.", "The upper half stays free.", _UpperHalf),
        mistake(
            "Of pieces of the same size, not the lowest is taken.",
            "`min` of the starts.",
            _HighestOfEqual,
        ),
        mistake(
            "A memory that is no power of two loses its rest, or gets more than it has.",
            "12 slots are two pieces: 8 at slot 0, and 4 at slot 8.",
            _RoundedDown,
            _RoundedUp,
        ),
        mistake(
            "A power of two needs no rounding.",
            "The smallest power of two that is not below `num_tokens`.",
            _AlwaysDoubled,
        ),
        mistake(
            "Buddies that are both free must merge.",
            "In `free`, look for the buddy at `start ^ size`.",
            _Kept,
        ),
        mistake(
            "Merged once, and no further: what comes of it may have a free buddy again.",
            "`while`, not `if`.",
            _OnlyOnce,
        ),
        mistake(
            "A chunk merges with a buddy above it, and not with one below.",
            "`start ^ size` may be lower than `start`.",
            _OnlyUp,
        ),
        mistake(
            "Two neighbours of the same size need not be buddies: together they must begin at "
            "a multiple of twice their size.",
            "The buddy begins at `start ^ size`.",
            _AnyNeighbour,
        ),
    ),
    examples=80,
)
