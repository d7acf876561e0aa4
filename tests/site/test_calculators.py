"""The page's formulas say what the course's own modules say, letter by letter."""

from __future__ import annotations

import json
import random
from typing import Any

import matplotlib.pyplot as plt
import pytest

from tests.browser.cdp import Page
from tests.site.conftest import ROOT
from tools.frames.calculators import CALCULATORS, record_calculator
from tools.frames.states import finding

FOLDER = ROOT / "site" / "static" / "calculators"
NUM_STATES = 25  # of each calculator, drawn anew from all that its controls allow


@pytest.fixture(scope="module")
def script(page: Page) -> Page:
    page.open("about:blank#calculators")
    for name in ("figure", *CALCULATORS):
        page.evaluate((FOLDER / f"{name}.js").read_text(encoding="utf-8"))
    return page


def ask(page: Page, name: str, tables: dict[str, Any], values: dict[str, Any]) -> dict[str, str]:
    arguments = f"{json.dumps(tables)}, {json.dumps(values)}"
    return page.evaluate(f"courseCalculators.{name}({arguments})")


@pytest.mark.parametrize("name", CALCULATORS)
def test_a_page_says_what_python_says(script: Page, name: str) -> None:
    recording, draw = record_calculator(name), CALCULATORS[name][0]().draw
    chance = random.Random(3)
    for _ in range(NUM_STATES):
        values = {key: chance.choice(all_) for key, all_ in recording.tables["values"].items()}
        said = ask(script, name, recording.tables, values)
        figure = draw(**values)
        assert said["words"] == finding(figure), values
        axes = figure.axes[0]
        assert "NaN" not in said["svg"] and "undefined" not in said["svg"]
        if name == "memory":  # a number for each part of the bar, too
            for text in axes.get_legend().get_texts():
                assert text.get_text() in said["svg"], values
        plt.close(figure)


@pytest.mark.parametrize("digits", [0, 1, 2])
def test_numbers_are_written_as_python_writes_them(script: Page, digits: int) -> None:
    chance = random.Random(digits)
    numbers = [n / 8 for n in range(-40, 4000, 7)]  # with many ties
    numbers += [chance.uniform(-1, 1) * 10 ** chance.uniform(-3, 9) for _ in range(300)]
    fixed = script.evaluate(f"{json.dumps(numbers)}.map(x => courseFigure.fixed(x, {digits}))")
    # Python writes -0.0; a page does not show negative numbers that are rounded to nothing.
    pairs = [(f"{x:,.{digits}f}", js) for x, js in zip(numbers, fixed, strict=True)]
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


@pytest.mark.parametrize("digits", [3, 6])
def test_short_numbers_are_written_as_python_writes_them(script: Page, digits: int) -> None:
    chance = random.Random(digits)
    numbers = [2.0**n for n in range(-12, 12)] + [0.0, 999.6, 9996.0, 0.00009996]
    numbers += [10 ** chance.uniform(-7, 9) for _ in range(300)]
    short = script.evaluate(f"{json.dumps(numbers)}.map(x => courseFigure.general(x, {digits}))")
    pairs = [(f"{x:.{digits}g}", js) for x, js in zip(numbers, short, strict=True)]
    assert [pair for pair in pairs if pair[0] != pair[1]] == []
