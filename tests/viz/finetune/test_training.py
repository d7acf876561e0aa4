"""The pictures of notebook 10 say what they were given, and the calculator moves."""

from __future__ import annotations

import re
from typing import Any

import matplotlib.pyplot as plt
import pytest

from utils.pipeline.estimates.train_shapes import TRAIN_SHAPES
from utils.pipeline.estimates.training_memory import Method, training_memory
from utils.pipeline.stages.packed_batches import encode
from utils.pipeline.task.messages import generate
from utils.viz.explore import Explorer
from utils.viz.finetune.training import (
    GB,
    mask_as_html,
    plot_calculator,
    plot_losses,
    plot_rank,
    plot_training_memory,
    training_calculator,
)

MISTRAL = TRAIN_SHAPES["Mistral-7B"]


def title_of(axes: Any) -> str:
    """The course's style puts titles left; another style may not."""
    return axes.get_title(loc="left") or axes.get_title()


@pytest.fixture(autouse=True)
def _close_figures() -> Any:
    yield
    plt.close("all")


def test_bars_add_up_to_the_total() -> None:
    rows = {m: training_memory(MISTRAL, m, 1000, checkpointing=True) for m in ("full", "qlora")}
    axes = plot_training_memory(rows, "a title").axes[0]
    ends = {
        round(bar.get_y() + bar.get_height() / 2): bar.get_x() + bar.get_width()
        for bar in axes.patches
    }  # the last one of each row
    for row, memory in enumerate(rows.values()):
        assert ends[row] == pytest.approx(memory.total / GB)
    assert [text.get_text().strip() for text in axes.texts] == [
        f"{memory.total / GB:,.1f}" for memory in rows.values()
    ]


def test_curves_are_drawn_as_given() -> None:
    ranks = [1, 2, 4]
    figure = plot_rank(ranks, {"a": [0.9, 0.5, 0.0]}, {"a": [0.91, 0.52, 0.01]})
    best, fitted = figure.axes[0].lines
    assert list(best.get_ydata()) == [0.9, 0.5, 0.0]
    assert list(fitted.get_ydata()) == [0.91, 0.52, 0.01]
    figure = plot_losses({"left": {"r = 1": [1.0, 0.5]}, "right": {"r = 2": [1.0, 0.4]}}, "t")
    assert [title_of(ax) for ax in figure.axes] == ["left", "right"]
    assert list(figure.axes[1].lines[0].get_ydata()) == [1.0, 0.4]
    assert list(figure.axes[1].lines[0].get_xdata()) == [1, 2]
    figure = plot_losses({"held out": {"r = 1": [1.0, 0.5, 0.4]}}, "t", first_step=0, every=4)
    assert list(figure.axes[0].lines[0].get_xdata()) == [0, 4, 8]


def test_mask_shows_every_answer_token_as_learned(tokenizer: Any) -> None:
    [tokens] = encode(tokenizer, generate("train", 1))
    shown = mask_as_html(tokenizer, tokens.prompt, tokens.answer, tail=5)
    assert len(re.findall("background:#b9d2f3", shown)) == len(tokens.answer)
    assert len(re.findall("background:#e4e4e4", shown)) == 5
    assert f"{len(tokens.prompt) - 5} more tokens" in shown
    assert "&lt;|im_end|&gt;" in shown  # escaped, and the end token is learned


def test_calculator_says_what_fits() -> None:
    arguments = {
        "model": "Mistral-7B",
        "r": 16,
        "lora_alpha": 32,
        "targets": "all linear",
        "num_tokens": 1024,
        "answers": 20,
        "checkpointing": True,
        "card": "T4, 16 GiB",
    }
    titles = {
        method: title_of(plot_calculator(method=method, **arguments).axes[0])
        for method in ("full", "qlora")
    }
    assert "does not fit on T4" in titles["full"] and "(100.00%)" in titles["full"]
    assert "fits on T4" in titles["qlora"]
    assert "41.9 million trained (0.58%), scale alpha/r = 2" in titles["qlora"]


def test_calculator_agrees_with_the_bars() -> None:
    memory = training_memory(
        MISTRAL, "qlora", 4096, num_predicted=8 * 100, r=16, checkpointing=True
    )
    calculator = training_calculator()
    shown = {name: control.value for name, control in calculator.controls.items()}
    title = title_of(plot_calculator(**shown).axes[0])
    assert f"{memory.total / GB:.1f} GB fits on T4" in title


def test_calculator_leaves_room_for_the_driver() -> None:
    [axes] = plot_calculator(
        model="Mistral-7B",
        method="qlora",
        r=16,
        lora_alpha=32,
        targets="all linear",
        num_tokens=1024,
        answers=20,
        checkpointing=True,
        card="T4, 16 GiB",
    ).axes
    assert axes.lines[0].get_xdata()[0] == pytest.approx(16 * 2**30 / GB - 1.5)


@pytest.mark.parametrize(
    ("method", "r", "num_tokens", "checkpointing", "says"),
    [
        ("qlora", 16, 4096, True, "7.0 GB fits"),
        ("lora", 16, 4096, True, "17.3 GB does not fit"),
        ("lora", 16, 1024, True, "15.7 GB does not fit"),
        ("lora", 16, 512, True, "15.4 GB fits"),
        ("full", 16, 128, True, "116.0 GB does not fit"),
        ("qlora", 256, 4096, True, "17.1 GB does not fit"),
        ("qlora", 16, 16384, True, "13.5 GB fits"),
        ("qlora", 16, 1024, False, "11.0 GB fits"),
        ("qlora", 16, 2048, False, "17.1 GB does not fit"),
    ],
)
def test_the_lesson_says_what_the_calculator_finds(
    method: Method, r: int, num_tokens: int, checkpointing: bool, says: str
) -> None:
    arguments = {"targets": "all linear", "answers": 20, "card": "T4, 16 GiB"}
    for lora_alpha in (1, 512):
        figure = plot_calculator(
            "Mistral-7B",
            method,
            r,
            lora_alpha,
            num_tokens=num_tokens,
            checkpointing=checkpointing,
            **arguments,
        )
        assert f"\n{says} on T4" in title_of(figure.axes[0])


def test_calculator_moves() -> None:
    calculator = training_calculator()
    assert isinstance(calculator, Explorer)
    for control in calculator.controls.values():
        options = getattr(control, "options", (False, True))
        for value in (options[0], options[-1]):
            control.value = value[1] if isinstance(value, tuple) else value
            assert calculator.error is None, f"{control.description}: {calculator.error}"
    assert plt.get_fignums() == []
