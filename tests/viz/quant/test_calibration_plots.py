"""The pictures of calibration data show what they are given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import pytest

from utils.pipeline.studies.calibration_choices import CHOICES
from utils.viz.quant.calibration import (
    LOOKS,
    interval_of,
    plot_calibration_choices,
    plot_calibration_sweep,
    plot_outcome,
    sweep_lines,
)
from utils.viz.style import use_course_style


@pytest.fixture(autouse=True)
def _style() -> Iterator[None]:
    use_course_style()
    yield
    plt.close("all")


def test_every_choice_has_a_look() -> None:
    assert set(LOOKS) == set(CHOICES)
    assert len(set(LOOKS.values())) == len(CHOICES)


def test_choices_by_method() -> None:
    errors = {
        "GPTQ": {"customers": [0.03, 0.01], "novel": [0.04, 0.03]},
        "AWQ": {"customers": [0.02, 0.02], "novel": [0.02, 0.022]},
    }
    rounding = {"GPTQ": 0.02, "AWQ": 0.021}
    figure = plot_calibration_choices([256, 4096], errors, rounding, 1536, "Shown.")
    left, right = figure.axes
    assert figure.get_suptitle() == "Shown."
    assert [axes.get_title("left") for axes in (left, right)] == ["GPTQ", "AWQ"]
    assert list(left.lines[1].get_ydata()) == [3.0, 1.0]
    assert list(left.lines[0].get_ydata()) == [2.0, 2.0]
    assert list(left.lines[-1].get_xdata()) == [1536, 1536]


def measures(exact: float, text: float, answer: float) -> dict[str, Any]:
    """Of a model whose losses are these in each block, give or take what all models share."""
    hard = [0.3 * (number % 5) for number in range(40)]
    return {
        "exact_match": exact,
        "num_examples": 120,
        "text_losses": [text + more for more in hard],
        "answer_losses": [answer + more for more in hard],
    }


def sweep() -> dict[str, Any]:
    runs = [
        {"choice": choice, "tokens": tokens, **measures(exact, text, answer)}
        for choice, exact, text, answer in (
            ("customers", 0.9, 4.5, 0.01),
            ("novel", 0.5, 4.0, 0.03),
        )
        for tokens in (1024, 4096)
    ]
    return {"merged": measures(0.92, 3.9, 0.007), "rtn": measures(0.7, 4.2, 0.02), "gptq": runs}


def test_sweep_draws_every_model_with_its_intervals() -> None:
    figure = plot_calibration_sweep(sweep(), "Shown.")
    text, _, exact = figure.axes
    assert figure.get_suptitle() == "Shown."
    assert [tick.get_text() for tick in text.get_yticklabels()] == [
        "16 bits",
        "round to nearest",
        "customers, 1,024",
        "customers, 4,096",
        "novel, 1,024",
        "novel, 4,096",
    ]
    low, high = exact.lines[0].get_xdata()
    assert low < 92 < high
    # Two lines for each model, and one for plain rounding, to which the perplexities are relative.
    assert list(text.lines[-1].get_xdata()) == [1, 1]
    assert text.lines[5].get_xdata()[0] == pytest.approx(math.exp(0.3))  # customers, 1,024


def test_lines_print_what_is_drawn() -> None:
    head, merged, rtn, *runs = sweep_lines(sweep())
    assert "exact match" in head and len(runs) == 4
    assert merged.startswith("16 bits") and "92.0 (" in merged
    assert "1.00 (1.00 to 1.00)" in rtn
    assert "1.35 (1.35 to 1.35)" in runs[0]  # exp(0.3)


def test_what_all_models_share_makes_no_interval_wide() -> None:
    results = sweep()
    middle, low, high = interval_of(results["gptq"][0], results["rtn"], "text_losses")
    assert middle == pytest.approx(math.exp(0.3))
    assert low == pytest.approx(high, rel=1e-6)  # the same difference in each block
    exact, least, most = interval_of(results["rtn"], results["rtn"], None)
    assert least < exact == 70 < most


def test_outcome_prints_what_the_table_prints() -> None:
    rows = [
        {"label": "base", "text_perplexity": 37.0, "bytes": 269e6} | measures(0.0, 3.6, 2.0),
        {"label": "merged", "text_perplexity": 50.6, "bytes": 119e6} | measures(0.942, 3.9, 0.01),
    ]
    exact, text, size = plot_outcome(rows, "Shown.").axes
    assert [note.get_text() for note in exact.texts] == ["0.0", "94.2"]
    assert [note.get_text() for note in text.texts] == ["37.0", "50.6"]
    assert [note.get_text() for note in size.texts] == ["269", "119"]
    low, high = exact.lines[2].get_xdata()
    assert low < 94.2 < high
