"""The small widget at the beginning of lesson 05."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from utils.viz.memory.prefix_chain import (
    BLOCK_SIZES,
    FIRST,
    OTHER,
    block_names,
    plot_prefix_chain,
    prefix_chain_explorer,
)


def test_each_word_has_another_one() -> None:
    assert len(FIRST) == len(OTHER)
    assert all(len(FIRST) % size == 0 for size in BLOCK_SIZES)
    # Twice "!" and the like are fine: only the word at the same place must differ.
    assert all(word != other for word, other in zip(FIRST, OTHER, strict=True))


def test_a_name_stands_for_all_words_up_to_the_end_of_its_block() -> None:
    names = block_names(FIRST, 4)
    for changed in range(len(FIRST)):
        words = [*FIRST[:changed], OTHER[changed], *FIRST[changed + 1 :]]
        same = [a == b for a, b in zip(block_names(words, 4), names, strict=True)]
        assert same == [number < changed // 4 for number in range(4)]


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("changed", range(len(FIRST) + 1))
def test_found_blocks_are_counted(changed: int, block_size: int) -> None:
    # All blocks before the changed word; of equal prompts all but the last.
    found = (changed - 1 if changed else len(FIRST) - 1) // block_size
    figure = plot_prefix_chain(changed, block_size)
    axes = figure.axes[0]
    title = axes.get_title() or axes.get_title(loc="left")
    assert f"Found: {found} of {len(FIRST) // block_size} blocks." in title
    assert title.endswith(f"Computed: {len(FIRST) - found * block_size} of 16 words")
    plt.close(figure)


def test_the_widget_draws() -> None:
    explorer = prefix_chain_explorer()
    for control, value in (("changed", 0), ("block_size", 8)):
        explorer.controls[control].value = value
        assert explorer.error is None
