"""Moving chunks until there is room: exercise 5, where many answers are right."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from utils.checks.kit.contracts import Fault, Given
from utils.checks.kit.contracts.differences import shown
from utils.checks.kit.contracts.faults import NoEnd, Raised, attempt
from utils.checks.kit.patience import second_chance
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_03.kinds import Chunk

Moves = list[tuple[int, int]]
MakeRoom = Callable[[Sequence[Chunk], int, int], Moves | None]
NUM_MEMORIES = 300  # on which an answer's copies are counted together
AT_MOST = 0.5  # of what sliding all chunks copies
SECONDS = 20.0  # for all of them; a plain answer needs less than one
# What other ideas copy there, which a right answer is told.
STOPS_EARLY, CHEAPEST_STRETCH, WITH_WINDOWS = 0.57, 0.35, 0.23


def holes_between(chunks: Sequence[Chunk], num_slots: int) -> list[tuple[int, int]]:
    """The free pieces (start, size) between chunks, by start."""
    holes, at = [], 0
    for start, size, _ in [*sorted(chunks), Chunk(num_slots, 0, 0)]:
        if start > at:
            holes.append((at, start - at))
        at = start + size
    return holes


def slide_all(chunks: Sequence[Chunk], num_slots: int, need: int) -> Moves | None:
    """The plain answer: every chunk goes down as far as it can, the lowest first."""
    holes = [size for _, size in holes_between(chunks, num_slots)]
    if sum(holes) < need:
        return None
    if max(holes) >= need:
        return []
    moves, at = [], 0
    for start, size, _ in chunks:
        if start > at:
            moves.append((start, at))
        at += size
    return moves


def carried_out(chunks: Sequence[Chunk], num_slots: int, moves: Any) -> tuple[list[Chunk], int]:
    """The chunks after the moves, and the tokens that were copied.

    Raises:
        ValueError: a move cannot be carried out.
    """
    row: list[int | None] = [None] * num_slots  # slot by slot: the start of the chunk in it
    known = {chunk.start: chunk for chunk in chunks}
    for start, size, _ in chunks:
        row[start : start + size] = [start] * size
    copied = 0
    for number, (old, new) in enumerate(moves):
        where = f"move {number}, from {old} to {new}"
        if old not in known:
            raise ValueError(f"{where}: no chunk begins at slot {old} then")
        chunk = known.pop(old)
        row[old : old + chunk.size] = [None] * chunk.size
        if new < 0 or new + chunk.size > num_slots:
            raise ValueError(f"{where}: its {chunk.size} slots reach out of the memory")
        hit = [owner for owner in row[new : new + chunk.size] if owner is not None]
        if hit:
            raise ValueError(f"{where}: its {chunk.size} slots overwrite the chunk at {hit[0]}")
        row[new : new + chunk.size] = [new] * chunk.size
        known[new] = Chunk(new, *chunk[1:])
        copied += chunk.num_tokens
    return [known[start] for start in sorted(known)], copied


def oracle(chunks: Sequence[Chunk], num_slots: int, need: int) -> int | None:
    """Tokens that may be copied at most: those of `slide_all`; None if there is no room at all."""
    moves = slide_all(chunks, num_slots, need)
    return None if moves is None else carried_out(chunks, num_slots, moves)[1]


def wrong_moves(allowed: int | None, got: Any, given: Given) -> Fault | None:
    chunks, num_slots, need = given.args
    if allowed is None or got is None:
        if allowed is None and got is None:
            return None
        return Fault("none", "", "None" if allowed is None else "a list of moves", got)
    if not isinstance(got, list):
        return Fault("kind", "", "a list of pairs (old start, new start)", got)
    for move in got:
        if not isinstance(move, tuple | list) or len(move) != 2:
            return Fault("kind", "", "a list of pairs (old start, new start)", got)
    try:
        after, copied = carried_out(chunks, num_slots, got)
    except ValueError as error:
        return Fault("moves", "", "moves that can be carried out", got, says=f"{error}.")
    largest = max((size for _, size in holes_between(after, num_slots)), default=0)
    if largest < need:
        return Fault(
            "room",
            "",
            f"a hole of {need} slots",
            got,
            words=(
                f"a hole of {need} slots",
                f"{shown(got)}: the largest hole has {largest} slots",
            ),
        )
    if copied > allowed:
        return Fault(
            "copies",
            "",
            f"at most {allowed} tokens copied",
            got,
            words=(f"at most {allowed} tokens copied", f"{shown(got)}: {copied} tokens copied"),
        )
    return None


def crumbled(source: random.Random) -> tuple[list[Chunk], int, int]:
    """A memory with many holes, each too small for the next in line, but enough together."""
    while True:
        num_slots, at = source.choice((500, 1000, 2000)), 0
        chunks: list[Chunk] = []
        while True:
            at += source.choice((0, 0, source.randint(1, 40), source.randint(1, 100)))
            size = source.randint(1, 150)
            if at + size > num_slots:
                break
            chunks.append(Chunk(at, size, source.randint(1, size)))
            at += size
        holes = [size for _, size in holes_between(chunks, num_slots)]
        if sum(holes) > max(holes):
            most = min(sum(holes), 3 * max(holes))
            return chunks, num_slots, source.randint(max(holes) + 1, most)


def share_copied(make_room: MakeRoom) -> float:
    """Tokens copied in `NUM_MEMORIES` drawn memories, relative to sliding all chunks.

    Raises:
        Mismatch: an answer is wrong in one of them, or takes too long.
    """
    source = random.Random(0)
    copied = plain = 0
    end = time.process_time() + SECONDS
    for number in range(1, NUM_MEMORIES + 1):
        chunks, num_slots, need = crumbled(source)
        allowed = oracle(chunks, num_slots, need)
        with second_chance():
            moves = attempt(make_room, list(chunks), num_slots, need)
        case = f"{len(chunks)} chunks in {num_slots} slots, need {need}"
        if (isinstance(moves, Raised) and moves.error is NoEnd) or time.process_time() > end:
            raise Mismatch(
                "In a memory with many chunks your code needs too long.",
                input=case,
                expected=f"moves for {NUM_MEMORIES} such memories in {SECONDS:.0f} seconds",
                got=f"time was up at number {number}",
                look="To try all sets of chunks takes twice as long with each chunk more. Which "
                "sets need not be tried?",
            )
        if isinstance(moves, Raised):
            raise Mismatch(moves.says, input=case, look=moves.look)
        fault = wrong_moves(allowed, moves, Given(chunks, num_slots, need))
        if fault is not None or allowed is None:
            expected, got = (fault and fault.words) or ("None", str(moves))
            raise Mismatch(
                "In a memory with many chunks the moves are wrong.",
                input=f"{case}: {[tuple(chunk) for chunk in chunks]}",
                expected=expected,
                got=fault.says if fault and fault.says else got,
                look="These are the chunks as (start, size, num_tokens). Call your function with "
                "them, and carry out its moves.",
            )
        plain += allowed
        copied += carried_out(chunks, num_slots, moves)[1]
    return copied / plain


def cheaper_than_sliding(make_room: MakeRoom) -> str:
    """Words of success, or `Mismatch`: how much is copied in all."""
    share = share_copied(make_room)
    if share > AT_MOST:
        raise Mismatch(
            f"Room is made, but your moves copy {share:.0%} of the tokens that sliding all chunks "
            "copies.",
            input=f"{NUM_MEMORIES} drawn memories, all tokens counted together",
            expected=f"at most {AT_MOST:.0%}",
            got=f"{share:.1%}",
            look="Which chunks need not move at all? Where in memory is it cheapest to make room?",
        )
    return (
        f"Right: your moves make room, and copy {share:.0%} of the tokens that sliding all chunks "
        f"copies, over {NUM_MEMORIES} memories. (To slide, and stop when it is enough: "
        f"{STOPS_EARLY:.0%}. To slide the cheapest stretch: {CHEAPEST_STRETCH:.0%}. To carry "
        f"chunks out of a window instead where that is cheaper: {WITH_WINDOWS:.0%}.)"
    )
