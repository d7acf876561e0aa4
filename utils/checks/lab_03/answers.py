"""One right answer for each exercise of lab 03, as in the solution. Mistakes are edits of these."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from utils.checks.lab_03.kinds import Chunk, Request, Running
from utils.checks.lab_03.room import slide_all


def count_states(
    running: Iterable[Running], holes: Iterable[tuple[int, int]], need: int | None, now: int
) -> dict[str, int]:
    count = dict.fromkeys(("used", "reserved", "internal", "external", "free"), 0)
    for request, first_step, _, size in running:
        held = request.prompt_len + now - first_step
        final = request.prompt_len + request.output_len - 1
        count["used"] += held
        count["reserved"] += final - held
        count["internal"] += request.asked - final
        count["external"] += size - request.asked
    for _, size in holes:
        is_free = need is None or size >= need
        count["free" if is_free else "external"] += size
    return count


class FirstFit:
    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, not {num_slots}")
        self.num_slots = num_slots
        self.chunks: dict[int, int] = {}  # start -> size

    def chunk_size(self, num_tokens: int) -> int:
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be at least 1, not {num_tokens}")
        return num_tokens

    def place(self, num_tokens: int) -> int | None:
        size = self.chunk_size(num_tokens)
        for start, room in self.holes():
            if room >= size:
                self.chunks[start] = size
                return start
        return None

    def free(self, start: int) -> None:
        if start not in self.chunks:
            raise ValueError(f"no chunk begins at slot {start}")
        del self.chunks[start]

    def holes(self) -> list[tuple[int, int]]:
        holes, end = [], 0  # end of the chunk before
        for start in sorted(self.chunks):
            if start > end:
                holes.append((end, start - end))
            end = start + self.chunks[start]
        if self.num_slots > end:
            holes.append((end, self.num_slots - end))
        return holes


class Buddy:
    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, not {num_slots}")
        self.free_pieces: set[tuple[int, int]] = set()  # (size, start)
        self.chunks: dict[int, int] = {}  # start -> size
        start = 0
        while start < num_slots:
            size = 1 << ((num_slots - start).bit_length() - 1)  # the largest that still fits
            self.free_pieces.add((size, start))
            start += size

    def chunk_size(self, num_tokens: int) -> int:
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be at least 1, not {num_tokens}")
        return 1 << (num_tokens - 1).bit_length()

    def place(self, num_tokens: int) -> int | None:
        wanted = self.chunk_size(num_tokens)
        fitting = [piece for piece in self.free_pieces if piece[0] >= wanted]
        if not fitting:
            return None
        size, start = min(fitting)
        self.free_pieces.remove((size, start))
        while size > wanted:
            size //= 2
            self.free_pieces.add((size, start + size))
        self.chunks[start] = size
        return start

    def free(self, start: int) -> None:
        if start not in self.chunks:
            raise ValueError(f"no chunk begins at slot {start}")
        size = self.chunks.pop(start)
        while (size, start ^ size) in self.free_pieces:
            self.free_pieces.remove((size, start ^ size))
            start = min(start, start ^ size)
            size *= 2
        self.free_pieces.add((size, start))

    def holes(self) -> list[tuple[int, int]]:
        return sorted((start, size) for size, start in self.free_pieces)


class BlockMemory:
    def __init__(self, num_slots: int, block_size: int) -> None:
        if num_slots < 1 or block_size < 1:
            raise ValueError(
                f"{num_slots} slots in blocks of {block_size}: both must be at least 1"
            )
        self.num_slots, self.block_size = num_slots, block_size
        self.num_free = num_slots // block_size
        self.held: dict[Hashable, tuple[int, int]] = {}  # request -> its tokens, its blocks

    def hold(self, request: Hashable, num_tokens: int) -> bool:
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be at least 1, not {num_tokens}")
        _, owned = self.held.get(request, (0, 0))
        blocks = max(owned, -(-num_tokens // self.block_size))
        if blocks - owned > self.num_free:
            return False
        self.num_free -= blocks - owned
        self.held[request] = num_tokens, blocks
        return True

    def free(self, request: Hashable) -> None:
        if request not in self.held:
            raise ValueError(f"{request!r} holds nothing")
        self.num_free += self.held.pop(request)[1]

    def get_num_free_blocks(self) -> int:
        return self.num_free

    def count_states(self, final_lens: dict[Any, int]) -> dict[str, int]:
        used = reserved = internal = 0
        for request, (num_tokens, blocks) in self.held.items():
            slots = blocks * self.block_size
            filled = min(slots, final_lens[request])
            used += num_tokens
            reserved += filled - num_tokens
            internal += slots - filled
        return {
            "used": used,
            "reserved": reserved,
            "internal": internal,
            "external": self.num_slots % self.block_size,
            "free": self.num_free * self.block_size,
        }


def make_room(chunks: Sequence[Chunk], num_slots: int, need: int) -> list[tuple[int, int]] | None:
    moves = slide_all(chunks, num_slots, need)
    if not moves:
        return moves
    # A stretch from one hole to another: its chunks slide down, and its holes become one.
    ends = [0, *(chunk.start + chunk.size for chunk in chunks)]
    starts = [*(chunk.start for chunk in chunks), num_slots]
    gaps = [start - end for start, end in zip(starts, ends, strict=True)]
    stretches = []
    for first in range(len(gaps)):
        for last in range(first, len(gaps)):
            if sum(gaps[first : last + 1]) >= need:
                copied = sum(chunk.num_tokens for chunk in chunks[first:last])
                stretches.append((copied, first, last))
                break
    _, first, last = min(stretches)
    moves, end = [], ends[first]
    for chunk in chunks[first:last]:
        if chunk.start > end:
            moves.append((chunk.start, end))
        end += chunk.size
    return moves


def advance(memory: Any, running: list[Running], waiting: deque[Request], now: int) -> None:
    for complete in [r for r in running if r.first_step + r.request.output_len <= now]:
        memory.free(complete.start)
        running.remove(complete)
    while waiting:
        start = memory.place(waiting[0].asked)
        if start is None:
            return
        request = waiting.popleft()
        running.append(Running(request, now, start, memory.chunk_size(request.asked)))
