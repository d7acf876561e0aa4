"""Pictures of KV memory show the numbers that they were given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from tests.viz.test_widgets import move_everything
from utils.sim.memory_map import NOBODY, map_memory
from utils.sim.memory_policies import STATES, Contiguous, Paged
from utils.viz.memory import memory_explorer
from utils.viz.memory import memory_map as pictures


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_states_differ_in_grey() -> None:
    """Perceived brightness (Rec. 601) rises from state to state."""
    colors = [to_rgb(pictures.STATE_COLORS[state]) for state in STATES]
    brightness = [0.299 * r + 0.587 * g + 0.114 * b for r, g, b in colors]
    assert (np.diff(brightness) > 0.1).all()


def test_memory_map_shows_states_and_owners() -> None:
    memory = map_memory(Contiguous("oracle", "first_fit"), [3, 1, 3], [1, 3, 2], 8)
    figure = pictures.plot_memory_map(memory, "Title")
    axes = figure.axes[0]
    assert np.array_equal(axes.images[0].get_array(), memory.states)
    letters = {(round(t.get_position()[1]), round(t.get_position()[0])): t for t in axes.texts}
    owned = {
        tuple(map(int, place)): "ABC"[o] for place, o in np.ndenumerate(memory.owners) if o >= 0
    }
    assert {place: text.get_text() for place, text in letters.items()} == owned
    bold = {place for place, text in letters.items() if text.get_weight() == "bold"}
    assert bold == set(zip(*np.nonzero(memory.states == STATES.index("used")), strict=True))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    states = [STATES[i] for i in sorted(set(memory.states.ravel().tolist()))]
    assert labels == [pictures.STATE_LABELS[state] for state in states] and len(states) == 4


def test_thick_lines_show_the_blocks() -> None:
    memory = map_memory(Paged(2), [3, 1, 3], [1, 3, 2], 8)
    axes = pictures.plot_memory_map(memory, "Title", block_size=2).axes[0]
    [lines] = [c for c in axes.collections if c.get_linewidth()[0] == 3]
    assert [line[0][0] for line in lines.get_segments()] == [-0.5, 1.5, 3.5, 5.5, 7.5]


def test_a_card_is_one_bar() -> None:
    axes = pictures.plot_card(24, {"used": 2, "external": 1}, 3, "Title").axes[0]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches[:4]] == [
        (0, 24),
        (24, 2),
        (26, 1),
        (27, 3),
    ]
    assert "lost to placement: 1.0 GiB" in axes.get_legend_handles_labels()[1]


def test_lines_separate_owners() -> None:
    memory = map_memory(Paged(4), [4, 4], [1, 2], 12)
    assert memory.owners[0].tolist() == [0] * 4 + [1] * 4 + [NOBODY] * 4
    _, axes = plt.subplots()
    pictures.draw_map(axes, memory)
    vertical, _horizontal = axes.collections
    first_step = {line[0][0] for line in vertical.get_segments() if line[0][1] == -0.5}
    assert first_step == {3.5, 7.5}


def test_large_maps_have_no_letters() -> None:
    memory = map_memory(Contiguous("oracle"), [20], [15], 64)
    assert len(pictures.plot_memory_map(memory, "Title").axes[0].texts) == 0


def test_request_names() -> None:
    assert [pictures.letter(n) for n in (0, 25, 26)] == ["A", "Z", "26"]


def test_waste_has_a_bar_for_each_share() -> None:
    here = {"used": 0.25, "reserved": 0.125, "internal": 0.5, "external": 0.125, "free": 0.0}
    paper = {"used": 0.5, "external": 0.25}
    axes = pictures.plot_waste({"x": here}, {"x": paper}, "Title").axes[0]
    widths = [patch.get_width() for patch in axes.patches]
    assert widths == [25, 12.5, 50, 12.5, 0, 50, 0, 0, 25, 0, 25]
    hatched = [patch.get_x() for patch in axes.patches if patch.get_hatch()]
    assert hatched == [75]  # the paper gives no more than 75%
    assert [patch.get_x() for patch in axes.patches][:4] == [0, 25, 37.5, 87.5]
    assert {"25.0", "12.5", "50.0", "simulated here", "the paper"} == {
        text.get_text() for text in axes.texts
    }


def test_lengths() -> None:
    axes = pictures.plot_lengths(np.array([450, 900]), np.array([450, 900]), 2048).axes[0]
    assert sum(patch.get_height() for patch in axes.patches) == 2
    title = axes.get_title(loc="left") or axes.get_title()
    assert title.startswith("50% of the requests need fewer than 1,024 tokens")


def _title(figure: Figure) -> str:
    return figure.axes[0].get_title(loc="left") or figure.axes[0].get_title()


def _words(figure: Figure, row: int) -> set[str]:
    return {text.get_text() for text in figure.axes[0].texts if text.get_position()[1] == row}


def test_eight_slots_say_when_c_comes_in() -> None:
    explorer = memory_explorer.eight_slots_explorer()
    plt.close("all")
    assert move_everything(explorer) >= 4
    exactly, blocks = "reserve exactly", "blocks of two"
    draw = memory_explorer.plot_eight_slots
    assert "C and D wait, and all 8 slots are taken" in _title(
        draw("reserve the maximum, 4 slots", 0)
    )
    assert "C and D wait, and 5 of the 8 slots belong to nobody" in _title(draw(exactly, 2))
    assert "since step 3" in _title(draw(exactly, 3))
    assert "since step 1" in _title(draw(blocks, 1))
    assert {"C and D wait", "D waits"}.isdisjoint(_words(draw(blocks, 1), row=1))
    assert "D waits" in _words(draw("reserve the maximum, 4 slots", 2), row=2)
    assert "the last one ended in step 2" in _title(draw(blocks, 3))


def test_spread_moves_the_simulated_bars() -> None:
    policies, published = {"x": Contiguous("max")}, {"x": {"used": 0.2}}
    explorer = memory_explorer.spread_explorer(policies, published, num_slots=4096)
    plt.close("all")
    few, many = (explorer.draw(spread=spread) for spread in (0.5, 1.2))
    widths = [figure.axes[0].patches[0].get_width() for figure in (few, many)]
    assert widths[0] < widths[1] and f"{widths[1]:.1f}%" in _title(many)


def test_explorer_draws_every_choice() -> None:
    explorer = memory_explorer.memory_explorer()
    plt.close("all")
    assert move_everything(explorer) >= 12
    assert plt.get_fignums() == []
    explorer.controls["allocator"].value = "reserve the maximum, first fit"
    for value in explorer.controls["max_model_len"].options:
        explorer.controls["max_model_len"].value = value
        assert explorer.error is None, value


def test_explorer_reports_what_it_shows() -> None:
    figure = memory_explorer.plot_policy("reserve the maximum, first fit", 128, 4)
    assert "all done after 194" in figure.get_suptitle()  # one request at a time
    assert "preemption" not in figure.get_suptitle()
    assert sum(memory_explorer._OUTPUTS) == 194
    assert "preemptions" in memory_explorer.plot_policy("blocks", 64, 4).get_suptitle()


def test_explorer_averages_while_requests_wait() -> None:
    """The last of 14 requests enters long after the first, so the mean is over the steps before."""
    figure = memory_explorer.plot_policy("reserve the maximum, first fit", 128, 4)
    memory = map_memory(
        Contiguous("max", "first_fit", 128), memory_explorer._PROMPTS, memory_explorer._OUTPUTS, 128
    )
    last_entry = sum(memory_explorer._OUTPUTS[:-1])
    used = memory.count("used")[:last_entry].mean() / 128
    assert f"fill {used:.0%} while requests wait" in figure.get_suptitle()


def test_explorer_names_pieces_but_not_strips() -> None:
    pieces, strips = (
        memory_explorer.plot_policy(name, 64, 4)
        for name in ("reserve exactly, first fit", "blocks")
    )
    assert [text.get_text() for text in pieces.axes[0].texts] == list("ABCDEFGHIJKLMN")
    assert not strips.axes[0].texts
