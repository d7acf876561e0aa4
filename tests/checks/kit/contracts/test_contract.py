"""An exercise from end to end: smallest input, known mistakes by name, clauses for the others."""

from __future__ import annotations

import math
import time
from typing import ClassVar

import pytest
from matplotlib.figure import Figure

from utils.checks.kit import patience
from utils.checks.kit.contracts import (
    Choices,
    Clause,
    Contract,
    Fault,
    Given,
    InLockstep,
    Raised,
    Returns,
    Stage,
    contract,
    mistake,
)
from utils.checks.kit.runner import Mismatch, exercise


def draw(c: Choices) -> Given:
    return Given(c.size(1, 10_000), c.size(1, 64), *([c.size(0, 20)] if c.rarely(3) else []))


def oracle(num_tokens: int, block_size: int, num_reserved: int = 0) -> int:
    return len({slot // block_size for slot in range(num_tokens)}) + num_reserved


NUM_BLOCKS = Contract(
    inputs=draw,
    judge=Returns(oracle),
    passed=lambda answer: f"Right: {answer(1000, 16)} blocks.",
    clauses={"returns": Clause("Not {got} but {expected}: {says}", "Round up.")},
    mistakes=(
        mistake("Rounded down.", "`math.ceil`.", lambda n, b, r=0: n // b + r),
        mistake("Reserved blocks are ignored.", "Add.", lambda n, b, r=0: math.ceil(n / b)),
    ),
)


@exercise("Exercise 1: num_blocks", points=2)
def num_blocks(function):
    return NUM_BLOCKS.check(function)


def details(feedback):
    return dict(feedback.details)


def right(n, b, r=0):
    return -(-n // b) + r


def test_a_right_answer_passes_after_a_few_hundred_calls():
    calls = []

    def counted(*args):
        calls.append(args)
        return right(*args)

    feedback = num_blocks(counted)
    assert feedback.passed and feedback.headline == "Right: 63 blocks."
    # Twice on each input, then behind other calls, and once for the words: that takes a moment.
    assert 300 <= len(calls) < 600


def test_a_known_mistake_is_named_on_the_smallest_input():
    feedback = num_blocks(lambda n, b, r=0: (n - n % b) // b + r)
    assert feedback.headline == "Rounded down."
    assert details(feedback) == {
        "Input": "num_tokens 1, block_size 2",
        "Expected": "`1`",
        "Yours": "`0`",
        "Where to look": "`math.ceil`.",
    }


def test_another_one_gets_the_clause_and_its_smallest_input():
    feedback = num_blocks(lambda n, b, r=0: min(right(n, b, r), 70))
    assert feedback.headline == "Not `70` but `71`: The number is 0.9859 times what it should be."
    assert details(feedback)["Input"] == "num_tokens 71, block_size 1"


def test_a_mistake_that_only_begins_alike_is_not_named():
    def rounds_down_small_ones(n, b, r=0):
        return n // b + r if n < 100 else right(n, b, r)

    assert num_blocks(rounds_down_small_ones).headline.startswith("Not `0` but `1`")


def prints_much(n, b, r=0):
    for number in range(100):
        print("block", number)
    return 0


def is_a_stub(n, b, r=0):
    raise NotImplementedError


class FailsToCompare:
    def __eq__(self, other):
        raise RuntimeError("no comparison")

    __hash__ = None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda n, b, r=0: 1 // (n - 1), "raised ZeroDivisionError"),
        (lambda n, b: right(n, b), "raised TypeError"),
        (lambda n, b, r=0: exit(), "ends Python"),
        (None, "not callable"),
    ],
)
def test_no_answer_breaks_the_check(answer, words):
    feedback = num_blocks(answer)
    assert feedback.status == "failed"
    assert words in feedback.headline
    assert details(feedback)["Input"]


def test_a_hanging_answer_is_shown_on_a_small_input(tick):
    def hangs_sometimes(n, b, r=0):
        while n > 8:
            tick()
        return right(n, b, r)

    feedback = num_blocks(hangs_sometimes)
    assert feedback.headline == "Your code does not come to an end."
    assert details(feedback)["Input"] == "num_tokens 9, block_size 1"
    assert time.process_time() < 2  # the clock of ticks; a second chance alone would take more


@pytest.mark.parametrize("slow_call", [3, 350])  # alone, and behind calls with other arguments
def test_a_slow_right_answer_is_not_taken_for_an_endless_one(tick, slow_call):
    calls = 0

    def slow_at_times(n, b, r=0):
        nonlocal calls
        calls += 1
        if calls in (slow_call, slow_call + 1):
            for _ in range(2 * patience.TICKS):
                tick()
        return right(n, b, r)

    assert num_blocks(slow_at_times).passed
    assert calls > slow_call


def test_a_known_mistake_is_named_however_slowly_it_is_made(tick):
    """Large inputs take longer than the patience that is enough to see most answers end."""

    def slow_on_large_ones(n, b, r=0):
        for _ in range(2 * contract.HURRIED_TICKS if n > 2000 else 0):
            tick()
        return n // b + r

    assert num_blocks(slow_on_large_ones).headline == "Rounded down."


def remembers_the_first(n, b, r=0, known={}):  # noqa: B006
    """Each input alone is answered rightly, and again; then another one comes."""
    return known.setdefault(b, right(n, b, r))


def test_what_is_kept_from_other_calls_is_seen():
    feedback = num_blocks(remembers_the_first)
    assert feedback.headline.startswith("Right when it is called for the first time; wrong behind")
    assert details(feedback)["Input"].endswith("behind calls with other arguments")


def test_what_is_kept_is_seen_by_judges_that_are_made_of_returns():
    more = type("More", (Returns,), {})
    with pytest.raises(Mismatch, match="Right when it is called for the first time; wrong behind"):
        Contract(draw, more(oracle), "Right.").check(remembers_the_first)
    aside = type("Aside", (Returns,), {"keeps_from_call_to_call": False})
    assert Contract(draw, aside(oracle), "Right.").check(remembers_the_first) == "Right."


def test_a_fault_is_not_exchanged_for_a_missing_line_on_a_smaller_input():
    seen = []

    def half_written(n, b, r=0):
        """Wrong from 9 on. What comes then, while smaller inputs are tried, is a stub."""
        if n < 9 and seen:
            raise NotImplementedError
        seen.extend([n] * (n >= 9))
        return right(n, b, r) if n < 9 else 0

    with pytest.raises(Mismatch) as caught:
        Contract(draw, Returns(oracle), "").check(half_written)
    assert dict(caught.value.details)["Input"].startswith("num_tokens 9,")


def test_an_answer_that_keeps_nothing_is_told_its_own_fault():
    """It is wrong on large inputs only, which come first where calls follow each other."""
    with pytest.raises(Mismatch, match="The number of blocks is wrong") as caught:
        Contract(
            draw,
            Returns(oracle),
            "",
            {"returns": Clause("The number of blocks is wrong.")},
            examples=20,
        ).check(lambda n, b, r=0: right(n, b, r) if n < 100 else 0)
    assert dict(caught.value.details)["Input"] == "num_tokens 100, block_size 1"


def test_what_is_kept_rightly_may_be_kept():
    assert num_blocks(
        lambda n, b, r=0, known={}: known.setdefault((n, b, r), right(n, b, r))
    ).passed


def test_a_result_that_later_calls_change_is_seen():
    buffer = []

    def numbers(n):
        buffer[:] = range(n)
        return buffer

    contract = Contract(lambda c: Given(c.integer(0, 5)), Returns(lambda n: [*range(n)]), "Right.")
    assert contract.check(lambda n: [*range(n)]) == "Right."
    with pytest.raises(Mismatch, match="What was returned is changed by later calls"):
        contract.check(numbers)


def test_what_the_answer_prints_is_shown_once(capsys):
    feedback = num_blocks(prints_much)
    assert details(feedback)["Your code prints on this input"].startswith("block 0\nblock 1\n")
    assert capsys.readouterr().out.count("block 1\n") <= 1  # that of the message itself


def test_what_cannot_be_compared_is_refused_in_words():
    always = Contract(draw, Returns(oracle, wrong=lambda e, got, g: got == e or None), "Right.")
    with pytest.raises(Exception, match="cannot be checked: RuntimeError: no comparison"):
        always.check(lambda n, b, r=0: FailsToCompare())


class FailsToShow:
    def __repr__(self):
        raise RuntimeError("no words")


def test_what_cannot_be_shown_is_named_by_its_type():
    assert details(num_blocks(lambda n, b, r=0: FailsToShow()))["Yours"] == "a FailsToShow"


def test_a_stub_is_not_written_yet():
    assert num_blocks(is_a_stub).status == "not written yet"


# --- a class, and a function that is given a model ------------------------------------------------


class Right:
    def __init__(self, size):
        self.size, self.held = size, {}

    def put(self, key, value):
        if key not in self.held and len(self.held) == self.size:
            del self.held[next(iter(self.held))]
        self.held[key] = value

    def get(self, key):
        if key in self.held:
            self.held[key] = self.held.pop(key)
        return self.held.get(key)


class NoTouch(Right):
    def get(self, key):
        return self.held.get(key)


def draw_story(c):
    def step():
        return c.pick(("put", "get")), c.pick("abcd"), c.integer(0, 9)

    return c.size(1, 6), c.some(step, 0, 40)


def play(stage: Stage, cache_class, story):
    size, steps = story
    cache = stage.do(cache_class, size)
    stage.see("new", cache if isinstance(cache, Raised) else "a cache")
    for name, key, value in steps:
        args = (key, value) if name == "put" else (key,)
        stage.step(f"{name}({', '.join(map(str, args))})")
        stage.see(
            name, stage.call(cache, name, *args), picture=lambda e, g: (Figure(), f"{e}, {g}")
        )


CACHE = Contract(
    inputs=draw_story,
    judge=InLockstep(play, Right),
    passed="Right.",
    clauses={"get": Clause("`get` gives {got}; expected {expected}.", "Who goes first?")},
    mistakes=(mistake("A `get` is a use, too.", "Move it.", NoTouch),),
    tell=lambda story: f"{story[0]} slots",
    examples=300,
)


@exercise("Exercise 2: Cache", points=2)
def cache(cache_class):
    return CACHE.check(cache_class)


def test_a_class_is_judged_by_stories():
    assert cache(Right).passed
    feedback = cache(type("Mine", (NoTouch,), {}))
    assert feedback.headline == "A `get` is a use, too."
    assert details(feedback)["Input"].count("put") == 3
    assert feedback.picture and feedback.picture_alt

    class Loses(Right):
        def get(self, key):
            return None if len(self.held) == 3 else super().get(key)

    class Keeps(Right):
        made: ClassVar[list[int]] = []

        def __init__(self, size):
            self.made.append(size)
            super().__init__(self.made[0])

    feedback = cache(Keeps)
    assert "Something outlives the object" in feedback.headline

    feedback = cache(Loses)
    assert feedback.headline.startswith("`get` gives `None`; expected `")
    assert details(feedback)["Input"].startswith("3 slots; put(")
    assert details(feedback)["Where to look"] == "Who goes first?"


def test_methods_that_are_missing_or_not_written():
    assert (
        "has no attribute 'get'"
        in cache(
            type("No", (), {"__init__": lambda self, size: None, "put": lambda *a: None})
        ).headline
    )

    class Half(Right):
        def get(self, key):
            raise NotImplementedError

    assert cache(Half).status == "not written yet"


def test_a_fault_quotes_its_own_sentence():
    contract = Contract(
        draw,
        Returns(oracle, wrong=lambda e, g, given: Fault("own", "here", e, g, "A sentence.")),
        "Right.",
        {"own": Clause("First. {says}")},
    )
    with pytest.raises(Exception, match=r"First\. A sentence\."):
        contract.check(right)
