"""What lab 08 says of stop strings and of text that may be shown: exercise 5."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake

Verdict = tuple[int, str | None]
ALPHABETS = ("ab", "aab.", "END \n", "ß🎉a", ".*a")


def draw(c: Choices) -> Given:
    """Almost-matches, several matches, overlaps; short and long strings; old text and new."""
    alphabet = c.pick(ALPHABETS)

    def word(low: int, high: int) -> str:
        size = c.size(low, high)
        if size > 8:  # a long one, not letter by letter
            return ("".join(c.pick(alphabet) for _ in range(3)) * high)[:size]
        return "".join(c.pick(alphabet) for _ in range(size))

    stop = c.some(lambda: word(1, 70), 0, 4)
    if stop and c.rarely(4):  # one is the end, the beginning or the whole of another
        longer = c.pick(stop)
        stop.insert(c.integer(0, len(stop)), c.pick((longer[1:], longer[:-1], longer)) or longer)

    def piece() -> str:
        if not stop or c.rarely(2):
            return word(1, 70)
        string = c.pick(stop)
        return string[: c.pick((len(string), c.integer(0, len(string))))]

    text = "".join(c.some(piece, 0, 8))
    return Given(text, c.integer(0, len(text)), stop)


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


def right_text_to_show(text: str, num_gained: int, stop: list[str]) -> Verdict:
    """The oracle, which holds back no more than what a stop string really begins with."""
    return found_first(text, num_gained, stop) or (len(text) - held_back(text, stop), None)


def _fault(expected: Verdict, got: Any, given: Given) -> Fault | None:
    text, num_gained, stop = given.args
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Fault("form", "", "a pair", got)
    if (
        isinstance(got[0], bool | float)
        or not hasattr(got[0], "__index__")
        or not (0 <= operator.index(got[0]) <= len(text))
    ):
        return Fault("number", "", f"a number of characters from 0 to {len(text)}", got[0])
    count, string = operator.index(got[0]), got[1]
    if expected[1] is not None:
        clause = _of_found((count, string), (expected[0], expected[1]), text, num_gained, stop)
        want, came = (f"show {text[:n]!r}; found {s!r}" for n, s in (expected, (count, string)))
        return Fault(clause, "", expected, got, words=(want, came)) if clause else None
    if string is not None:
        old = isinstance(string, str) and string in stop and string in text
        return Fault("old" if old else "invented", "", "None", repr(string))
    if count > expected[0]:
        return Fault("taken back", "", f"at most {expected[0]} characters shown", f"{count}")
    least = max(0, len(text) - max(map(len, stop), default=1) + 1)
    if count < least:
        clause = "more held" if stop else "held"
        return Fault(clause, "", f"at least {least} characters shown", f"{count}")
    return None


def _of_found(
    got: Verdict, right: tuple[int, str], text: str, num_gained: int, stop: Sequence[str]
) -> str:
    """Which clause is broken where a stop string is there; "" for none."""
    if got[1] is None:
        return "missed"
    if got[1] not in stop:
        return "invented"
    if got[1] != right[1]:
        other = found_first(text, num_gained, [got[1]])
        if other is None:
            return "old"
        if other[0] + len(got[1]) == right[0] + len(right[1]):
            return "tie"
        return "begins first" if other[0] < right[0] else "complete first"
    if got[0] == right[0]:
        return ""
    if got[0] == right[0] + len(right[1]):
        return "shown"
    return "later" if got[0] > right[0] else "place"


def _told(given: Given) -> str:
    text, num_gained, stop = given.args
    return f"text {text!r}, of which the last {num_gained} characters are new; stop {stop}"


def _finds(
    find: Callable[[str, str, int], int], key: Callable[[tuple[int, str]], Any] | None
) -> Callable[..., Verdict]:
    """A wrong answer: how it finds one string (from the given place on), and which it takes."""

    def wrong(text: str, num_gained: int, stop: list[str]) -> Verdict:
        found = [(find(text, s, max(0, len(text) - num_gained - len(s) + 1)), s) for s in stop]
        found = [(begin, s) for begin, s in found if begin >= 0]
        if found:
            return min(found, key=key) if key else found[0]
        return max(0, len(text) - max(map(len, stop), default=1) + 1), None

    return wrong


def _end(found: tuple[int, str]) -> int:
    return found[0] + len(found[1])


def _at_the_end(text: str, string: str, start: int) -> int:
    return len(text) - len(string) if text.endswith(string) else -1


BEGINS = (
    "Several stop strings are there, and you take the one that *begins* first. Token by "
    "token, the one that is *complete* first would have ended the answer."
)
OLD = (
    "A stop string in old text ends the answer. It was allowed there: perhaps it came among the "
    "first `min_tokens` tokens."
)
SEARCH = (
    "It may begin in old text, but it must *end* in the new characters: search from "
    "`len(text) - num_gained - len(string) + 1` on, but not before 0."
)
FIRST = "Collect all that are found, and take the smallest end, `begin + len(string)`."

TEXT_TO_SHOW = Contract(
    inputs=draw,
    judge=Returns(right_text_to_show, wrong=_fault),
    passed="Right for old and new text in pieces. Stop strings were found across pieces and cut "
    "off, the one that is complete first; nothing that was shown had to be taken back.",
    clauses={
        "form": Clause(
            "Your function returned {got}; expected a pair: how many characters may be "
            "shown, and the stop string that was found, or None."
        ),
        "number": Clause("The first value is {got}; expected {expected}."),
        "missed": Clause(
            "A stop string is missed. It may have begun in an earlier piece of the "
            "text, and more may come after it.",
            SEARCH,
        ),
        "invented": Clause("You find {got}; expected {expected}.", "Return the string itself."),
        "old": Clause(OLD, SEARCH),
        "tie": Clause(
            "Two stop strings are complete at the same character. Then the first in the "
            "list counts.",
            "`<`, not `<=`, when you compare the ends.",
        ),
        "begins first": Clause(BEGINS, FIRST),
        "complete first": Clause(
            "Several stop strings are there, and you do not take the one that "
            "is complete first. Token by token, that one would have ended the "
            "answer, whatever its place in the list.",
            FIRST,
        ),
        "shown": Clause(
            "The stop string is shown. It is cut off: the answer ends where it begins.",
            "Return where the stop string *begins*.",
        ),
        "later": Clause(
            "The text is cut at a later place than where the stop string is found first.",
            "`text.find` finds the first one, `text.rfind` the last.",
        ),
        "place": Clause(
            "The text is cut at the wrong place.",
            "Return where the stop string begins in the whole text, not in the part "
            "you searched. In old text it does not count.",
        ),
        "taken back": Clause(
            "What is shown may turn out to be the beginning of a stop string. "
            "Then the text on the user's screen has to be taken back.",
            "Keep back the last `len(string) - 1` characters, of the longest stop string.",
        ),
        "held": Clause("Without stop strings everything may be shown at once."),
        "more held": Clause(
            "More is held back than needed. A stop string that is not complete yet "
            "has at most all its characters but one in the text.",
            "`len(text) - (len(longest) - 1)`, and not below 0.",
        ),
    },
    mistakes=(
        mistake(
            "A stop string is missed. You look for it only at the very end of the text.",
            "More may come after it in the same piece. " + SEARCH,
            _finds(_at_the_end, _end),
            _finds(_at_the_end, None),
        ),
        mistake(OLD, SEARCH, _finds(lambda text, s, start: text.find(s), _end)),
        mistake(BEGINS, FIRST, _finds(str.find, lambda found: found[0])),
        mistake(
            "Several stop strings are there, and you take the first in the list, not the one "
            "that is complete first.",
            FIRST,
            _finds(str.find, None),
        ),
        mistake(
            "A stop string is missed: you look only in the new characters. It may have begun "
            "in an earlier piece.",
            SEARCH,
            _finds(lambda text, s, start: text.find(s, start + len(s) - 1), _end),
        ),
    ),
    tell=_told,
    examples=600,
)
