"""Memories for chunks that may be moved: the last rows of the experiment in exercise 7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from utils.checks.kit.contracts import Given
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_03.kinds import Chunk
from utils.checks.lab_03.room import carried_out, holes_between, oracle, wrong_moves


class Bag:
    """A memory in which any free slots will do: what moving chunks can reach at best."""

    now = 0

    def __init__(self, num_slots: int) -> None:
        self.num_free = num_slots
        self.sizes: list[int] = []
        self.chunk_size = int

    def place(self, num_tokens: int) -> int | None:
        if num_tokens > self.num_free:
            return None
        self.num_free -= num_tokens
        self.sizes.append(num_tokens)
        return len(self.sizes) - 1

    def free(self, start: int) -> None:
        self.num_free += self.sizes[start]

    def holes(self) -> list[tuple[int, int]]:
        return [(0, self.num_free)] if self.num_free else []


class Roomy:
    """First fit; where no hole is large enough, the learner's `make_room` moves chunks.

    Chunks move, so `place` returns a ticket in place of a start. Requests come in by their order in
    `trace`: the ticket is the request's number.

    Attributes:
        now: the present step, set from outside
        copied: tokens copied so far
    """

    def __init__(
        self, num_slots: int, make_room: Callable[..., Any], trace: Sequence[tuple[int, int]]
    ) -> None:
        self.num_slots, self.make_room, self.trace = num_slots, make_room, trace
        self.now = self.copied = 0
        self.chunks: dict[int, tuple[int, int]] = {}  # ticket -> start, size
        self.first_steps: list[int] = []
        self.chunk_size = int

    def place(self, num_tokens: int) -> int | None:
        if self._lowest(num_tokens) is None:
            self._move(num_tokens)
        start = self._lowest(num_tokens)
        if start is None:
            return None
        ticket = len(self.first_steps)
        self.first_steps.append(self.now)
        self.chunks[ticket] = start, num_tokens
        return ticket

    def free(self, ticket: int) -> None:
        del self.chunks[ticket]

    def holes(self) -> list[tuple[int, int]]:
        return holes_between(self._listed(), self.num_slots)

    def _lowest(self, size: int) -> int | None:
        return next((start for start, room in self.holes() if room >= size), None)

    def _held(self, ticket: int) -> int:
        return self.trace[ticket][0] + self.now - self.first_steps[ticket]

    def _listed(self) -> list[Chunk]:
        return sorted(Chunk(*place, self._held(t)) for t, place in self.chunks.items())

    def _move(self, need: int) -> None:
        chunks = self._listed()
        allowed = oracle(chunks, self.num_slots, need)
        moves = call(self.make_room, list(chunks), self.num_slots, need)
        fault = wrong_moves(allowed, moves, Given(chunks, self.num_slots, need))
        if fault is not None:
            raise Mismatch(
                "`make_room` is right in small memories, but not in the paper's experiment.",
                input=f"step {self.now}, {len(chunks)} chunks in {self.num_slots:,} slots, "
                f"need {need}",
                expected=str(fault.expected),
                got=fault.says or str(fault.got),
            )
        if not moves:
            return
        self.copied += carried_out(chunks, self.num_slots, moves)[1]
        ticket_at = {start: ticket for ticket, (start, _) in self.chunks.items()}
        for old, new in moves:
            ticket = ticket_at.pop(old)
            ticket_at[new] = ticket
            self.chunks[ticket] = new, self.chunks[ticket][1]
