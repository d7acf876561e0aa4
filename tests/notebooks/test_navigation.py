"""From every lesson and lab one can click on, and back, in JupyterLab, on Colab and on the site."""

from __future__ import annotations

import re

import nbformat
import pytest

from tools import navigation
from tools.notebook_files import ROOT, labs, lessons
from tools.notebook_rules import problems
from tools.set_repository_url import configured_slug


def test_the_order_is_lesson_lab_next_lesson() -> None:
    names = [navigation.public(path).relative_to(ROOT).parts[0] for path in navigation.course()]
    numbers = [path.name.partition("_")[0] for path in navigation.course()]
    pairs = zip(names, numbers, strict=True)
    steps = [f"{number}{'L' if name == 'labs' else ''}" for name, number in pairs]
    assert steps[:5] == ["00", "00b", "01", "01L", "02"]
    assert steps[steps.index("07") :][:2] == ["07", "07L"]
    assert [step for step in steps if step.startswith("07b")][-1:] == ["07bL"]
    assert steps[steps.index("08") :][:5] == ["08", "08b", "08c", "08d", "08L"]
    assert steps[steps.index("09") :][:4] == ["09", "09b", "09L", "10"] and steps[-1] == "18"
    assert {navigation.public(path) for path in navigation.course()} == {*lessons(), *labs()}


@pytest.mark.parametrize("path", navigation.course(), ids=lambda path: path.stem + path.parent.name)
def test_its_links_lead_to_its_neighbors(path) -> None:
    opened = navigation.public(path)
    cells = nbformat.read(opened, as_version=4).cells
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    before, after = navigation.neighbors(path)
    for text, expected in ((texts[0], [before, *after[:1]]), (texts[-1], after)):
        line = next(s for s in text.splitlines() if s.startswith((navigation.TOP, navigation.END)))
        found = [
            (opened.parent / target).resolve()
            for target in re.findall(r"\]\(([^)]+\.ipynb)\)", line)
            if "://" not in target
        ]
        assert found == [navigation.public(one) for one in expected if one is not None]
        assert all(target.is_file() for target in found)
    end = texts[-1].split(navigation.END)[1]
    colab = re.findall(rf"colab\S+?{configured_slug()}/blob/main/([^)]+)", end)
    assert [ROOT / place for place in colab] == [navigation.public(one) for one in after]


def test_the_lines_are_written_once(tmp_path) -> None:
    path = lessons()[2]
    once = navigation.with_lines(path, "# 02", "The end.")
    assert navigation.with_lines(path, *once) == once
    assert once[0].startswith("# 02\n\n") and once[1].startswith("The end.\n\n")


def test_a_notebook_without_its_lines_breaks_a_rule(tmp_path, monkeypatch) -> None:
    path = lessons()[2]
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].source = notebook.cells[-1].source.replace("**Go on.**", "Go on.")
    copy = tmp_path / "notebooks" / path.name
    copy.parent.mkdir()
    nbformat.write(notebook, copy)
    monkeypatch.setattr("tools.notebook_rules.course", lambda: [copy])
    monkeypatch.setattr("tools.notebook_rules.end_line", lambda _: navigation.end_line(path))
    monkeypatch.setattr("tools.notebook_rules.top_line", lambda _: navigation.top_line(path))
    [problem] = problems(copy)
    assert "**Go on.**" in problem and "tools/navigation.py" in problem


def test_the_exercise_announced_as_the_learners_own_design_is_one() -> None:
    announced = 0
    for lab in labs():
        lesson, exercises = ROOT / "notebooks" / lab.name, lab.read_text(encoding="utf-8")
        if not lesson.is_file():  # a lab of several lessons
            continue
        text = "\n".join(cell.source for cell in nbformat.read(lesson, as_version=4).cells)
        for number in re.findall(r"exercise (\d+) you design", text):
            assert re.search(rf"## Exercise {number}: [^\n]*\(you design it\)", exercises)
            announced += 1
    assert announced
