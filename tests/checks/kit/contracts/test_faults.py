"""Whatever the learner's code does, the check goes on."""

from __future__ import annotations

import sys

import pytest

from utils.checks.kit.contracts.faults import Fault, NoEnd, Raised, attempt
from utils.checks.kit.patience import patience_of
from utils.checks.kit.runner import NotWritten


class OwnError(ValueError):
    pass


def stub():
    raise NotImplementedError


def loop():
    while True:
        pass


def test_an_error_becomes_a_value_with_words():
    def fails():
        raise OwnError("too many")

    raised = attempt(fails)
    assert raised == Raised(ValueError) and raised != Raised(KeyError)
    assert raised.says == "Your code raised OwnError: too many."
    assert "in `fails`" in raised.look
    assert str(raised) == "OwnError"


def test_code_that_hangs_ends_or_is_not_written():
    with patience_of(1):
        raised = attempt(loop)
    assert raised == Raised(NoEnd) and str(raised) == "no end"
    assert Fault("returns", got=raised).never_ended
    assert attempt(sys.exit) == Raised(SystemExit)
    assert attempt(lambda: 1 / 0) == Raised(ArithmeticError)
    assert attempt(len, [1, 2]) == 2
    with pytest.raises(NotWritten):
        attempt(stub)


def test_the_user_can_still_interrupt():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(interrupted)
