"""A lab's words are those of its checks: none is missing, and none is left over."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import yaml

from utils import checks
from utils.checks.kit.lab.words import NAME, SHORT, WORDS, read_words

FILES = sorted(Path(checks.__path__[0]).glob(f"lab_*/{WORDS}"))
OF_AN_EXERCISE = {"answer", "title", "points", "passed", "clauses", "mistakes"}


def lab_of(file: Path) -> str:
    return file.parent.name


@pytest.mark.parametrize("file", FILES, ids=lab_of)
def test_each_exercise_has_words_in_the_order_of_the_lab(file: Path) -> None:
    module = vars(importlib.import_module(f"utils.checks.{lab_of(file)}"))
    made = {name: check for name, check in module.items() if hasattr(check, "max_points")}
    words = read_words(file)
    assert words.keys() == made.keys()
    for number, (name, said) in enumerate(words.items(), 1):
        assert said.keys() <= OF_AN_EXERCISE
        assert said["title"] == made[name].title
        assert said["title"].startswith(f"Exercise {number}: ")


@pytest.mark.parametrize("file", FILES, ids=lab_of)
def test_each_short_text_is_used(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert set(yaml.safe_load(text).get(SHORT, {})) == set(NAME.findall(text))


@pytest.mark.parametrize("file", FILES, ids=lab_of)
def test_a_clause_quotes_only_what_it_can(file: Path) -> None:
    for said in read_words(file).values():
        for texts in said.get("clauses", {}).values():
            assert len(texts) in (1, 2)  # what is wrong, and where to look
            quoted = {name for text in texts for name in re.findall(r"\{(\w+)\}", text)}
            assert quoted <= {"says", "expected", "got", "reason"}
