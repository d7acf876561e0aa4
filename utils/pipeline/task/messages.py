"""Customers' messages with their answers, from a seeded generator.

Held-out messages use templates, names, products, order numbers, sums and dates that training never
sees (`phrases.py`; `_is_held_out` for the numbers). So accuracy on them measures the skill, not
memory.
"""

from __future__ import annotations

import datetime as dt
import random
import string
from collections.abc import Callable
from typing import Any

from utils.pipeline.task.data import FIELDS, ISSUES, REQUESTS, Example
from utils.pipeline.task.phrases import HELD_OUT, TRAIN, Phrases


def generate(split: str, count: int, seed: int = 0) -> list[Example]:
    """Return `count` different examples of a split, "train" or "held_out".

    The same arguments give the same examples, on every machine.

    Raises:
        ValueError: unknown split or negative count.
    """
    if split not in ("train", "held_out"):
        raise ValueError(f'split must be "train" or "held_out", got {split!r}.')
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}.")
    generator = _Generator(random.Random(f"{split} {seed}"), split == "held_out")
    examples: dict[str, Example] = {}
    while len(examples) < count:
        example = generator.example()
        examples.setdefault(example.message, example)
    return list(examples.values())


_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
# Which slots of distractors look like which slots of facts.
RIVALS = {
    "other_name": "customer",
    "other_order": "order_id",
    "other_amount": "amount",
    "other_date": "date",
}


def _is_held_out(number: int) -> bool:
    """Which numbers (cents, day ordinals, order numbers) only held-out messages may hold."""
    return number % 5 == 2


def slots(template: str) -> set[str]:
    """The names of the slots of a template."""
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


class _Generator:
    """Draws values, fills templates, and keeps the answer beside the message."""

    def __init__(self, rng: random.Random, held_out: bool) -> None:
        self.rng = rng
        self.held_out = held_out
        self.phrases: Phrases = HELD_OUT if held_out else TRAIN

    def example(self) -> Example:
        rng, phrases = self.rng, self.phrases
        issue = rng.choice(ISSUES)
        request = rng.choice(REQUESTS)
        opening = rng.choice(phrases.openings)
        # A name at the start and again at the end would be true but dull.
        named = "{customer}" in opening
        closing = rng.choice([c for c in phrases.closings if not (named and "{customer}" in c)])
        facts, problem = rng.choice(phrases.facts), rng.choice(phrases.issues[issue])
        sentences = [facts, problem] if rng.random() < 0.8 else [problem, facts]
        sentences.append(rng.choice(phrases.requests[request]))
        stated = slots(opening + facts + closing)

        def fair(text: str) -> bool:
            """A distractor competes with a value that is stated; it does not stand in for one."""
            return all(RIVALS[slot] in stated for slot in slots(text) & RIVALS.keys())

        distractors = [text for text in phrases.distractors if fair(text)]
        for distractor in rng.sample(distractors, rng.choice((0, 0, 1, 1, 1))):
            sentences.insert(rng.randint(sentences.index(facts) + 1, len(sentences)), distractor)
        separator = "\n" if "\n" in facts else " "
        footer = rng.choice([text for text in phrases.footers if fair(text)])
        parts = [opening, separator.join(sentences), closing, footer]
        template = rng.choice(("\n", "\n", " ")).join(part for part in parts if part)
        values, answer = self._values()
        known = slots(template)
        if "word" in known or "n" in known:
            known.add("quantity")
        if "amount" in known:
            known.add("currency")
        answer = {field: answer[field] if field in known else None for field in FIELDS}
        answer |= {"issue": issue, "request": request}
        return Example(template.format(**values), answer)

    def _values(self) -> tuple[dict[str, str], dict[str, Any]]:
        """Texts for all slots, and the answer as if every slot were used."""
        customer = self._name()
        other_name = self._draw(self._name, lambda name: name != customer)
        order_id, amount, day = self._order_id(), self._cents(), self._day()
        quantity = self.rng.choice((1, 2, 2, 3, 3, 4, 5, 6, 8, 10))
        currency = self.rng.choice(tuple(_MONEY))
        date_style = self.rng.choice(_DATE_STYLES)
        product = self._product()
        texts = {
            "customer": customer,
            "order_id": order_id,
            "product": product,
            "n": str(quantity),
            "word": _WORDS[quantity - 1],
            "amount": self.rng.choice(_MONEY[currency])(amount),
            "date": date_style(day),
            "other_name": other_name,
            "other_order": self._draw(self._order_id, lambda other: other != order_id),
            "other_amount": self.rng.choice(_MONEY[currency])(self._cents(30)),
            "other_date": date_style(self._draw(self._day, lambda other: other != day)),
            "other_n": str(self.rng.randint(2, 9)),
            "phone": self._phone(),
        }
        answer = {
            "customer": customer,
            "order_id": order_id,
            "product": product,
            "quantity": quantity,
            "amount": amount / 100,
            "currency": currency,
            "date": day.isoformat(),
        }
        return texts, answer

    def _draw(self, draw: Callable[[], Any], accept: Callable[[Any], bool]) -> Any:
        while not accept(value := draw()):
            pass
        return value

    def _number(self, low: int, high: int) -> int:
        """A number of this split: training and held-out messages never share one."""
        return self._draw(
            lambda: self.rng.randint(low, high),
            lambda number: _is_held_out(number) == self.held_out,
        )

    def _name(self) -> str:
        first, last = self.phrases.first_names, self.phrases.last_names
        return f"{self.rng.choice(first)} {self.rng.choice(last)}"

    def _product(self) -> str:
        noun, adjective = map(self.rng.choice, (self.phrases.nouns, self.phrases.adjectives))
        return noun if self.rng.random() < 0.4 else f"{adjective} {noun}"

    def _order_id(self) -> str:
        number = self._number(10_000, 99_999)
        letters = "".join(self.rng.choices("ABCDEFGHKLMNPRSTVWXZ", k=2))
        return self.rng.choice((f"{letters}-{number}", f"#{number}", f"ORD-{number}"))

    def _cents(self, high: int = 0) -> int:
        """A sum below `high` units, or of any size; with the endings that shops like."""
        units = self._number(5, high or self.rng.choice((99, 999, 2500)))
        return units * 100 + self.rng.choice((0, 0, 50, 90, 95, 99))

    def _day(self) -> dt.date:
        first = dt.date(2023, 1, 1).toordinal()
        return dt.date.fromordinal(self._number(first, first + 3 * 365))

    def _phone(self) -> str:
        digits = [str(self.rng.randint(100, 999)) for _ in range(3)]
        return self.rng.choice(("+49 {} {} {}", "0{}-{}{}", "({}) {}-{}")).format(*digits)


def _grouped(cents: int, thousands: str, point: str) -> str:
    return f"{cents // 100:,}".replace(",", thousands) + f"{point}{cents % 100:02d}"


def _us(cents: int) -> str:
    return _grouped(cents, ",", ".")


def _german(cents: int) -> str:
    return _grouped(cents, ".", ",")


def _plain(cents: int) -> str:
    return _grouped(cents, "", ".")


_MONEY: dict[str, tuple[Callable[[int], str], ...]] = {
    "EUR": (
        lambda c: f"{_german(c)} EUR",
        lambda c: f"{_german(c)} €",
        lambda c: f"€{_us(c)}",
        lambda c: f"{_plain(c)} euros",
    ),
    "USD": (lambda c: f"${_us(c)}", lambda c: f"{_us(c)} USD", lambda c: f"{_plain(c)} dollars"),
    "GBP": (lambda c: f"£{_us(c)}", lambda c: f"{_us(c)} GBP", lambda c: f"{_plain(c)} pounds"),
    "CHF": (lambda c: f"CHF {_grouped(c, chr(39), '.')}", lambda c: f"{_plain(c)} CHF"),
    "SEK": (lambda c: f"{_grouped(c, ' ', ',')} kr", lambda c: f"{_plain(c)} SEK"),
    "PLN": (lambda c: f"{_grouped(c, ' ', ',')} zł", lambda c: f"{_plain(c)} PLN"),
}


_DATE_STYLES: tuple[Callable[[dt.date], str], ...] = (
    lambda d: d.isoformat(),
    lambda d: f"{d.day:02d} {_MONTHS[d.month - 1]} {d.year}",
    lambda d: f"{_MONTHS[d.month - 1]} {d.day:02d}, {d.year}",
    lambda d: f"{d.day:02d}.{d.month:02d}.{d.year}",
)
