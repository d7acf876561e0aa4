"""The map counts the record against all exercises of all labs, and draws what it counted."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyBboxPatch, Rectangle

from utils.checks.kit import progress as module
from utils.checks.kit.progress import main, points_in_lab, progress, syllabus
from utils.viz.course_map import PARTS, SHARED_LABS, draw_course_map, draw_progress, lesson_titles
from utils.viz.figure_text import figure_text
from utils.viz.style import BLUE


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    file = tmp_path / "from-kv-cache-to-vllm" / "progress.jsonl"
    file.parent.mkdir()
    return file


def write(file: Path, *lines: tuple[str, str, float, float]) -> None:
    with open(file, "a") as stream:
        for day, (lab, name, points, of) in enumerate(lines, 1):
            said = {"status": "passed" if points == of else "failed", "points": points, "of": of}
            line = {"at": f"2026-01-{day % 28 + 1:02}T10:00:00+00:00", "lab": lab, "exercise": name}
            line |= said
            stream.write(json.dumps(line) + "\n")


@pytest.mark.parametrize("lab", syllabus())
def test_the_syllabus_is_what_the_checks_are(lab: str) -> None:
    """It is read from their source; here the checks themselves are asked."""
    checks = importlib.import_module(f"utils.checks.lab_{lab}")
    own = [c for c in vars(checks).values() if hasattr(c, "max_points")]
    assert [(e.name, e.title, e.points) for e in syllabus()[lab]] == [
        (check.__name__, check.title, check.max_points) for check in own
    ]


def test_every_lab_has_a_place_on_the_map() -> None:
    assert set(syllabus()) <= set(lesson_titles())
    assert [number for part in PARTS.values() for number in part] == list(lesson_titles())


def test_the_best_of_each_exercise_counts_and_the_rest_does_not(file: Path) -> None:
    write(
        file,
        ("02", "kv_cache_bytes", 3, 3),
        ("02", "kv_cache_bytes", 0, 3),
        ("02", "latent_cache_bytes", 0, 1),
        ("02", "nothing_of_this_name", 5, 5),
        ("98", "kv_cache", 5, 5),
    )
    done = progress()
    assert done.points["02"] == (3, 16)
    assert sum(points for points, _ in done.points.values()) == 3
    (lab,) = [lab for lab in done.labs if lab.lab == "02"]
    assert [e.name for e in lab.missing] == [e.name for e in syllabus()["02"]][1:]
    assert lab.last == "2026-01-05" and not lab.complete
    assert "Exercise 2: latent_cache_bytes" in done.next_step


def test_a_check_says_what_its_lab_has_given(file: Path) -> None:
    write(file, ("02", "kv_cache_bytes", 3, 3), ("03", "block_memory", 0, 3))
    assert points_in_lab("02") == "3 of 16 in this lab"
    assert points_in_lab("03").startswith("0 of ")
    assert points_in_lab("98") == ""


def test_points_that_were_counted_otherwise_keep_their_share(file: Path) -> None:
    write(file, ("02", "kv_cache_bytes", 30, 30))
    assert progress().points["02"] == (3, 16)


def test_all_is_done_only_when_every_exercise_is(file: Path) -> None:
    lines = [(lab, e.name, e.points, e.points) for lab, all_ in syllabus().items() for e in all_]
    write(file, *lines[:20])
    assert "Next: lab" in progress().next_step
    file.unlink()
    for line in lines:
        write(file, line)
    done = progress()
    assert "make verify" in done.next_step
    assert all(points == of for points, of in done.points.values())
    assert f"{len(done.labs)} of {len(done.labs)} labs are complete" in done.summary


def test_it_prints_a_bar_for_each_lab(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(file, *(("02", e.name, e.points, e.points) for e in syllabus()["02"][:2]))
    main()
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line for line in printed.splitlines() if line.startswith("  ")}
    assert set(rows) == set(syllabus())
    assert f"[{'#' * 5}{'.' * 15}]" in rows["02"]  # 4 of 16 points
    assert "#" not in rows["01"]
    assert str(file) in printed


def test_it_says_that_nothing_is_recorded(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_PROGRESS", "off")
    main()
    assert "nothing is added" in capsys.readouterr().out


def test_a_record_that_cannot_be_read_counts_as_empty_and_says_why(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.mkdir()
    assert sum(points for points, _ in progress().points.values()) == 0
    main()
    assert f"cannot be read: [Errno 21] Is a directory: '{file}'" in capsys.readouterr().out


def test_floors_are_filled_as_far_as_labs_are_solved(file: Path) -> None:
    figure = draw_progress({"01": (5.0, 20.0), "02": (16.0, 16.0), "03": (0.0, 7.0)})
    (axes,) = figure.axes
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    filled = [bar.get_width() / box.get_width() for bar, box in zip(bars, boxes, strict=True)]
    assert filled[:4] == [0.25, 1, 0, 0]
    full = [box.get_facecolor() == to_rgba(BLUE) for box in boxes]
    assert full[:4] == [False, True, False, False]
    texts = [text.get_text() for text in axes.texts]
    assert any("5/20" in text for text in texts)
    assert sum("no lab" in text for text in texts) == len(lesson_titles()) - 3 - len(SHARED_LABS)
    assert sum("(lab 09)" in text for text in texts) == 1
    assert figure_text(figure).startswith("21 of 43 points, 1 of 3 labs complete")
    plt.close(figure)


def test_the_map_without_progress_has_a_text_of_its_own() -> None:
    figure = draw_course_map()
    assert figure_text(figure)
    plt.close(figure)


def test_the_map_loads_no_checks_and_no_torch() -> None:
    """So it is there in a second."""
    code = f"import sys, {module.__name__}; print('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
