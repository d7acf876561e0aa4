"""The check of notebook 00b: from the answers to its twelve questions, where to start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from IPython.display import Markdown

LETTERS = "abcd"
UNANSWERED = "?"
AFTER = "09"  # where somebody starts who knows all of it
FILES = {
    "01": "01_prefill_and_decode",
    "02": "02_kv_cache",
    "03": "03_kv_memory_waste",
    "04": "04_paged_allocator",
    "05": "05_prefix_caching",
    "06": "06_continuous_batching",
    "07": "07_speculative_decoding",
    "08": "08_the_engine",
    AFTER: "09_quantization",
}


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


def where_to_start(answers: Mapping[int, str]) -> Markdown:
    """Which lessons you may skip, and what you missed.

    Args:
        answers: number of the question -> letter, or "?" where you don't know.

    Returns:
        what a notebook shows, with a link to the lesson to start with.

    Raises:
        ValueError: a question is missing, or an answer is no such letter.
    """
    if answers.keys() != QUESTIONS.keys():
        raise ValueError(
            f"Expected answers to the questions 1 to {len(QUESTIONS)}, got those to "
            f"{', '.join(map(str, answers))}."
        )
    given = {number: letter.strip(" )").lower() or UNANSWERED for number, letter in answers.items()}
    for number, letter in given.items():
        if letter not in (*LETTERS, UNANSWERED):
            raise ValueError(
                f'Question {number}: expected "a", "b", "c" or "d", or "?" if you don\'t know, '
                f"got {answers[number]!r}."
            )
    if set(given.values()) == {UNANSWERED}:
        return Markdown(
            "Put your letters into this cell, and run it again. Is all of this new to you? Then "
            f"start with {_link(next(iter(FILES)))}."
        )
    missed = {n: question for n, question in QUESTIONS.items() if given[n] != question.right}
    lines = [f"**{len(QUESTIONS) - len(missed)} of {len(QUESTIONS)} right.** {_advice(missed)}", ""]
    for n, question in missed.items():
        if given[n] == UNANSWERED:  # the lesson will say it
            continue
        lines.append(f"- {n}: {question.right}. {question.because} (Notebook {question.lesson}.)")
    return Markdown("\n".join(lines))


def _advice(missed: Mapping[int, Question]) -> str:
    to_read = sorted({question.lesson for question in missed.values()})
    if not to_read:
        return f"You know what Part I explains. Start with {_link(AFTER)}, or with any lab."
    first = to_read[0]
    known = [name for name in FILES if name not in (*to_read, AFTER)]
    before, later = [n for n in known if n < first], [n for n in known if n > first]
    advice = f"Start with {_link(first)}."
    if before:
        advice += f" You may skip {_listed(before)}."
    if later:
        advice += f" Later you may skip {_listed(later)}."
    return advice


def _link(lesson: str) -> str:
    return f"[notebook {lesson}]({FILES[lesson]}.ipynb)"


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
