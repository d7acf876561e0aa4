"""The pictures of calibration data show what they are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot as plt
import pytest

from utils.pipeline.studies.calibration_choices import CHOICES
from utils.viz.quant.calibration import LOOKS, plot_calibration_choices, plot_calibration_sweep
from utils.viz.style import use_course_style


@pytest.fixture(autouse=True)
def _style() -> Iterator[None]:
    use_course_style()
    yield
    plt.close("all")


def test_every_choice_has_a_look() -> None:
    assert set(LOOKS) == set(CHOICES)
    assert len(set(LOOKS.values())) == len(CHOICES)


def test_choices_by_method_and_layer() -> None:
    errors = {
        ("GPTQ", "down_proj"): {"customers": [0.03, 0.01], "novel": [0.04, 0.03]},
        ("AWQ", "down_proj"): {"customers": [0.02, 0.02], "novel": [0.02, 0.022]},
    }
    rounding = {("GPTQ", "down_proj"): 0.02, ("AWQ", "down_proj"): 0.021}
    figure = plot_calibration_choices([256, 4096], errors, rounding, {"down_proj": 1536})
    top, bottom = figure.axes
    assert top.get_title("left") == "GPTQ, down_proj: worst text 3.0 times best"
    assert bottom.get_title("left") == "AWQ, down_proj: worst text 1.1 times best"
    assert list(top.lines[1].get_ydata()) == [3.0, 1.0]
    assert list(top.lines[0].get_ydata()) == [2.0, 2.0]
    assert list(top.lines[-1].get_xdata()) == [1536, 1536]


def measures(exact: float, text: float, answer: float) -> dict[str, Any]:
    return {
        "exact_match": exact,
        "num_examples": 120,
        "text_perplexity": text,
        "answer_perplexity": answer,
    }


def sweep(novel_exact: float) -> dict[str, Any]:
    runs = [
        {"choice": choice, "tokens": tokens, **measures(exact, text, answer)}
        for choice, exact, text, answer in (
            ("customers", 0.9, 80.0, 1.01),
            ("novel", novel_exact, 60.0, 1.03),
        )
        for tokens in (1024, 4096)
    ]
    return {"merged": measures(0.92, 51, 1.007), "rtn": measures(0.5, 70, 1.05), "gptq": runs}


def test_sweep_names_the_best_and_draws_every_model() -> None:
    text, answer, exact = plot_calibration_sweep(sweep(0.88)).axes
    assert text.get_title("left") == "English: best with\nnovel"
    assert answer.get_title("left") == "Answers: best with\ncustomers"
    assert [tick.get_text() for tick in exact.get_yticklabels()] == [
        "16 bits",
        "round to nearest",
        "customers, 1,024",
        "customers, 4,096",
        "novel, 1,024",
        "novel, 4,096",
    ]
    assert "overlap" in exact.get_title("left")
    low, high = exact.lines[0].get_xdata()
    assert low < 92 < high


def test_sweep_says_when_intervals_differ() -> None:
    exact = plot_calibration_sweep(sweep(0.1)).axes[2]
    assert "tell some apart" in exact.get_title("left")
