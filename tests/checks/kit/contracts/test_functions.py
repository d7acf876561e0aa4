"""Functions are judged by their result, their manners and their second call."""

from __future__ import annotations

import pytest
import torch

from utils.checks.kit.contracts.faults import Fault
from utils.checks.kit.contracts.functions import Given, Returns
from utils.checks.kit.contracts.guards import Once
from utils.checks.kit.patience import patience_of


def doubled(numbers, times=2):
    if times < 0:
        raise ValueError("negative")
    return [n * times for n in numbers]


def in_place(numbers, times=2):
    if times < 0:
        raise ValueError
    for i, n in enumerate(numbers):
        numbers[i] = n * times
    return list(numbers)


def keeps(numbers, times=2, kept=[]):  # noqa: B006
    kept.append(1)
    return [n * times for n in numbers] + [0] * (len(kept) - 1)


@pytest.mark.parametrize(
    ("answer", "given", "clause"),
    [
        (doubled, Given([1, 2]), None),
        (doubled, Given([1, 2], times=3), None),
        (doubled, Given([1], -1), None),
        (lambda numbers, times=2: [2 * n for n in numbers], Given([1], 3), "returns"),
        (lambda numbers, times=2: None, Given([1]), "returns"),
        (lambda numbers, times=2: numbers[9], Given([1]), "raises"),
        (lambda numbers, times=2: numbers * times, Given([1], -1), "refuses"),
        (lambda numbers, times=2: numbers[9], Given([1], -1), "refuses"),
        (in_place, Given([1, 2]), "changes"),
        (keeps, Given([1, 2]), "again"),
    ],
)
def test_the_first_broken_clause(answer, given, clause):
    judge = Returns(doubled)
    for _ in range(2):
        fault = judge.fault(answer, given, judge.expect(given))
        assert (fault and fault.clause) == clause


def test_another_error_than_the_one_that_is_asked_for_is_told_in_its_own_words():
    given = Given([1], -1)
    judge = Returns(doubled)
    none = judge.fault(lambda numbers, times=2: numbers * times, given, judge.expect(given))
    other = judge.fault(lambda numbers, times=2: numbers[9], given, judge.expect(given))
    assert none is not None and none.says == ""
    assert other is not None and other.says.startswith("Your code raised IndexError")


def test_a_second_call_that_is_too_slow_keeps_nothing():
    calls = []

    def slower(numbers, times=2):
        calls.append(1)
        while len(calls) > 1:
            pass
        return [n * times for n in numbers]

    judge = Returns(doubled)
    with patience_of(1):
        fault = judge.fault(slower, Given([1]), [2])
    assert fault is not None and fault.never_ended and fault.clause == "raises"


def test_own_memory_is_asked_for_if_wanted():
    x = Given(torch.ones(3))
    assert Returns(lambda x: x.clone()).fault(lambda x: x[:], x, torch.ones(3)) is None
    fault = Returns(lambda x: x.clone(), own=True).fault(lambda x: x[:], x, torch.ones(3))
    assert fault is not None and fault.clause == "shares"


def test_iterators_can_be_walked_once():
    judge = Returns(lambda items: sum(items))
    given = Given(Once([1, 2]))
    assert judge.fault(sum, given, judge.expect(given)) is None
    assert judge.fault(lambda items: sum(items) + sum(items), given, 3) is None
    fault = judge.fault(lambda items: sum(items) / sum(items), given, 3)
    assert fault is not None and fault.clause == "raises"


def test_more_than_one_answer_may_be_right():
    def wrong(expected, got, given):
        return None if got in given.args[0] else Fault("member", "", expected, got)

    judge = Returns(lambda numbers: min(numbers), wrong=wrong)
    given = Given([3, 1, 2])
    assert judge.fault(max, given, judge.expect(given)) is None
    fault = judge.fault(sum, given, judge.expect(given))
    assert fault is not None and fault.clause == "member"


def test_the_input_in_words():
    assert Returns(doubled).tell(Given([1, 2], times=3)) == "numbers [1, 2], times 3"
    told = Returns(doubled).tell(Given(torch.tensor([1.5])))
    assert told == "numbers [1.5] (shape (1,), float32)"
