"""A play is told to a right class and to the learner's; the first difference ends it."""

from __future__ import annotations

import contextlib

import pytest

from utils.checks.kit.contracts.faults import Raised
from utils.checks.kit.contracts.plays import InLockstep, Stage


class Stack:
    def __init__(self):
        self.items = []

    @property
    def size(self):
        return len(self.items)

    def push(self, new):
        self.items.extend(new)
        return list(self.items)

    def pop(self):
        if not self.items:
            raise ValueError("empty")
        return self.items.pop()


def play(stage: Stage, stack_class, steps):
    stacks = [stage.do(stack_class) for _ in range(2)]
    for which, new in steps:
        stage.step(f"push({new})" if new else "pop()")
        args = ("push", list(new)) if new else ("pop",)
        got = stage.call(stacks[which], *args)
        stage.see(args[0], got)
        if isinstance(got, list):
            got.append("the caller's")
        for stack in stacks:
            stage.see("size", stage.read(stack, "size"))


STEPS = ((0, ()), (0, (1, 2)), (1, (3,)), (0, ()), (1, ()))
JUDGE = InLockstep(play, Stack)


def but(**changes):
    return type("Changed", (Stack,), {"__module__": __name__, **changes})


def fault_of(answer, judge=JUDGE):
    return judge.fault(answer, STEPS, judge.expect(STEPS))


def test_a_right_class_plays_to_the_end():
    assert fault_of(Stack) is None
    own_error = type("Empty", (ValueError,), {})

    def pop(self):
        if not self.items:
            raise own_error
        return self.items.pop()

    assert fault_of(but(pop=pop)) is None


@pytest.mark.parametrize(
    ("changes", "clause", "where"),
    [
        ({"pop": lambda self: self.items.pop()}, "pop", "pop()"),
        ({"size": 0}, "size", "pop(), push((1, 2))"),
        ({"size": lambda self: 0}, "method", "pop()"),
        (
            {"push": lambda self, new: (self.items.extend(new), self.items)[1]},
            "size",
            "pop(), push((1, 2))",
        ),
        ({"items": [], "__init__": lambda self: None}, "size", "pop(), push((1, 2))"),
        (
            {
                "push": lambda self, new: (
                    [new.reverse(), self.items.extend(new)] and list(self.items)
                )
            },
            "changes",
            "pop(), push((1, 2))",
        ),
        ({"push": None}, "push", "pop(), push((1, 2))"),
    ],
)
def test_the_first_difference(changes, clause, where):
    answer = but(**changes)
    for _ in range(2):  # and the class body is put back
        fault = fault_of(answer)
        assert (fault.clause, fault.where) == (clause, where)


def test_values_and_words():
    fault = fault_of(but(pop=lambda self: 7))
    assert (fault.expected, fault.got) == (Raised(ValueError), 7)
    assert fault.words == ("ValueError", "`7`")


def test_a_pretended_model_can_end_the_play_and_nothing_swallows_it():
    def tells(stage, loop, case):
        stage.do(loop, lambda number: stage.expect("order", case, number))

    def swallows(model):
        try:
            model(8)
        except Exception:
            return 0

    judge = InLockstep(tells, None)
    fault = judge.fault(swallows, 7, [])
    assert (fault.clause, fault.expected, fault.got) == ("order", 7, 8)
    assert (
        judge.fault(
            lambda model: model(7),
            7,
            [*InLockstep(lambda stage, _, case: stage.do(lambda: None), None).expect(7)],
        )
        is None
    )


def test_the_present_step_can_replace_all_before():
    stage = Stage([])
    stage.step("first")
    stage.now("call 7")
    stage.step("inside")
    with pytest.raises(BaseException):  # noqa: B017
        stage.blame("clause", 1, 2)
    assert stage.fault.where == "call 7, inside"


def each(stage, function, case):
    for number in stage.do(function, case):
        stage.see("number" if number < 5 else "large", number)


@pytest.mark.parametrize(
    ("function", "expected", "got"),
    [
        (lambda n: [1, 2], 3, "nothing"),
        (lambda n: [1, 2, 3, 4], "nothing", 4),
        (lambda n: [1, 9, 3], 2, "large: `9`"),
    ],
)
def test_less_and_more_than_the_right_one_shows(function, expected, got):
    judge = InLockstep(each, lambda n: [1, 2, 3])
    fault = judge.fault(function, 0, judge.expect(0))
    assert (fault.clause, fault.expected, fault.got) == ("number", expected, got)


def test_words_for_values_that_none_are_made_for():
    stage = Stage([])
    with contextlib.suppress(BaseException):
        stage.blame("clause", [1], None, lambda numbers: f"first {numbers[0]}")
    assert stage.fault.words == ("first 1", "`None`")
