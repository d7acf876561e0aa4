"""How far guesses go: counted from the engine's trace, and drawn as it was counted."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from tests.engine.tiny_engines import tiny_llama
from utils.engine import LLM, SpeculativeConfig
from utils.viz.spec_decode.acceptance import (
    Acceptance,
    acceptance_explorer,
    acceptance_table,
    expected_shares,
    plot_acceptance,
)
from utils.viz.spec_decode.clock import run

SOME = {"one": Acceptance(50, (40, 20, 10)), "other": Acceptance(40, (4,))}


def test_accepted_guesses_are_counted_pass_by_pass(tmp_path: Path) -> None:
    tiny_llama(tmp_path, seed=0)
    llm = LLM(tmp_path, max_model_len=64)
    prompts = [[3, 4, 5, 3, 4], [7, 8, 9, 7, 8, 9], [5, 6, 11]]
    _, engine = run(llm, prompts, SpeculativeConfig("ngram", 3, prompt_lookup_min=1), batch=3)
    passes = [
        tokens.num_sampled - 1
        for step in engine.step_trace
        for tokens in step.tokens.values()
        if tokens.num_new - tokens.num_draft == 1
    ]
    counted = Acceptance.of(engine)
    assert counted.passes == len(passes)
    assert any(passes) and not all(passes)
    assert counted.accepted == tuple(
        sum(accepted >= place for accepted in passes) for place in range(1, max(passes) + 1)
    )
    assert counted.tokens_per_pass == pytest.approx(1 + sum(passes) / len(passes))


def test_the_table_says_what_was_counted() -> None:
    head, one, other = acceptance_table(SOME, most=3).splitlines()
    assert "1 or more" in head and head.split("   ")[-1] == "tokens per pass"
    assert "80% (67% to 89%)" in one and "20% (11% to 33%)" in one and one.endswith("2.40")
    assert "10% (4% to 23%)" in other and "–" in other and other.endswith("1.10")


def test_a_line_for_each_guesser() -> None:
    figure = plot_acceptance(SOME, "The first guess counts most")
    [axes] = figure.axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["one: 2.40 tokens per pass", "other: 1.10 tokens per pass"]
    plt.close(figure)


def test_the_sliders_show_the_sum() -> None:
    assert expected_shares(0.5, 0.5, 3) == [0.5, 0.25, 0.125]
    explorer = acceptance_explorer()
    explorer.controls["first"].value = 0.6
    assert explorer.error is None
    explorer.controls["num_guesses"].value = 1
    assert "1.60 tokens per pass" in explorer._image.tooltip
