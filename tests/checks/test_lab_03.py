"""The oracles of lab 03 against the course's allocators and simulators."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.labs.bug_zoo import lab_03 as zoo
from utils.checks import lab_03
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_03 import Parts, experiment, painted, room
from utils.checks.lab_03.answers import BlockMemory, Buddy, FirstFit, advance, make_room
from utils.checks.lab_03.kinds import Chunk, Request, Running
from utils.checks.lab_03.roomy import Bag, Roomy
from utils.sim.allocators import BuddyAllocator, FirstFitAllocator
from utils.sim.memory_map import map_memory
from utils.sim.memory_policies import STATES, Contiguous, Paged

STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 20)), max_size=40)
LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("plain", "course"), [(FirstFit, FirstFitAllocator), (Buddy, BuddyAllocator)]
)
@given(st.integers(1, 50), STEPS)
def test_the_allocators_are_those_of_the_course(
    plain: type[FirstFit] | type[Buddy], course: Any, num_slots: int, steps: list[tuple[bool, int]]
) -> None:
    mine, theirs = plain(num_slots), course(num_slots)
    starts: list[int] = []
    for is_free, number in steps:
        if is_free and starts:
            start = starts.pop(number % len(starts))
            mine.free(start)
            theirs.free(start)
        else:
            placed = mine.place(number)
            assert placed == theirs.allocate(number)
            starts += [] if placed is None else [placed]
        assert mine.chunk_size(number) == theirs.chunk_size(number)
        assert mine.holes() == theirs.holes()


@given(LENGTHS, st.sampled_from(["first_fit", "buddy"]), st.sampled_from(["max", "pow2", "oracle"]))
def test_steps_and_states_are_those_of_the_slot_by_slot_simulator(
    lengths: list[tuple[int, int]], placement: Any, reserve: Any
) -> None:
    policy = Contiguous(reserve, placement, max_model_len=18)
    memory: Any = FirstFit(45) if placement == "first_fit" else Buddy(45)
    running: list[Running] = []
    waiting = deque(Request(p, o, policy.num_reserved(p, o)) for p, o in lengths)
    known = map_memory(policy, *zip(*lengths, strict=True), 45)
    for now in range(len(known.states)):
        advance(memory, running, waiting, now)
        need = memory.chunk_size(waiting[0].asked) if waiting else None
        count = painted(running, memory.holes(), need, now)
        assert count == {state: known.count(state)[now] for state in STATES}
        assert len(running) == known.num_running[now]


@given(LENGTHS, st.integers(1, 6))
def test_blocks_are_those_of_the_slot_by_slot_simulator(
    lengths: list[tuple[int, int]], block_size: int
) -> None:
    known = map_memory(Paged(block_size), *zip(*lengths, strict=True), 40)
    per_step = experiment.SAMPLE_EVERY
    experiment.SAMPLE_EVERY = 1
    try:
        samples = experiment.run_blocks(BlockMemory(40, block_size), lengths)
    finally:
        experiment.SAMPLE_EVERY = per_step
    assert [step for step, _ in samples] == list(range(len(known.states)))
    for step, count in samples:
        assert count == {state: known.count(state)[step] for state in STATES}


def brute_force(chunks: list[Chunk], num_slots: int, need: int) -> bool:
    """Whether the chunks, in any places, leave a hole: they lie side by side at one end."""
    return num_slots - sum(chunk.size for chunk in chunks) >= need


@given(st.randoms(use_true_random=False))
def test_sliding_always_makes_room_where_there_is_any(dice: random.Random) -> None:
    chunks, at = [], 0
    for _ in range(dice.randrange(6)):
        at += dice.randrange(4)
        chunks.append(Chunk(at, dice.randint(1, 5), 1))
        at += chunks[-1].size
    num_slots, need = at + dice.randint(1, 4), dice.randint(1, 12)
    moves = room.slide_all(chunks, num_slots, need)
    assert (moves is not None) == brute_force(chunks, num_slots, need)
    if moves is not None:
        after, copied = room.carried_out(chunks, num_slots, moves)
        assert max((size for _, size in room.holes_between(after, num_slots)), default=0) >= need
        assert copied == len(moves)
        assert [chunk.size for chunk in after] == [chunk.size for chunk in chunks]


@pytest.mark.parametrize(
    ("moves", "words"),
    [
        ([(3, 0)], "no chunk begins at slot 3"),
        ([(2, 5)], "overwrite the chunk at 6"),
        ([(6, 9)], "out of the memory"),
        ([(6, -1)], "out of the memory"),
        ([(2, 0), (2, 0)], "no chunk begins at slot 2"),
    ],
)
def test_moves_that_cannot_be_carried_out_are_told(
    moves: list[tuple[int, int]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        room.carried_out([Chunk(2, 3, 1), Chunk(6, 2, 2)], 10, moves)


def test_a_chunk_may_overlap_its_own_old_place_and_move_twice() -> None:
    after, copied = room.carried_out([Chunk(2, 3, 2)], 10, [(2, 1), (1, 7)])
    assert (after, copied) == ([Chunk(7, 3, 2)], 4)


def test_the_drawn_memories_are_as_the_lab_says() -> None:
    dice = random.Random(0)
    memories = [room.crumbled(dice) for _ in range(room.NUM_MEMORIES)]
    assert sum(len(chunks) >= 10 for chunks, _, _ in memories) > room.NUM_MEMORIES / 2
    for chunks, num_slots, need in memories:
        holes = [size for _, size in room.holes_between(chunks, num_slots)]
        assert max(holes) < need <= sum(holes)
    assert room.share_copied(room.slide_all) == 1


@pytest.mark.parametrize(
    ("make_room", "share"),
    [
        (zoo.stops_when_it_is_enough, room.STOPS_EARLY),
        (make_room, room.CHEAPEST_STRETCH),
        (zoo.the_cheaper_one, room.WITH_WINDOWS),
    ],
)
def test_what_a_right_answer_is_told_of_other_ideas_is_measured(make_room, share) -> None:
    assert round(room.share_copied(make_room), 2) == share


@given(LENGTHS)
def test_moving_chunks_admits_whoever_fits_in_all_holes_together(
    lengths: list[tuple[int, int]],
) -> None:
    policy = Contiguous("oracle", "first_fit")
    roomy, bag = Roomy(30, room.slide_all, lengths), Bag(30)
    yours, best = (
        experiment.run_chunks(memory, policy, lengths, advance, painted) for memory in (roomy, bag)
    )
    assert yours == best


def plain_parts() -> Parts:
    return Parts(painted, FirstFit, Buddy, BlockMemory, room.slide_all, advance)


def test_the_experiment_comes_close_to_the_paper() -> None:
    """Figure 2 of arXiv 2309.06180; 400 requests are a small sample."""
    shares, copied = experiment.experiment(plain_parts(), advance, painted)
    published = {"Orca (Max)": 0.204, "Orca (Pow2)": 0.268, "Orca (Oracle)": 0.382}
    for name, used in published.items():
        assert abs(shares[name]["used"] - used) < 0.03
    assert shares[experiment.BLOCKS_ROW]["used"] > 0.9
    assert shares[experiment.ROOM_ROW]["used"] > shares[experiment.FIRST_FIT_ROW]["used"]
    assert copied > 0


def test_a_difference_from_the_simulator_is_told_with_its_step() -> None:
    right = [(0, dict.fromkeys(STATES, 1)), (100, dict.fromkeys(STATES, 2))]
    experiment.compare("blocks", right, right)
    off = [right[0], (100, dict.fromkeys(STATES, 3))]
    with pytest.raises(Mismatch, match="not in the paper's experiment") as caught:
        experiment.compare("blocks", off, right)
    assert "step 100" in dict(caught.value.details)["Input"]
    with pytest.raises(Mismatch, match="does not end"):
        experiment.compare("blocks", right[:1], right)


def test_other_things_than_parts_are_refused() -> None:
    make: Any = dict
    with pytest.raises(Mismatch, match=r"check\.Parts"):
        lab_03.engine.__wrapped__(make)
