"""The check of notebook 00b: from the answers to its twelve questions, where to start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LETTERS = "abcd"
UNANSWERED = "?"
AFTER = "09"  # where somebody starts who knows all of it


@dataclass(frozen=True)
class Question:
    """One of the twelve.

    Attributes:
        lesson: the one that answers it.
        right: the letter of the right option.
        because: why, in a sentence.
    """

    lesson: str
    right: str
    because: str


QUESTIONS = {
    1: Question("01", "c", "Each step reads all weights: 16 GB at 1 TB/s take 16 ms."),
    2: Question("01", "a", "Dividing the logits by more brings them closer to each other."),
    3: Question("02", "b", "A step asks with the newest token's query only. It asks all keys."),
    4: Question("02", "d", "2 x 32 layers x 8 KV heads x 128 numbers x 2 bytes = 131,072."),
    5: Question("03", "a", "It lies inside of what was reserved, so no other request can use it."),
    6: Question("04", "b", "Token 20 is in the second block of its table, at place 20 - 16 = 4."),
    7: Question("04", "d", "Otherwise each would overwrite the other's keys and values."),
    8: Question("05", "b", "Only full blocks have a hash, and 40 tokens fill two blocks of 16."),
    9: Question("05", "c", "So equal tokens after another beginning are another block."),
    10: Question("06", "c", "Between two chunks everybody else gets a token."),
    11: Question(
        "07", "b", "Two guesses, and the token that the model gives instead of the third."
    ),
    12: Question("08", "a", "Where two logits nearly tie, another order of sums can swap them."),
}


def where_to_start(answers: Mapping[int, str]) -> None:
    """Print which lessons you may skip, and what you missed.

    Args:
        answers: number of the question -> letter, or "?" where you don't know.

    Raises:
        ValueError: a question is missing, or an answer is no such letter.
    """
    if answers.keys() != QUESTIONS.keys():
        raise ValueError(f"Expected answers to the questions 1 to {len(QUESTIONS)}, got those to "
                         f"{', '.join(map(str, answers))}.")  # fmt: skip
    for number, letter in answers.items():
        if letter not in (*LETTERS, UNANSWERED):
            raise ValueError(
                f'Question {number}: expected "a", "b", "c" or "d", or "?" if you don\'t know, '
                f"got {letter!r}."
            )
    if set(answers.values()) == {UNANSWERED}:
        print("Put your letters into this cell, and run it again. New to all of this? Go to 01.")
        return
    missed = {n: q for n, q in QUESTIONS.items() if answers[n] != q.right}
    for number, question in missed.items():
        print(f"{number:>2}. {question.right}: {question.because} (notebook {question.lesson})")
    lessons = sorted({question.lesson for question in QUESTIONS.values()})
    to_read = sorted({question.lesson for question in missed.values()})
    print(
        f"\n{len(QUESTIONS) - len(missed)} of {len(QUESTIONS)} right." + _advice(lessons, to_read)
    )


def _advice(lessons: list[str], to_read: list[str]) -> str:
    if not to_read:
        return f" You know what Part I explains. Start with notebook {AFTER}, or with any lab."
    first = to_read[0]
    known = [lesson for lesson in lessons if lesson not in to_read]
    before, later = [n for n in known if n < first], [n for n in known if n > first]
    advice = f" Start with notebook {first}."
    if before:
        advice += f" You may skip {_listed(before)}."
    if later:
        advice += f" Later you may skip {_listed(later)}."
    return advice


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
