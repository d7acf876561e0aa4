"""The widget of notebook 13b."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from utils.viz.serving.grammar_mask import mask_explorer, plot_allowed_tokens, plot_mask
from utils.viz.style import use_course_style

VOCABULARY = ["l", "la", "te", "late", "wrong", "w", "x", ""]


@pytest.fixture(autouse=True)
def _style():
    use_course_style()
    yield
    plt.close("all")


@pytest.mark.parametrize(
    ("step", "title"), [(0, "At the start: 5 of 8"), (2, "After la: 1 of 8"), (4, "After late: 1")]
)
def test_the_title_counts_what_may_come_next(step: int, title: str) -> None:
    right = plot_mask(VOCABULARY, ["late", "wrong"], "late", step).axes[1]
    assert right.get_title(loc="left").startswith(title)


def test_at_the_end_only_the_end_is_left() -> None:
    right = plot_mask(VOCABULARY, ["late", "wrong"], "late", 4).axes[1]
    assert [text.get_text() for text in right.texts] == ["<end of the answer>"]


def test_every_control_moves() -> None:
    explorer = mask_explorer(VOCABULARY, ["late", "wrong"])
    for value in range(6):
        explorer.controls["step"].value = value
        assert explorer.error is None
    explorer.controls["answer"].value = "wrong"
    assert explorer.error is None


def test_whitespace_is_counted_apart() -> None:
    vocabulary = ["{", "$a", "}", *(" " * n for n in range(1, 40)), *map(str, range(60))]
    allowed = [{0}, set(range(3, 42)), set(range(len(vocabulary)))]
    axes = plot_allowed_tokens(allowed, [0, 3, 2], vocabulary).axes[0]
    assert axes.get_title(loc="left").startswith("At 2 of 3 steps")
    assert len({patch.get_facecolor() for patch in axes.patches}) == 3
    assert [label.get_text() for label in axes.get_xticklabels()] == ["{", "␣", "}"]


def test_a_long_answer_is_broken_into_rows() -> None:
    rows = plot_allowed_tokens([{0}] * 60 + [{0, 1}] * 28, [0] * 88, ["a", "b"]).axes
    assert [len(axes.patches) for axes in rows] == [44, 44]
    assert rows[1].patches[-1].get_height() == 2
