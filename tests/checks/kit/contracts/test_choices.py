"""Inputs are drawn over all that is allowed, and can be made again from their rows."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from utils.checks.kit.contracts.choices import Choices


def draw(c: Choices) -> tuple[object, ...]:
    return (
        c.integer(-3, 12),
        c.pick("xyz"),
        c.rarely(4),
        c.size(1, 5000),
        c.real(-1.0, 1.0),
        c.some(lambda: c.integer(0, 9), 1, 6),
        c.shuffled((1, 2, 3, 4)),
    )


@given(st.integers(0, 10_000))
def test_the_row_makes_the_same_input_again(seed):
    first = Choices(random.Random(seed))
    case = draw(first)
    again = Choices(row=first.row)
    assert draw(again) == case
    assert (again.row, again.items) == (first.row, first.items)


@given(st.lists(st.integers(0, 10**6), max_size=40))
def test_any_row_makes_an_input_within_the_bounds(row):
    number, letter, flag, size, real, some, order = draw(Choices(row=row))
    assert -3 <= number <= 12 and letter in "xyz" and flag in (True, False)
    assert 1 <= size <= 5000 and -1 <= real <= 1
    assert 1 <= len(some) <= 6 and all(0 <= n <= 9 for n in some)
    assert sorted(order) == [1, 2, 3, 4]


def test_no_row_makes_the_simplest_input():
    assert draw(Choices()) == (-3, "x", False, 1, -1.0, [0], [1, 2, 3, 4])


def test_sizes_are_small_beside_powers_of_two_and_anywhere():
    c = Choices(random.Random(0))
    sizes = Counter(c.size(1, 5000) for _ in range(3000))
    assert sum(n for size, n in sizes.items() if size <= 6) > 1200
    assert {63, 64, 65, 1023, 1024, 1025, 4097} <= set(sizes)
    assert any(size > 4200 and sizes[size] == 1 for size in sizes)


def test_each_length_of_a_list_is_as_likely():
    c = Choices(random.Random(0))
    lengths = Counter(len(c.some(lambda: 0, 2, 5)) for _ in range(4000))
    assert set(lengths) == {2, 3, 4, 5}
    assert min(lengths.values()) > 850


def test_small_inputs_are_made_of_small_numbers():
    number, _, _, _, _, some, _ = draw(Choices(random.Random(1), most=1))
    assert number in (-3, -2)
    assert len(some) <= 2 and max(some) <= 1
