"""A number in prose is printed below, computed beside it, supposed, or somebody's who is named."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.prose_numbers import problems


def found_in(text: str, source: str = "", printed: str = "", title: str = "") -> list[str]:
    figure = new_output("display_data", metadata={"image/png": {"alt": title}})
    outputs = [new_output("stream", name="stdout", text=printed), figure]
    cells = [
        new_markdown_cell("# Title\n\n**Time.** 90 minutes."),
        new_markdown_cell(text),
        new_code_cell(source, outputs=outputs),
    ]
    return list(problems(new_notebook(cells=cells)))


@pytest.mark.parametrize(
    "text",
    [
        "A hit takes 85 ms.",
        "It is 12.5 times as fast.",
        "- The cache holds\n1,024 MB by then.",
        "GPTQ loses 7 % of the answers.",
        "See [the report](report.md).\n\nvLLM makes 1,157 tokens/s.",
    ],
)
def test_a_number_from_nowhere_is_found(text: str) -> None:
    [problem] = found_in(text)
    assert problem.startswith("cell 1: ") and "is printed by no cell" in problem


@pytest.mark.parametrize(
    "text",
    [
        "Twice, or 3 times as fast.",
        "A batch of 512 tokens in blocks of 16.",  # a size, and no measurement
        "26,000 / 2 = 13,000 MB are needed.",
        "The paper measured 38.2 % ([figure 2](https://arxiv.org/abs/2309.06180)).",
        "**Predict:** is it 50 %, 90 % or 99 %?",
        "<details><summary>The hit rate fell to 5 %. Why?</summary>",
        "Set `timeout=300 s`, or $T = 40$ ms",
        "### Try it yourself\n\n- Give it a card with 80 GiB.",
    ],
)
def test_a_number_with_a_reason_may_stand(text: str) -> None:
    assert found_in(text) == []


def test_what_a_cell_says_may_be_said() -> None:
    assert found_in("Of 1,024 MB, 85 % are free.", "free = 0.85 * 1_024\n85", "") == []
    assert found_in("It takes 85.5 ms.", printed="takes 85.5 ms") == []
    assert found_in("It takes 85.5 ms.", printed="takes 85.6 ms") != []
    assert found_in("It brings 84% of the gain.", title="Counting alone brings 84%. p50. p99") == []
