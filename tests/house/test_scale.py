"""The small suite is a part of the full one, and the full proof is of today's recipe."""

from __future__ import annotations

import ast
import json
from dataclasses import fields
from pathlib import Path

import nbformat
import pytest

from tests import scale
from tests.plugins.notebooks import scaled
from tests.scaled_cells import EDITS
from tools.proof import parts
from tools.proof.table import FULL_PROOF, outdated
from utils.profiles import PROFILES, PROOF_PROFILE

ROOT = Path(__file__).resolve().parents[2]


def test_a_small_size_exceeds_no_full_size() -> None:
    assert scale.sized(2, 3) == (3 if scale.SCALE == scale.FULL else 2)
    with pytest.raises(AssertionError, match="exceeds"):
        scale.sized(4, 3)


def test_every_size_in_the_tests_is_a_subset() -> None:
    """Each call of `sized` in the tests, whether its test runs here or not."""
    found = []
    for file in [*sorted((ROOT / "tests").rglob("*.py")), ROOT / "conftest.py"]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:  # what is no plain number, `sized` itself looks at
                case ast.Call(ast.Name("sized"), [ast.Constant(small), ast.Constant(full)]):
                    found.append((file.name, small, full))
    assert len(found) > 3
    assert [row for row in found if not 0 < row[1] <= row[2] and row[0] != "test_scale.py"] == []


def test_the_small_chain_is_the_full_one_with_smaller_numbers() -> None:
    full = PROFILES["cpu"]
    differ = {
        field.name: (getattr(PROOF_PROFILE, field.name), getattr(full, field.name))
        for field in fields(full)
        if getattr(PROOF_PROFILE, field.name) != getattr(full, field.name)
    }
    assert differ.pop("name") == ("cpu-small", "cpu")
    assert differ.pop("judges_accuracy") == (False, True)
    assert differ.pop("calibration_tokens") == (1536, None)  # None: 4,096 for this model
    assert all(0 < small < large for small, large in differ.values()), differ


@pytest.mark.parametrize("name", EDITS)
def test_each_edit_of_a_lesson_finds_its_text(name: str) -> None:
    notebook = nbformat.read(ROOT / name, as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    edited = scaled(list(sources), name)
    assert sum(old != new for old, new in zip(sources, edited, strict=True)) > 0
    for source in edited:
        compile_cell(source)


def compile_cell(source: str) -> None:
    """A cell with its edits is still Python, `await` at the top included; magics aside."""
    lines = [line for line in source.splitlines() if not line.startswith(("%", "!"))]
    compile("\n".join(lines), "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_an_edit_whose_text_has_moved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EDITS, "x.ipynb", (("repeats = 5", "repeats = 1"),))
    assert scaled(["a", "repeats = 5"], "x.ipynb") == ["a", "repeats = 1"]
    for sources in (["a"], ["repeats = 5", "repeats = 5"], ["repeats = 5; repeats = 5"]):
        with pytest.raises(pytest.UsageError, match="one place"):
            scaled(sources, "x.ipynb")


def test_every_file_belongs_to_one_part_and_every_part_has_files() -> None:
    files = parts.all_files()
    assert {parts.part_of(file) for file in files} == set(parts.PARTS)
    assert sorted(f for part in parts.PARTS for f in parts.files_of(part)) == files
    assert {"notebooks/12_gptq_awq.ipynb", "tests/quant/test_awq.py"} <= set(
        parts.files_of("pipeline")
    )
    with pytest.raises(ValueError, match="no part"):
        parts.files_of("kernels")
    with pytest.raises(ValueError, match="belongs to no part"):
        parts.part_of("benchmarks/growth.py")


def test_the_proof_at_full_size_is_of_todays_recipe() -> None:
    """Its age does not matter; a stage's settings or a library's version do."""
    rows = json.loads(FULL_PROOF.read_text())["parts"]
    assert outdated(rows) == [], "run make test-full for these parts, and commit proofs/full.json"
    assert all(len(row["commit"]) == 40 and row["tests"] > 0 for row in rows.values())


def test_another_recipe_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {part: {"recipe": parts.recipe(part)} for part in parts.PARTS}
    assert outdated(rows) == []
    assert outdated({}) == list(parts.PARTS)
    changed = {**PROFILES, "cpu": PROOF_PROFILE}
    monkeypatch.setattr("utils.profiles.PROFILES", changed)
    assert outdated(rows) == ["pipeline"]
