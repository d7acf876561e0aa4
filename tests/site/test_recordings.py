"""The recorded widgets are in step with their lessons, small, and say every state in words."""

from __future__ import annotations

import math
import random
import zipfile
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import pytest

from tools.frames.cells import NOTEBOOKS, drawing_modules, fingerprint, needed_cells
from tools.frames.plans import LIMIT, NOT_RECORDED, PLANS
from tools.frames.record import RECORDED, out_of_step, states
from tools.frames.states import choices, finding
from tools.notebook_rules import WIDGET
from utils.viz.distributed.layout_widget import layout_explorer
from utils.viz.engine.chain import chain_explorer
from utils.viz.memory.block_story import block_pool_explorer
from utils.viz.memory.memory_explorer import memory_explorer
from utils.viz.serving.vllm_prefix_widget import hit_explorer


def widgets_of_lessons() -> set[str]:
    return {
        path.stem + tag.removeprefix("widget")
        for path in NOTEBOOKS.glob("*.ipynb")
        for cell in nbformat.read(path, as_version=4).cells
        for tag in cell.metadata.get("tags", [])
        if WIDGET.fullmatch(tag)
    }


HERE = [name for name in PLANS if name not in NOT_RECORDED]


def test_every_widget_is_recorded_or_it_is_said_why_not() -> None:
    assert {path.name for path in RECORDED.glob("*")} == {f"{name}.zip" for name in HERE}
    assert {*HERE, *NOT_RECORDED} == widgets_of_lessons()


@pytest.mark.parametrize("name", HERE)
def test_a_recording_is_in_step_with_its_lesson(name: str) -> None:
    changed = out_of_step(name)
    assert not changed, f"changed: {changed}. Run: make frames"


@pytest.mark.parametrize("name", HERE)
def test_a_recording_is_small_and_says_every_state(name: str) -> None:
    path, found = RECORDED / f"{name}.zip", states(RECORDED / f"{name}.zip")
    assert path.stat().st_size <= LIMIT
    frames: list[dict[str, Any]] = found.get("frames", [])
    with zipfile.ZipFile(path) as file:
        pictures = {frame["file"]: frame for frame in frames if "file" in frame}
        assert set(file.namelist()) == {"states.json", *pictures}
    assert all(frame["words"].strip() for frame in frames)
    assert all(len(frame["alt"]) > 5 for frame in pictures.values())
    # On a laptop's screen the controls stay in sight above the picture.
    assert all(frame["size"][1] <= 560 for frame in pictures.values())
    if found["kind"] == "grid":
        sizes = [len(axis["values"]) for axis in found["axes"]]
        assert len(found["index"]) == math.prod(sizes) and min(sizes) > 1
        assert set(found["index"]) == set(range(len(frames)))
    if found["kind"] == "graph":
        assert len(found["index"]) == len(found["edges"])
        targets = {edge[0] for edges in found["edges"] for edge in edges if edge}
        assert targets == set(range(len(found["edges"])))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("03_kv_memory_waste", memory_explorer),
        ("04_paged_allocator", block_pool_explorer),
        ("13_vllm_prefix_caching", hit_explorer),
        ("15_distributed", layout_explorer),
        ("18_vllm_by_hand", chain_explorer),
    ],
)
def test_a_recorded_state_says_what_the_widget_says(name: str, make: Any) -> None:
    widget, found = make(), states(RECORDED / f"{name}.zip")
    chance = random.Random(name)
    for _ in range(4):
        at = [chance.randrange(len(axis["values"])) for axis in found["axes"]]
        values = {key: control.value for key, control in widget.controls.items()}
        place = 0
        for axis, i in zip(found["axes"], at, strict=True):
            place = place * len(axis["values"]) + i
            by_text = dict(choices(widget.controls[axis["name"]]))
            values[axis["name"]] = by_text[axis["values"][i]]
        try:
            figure = widget.draw(**values)
            expected = finding(figure)
            plt.close(figure)
        except ValueError as error:
            expected = str(error)
        assert found["frames"][found["index"][place]]["words"] == expected


CELLS = [
    "import math",
    "a = 2\nb = [a]",
    "unused = a + 1",
    "def f(x):\n    return x * a + k",
    "k = 5",
    "for name in [1]:\n    print(name)",
    "b[0] = f(1)",
    "name = 'x'",
    "with open(name) as file:\n    pass",
    "a = 3",
    "total = await_free = sum(n for n in b)",
]


def test_only_the_cells_that_a_widget_needs_are_run() -> None:
    last = "print(total, [name for name in 'ab'])"
    needed = needed_cells(CELLS, last)
    # Neither 2, 5, 7 and 8; but 9, as f might be called after it.
    assert needed == [1, 3, 4, 6, 9, 10]
    whole: dict[str, Any] = {}
    part: dict[str, Any] = {}
    exec("\n".join(CELLS[:8] + CELLS[9:]), whole)
    exec("\n".join(CELLS[i] for i in needed), part)
    assert part["total"] == whole["total"]
    assert needed_cells(CELLS, last, given=["b"]) == [10]


def test_a_change_of_code_is_seen_and_one_of_comments_or_layout_is_not() -> None:
    code = "x = 1  # one\n\n# about y\ny = 2\n"
    assert fingerprint(code) == fingerprint("x = 1  # other words\ny = (\n    2\n)")
    assert fingerprint(code) != fingerprint(code.replace("2", "3"))


def test_what_draws_a_widget_is_known() -> None:
    earlier = "from utils.viz.engine.step_anatomy import explorer\nfrom utils.viz.other import no"
    last = "from utils.viz.explore import Explorer\nfrom utils.viz.a.b import c\nc(explorer)"
    assert drawing_modules([earlier, last], last) == [
        "utils/viz/a/b.py",
        "utils/viz/engine/step_anatomy.py",
    ]
