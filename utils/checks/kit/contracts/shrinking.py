"""The smallest input on which an answer is wrong."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from utils.checks.kit.contracts.choices import Choices

T = TypeVar("T")
SMALL = 30  # so many of the first inputs are made of small numbers


class Found(NamedTuple, Generic[T]):
    """An input on which an answer is wrong, with what was found wrong."""

    case: T
    fault: Any
    choices: Choices


def wrong_inputs(
    draw: Callable[[Choices], T], wrong: Callable[[T], Any], examples: int, seconds: float
) -> Iterator[Found[T]]:
    """The inputs for which `wrong` returns something; the simplest are drawn first.

    Its seconds are those of the processor: on a busy machine it tries as many inputs.
    """
    end = time.process_time() + seconds
    for number in range(examples):
        most = 1 + number // 6 if number < SMALL else None
        choices = Choices(random.Random(number), most=most) if number else Choices()
        case = draw(choices)
        fault = wrong(case)
        if fault is not None:
            yield Found(case, fault, choices)
        if time.process_time() > end:
            break


def shrunk(
    draw: Callable[[Choices], T],
    wrong: Callable[[T], Any],
    found: Found[T],
    seconds: float,
    runs_first: bool = False,
) -> Found[T]:
    """Strike out items and lower numbers, as long as the answer stays wrong.

    Its seconds are those of the processor; of an answer that sleeps, four times as many on the
    wall. `runs_first`: begin with runs of whole items; that takes fewer trials, which cost much.
    """
    end, end_on_the_wall = time.process_time() + seconds, time.monotonic() + 4 * seconds

    def over() -> bool:
        return time.process_time() > end or time.monotonic() > end_on_the_wall

    tried = {tuple(found.choices.row)}

    def attempt(row: list[int]) -> bool:
        nonlocal found
        choices = Choices(row=row)
        case = draw(choices)
        if tuple(choices.row) in tried or over():
            return False
        tried.add(tuple(choices.row))
        fault = wrong(case)
        if fault is not None:
            found = Found(case, fault, choices)
        return fault is not None

    size = len(_outermost(found.choices.items)) // 2 if runs_first else 0
    while size:
        end_of_run = len(_outermost(found.choices.items))
        while end_of_run > 0:
            run = _outermost(found.choices.items)[max(0, end_of_run - size) : end_of_run]
            row = found.choices.row
            attempt(row[: run[0][0]] + row[run[-1][1] :])
            end_of_run -= size
        size //= 2
    better = True
    while better:
        before = found
        for start, stop in sorted(found.choices.items, reverse=True):
            row = found.choices.row
            attempt(row[:start] + row[stop:])
        place = 0
        while place < len(found.choices.row):
            _lower(place, lambda: found.choices.row, attempt)
            place += 1
        better = found is not before and not over()
    return found


def _outermost(items: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The items that aren't part of another one."""
    outer: list[tuple[int, int]] = []
    for start, stop in sorted(items):
        if not outer or start >= outer[-1][1]:
            outer.append((start, stop))
    return outer


def _lower(place: int, row: Callable[[], list[int]], attempt: Callable[[list[int]], bool]) -> None:
    """The smallest number at this place that is still wrong: 0, or by halving."""
    low, high = 0, row()[place]
    guess = 0
    while low < high and place < len(row()):
        now = row()
        if attempt([*now[:place], guess, *now[place + 1 :]]):
            high = guess
        else:
            low = guess + 1
        guess = (low + high) // 2


def sample(draw: Callable[[Choices], T], count: int) -> list[T]:
    """A fixed choice of inputs, of any size from the first."""
    return [draw(choices_of(number)) for number in range(count)]


def choices_of(number: int) -> Choices:
    """What the input of this number in a `sample` is drawn with."""
    return Choices(random.Random(1 + number))
