"""First fit and buddies against the plainest model there is: an array that says who owns a slot."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.sim.allocators import BuddyAllocator, FirstFitAllocator, next_power_of_two

Allocator = FirstFitAllocator | BuddyAllocator
either = pytest.mark.parametrize("kind", [FirstFitAllocator, BuddyAllocator])
# An action: a request of so many slots, or, if negative, the end of one of those that live.
actions = st.lists(st.integers(-8, 20).filter(bool), max_size=60)


def free_pieces(owners: np.ndarray, buddies: bool) -> list[tuple[int, int]]:
    """The maximal free pieces: runs of neighbours, or aligned powers of two."""
    free = owners < 0
    powers = [2**k for k in range(len(owners).bit_length())]
    pieces = []
    for size in reversed(powers if buddies else range(1, len(owners) + 1)):
        for start in range(0, len(owners) - size + 1, size if buddies else 1):
            if free[start : start + size].all():
                pieces.append((start, size))
                free[start : start + size] = False
    return sorted(pieces)


@either
@given(num_slots=st.integers(1, 70), actions=actions)
def test_equals_an_array_of_owners(
    kind: type[Allocator], num_slots: int, actions: list[int]
) -> None:
    buddies = kind is BuddyAllocator
    memory, owners, living = kind(num_slots), np.full(num_slots, -1), []
    for number, action in enumerate(actions):
        if action < 0:
            if living:
                start = living.pop(action % len(living))
                memory.free(start)
                owners[owners == owners[start]] = -1
        else:
            size = next_power_of_two(action) if buddies else action
            assert memory.chunk_size(action) == size
            fitting = [piece for piece in free_pieces(owners, buddies) if piece[1] >= size]
            # Buddies halve the smallest piece that is large enough; first fit takes the lowest.
            best = min(
                fitting, key=lambda piece: (piece[1] if buddies else 0, piece[0]), default=None
            )
            start = memory.allocate(action)
            assert start == (best and best[0])
            if start is not None:
                assert (owners[start : start + size] == -1).all()  # no overlap
                owners[start : start + size] = number
                living.append(start)
        assert memory.holes() == free_pieces(owners, buddies)
    for start in living:
        memory.free(start)
    assert memory.holes() == free_pieces(np.full(num_slots, -1), buddies)


def test_a_power_of_two_merges_back_to_one_block() -> None:
    memory = BuddyAllocator(1024)
    starts = [memory.allocate(n) for n in (1, 100, 3, 257, 64, 7)]
    assert len(memory.holes()) > 1
    for start in reversed(starts):
        assert start is not None
        memory.free(start)
    assert memory.holes() == [(0, 1024)]


def test_splitting_by_hand() -> None:
    memory = BuddyAllocator(16)
    assert memory.allocate(3) == 0  # 16 -> 8 + 8 -> 4 + 4
    assert memory.holes() == [(4, 4), (8, 8)]
    assert memory.allocate(2) == 4  # from the smallest piece that is large enough
    assert memory.allocate(5) == 8
    assert memory.allocate(3) is None  # two free slots are left, at 6
    memory.free(0)
    assert memory.holes() == [(0, 4), (6, 2)]  # 4 and 6 are buddies, but 4 is taken
    memory.free(4)
    assert memory.holes() == [(0, 8)]


def test_memory_of_the_paper_holds_seven_requests_of_2048() -> None:
    """Figure 13a of arXiv 2309.06180: Orca (Max) batches 7.00 requests, in 15.7K slots."""
    memory = BuddyAllocator(15_728)
    assert [memory.allocate(2048) is not None for _ in range(8)] == [True] * 7 + [False]


@pytest.mark.parametrize(("n", "power"), [(1, 1), (2, 2), (3, 4), (25, 32), (32, 32), (33, 64)])
def test_next_power_of_two(n: int, power: int) -> None:
    assert next_power_of_two(n) == power


@either
def test_bad_arguments(kind: type[Allocator]) -> None:
    with pytest.raises(ValueError, match="num_slots must be at least 1, not 0"):
        kind(0)
    memory = kind(8)
    with pytest.raises(ValueError, match="num_tokens must be at least 1, not 0"):
        memory.allocate(0)
    start = memory.allocate(2)
    assert start == 0
    with pytest.raises(ValueError, match=r"no chunk begins at slot 1; chunks begin at \[0\]"):
        memory.free(1)
    memory.free(0)
    with pytest.raises(ValueError, match="no chunk begins at slot 0"):
        memory.free(0)
