"""A saved output belongs to its cell: one that no test compares has a hash of what it shows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from tools import notebooks
from tools.notebook_files import RECORDED, lessons
from tools.saved import in_step, quiet, shown_code
from tools.saved.shown_code import code_hash, deeper_hash

FILES = {
    "utils/viz/plots.py": '''\
        """Figures."""
        from utils.viz.style import BLUE
        from utils.viz.parts import width
        from utils.engine.pool import SIZE
        def plot(values, title):
            """Bars."""
            return draw(values, width(SIZE), BLUE)
        def draw(values, width, color):
            return f"{len(values)} requests share {width} blocks", color
        def other():
            return 1
        ''',
    "utils/viz/parts.py": "def width(size):\n    return size\ndef unused():\n    return 1\n",
    "utils/viz/style.py": "BLUE = 'blue'\n",
    "utils/findings/lesson.py": "def verdict(n):\n    return 'It is faster' if n else 'No'\n",
    "utils/engine/pool.py": "SIZE = 16\n",
    "utils/engine/kernel.cpp": "int size = 16;\n",
}
CODES = [
    "from utils.findings import lesson as finding\nfrom utils.viz.plots import plot",
    "unused = 1",
    "values = [1]",
    "print(finding.verdict(len(values)))\nplot(values, 'Waiting')",
]


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.setattr(shown_code, "ROOT", tmp_path)
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    for function in vars(shown_code).values():
        getattr(function, "cache_clear", lambda: None)()


def _hashes(codes: list[str]) -> tuple[str, str]:
    _forget()
    return code_hash(codes, len(codes) - 1), deeper_hash(codes)


def _edit(course: Path, name: str, old: str, new: str) -> None:
    text = (course / name).read_text()
    assert old in text
    (course / name).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("utils/viz/plots.py", "share", "have"),  # reached through another function
        ("utils/viz/parts.py", "return size", "return 2 * size"),  # in another module
        ("utils/findings/lesson.py", "faster", "slower"),
    ],
)
def test_what_draws_a_figure_belongs_to_it(course: Path, name: str, old: str, new: str) -> None:
    before = _hashes(CODES)
    _edit(course, name, old, new)
    assert _hashes(CODES)[0] != before[0]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("utils/viz/plots.py", '"""Bars."""', '"""Wide bars."""\n    # why'),
        ("utils/viz/plots.py", "return 1", "return 2"),  # a function that nothing here reaches
        ("utils/viz/parts.py", "def unused():\n    return 1\n", ""),
    ],
)
def test_other_changes_make_no_output_old(course: Path, name: str, old: str, new: str) -> None:
    before = _hashes(CODES)
    _edit(course, name, old, new)
    assert _hashes(CODES) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("utils/viz/style.py", "'blue'", "'red'"),
        ("utils/engine/pool.py", "16", "32"),
        ("utils/engine/kernel.cpp", "16", "32"),
    ],
)
def test_style_and_engine_only_list_the_lesson(course: Path, name: str, old: str, new: str) -> None:
    shown, deeper = _hashes(CODES)
    _edit(course, name, old, new)
    now = _hashes(CODES)
    assert now[0] == shown and now[1] != deeper


def test_the_place_of_a_function_does_not_count(course: Path) -> None:
    before = _hashes(CODES)
    (course / "utils/viz/parts.py").rename(course / "utils/viz/pieces.py")
    _edit(course, "utils/viz/plots.py", "utils.viz.parts", "utils.viz.pieces")
    assert _hashes(CODES)[0] == before[0]


@pytest.mark.parametrize(
    ("cell", "code", "same"),
    [
        (1, "unused = 2", True),
        (2, "values = [1]  # a comment", True),
        (2, "values = [2]", False),  # of an earlier cell, but needed
        (3, "print( finding.verdict(len(values)) )\nplot(values,\n     'Waiting')", True),
        (3, "print(finding.verdict(len(values)))\nplot(values, 'Ready')", False),
    ],
)
def test_a_cell_and_what_it_needs(course: Path, cell: int, code: str, same: bool) -> None:
    changed = [*CODES[:cell], code, *CODES[cell + 1 :]]
    assert (_hashes(changed)[0] == _hashes(CODES)[0]) == same


def test_an_await_in_a_cell_is_read(course: Path) -> None:
    assert code_hash(["x = 1", "await f(x)"], 1) != code_hash(["x = 2", "await f(x)"], 1)


def _notebook(alt: str | None = None, codes: list[str] = CODES) -> NotebookNode:
    """A recorded notebook; its last cell shows a figure with this text, or prints a time."""
    cells = [nbformat.v4.new_code_cell(code, id=f"c{n}") for n, code in enumerate(codes)]
    if alt is None:
        cells[-1].metadata["tags"] = ["nbval-ignore-output"]
        cells[-1].outputs = [nbformat.v4.new_output("stream", text="3 ms\n")]
    else:
        metadata = {"image/png": {"alt": alt}}
        data = {"image/png": "AAAA"}
        cells[-1].outputs = [nbformat.v4.new_output("display_data", data=data, metadata=metadata)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    in_step.record(notebook, {"commit": "abc1234", "busy_cells": []})
    return notebook


def _first(problems: Iterator[str]) -> str:
    return next(problems, "none")


def test_a_planted_old_output_is_found(course: Path) -> None:
    notebook = _notebook()
    assert _first(in_step.problems(notebook)) == "none"
    notebook.cells[-1].source += "\nprint(1)"
    assert "cell 3: its output is older than its code" in _first(in_step.problems(notebook))


def test_an_output_without_a_record_is_found(course: Path) -> None:
    notebook = _notebook()
    del notebook.metadata[RECORDED]["cells"]["c3"]
    assert "cell 3: nothing says which code" in _first(in_step.problems(notebook))


def test_a_record_without_an_output_is_found(course: Path) -> None:
    notebook = _notebook()
    notebook.cells[-1].outputs = []
    assert "outputs that it doesn't have, of c3" in _first(in_step.problems(notebook))


@pytest.mark.parametrize(
    ("alt", "found"),
    [
        ("7 requests share 16 blocks. time over step", False),  # the fixed parts of an f-string
        ("It is faster. time over step", False),
        ("2. Waiting. time", False),  # numbered
        ("7 requests need 16 blocks. time over step", True),
        ("The queue grows. Waiting", True),
    ],
)
def test_a_figures_title_is_one_that_its_code_gives(course: Path, alt: str, found: bool) -> None:
    said = _first(in_step.problems(_notebook(alt)))
    assert (f"no code gives its figure the title {alt[:60]!r}" in said) == found


def test_what_is_known_to_be_old_leaves_the_list_once_it_is_not(course: Path) -> None:
    notebook = _notebook()
    assert "take c3 out of KNOWN_OLD" in _first(in_step.problems(notebook, {"c3"}))
    notebook.cells[-1].source += "\nprint(1)"
    assert _first(in_step.problems(notebook, {"c3"})) == "none"


def test_lessons_to_record_anew_are_listed(course: Path, tmp_path: Path) -> None:
    path = tmp_path / "01_a.ipynb"
    nbformat.write(_notebook(), path)
    assert in_step.to_record_anew([path]) == []
    _edit(course, "utils/engine/pool.py", "16", "32")
    _forget()
    assert in_step.to_record_anew([path]) == ["01_a: recorded at commit abc1234"]


def test_a_release_refuses_older_outputs(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "01_a.ipynb"
    nbformat.write(_notebook(), path)
    monkeypatch.setattr(in_step, "lessons", lambda: [path])
    in_step.main(["--refuse"])
    _edit(course, "utils/viz/style.py", "blue", "red")
    _forget()
    in_step.main([])  # is only listed
    with pytest.raises(SystemExit, match="1 lessons have older outputs"):
        in_step.main(["--refuse"])


def test_what_a_busy_machine_recorded_is_listed(course: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}_a.ipynb" for number in ("01", "02")]
    for path, about in zip(
        paths, ({"session": "a", "busy_cells": ["c3"]}, {"session": "b"}), strict=True
    ):
        notebook = _notebook()
        in_step.record(notebook, about)
        nbformat.write(notebook, path)
    busy, unwatched, apart = in_step.recorded_busy(paths)
    assert busy == "01_a: the machine was busy during 1 of its cells"
    assert unwatched == "02_a: recorded before the machine was watched"
    assert apart.startswith("01, 02, 05, 06: show the same measurements, but were recorded apart")


def test_known_old_outputs_are_of_lessons_that_exist() -> None:
    assert in_step.KNOWN_OLD.keys() <= {path.stem for path in lessons()}


class FixedTimes:
    """Stands for the fixed work: how much slower than at best it is, call by call."""

    def __init__(self, *percents: float) -> None:
        self.percents = list(percents)

    def slower_percent(self) -> float:
        return self.percents.pop(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds of wall time, of work of the whole machine, and of our own; sleeping passes them."""
    now = {"wall": 0.0, "busy": 0.0, "own": 0.0}

    def sleep(seconds: float) -> None:
        now["wall"] += seconds

    monkeypatch.setattr(quiet.time, "monotonic", lambda: now["wall"])
    monkeypatch.setattr(quiet.time, "sleep", sleep)
    monkeypatch.setattr(quiet, "busy_seconds", lambda: now["busy"])
    monkeypatch.setattr(quiet, "own_seconds", lambda: now["own"])
    monkeypatch.setattr(quiet.psutil, "cpu_count", lambda: 2)
    return now


@pytest.mark.parametrize(
    ("others", "slower", "busy"),
    [(0.0, 3.0, False), (0.05, 20.0, False), (2.0, 3.0, True), (0.0, 40.0, True)],
)
def test_a_cell_ran_on_a_busy_machine(
    clock: dict[str, float], others: float, slower: float, busy: bool
) -> None:
    """Ten seconds on two cores; `others` is the CPU time of other programs meanwhile."""
    watch = quiet.Watch(work=FixedTimes(0.0, slower))  # type: ignore[arg-type]
    watch.before("c")
    clock["wall"] += 10
    clock["own"] += 12
    clock["busy"] += 12 + others
    watch.after("c")
    assert watch.busy == (["c"] if busy else [])
    assert watch.record()["others_percent"] == pytest.approx(100 * others / 20, abs=0.1)
    assert watch.record()["spread_percent"] == slower


def test_a_cell_waits_for_a_quiet_machine_but_not_for_ever(clock: dict[str, float]) -> None:
    watch = quiet.Watch(work=FixedTimes(50.0, 50.0, 1.0))  # type: ignore[arg-type]
    watch.before("c")
    assert clock["wall"] == 2 * quiet.PAUSE_S and watch.patience_s == quiet.PATIENCE_S - 4.0
    never = quiet.Watch(work=FixedTimes(*[50.0] * 1000))  # type: ignore[arg-type]
    never.before("c")
    assert never.patience_s == 0.0


def test_the_measuring_counts_as_waiting(clock: dict[str, float]) -> None:
    class Slow(FixedTimes):
        def slower_percent(self) -> float:
            clock["wall"] += 5
            return super().slower_percent()

    quiet.Watch(work=Slow(*[50.0] * 1000)).before("c")  # type: ignore[arg-type]
    assert clock["wall"] <= quiet.PATIENCE_S + 5 + (quiet.PAUSE_S + 5)


def test_the_same_work_is_never_better_than_its_best() -> None:
    work = quiet.FixedWork()
    assert work.slower_percent() == 0.0
    assert work.slower_percent() >= 0.0 and set(work.best) == {"product", "copy", "decode step"}


def test_our_own_work_is_not_other_programs() -> None:
    own, busy = quiet.own_seconds(), quiet.busy_seconds()
    sum(i * i for i in range(3_000_000))
    assert quiet.own_seconds() > own and quiet.busy_seconds() >= busy


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, clock: dict[str, float]) -> Callable[..., list[str]]:
    """`runs(spread, ...)`: what `steadiest` did when the machine was like this, run by run."""

    def steadiest(*spreads: float, seconds: float = 100.0) -> list[str]:
        waiting, done = list(spreads), []

        def execute(path: Path, watch: quiet.Watch) -> Any:
            watch.spread["c"] = waiting.pop(0)
            watch.others["c"] = 0.0
            clock["wall"] += seconds
            done.append(f"run {watch.spread['c']:g}")
            return nbformat.v4.new_notebook(metadata={"spread": watch.spread["c"]})

        monkeypatch.setattr(notebooks, "execute", execute)
        work: Any = FixedTimes()
        notebook, watch = notebooks.steadiest(Path("01_a.ipynb"), work)
        assert notebook.metadata["spread"] == watch.spread["c"]
        return [*done, f"saved {watch.spread['c']:g}"]

    return steadiest


def test_a_quiet_run_is_saved_at_once(runs: Callable[..., list[str]]) -> None:
    assert runs(3.0) == ["run 3", "saved 3"]


def test_a_busy_run_is_repeated_until_one_is_quiet(runs: Callable[..., list[str]]) -> None:
    assert runs(50.0, 40.0, 2.0) == ["run 50", "run 40", "run 2", "saved 2"]


def test_after_ten_minutes_the_steadiest_run_is_saved(runs: Callable[..., list[str]]) -> None:
    assert runs(50.0, 30.0, 40.0, seconds=250.0) == ["run 50", "run 30", "run 40", "saved 30"]


def test_lessons_with_the_same_measurements_are_recorded_in_one_go() -> None:
    by_number = {path.stem.partition("_")[0]: path for path in lessons()}
    together = [by_number[number] for number in ("01", "02", "05", "06")]
    assert notebooks.with_their_groups([by_number["05"]]) == together
    assert notebooks.with_their_groups([by_number["03"]]) == [by_number["03"]]
