"""The smallest input is found, whatever was found first."""

from __future__ import annotations

import itertools
import random

import pytest

from utils.checks.kit import patience
from utils.checks.kit.contracts.choices import Choices
from utils.checks.kit.contracts.shrinking import Found, sample, shrunk, wrong_inputs
from utils.checks.kit.patience import watching


def numbers(c: Choices) -> list[int]:
    return c.some(lambda: c.integer(0, 1000), 0, 30)


def smallest(draw, wrong, examples=300):
    found = next(wrong_inputs(draw, wrong, examples, seconds=20), None)
    return None if found is None else shrunk(draw, wrong, found, seconds=20).case


@pytest.mark.parametrize(
    ("wrong", "case"),
    [
        (lambda ns: any(n >= 437 for n in ns), [437]),
        (lambda ns: len(ns) >= 7, [0] * 7),
        (lambda ns: sum(n > 10 for n in ns) >= 3, [11, 11, 11]),
        (lambda ns: any(a > b for a, b in itertools.pairwise(ns)), [1, 0]),
    ],
)
def test_it_finds_the_smallest(wrong, case):
    assert smallest(numbers, lambda ns: wrong(ns) or None) == case


def test_the_simplest_input_comes_first_and_small_ones_next():
    seen = []
    assert not [*wrong_inputs(numbers, lambda ns: seen.append(ns), 40, seconds=20)]
    assert seen[0] == []
    assert all(max(ns, default=0) <= 5 for ns in seen[:30])
    assert max(map(len, seen[30:])) > 20


def test_a_right_answer_is_tried_on_so_many_inputs_and_no_longer_than_allowed():
    seen = []
    assert smallest(numbers, lambda ns: seen.append(ns), examples=55) is None
    assert len(seen) == 55


def test_no_more_inputs_are_tried_than_there_is_time_for(tick):
    """Time of the processor: on a busy machine, as many are tried."""
    seen = []

    def slow(ns):
        seen.append(ns)
        tick()

    with watching():  # which hears the ticks
        seconds = 99.5 * patience.COMPUTING_S
        assert not [*wrong_inputs(numbers, slow, 10**6, seconds)]
    assert len(seen) == 100


def test_a_fault_that_does_not_show_again_stays_as_it_was_found():
    choices = Choices(random.Random(3))
    found = Found(numbers(choices), "once", choices)
    assert shrunk(numbers, lambda ns: None, found, seconds=5) is found


def test_the_sample_is_fixed_and_varied():
    assert sample(numbers, 20) == sample(numbers, 20)
    assert len({tuple(ns) for ns in sample(numbers, 20)}) > 15
