"""Chunks of any size at the lowest place: exercise 2."""

from __future__ import annotations

from utils.checks.kit.contracts import Contract, InLockstep, mistake
from utils.checks.lab_03.chunks import clauses, draw_story, play


class PlainFirstFit:
    """Slow and plain: only the chunks are kept; holes are what lies between them."""

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError("no slots")
        self.num_slots = num_slots
        self.chunks: dict[int, int] = {}

    def chunk_size(self, num_tokens: int) -> int:
        if num_tokens < 1:
            raise ValueError("no tokens")
        return num_tokens

    def holes(self) -> list[tuple[int, int]]:
        found, at = [], 0
        for start, size in [*sorted(self.chunks.items()), (self.num_slots, 0)]:
            if start > at:
                found.append((at, start - at))
            at = start + size
        return found

    def place(self, num_tokens: int) -> int | None:
        size = self.chunk_size(num_tokens)
        fitting = [hole for hole in self.holes() if self.fits(size, hole[1])]
        if not fitting:
            return None
        start = self.chosen(fitting, size)
        self.chunks[start] = size
        return start

    def fits(self, size: int, room: int) -> bool:
        return size <= room

    def chosen(self, fitting: list[tuple[int, int]], size: int) -> int:
        return fitting[0][0]

    def free(self, start: int) -> None:
        if start not in self.chunks:
            raise ValueError("no chunk")
        del self.chunks[start]


class _BestFit(PlainFirstFit):
    def chosen(self, fitting: list[tuple[int, int]], size: int) -> int:
        return min(fitting, key=lambda hole: (hole[1], hole[0]))[0]


class _LastFit(PlainFirstFit):
    def chosen(self, fitting: list[tuple[int, int]], size: int) -> int:
        return fitting[-1][0]


class _HighEnd(PlainFirstFit):
    def chosen(self, fitting: list[tuple[int, int]], size: int) -> int:
        return fitting[0][0] + fitting[0][1] - size


class _NextFit(PlainFirstFit):
    cursor = 0

    def chosen(self, fitting: list[tuple[int, int]], size: int) -> int:
        behind = [hole for hole in fitting if hole[0] >= self.cursor]
        start = (behind or fitting)[0][0]
        self.cursor = start + size
        return start


class _NoExactFit(PlainFirstFit):
    def fits(self, size: int, room: int) -> bool:
        return size < room


class _Crumbling(PlainFirstFit):
    """Keeps its holes in a list, and does not put neighbours together."""

    above, below = False, False

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self.kept = [(0, num_slots)]

    def holes(self) -> list[tuple[int, int]]:
        return sorted(self.kept)

    def place(self, num_tokens: int) -> int | None:
        start = super().place(num_tokens)
        if start is not None:
            size = dict(self.kept)[start]
            self.kept.remove((start, size))
            if size > num_tokens:
                self.kept.append((start + num_tokens, size - num_tokens))
        return start

    def free(self, start: int) -> None:
        size = self.chunks.get(start, 0)
        super().free(start)
        for hole in self.holes():
            if self.above and hole[0] == start + size:
                self.kept.remove(hole)
                size += hole[1]
            if self.below and sum(hole) == start:
                self.kept.remove(hole)
                start, size = hole[0], size + hole[1]
        self.kept.append((start, size))


class _OnlyAbove(_Crumbling):
    above = True


class _OnlyBelow(_Crumbling):
    below = True


class _SilentFree(PlainFirstFit):
    def free(self, start: int) -> None:
        self.chunks.pop(start, None)


class _NothingFits(PlainFirstFit):
    def place(self, num_tokens: int) -> int | None:
        start = super().place(num_tokens)
        if start is None:
            raise MemoryError
        return start


MERGE = "A free piece ends where a chunk begins, or at the end of the memory, and nowhere else."

FIRST_FIT = Contract(
    inputs=draw_story,
    judge=InLockstep(play, PlainFirstFit),
    passed="Right in random stories of two memories.",
    clauses=clauses("First fit: the lowest hole with as many slots as asked, at its beginning."),
    mistakes=(
        mistake(
            "That is best fit: the smallest hole that is large enough. First fit takes the lowest.",
            "Go through the holes by their start, and take the first.",
            _BestFit,
        ),
        mistake(
            "The highest place is taken; first fit takes the lowest.",
            "Go through the holes from slot 0 on.",
            _LastFit,
        ),
        mistake(
            "The chunk lies at the end of its hole; first fit takes the beginning.",
            "The chunk's first slot is the hole's first slot.",
            _HighEnd,
        ),
        mistake(
            "That is next fit: it goes on where it stopped. First fit begins at slot 0 each time.",
            "Begin anew in each call.",
            _NextFit,
        ),
        mistake("A hole of exactly the right size is refused.", "`>=`, not `>`.", _NoExactFit),
        mistake(
            "Holes that are neighbours stay two: a request that needs both is refused.",
            MERGE,
            _Crumbling,
            _OnlyAbove,
            _OnlyBelow,
        ),
        mistake(
            "A chunk that does not exist can be freed, and nobody hears of it.",
            "Raise a ValueError where no chunk begins.",
            _SilentFree,
        ),
        mistake("A full memory is no error: `place` returns None.", "`return None`.", _NothingFits),
    ),
    examples=80,
)
