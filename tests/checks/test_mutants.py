"""Each small change of a right answer is refused, but those that are right all the same.

`make test` tries one in four, `make test-full` all of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.checks.mutants import mutants
from tests.scale import sized
from utils import checks
from utils.checks.kit.lab.words import WORDS, right_answers

# Of each exercise: the mutants that are right all the same, and why.
RIGHT = yaml.safe_load(Path(__file__).with_name("right_mutants.yaml").read_text("utf-8"))
ONE_IN = 4


def exercises() -> Iterator[tuple[str, str, Any]]:
    """The lab, the exercise and its right answer, where a check is made of one."""
    for file in sorted(Path(checks.__path__[0]).glob(f"lab_*/{WORDS}")):
        lab = file.parent.name
        answers = importlib.import_module(f"utils.checks.{lab}.answers")
        for name, answer in right_answers(answers).items():
            yield lab, name, answer


@pytest.mark.parametrize(
    ("lab", "name", "answer"), exercises(), ids=lambda value: value if type(value) is str else ""
)
def test_each_mutant_is_refused(lab: str, name: str, answer: Any) -> None:
    check = getattr(importlib.import_module(f"utils.checks.{lab}"), name)
    right = RIGHT.get(lab, {}).get(name, {})
    all_of_them = list(mutants(answer))
    assert right.keys() <= {told for told, _ in all_of_them}
    chosen = [both for n, both in enumerate(all_of_them) if n % ONE_IN < sized(1, ONE_IN)]
    passed = {told for told, mutant in chosen if check(mutant).passed}
    assert passed == {told for told, _ in chosen} & right.keys()
