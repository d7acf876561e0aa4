"""The words that the message generator (`messages.py`) is made of; they lie in `phrases.json`.

Two sets that share nothing: `TRAIN` and `HELD_OUT`. A slot in braces is filled by the generator.
A slot that names a field of the answer also decides whether that field is known: a message
without `{amount}` has the answer `"amount": null`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Phrases:
    """Everything one split may draw from."""

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    adjectives: tuple[str, ...]  # of products
    nouns: tuple[str, ...]
    openings: tuple[str, ...]
    facts: tuple[str, ...]  # what was ordered; slots decide which fields are known
    issues: dict[str, tuple[str, ...]]
    requests: dict[str, tuple[str, ...]]
    distractors: tuple[str, ...]  # true, and of no use: other dates, sums, orders, people
    closings: tuple[str, ...]
    footers: tuple[str, ...]


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    return tuple(value)


def _read(split: str) -> Phrases:
    text = Path(__file__).with_name("phrases.json").read_text(encoding="utf-8")
    found = json.loads(text)[split]
    return Phrases(**{field.name: _frozen(found[field.name]) for field in fields(Phrases)})


TRAIN, HELD_OUT = _read("train"), _read("held_out")
