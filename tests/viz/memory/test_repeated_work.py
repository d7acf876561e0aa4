"""The small widget at the beginning of lesson 02."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import pytest
import torch

from utils.viz.memory.repeated_work import ANSWER, PROMPT, plot_repeated_work

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def test_the_words_are_what_the_model_writes(
    hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    ids = tokenizer("".join(PROMPT), return_tensors="pt").input_ids
    with torch.inference_mode():
        written = hf_model.generate(ids, max_new_tokens=len(ANSWER), do_sample=False)[0]
    assert tuple(tokenizer.decode([token]) for token in written) == PROMPT + ANSWER


@pytest.mark.parametrize("step", range(1, len(ANSWER) + 1))
def test_squares_are_counted(step: int) -> None:
    passes = [PROMPT + ANSWER[:n] for n in range(step)]  # what each step reads
    again = len(passes[-1]) - 1 if step > 1 else 0
    figure = plot_repeated_work(step)
    [axes] = figure.axes
    assert len(axes.patches) == sum(map(len, passes))
    title = axes.get_title() or axes.get_title(loc="left")
    assert f"reads {len(passes[-1])} tokens, and has read {again} of them before" in title
    assert f"({sum(map(len, passes))} in all" in title
    plt.close(figure)
