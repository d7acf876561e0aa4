"""Short questions of logic, whose answer a program can read: do engines *conclude* the same?

Two engines may part in their words and still say the same. So the conclusion is read from the
text: the first of the possible answers that it names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

YES_NO = ("yes", "no")


@dataclass(frozen=True)
class Puzzle:
    """A question, the answers that it allows, and the right one of them."""

    question: str
    options: tuple[str, ...]
    right: str

    def messages(self) -> list[dict[str, str]]:
        """The question as a chat: a list of one message."""
        asked = " or ".join(self.options)
        content = f"{self.question} Answer {asked}, and say why."
        return [{"role": "user", "content": content}]

    def conclusion(self, answer: str) -> str | None:
        """The first option that the answer names as a whole word, in any case; None if it does not.

        "Not 7, but 12" counts as 7: a rule, not a reader. It is the same rule for every engine.
        """
        # A dot belongs to a number where a digit follows it: 0.9 is not in 10.95, nor 9 in 0.9.
        words = "|".join(re.escape(option) for option in self.options)
        pattern = rf"(?<![\w])(?<!\d\.)(?:{words})(?!\w|\.\d)"
        found = re.search(pattern, answer, re.IGNORECASE)
        return found[0].lower() if found else None


def _ask(question: str, right: str) -> Puzzle:
    return Puzzle(question, YES_NO, right)


# As many yes as no, and each number once as the first of its pair: whoever always says the same is
# right in half of them.
PUZZLES = (
    # syllogisms
    _ask("All cats are animals. Tom is a cat. Is Tom an animal?", "yes"),
    _ask("No fish can fly. A salmon is a fish. Can a salmon fly?", "no"),
    _ask("All birds have feathers. A robin is a bird. Does a robin have feathers?", "yes"),
    _ask("All birds have feathers. A whale has no feathers. Is a whale a bird?", "no"),
    _ask("Every square is a rectangle. Is every rectangle a square?", "no"),
    # if and then
    _ask("If it rains, the street gets wet. It rains. Does the street get wet?", "yes"),
    _ask("If it rains, the street gets wet. The street is dry. Does it rain?", "no"),
    # one after the other
    _ask("Anna is taller than Ben. Ben is taller than Carl. Is Anna taller than Carl?", "yes"),
    _ask("Anna is taller than Ben. Ben is taller than Carl. Is Carl taller than Anna?", "no"),
    _ask("The box is in the bag. The bag is in the car. Is the box in the car?", "yes"),
    _ask("May comes before June. June comes before July. Does May come before July?", "yes"),
    _ask("Lead is heavier than iron. Iron is heavier than wood. Is wood heavier than lead?", "no"),
    # which is larger
    Puzzle("Which number is larger?", ("7", "12"), "12"),
    Puzzle("Which number is larger?", ("31", "13"), "31"),
    Puzzle("Which number is larger?", ("0.9", "0.11"), "0.9"),
    Puzzle("Which animal is larger?", ("a mouse", "an elephant"), "an elephant"),
)
