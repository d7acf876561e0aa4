"""A lab's words: the file `words.yaml` beside its checks.

Each exercise has a title and points; besides, `answer` (its name in `answers.py`, if it is another
one), `passed` (what is said of a right answer), `clauses` (what is wrong, where to look) and
`mistakes`, the frequent ones first. The `edit` of a mistake is one edit of the right answer; a list
has several answers that make the same mistake, each an edit or a list of edits. `$NAME` is one of
the texts in `short`; `<<: *NAME` puts in clauses that several exercises share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

WORDS, SHORT = "words.yaml", "short"
NAME = re.compile(r"\$([A-Z_]+)")


def read_words(file: Path) -> dict[str, Any]:
    """A lab's words by exercise, with the texts in `short` put in.

    Raises:
        KeyError: a `$NAME` has no text.
    """
    words: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    short = words.pop(SHORT, {})
    return {name: _full(said, short) for name, said in words.items()}


def right_answers(answers: ModuleType) -> dict[str, Any]:
    """A lab's exercises by name, each with its right answer, if `answers.py` has one."""
    words = read_words(Path(answers.__file__ or "").with_name(WORDS))
    named = {name: said.get("answer", name) for name, said in words.items()}
    return {name: vars(answers)[of] for name, of in named.items() if of in vars(answers)}


def answers_of(edit: str | list[str | list[str]]) -> Iterator[list[str]]:
    """The edits of each answer that makes a mistake."""
    for one in [edit] if isinstance(edit, str) else edit:
        yield [one] if isinstance(one, str) else one


def _full(value: Any, short: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _full(inner, short) for name, inner in value.items()}
    if isinstance(value, list):
        return [_full(inner, short) for inner in value]
    if isinstance(value, str):
        return NAME.sub(lambda found: short[found[1]], value)
    return value
