"""The story behind the widget keeps the books, and the pictures show what they are given."""

from __future__ import annotations

from collections import Counter

import matplotlib.pyplot as plt
import pytest
from matplotlib.patches import FancyArrowPatch

from utils.viz.memory.block_counts import plot_blocks_over_steps, plot_slots_after_steps
from utils.viz.memory.block_pool import PoolState, plot_pool
from utils.viz.memory.block_story import BlockStory, block_pool_explorer, tell_story

BLOCK_SIZES = (2, 4, 8)
WRITE_AFTER_FORK, C_COMES, B_LEAVES, C_AGAIN, A2_DROPPED = 6, 8, 10, 11, 12


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_books_balance_at_every_moment(block_size: int) -> None:
    for moment in tell_story(block_size):
        state = moment.state
        holders = Counter(block for table in state.tables.values() for block in table)
        blocks = range(len(state.ref_cnts))
        assert list(state.ref_cnts) == [holders[block] for block in blocks], moment.caption
        assert sorted(state.free_queue) == [b for b in blocks if not holders[b]], moment.caption
        assert set(state.texts) == set(holders), moment.caption
        for table in state.tables.values():
            assert all(len(state.texts[block]) == block_size for block in table[:-1])
            assert 1 <= len(state.texts[table[-1]]) <= block_size


def read(state: PoolState, name: str) -> str:
    """A request's text, read through its table as attention would."""
    return " ".join(word for block in state.tables[name] for word in state.texts[block])


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_each_request_reads_its_own_text(block_size: int) -> None:
    moments = tell_story(block_size)
    king = "once upon a time there was a king who"
    after_writes = moments[WRITE_AFTER_FORK + 1].state
    assert read(after_writes, "A") == king + " loved"
    assert read(after_writes, "A2") == king + " feared"
    assert read(moments[B_LEAVES - 1].state, "B") == "the cat sat on the mat"
    dropped = moments[A2_DROPPED].state
    assert "A2" not in dropped.tables and read(dropped, "A") == king + " loved"
    assert read(dropped, "C").startswith("roses are red and violets are")


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_only_the_first_writer_after_a_fork_copies(block_size: int) -> None:
    moments = tell_story(block_size)
    moment = moments[WRITE_AFTER_FORK]
    [(source, target)] = moment.copies
    assert moment.state.tables["A2"][-1] == source and moment.state.tables["A"][-1] == target
    assert f"but A2 uses block {source}: copy-on-write" in moment.caption
    assert [bool(m.copies) for m in moments].count(True) == 1
    before = moments[WRITE_AFTER_FORK - 1].state
    assert before.tables["A"] == before.tables["A2"]


def test_large_blocks_make_the_third_request_wait() -> None:
    for block_size in BLOCK_SIZES:
        moments = tell_story(block_size)
        waits = block_size == 8
        assert ("must wait" in moments[C_COMES].caption) == waits
        assert ("C" in moments[C_COMES].state.tables) != waits
        assert "C" in moments[C_AGAIN].state.tables


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_story_begins_and_ends_with_everything_free(block_size: int) -> None:
    moments = tell_story(block_size)
    for state in (moments[0].state, moments[-1].state):
        assert state.tables == {} and len(state.free_queue) * block_size == 32
    assert len(moments) == len(tell_story(4))  # the slider fits every block size


def test_freed_blocks_are_the_next_to_be_handed_out() -> None:
    moments = tell_story(2)
    freed = moments[B_LEAVES].state.free_queue[0]
    assert moments[C_AGAIN].state.tables["C"][-1] == freed


def test_story_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="30 slots cannot be cut into blocks of 4"):
        BlockStory(block_size=4, num_slots=30)
    story = BlockStory(block_size=2, num_slots=2)
    assert story.arrive("A", "two words") and not story.arrive("B", "more")
    with pytest.raises(RuntimeError, match="no room"):
        story.write("A", "three")


def test_widget_shows_every_step() -> None:
    explorer = block_pool_explorer()
    step, size = explorer.controls["step"], explorer.controls["block_size"]
    pictures = set()
    for value in range(step.min, step.max + 1):
        step.value = value
        assert explorer.error is None, f"step {value}: {explorer.error}"
        pictures.add(bytes(explorer._image.value))
    for value in BLOCK_SIZES:  # the last step exists for each
        size.value = value
        assert explorer.error is None, f"block size {value}: {explorer.error}"
        pictures.add(bytes(explorer._image.value))
    assert len(pictures) == step.max + 1 + 2
    assert plt.get_fignums() == []


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_widget_tells_what_happened(block_size: int) -> None:
    figure = block_pool_explorer().draw(step=C_COMES, block_size=block_size)
    assert figure.get_suptitle() == f"8. {tell_story(block_size)[C_COMES].caption}"
    plt.close(figure)


def test_picture_of_a_pool() -> None:
    state = PoolState(
        block_size=2,
        ref_cnts=[2, 0, 1],
        tables={"X": [0], "Y": [0, 2]},
        texts={0: ["red", "blue"], 2: ["green"]},
        free_queue=[1],
    )
    figure = plot_pool(state, "a finding", changed=[2], copies=[(0, 2)])
    tables, memory, queue = figure.axes
    words = [text.get_text() for text in memory.texts]
    assert [w for w in words if w.isalpha()] == ["red", "blue", "green"]
    assert [w for w in words if not w.isalpha()] == ["0: ref_cnt 2", "1", "2: ref_cnt 1"]
    assert [text.get_text() for text in tables.texts] == ["X", "0", "Y", "0", "2"]
    assert [text.get_text() for text in queue.texts] == ["1"]
    assert sum(isinstance(patch, FancyArrowPatch) for patch in memory.patches) == 1
    hatched = [patch for patch in memory.patches if patch.get_hatch()]
    assert len(hatched) == 1 and hatched[0].get_x() == 5  # the second slot of block 2
    thick = [patch for patch in tables.patches if patch.get_linewidth() > 2]
    assert [patch.get_x() for patch in thick] == [1]
    assert figure.get_suptitle() == "a finding"
    plt.close(figure)


def test_long_names_fit_beside_their_tables() -> None:
    state = PoolState(2, [1], {"a long name": [0]}, {0: ["red", "blue"]}, [])
    figure = plot_pool(state, "a finding")
    figure.canvas.draw()
    tables = figure.axes[0]
    assert tables.texts[0].get_window_extent().x0 > figure.bbox.x0
    plt.close(figure)


def test_blocks_over_steps() -> None:
    notes = {2: "a copy"}
    figure = plot_blocks_over_steps([2, 3, 1], [2, 6, 6], "a finding", block_size=16, notes=notes)
    [note] = figure.axes[0].texts
    assert note.get_text() == "a copy" and note.xy == (2, 2.5)  # beside the rise
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert lines == {"a copy for each answer": [2, 6, 6], "shared, as measured": [2, 3, 1]}
    assert "16 tokens" in figure.axes[0].get_ylabel()
    plt.close(figure)


def test_slots_after_steps() -> None:
    steps = {2: (3, 2, [5]), 3: (4, 3, [5, 1])}
    figure = plot_slots_after_steps(steps, ["a", "b", "c", "d"], 2, "a finding")
    before, after = figure.axes
    assert [text.get_text() for text in before.texts][:6] == ["a", "b", "c", "10", "11", "block 5"]
    assert "3 tokens, 2 computed, 2 slots in 1 blocks" in before.get_title(loc="left")
    assert [text.get_text() for text in after.texts][:4] == ["a", "b", "c", "d"]
    assert [text.get_text() for text in after.texts][-5:-2] == ["2", "3", "block 1"]
    free = [[patch for patch in axes.patches if patch.get_hatch()] for axes in figure.axes]
    assert [len(patches) for patches in free] == [0, 1] and free[1][0].get_x() == 3
    assert figure.get_suptitle() == "a finding"
    plt.close(figure)
