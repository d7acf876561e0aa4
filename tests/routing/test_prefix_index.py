"""The index of blocks, against a brute-force one: a set of hashes per replica."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.routing.prefix_index import KVIndex, RoutingHistory

N = 4
names = st.lists(st.integers(0, 9), max_size=8)
events = st.lists(
    st.tuples(st.sampled_from(["stored", "removed", "cleared"]), st.integers(0, N - 1), names),
    max_size=30,
)


def leading(held: set[Any], prompt: list[Any]) -> int:
    return len(list(itertools.takewhile(held.__contains__, prompt)))


@given(events, names)
def test_index_is_a_set_per_replica(
    happened: list[tuple[str, int, list[int]]], prompt: list[int]
) -> None:
    index, held = KVIndex(N), [set[int]() for _ in range(N)]
    for what, replica, hashes in happened:
        if what == "stored":
            index.stored(replica, hashes)
            held[replica] |= set(hashes)
        elif what == "removed":
            index.removed(replica, hashes)
            held[replica] -= set(hashes)
        else:
            index.cleared(replica)
            held[replica].clear()
    assert index.matches(prompt) == [leading(blocks, prompt) for blocks in held]
    assert len(index) == sum(map(len, held))


def named(tokens: list[int]) -> list[str]:
    """A name for each token that names all tokens up to it, as a block hash does."""
    return [str(tokens[: end + 1]) for end in range(len(tokens))]


prompts = st.lists(st.integers(0, 2), max_size=5).map(named)


@given(st.lists(st.tuples(st.integers(0, N - 1), prompts), max_size=20), prompts, st.integers(1, 6))
def test_history_keeps_the_latest(
    sent: list[tuple[int, list[str]]], prompt: list[str], most: int
) -> None:
    history = RoutingHistory(N, most)
    order: list[list[str]] = [[] for _ in range(N)]  # oldest first
    for replica, hashes in sent:
        history.sent(replica, hashes)
        for name in reversed(hashes):
            if name in order[replica]:
                order[replica].remove(name)
            order[replica].append(name)
        order[replica] = order[replica][-most:]
    assert history.matches(prompt) == [leading(set(held), prompt) for held in order]


def test_truth_learns_nothing_from_what_was_sent_and_history_all() -> None:
    truth, history = KVIndex(2), RoutingHistory(2)
    for index in (truth, history):
        index.sent(1, [1, 2, 3])
    assert truth.matches([1, 2, 9]) == [0, 0]
    assert history.matches([1, 2, 9]) == [0, 2]
    history.cleared(1)
    history.sent(0, [1])
    assert history.matches([1, 2]) == [1, 0]


@pytest.mark.parametrize("make", [lambda: KVIndex(0), lambda: RoutingHistory(2, 0)])
def test_bad_sizes_are_refused(make: object) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make()  # type: ignore[operator]
