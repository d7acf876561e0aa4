"""The puzzles are balanced, and their conclusions are read as a person would read them."""

from __future__ import annotations

from collections import Counter

import pytest

from utils.pipeline.studies.logic_puzzles import PUZZLES, YES_NO, Puzzle


def test_always_saying_the_same_is_right_in_half() -> None:
    questions = [puzzle for puzzle in PUZZLES if puzzle.options == YES_NO]
    right = Counter(puzzle.right for puzzle in questions)
    assert right["yes"] == right["no"] == len(questions) / 2
    pairs = [puzzle for puzzle in PUZZLES if puzzle.options != YES_NO]
    firsts = sum(puzzle.right == puzzle.options[0] for puzzle in pairs)
    assert firsts == len(pairs) / 2
    assert len({puzzle.messages()[0]["content"] for puzzle in PUZZLES}) == len(PUZZLES) == 16


def test_each_puzzle_reads_its_own_right_answer() -> None:
    for puzzle in PUZZLES:
        assert puzzle.right in puzzle.options
        [other] = set(puzzle.options) - {puzzle.right}
        assert puzzle.conclusion(f"It is {puzzle.right}, not {other}.") == puzzle.right
        assert puzzle.conclusion(f"{other.capitalize()}. Not {puzzle.right}.") == other
        assert puzzle.messages()[0]["content"].startswith(puzzle.question)


def test_numbers_are_right() -> None:
    numbers = [puzzle for puzzle in PUZZLES if puzzle.options[0][0].isdigit()]
    assert len(numbers) == 3
    for puzzle in numbers:
        assert puzzle.right == max(puzzle.options, key=float)


@pytest.mark.parametrize(
    ("options", "answer", "conclusion"),
    [
        (YES_NO, "No, no. The answer is yes.", "no"),
        (YES_NO, "YES", "yes"),
        (YES_NO, "Nobody knows; yesterday it rained.", None),
        (YES_NO, "", None),
        (("7", "12"), "The number 12 is larger than 7.", "12"),
        (("7", "12"), "127 or 71, or 7.5", None),
        (("0.9", "0.11"), "Between 10.9 and 0.95 lies 0.11.", "0.11"),
        (("9", "11"), "0.9 or 0.11: 11.", "11"),
        (("a mouse", "an elephant"), "A mouse. An elephant is grey.", "a mouse"),
    ],
)
def test_conclusion(options: tuple[str, str], answer: str, conclusion: str | None) -> None:
    assert Puzzle("?", options, options[0]).conclusion(answer) == conclusion
