"""Labs are in step with their solutions, run untouched, and are graded right by nbgrader itself.

nbval runs the solutions, and compares what each check gives with the saved points. So nbgrader
grades labs as they are handed out, but of the solved ones only some. At the small size it grades
two labs, and all others run as they are handed out in one process, which imports torch once.
"""

from __future__ import annotations

import ast
import copy
import csv
import importlib
import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.checks.mutants import bare
from tests.scale import FULL, SCALE
from tools import make_labs
from tools.grading.grade import grade

LABS = make_labs.lab_names()
AUTOGRADED = LABS if SCALE == FULL else LABS[:1]
MODULES = {lab: f"lab_{make_labs.number_of(lab)}" for lab in LABS}
CHECKS = {lab: importlib.import_module(f"utils.checks.{name}") for lab, name in MODULES.items()}
NO_FILTER = """\
def token_probabilities(logits, temperature=1.0, top_k=0, top_p=1.0):
    return logits.softmax(-1)
"""


def notebook(folder: str | Path, lab: str) -> nbformat.NotebookNode:
    return nbformat.read(make_labs.ROOT / folder / lab / f"{lab}.ipynb", as_version=4)


def grade_cells(cells):
    return [cell for cell in cells if cell.metadata.get("nbgrader", {}).get("grade")]


def test_every_solution_has_a_lab_and_checks():
    checked = sorted((make_labs.ROOT / "utils" / "checks").glob("lab_*"))
    assert [folder.name for folder in checked] == list(MODULES.values())
    assert sorted(p.name for p in (make_labs.ROOT / "labs").iterdir()) == LABS


ANSWERS = [lab for lab in LABS if hasattr(CHECKS[lab], "answers")]


@pytest.mark.parametrize("lab", ANSWERS)
def test_the_solution_is_the_answer_of_which_mistakes_are_edits(lab):
    solved = [c.source for c in notebook("solutions", lab).cells if "BEGIN SOLUTION" in c.source]
    solution = _definitions("\n".join(solved))
    answers = _definitions(inspect.getsource(CHECKS[lab].answers))
    assert answers == {name: solution[name] for name in answers}


def _definitions(source):
    """Functions and classes by name, without docstrings and annotations."""
    nodes = bare(ast.parse(source)).body
    return {node.name: ast.unparse(node) for node in nodes if hasattr(node, "name")}


@pytest.mark.parametrize("lab", LABS)
def test_labs_hold_no_solution(lab):
    for cell in notebook("labs", lab).cells:
        assert "SOLUTION" not in cell.source
        nbgrader = cell.metadata.get("nbgrader", {})
        if nbgrader.get("solution"):
            assert "raise NotImplementedError" in cell.source
            assert '"""' in cell.source, "the stub keeps its docstring"


@pytest.mark.parametrize("lab", LABS)
def test_each_check_has_the_points_of_its_cell(lab):
    checks = [c for c in vars(CHECKS[lab]).values() if hasattr(c, "max_points")]
    points = [
        cell.metadata.nbgrader.points for cell in grade_cells(notebook("solutions", lab).cells)
    ]
    assert points == [check.max_points for check in checks]


@pytest.mark.parametrize("lab", LABS)
def test_no_file_beside_the_checks_has_the_name_of_one(lab):
    """To import `lab_01/attention.py` would put that file where `lab_01.attention` is the check."""
    facade = Path(CHECKS[lab].__file__)
    exercises = {name for name, check in vars(CHECKS[lab]).items() if hasattr(check, "max_points")}
    assert len(exercises) == len(grade_cells(notebook("solutions", lab).cells))
    assert exercises.isdisjoint(file.stem for file in facade.parent.iterdir())


@pytest.mark.parametrize("lab", LABS)
def test_each_exercise_has_the_same_form(lab):
    """What to write, given code (if any), the stub, the check, folded hints; in that order."""
    cells = notebook("labs", lab).cells
    for place, cell in enumerate(cells):
        if cell not in grade_cells(cells):
            continue
        has_stub = cells[place - 1].metadata.nbgrader.get("solution")
        before = cells[: place - 1 if has_stub else place]
        about = next(c.source for c in reversed(before) if c.cell_type == "markdown")
        assert about.startswith("## Exercise ")
        assert "Difficulty ●" in about and "Importance ●" in about and " minutes" in about
        if has_stub:
            assert "**Contract.**" in about
            assert "<details><summary>Hint" in cells[place + 1].source


@pytest.mark.parametrize("lab", LABS)
def test_saved_solutions_earn_all_points(lab):
    """And nbval compares with these points what the checks give when it runs the solution."""
    for cell in grade_cells(notebook("solutions", lab).cells):
        assert "nbval-ignore-output" not in cell.metadata.get("tags", [])
        earned = [o.data["text/plain"] for o in cell.outputs if "text/plain" in o.get("data", {})]
        assert earned == [str(float(cell.metadata.nbgrader.points))]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which nbgrader graded labs: one student did nothing, others solved one."""
    root = tmp_path_factory.mktemp("course")
    shutil.copy(make_labs.ROOT / "nbgrader_config.py", root)
    (root / "utils").symlink_to(make_labs.ROOT / "utils", target_is_directory=True)
    for lab in AUTOGRADED:
        (root / "solutions" / lab).mkdir(parents=True)
        shutil.copy(make_labs.ROOT / "solutions" / lab / f"{lab}.ipynb", root / "solutions" / lab)
    for lab in AUTOGRADED:
        submit(root, lab, "untouched", notebook("labs", lab))
    submit(root, LABS[0], "solved", notebook("solutions", LABS[0]))
    one_wrong = notebook("solutions", LABS[0])
    for cell in one_wrong.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == "token_probabilities":
            cell.source = NO_FILTER
    submit(root, LABS[0], "one_wrong", one_wrong)
    make_labs.nbgrader(root, "generate_assignment", make_labs.ALL)
    for lab in AUTOGRADED:
        make_labs.nbgrader(root, "autograde", lab)
    make_labs.nbgrader(root, "export")
    return root


def submit(root: Path, lab: str, student: str, notebook: nbformat.NotebookNode) -> None:
    path = root / "submitted" / student / lab / f"{lab}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)


def score(course: Path, lab: str, student: str) -> tuple[float, float]:
    with open(course / "grades.csv", newline="") as file:
        (row,) = [
            r for r in csv.DictReader(file) if (r["assignment"], r["student_id"]) == (lab, student)
        ]
    return float(row["score"]), float(row["max_score"])


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The labs as `make labs` generates them, all at once."""
    folder = tmp_path_factory.mktemp("generated")
    make_labs.generate(LABS, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("lab", LABS)
def test_labs_are_in_step_with_solutions(generated, lab):
    path = f"{lab}/{lab}.ipynb"
    assert (generated / path).read_text() == (make_labs.ROOT / "labs" / path).read_text(), (
        f"labs/{path} is not what its solution generates: run `make labs`"
    )


@pytest.mark.slow
@pytest.mark.parametrize("lab", LABS[:1])
def test_the_solved_lab_earns_all_points(course, lab):
    total = sum(c.max_points for c in vars(CHECKS[lab]).values() if hasattr(c, "max_points"))
    assert score(course, lab, "solved") == (total, total)


@pytest.fixture(scope="module")
def untouched() -> dict[str, dict]:
    """What each lab does as it is handed out, run in a process of its own."""
    labs = [lab for lab in LABS if lab not in AUTOGRADED]
    if not labs:
        return {}
    command = [sys.executable, "-m", "tests.labs.untouched", *labs]
    done = subprocess.run(command, cwd=make_labs.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {row["lab"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("lab", [lab for lab in LABS if lab not in AUTOGRADED])
def test_every_cell_of_the_untouched_lab_runs_and_no_check_is_content(untouched, lab):
    row = untouched[lab]
    assert row["errors"] == []
    code = [cell for cell in notebook("labs", lab).cells if cell.cell_type == "code"]
    assert row["ran"] == len(code)
    assert len(row["checks"]) == len(grade_cells(code)) > 0
    for points, shown in row["checks"]:
        assert points == "0.0"
        assert "Not written yet" in shown


@pytest.mark.slow
@pytest.mark.parametrize("lab", AUTOGRADED)
def test_the_untouched_lab_runs_to_its_end_and_earns_nothing(course, lab):
    earned, possible = score(course, lab, "untouched")
    assert earned == 0
    assert possible > 0
    graded = nbformat.read(course / "autograded" / "untouched" / lab / f"{lab}.ipynb", 4)
    code = [cell for cell in graded.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error"]
    for cell in grade_cells(code):
        (output,) = cell.outputs
        assert output.data["text/plain"] == "0.0"
        assert "Not written yet" in output.data["text/html"]


@pytest.mark.slow
def test_a_notebook_that_cannot_be_graded_stops_nobody(course):
    """nbgrader itself would stop at the first of these, and grade none that comes behind it."""
    lab = LABS[0]
    double = notebook("labs", lab)
    double.cells.append(copy.deepcopy(grade_cells(double.cells)[0]))
    double.cells[-1].id = "copied"
    submit(course, lab, "a_double", double)
    submit(course, lab, "b_text", notebook("labs", lab))
    (course / "submitted" / "b_text" / lab / f"{lab}.ipynb").write_text("my answers")
    submit(course, lab, "c_fine", notebook("labs", lab))
    for student in ("untouched", "solved", "one_wrong"):
        shutil.rmtree(course / "submitted" / student / lab)
    problems = grade(lab, course)
    assert "more than once: check_rms_norm" in problems["a_double"]
    assert "is no notebook" in problems["b_text"]
    assert problems["c_fine"] == ""
    assert (course / "autograded" / "c_fine" / lab / f"{lab}.ipynb").exists()
    assert "not done after 0.1 seconds" in grade(lab, course, patience=0.1)["c_fine"]
    with pytest.raises(ValueError, match="There is no"):
        grade("99_none", course)


@pytest.mark.slow
@pytest.mark.parametrize("lab", LABS[:1])
def test_one_wrong_answer_costs_its_own_points_and_no_others(course, lab):
    earned, possible = score(course, lab, "one_wrong")
    assert earned == possible - CHECKS[lab].token_probabilities.max_points
