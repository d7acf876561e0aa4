"""What lab 08 says of stop strings and of text that may be shown: exercise 5."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from utils.checks.kit.runner import Mismatch, call, describe

Verdict = tuple[int, str | None]


class Story(NamedTuple):
    """An answer's text as it comes, in pieces, and the stop strings asked for."""

    stop: list[str]
    pieces: list[str]


STORIES = (
    Story([], ["The sea", " is", " blue."]),
    Story(["END"], ["one", " two"]),
    Story(["END"], ["one ", "END"]),
    Story(["END"], ["one END two"]),
    Story(["END"], ["one E", "ND"]),
    Story(["END"], ["E", "N", "D"]),
    Story(["END"], ["one E", "N", "T two"]),
    Story(["."], ["One", ".", " Two."]),
    Story(["."], ["One. Two. Three"]),
    Story(["X", "Y"], ["one Y two X"]),
    Story(["\n\n"], ["a\n", "b\n", "\nc"]),
    Story(["aab"], ["a", "a", "a", "b"]),
    Story(["ABC", "B"], ["xAB", "C"]),
    Story(["B", "ABC"], ["xABC"]),
    Story(["ABC", "B"], ["xABC"]),
    Story(["User:", "\n"], ["Hello U", "se", "d\n"]),
    Story(["stop", "stopping"], ["do not stopping"]),
    Story(["END"], ["END", " again"]),
)


def random_stories() -> list[Story]:
    """Small alphabets, so that almost-matches are frequent."""
    dice = random.Random(5)

    def word(longest: int) -> str:
        return "".join(dice.choice("aab") for _ in range(dice.randint(1, longest)))

    return [
        Story([word(4) for _ in range(dice.randint(1, 3))],
              [word(3) for _ in range(dice.randint(1, 6))])
        for _ in range(300)
    ]  # fmt: skip


def found_first(text: str, num_gained: int, stop: Sequence[str]) -> Verdict | None:
    """Brute force: walk to the right; the stop string that is complete first ends the text."""
    for end in range(len(text) - num_gained + 1, len(text) + 1):
        for string in stop:
            if text[:end].endswith(string):
                return end - len(string), string
    return None


def held_back(text: str, stop: Sequence[str]) -> int:
    """Brute force: how many characters at the end may be the beginning of a stop string."""
    return max(
        (n for string in stop for n in range(1, len(string)) if text.endswith(string[:n])),
        default=0,
    )


def _told(text: str, num_gained: int, stop: Sequence[str]) -> str:
    return f"text {text!r}, of which the last {num_gained} characters are new; stop {list(stop)}"


def judge_text_to_show(function: Callable[..., Any]) -> str:
    """Check `text_to_show(text, num_gained, stop)` while texts grow."""
    stories = [*STORIES, *random_stories()]
    for story in stories:
        _judge(function, story)
    _early(function)
    return (
        f"{len(stories)} texts in pieces. Stop strings were found across pieces and cut off, the "
        "one that is complete first; nothing that was shown ever had to be taken back."
    )


def _ask(function: Callable[..., Any], text: str, num_gained: int, stop: list[str]) -> Verdict:
    given = _told(text, num_gained, stop)
    got = call(function, text, num_gained, list(stop), given=given)
    if not isinstance(got, tuple) or len(got) != 2:
        raise Mismatch(
            f"Your function returned {describe(got)}; expected a pair: how many characters may be "
            "shown, and the stop string that was found, or None.",
            input=given,
        )  # fmt: skip
    count, string = got
    if not isinstance(count, int) or not 0 <= count <= len(text):
        raise Mismatch(
            f"The first value is {describe(count)}; expected a number of characters from 0 to "
            f"{len(text)}.",
            input=given,
        )  # fmt: skip
    return count, string


def _judge(function: Callable[..., Any], story: Story) -> None:
    text, shown = "", 0
    for piece in story.pieces:
        text += piece
        stop = story.stop
        given = _told(text, len(piece), stop)
        count, string = _ask(function, text, len(piece), stop)
        right = found_first(text, len(piece), stop)
        if right is not None:
            _judge_found((count, string), right, text, len(piece), stop)
            if shown > right[0]:
                raise _taken_back(text, shown, right[1], given)
            return
        if string is not None:
            raise Mismatch(
                f"You find {string!r}, and it is not in the text.", input=given,
                expected="None: no stop string is complete", got=repr(string),
            )  # fmt: skip
        _judge_shown(count, text, stop, given)
        shown = max(shown, count)


def _judge_found(got: Verdict, right: Verdict, text: str, num_gained: int, stop: list[str]) -> None:
    if got == right:
        return
    assert right[1] is not None
    details: dict[str, Any] = dict(
        input=_told(text, num_gained, stop),
        expected=f"show {text[: right[0]]!r}; found {right[1]!r}",
        got=f"show {text[: got[0]]!r}; found {got[1]!r}",
    )  # fmt: skip
    if got[1] is None:
        raise Mismatch(
            "A stop string is missed. It may have begun in an earlier piece of the text.",
            **details,
            look="Search from `len(text) - num_gained - len(string) + 1` on, but not before 0.",
        )  # fmt: skip
    if got[1] not in stop:
        raise Mismatch(
            f"{describe(got[1])} is not one of the stop strings.", **details,
            look="Return the string itself.",
        )  # fmt: skip
    if got[1] != right[1]:
        other = found_first(text, num_gained, [got[1]])
        if other is None:
            raise Mismatch(
                f"You find {got[1]!r}, and it is not in the new text.", **details,
                look="Search in the text, from where a new stop string can begin.",
            )  # fmt: skip
        if other[0] + len(got[1]) == right[0] + len(right[1]):
            raise Mismatch(
                "Two stop strings are complete at the same character. Then the first in the list "
                "counts.",
                **details, look="`<`, not `<=`, when you compare the ends.",
            )  # fmt: skip
        if other[0] < right[0]:
            raise Mismatch(
                "Several stop strings are there, and you take the one that *begins* first. Token "
                "by token, the one that is *complete* first would have ended the answer.",
                **details, look="Compare where they end: `begin + len(string)`.",
            )  # fmt: skip
        raise Mismatch(
            "Several stop strings are there, and you do not take the one that is complete first. "
            "Token by token, that one would have ended the answer, whatever its place in the list.",
            **details, look="Collect all that are found, and take the smallest end.",
        )  # fmt: skip
    if got[0] == right[0] + len(right[1]):
        raise Mismatch(
            "The stop string is shown. It is cut off: the answer ends where it begins.",
            **details, look="Return where the stop string *begins*.",
        )  # fmt: skip
    if got[0] > right[0]:
        raise Mismatch(
            "The text is cut at a later place than where the stop string is found first.",
            **details, look="`text.find` finds the first one, `text.rfind` the last.",
        )  # fmt: skip
    raise Mismatch(
        "The text is cut at the wrong place.", **details,
        look="Return where the stop string begins in the whole text, not in the part you searched.",
    )  # fmt: skip


def _judge_shown(count: int, text: str, stop: list[str], given: str) -> None:
    keep = held_back(text, stop)
    longest = max(map(len, stop), default=1)
    if count > len(text) - keep:
        begun = text[len(text) - keep :]
        raise Mismatch(
            f"{text[:count]!r} is shown, and {begun!r} may be the beginning of a stop string. If "
            "it turns out to be one, the text on the user's screen has to be taken back.",
            input=given, expected=f"at most {len(text) - keep} characters", got=f"{count}",
            look="Keep back the last `len(string) - 1` characters, of the longest stop string.",
        )  # fmt: skip
    if count < len(text) - longest + 1:
        if not stop:
            says = "Without stop strings everything may be shown at once."
        else:
            says = (
                "More is held back than needed. A stop string that is not complete yet has at most "
                f"{longest - 1} of its characters in the text."
            )
        raise Mismatch(
            says, input=given, expected=f"at least {max(0, len(text) - longest + 1)} characters",
            got=f"{count}", look="`len(text) - (len(longest) - 1)`, and not below 0.",
        )  # fmt: skip


def _taken_back(text: str, shown: int, string: str | None, given: str) -> Mismatch:
    return Mismatch(
        f"{text[:shown]!r} was shown already, and now {string!r} is found in it.", input=given,
        look="Keep back what may become a stop string.",
    )  # fmt: skip


def _early(function: Callable[..., Any]) -> None:
    """`min_tokens`: the first part of a text may hold a stop string that must not end it."""
    text, stop = "one. two", ["."]
    for num_gained, what in ((4, "new text without one"), (0, "no new text")):
        given = f"{_told(text, num_gained, stop)}. The stop string came while `min_tokens` held"
        count, string = _ask(function, text, num_gained, stop)
        if string is not None:
            raise Mismatch(
                f"A stop string in old text ends the answer, with {what}. It was allowed there: it "
                "came among the first `min_tokens` tokens.",
                input=given, expected="None", got=repr(string),
                look="It must *end* in the new characters: search from "
                "`len(text) - num_gained - len(string) + 1` on.",
            )  # fmt: skip
        _judge_shown(count, text, stop, given)
