"""How notebooks are run: by the tests through nbval, and by `make notebooks`."""

from __future__ import annotations

import base64
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from PIL import Image

from tools import notebooks
from tools.notebook_files import ROOT
from tools.saved.machine import machine

WIDGET_CELL = """\
import ipywidgets
import matplotlib.pyplot as plt
from utils.viz.explore import Explorer

def draw(x):
    figure, axes = plt.subplots(figsize=(2, 1))
    axes.set_title("A title")
    return figure

Explorer(draw, x=ipywidgets.IntSlider())"""


def write(path: Path, *sources: str, outputs: dict[int, str] | None = None) -> Path:
    """Write a notebook of code cells. `outputs`: what the saved cells claim to have printed."""
    cells = []
    for number, source in enumerate(sources):
        cell = nbformat.v4.new_code_cell(source)
        if outputs is not None:
            cell.execution_count = number + 1
            text = outputs.get(number)
            cell.outputs = [nbformat.v4.new_output("stream", text=text)] if text else []
        cells.append(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


@pytest.fixture(scope="module")
def pytest_output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says, run with nbval as the course does, on a small course of its own."""
    folder = tmp_path_factory.mktemp("course")
    write(folder / "notebooks/01_a.ipynb", "print(1)", "print(2)", outputs={0: "1\n", 1: "3\n"})
    write(folder / "labs/01_a/01_a.ipynb", "print(1)", "raise NotImplementedError")
    (folder / "test_gpu.py").write_text("import pytest\n@pytest.mark.gpu\ndef test_x(): pass\n")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    shutil.copy(ROOT / "conftest.py", folder)
    command = [sys.executable, "-m", "pytest", "-rA", "--nbval", "--nbval-current-env"]
    course = os.environ | {"PYTHONPATH": str(ROOT)}  # the settings' plugins lie in the course
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=course)
    assert result.returncode == 1, result.stdout + result.stderr
    return result.stdout


def test_outputs_of_lessons_are_compared(pytest_output: str) -> None:
    assert "PASSED notebooks/01_a.ipynb::Cell 0" in pytest_output
    assert "FAILED notebooks/01_a.ipynb::Cell 1" in pytest_output


def test_labs_must_run_but_have_no_outputs_to_compare(pytest_output: str) -> None:
    # nbval compares no cell without an execution count; tools/notebook_rules.py keeps it so.
    assert "PASSED labs/01_a/01_a.ipynb::Cell 0" in pytest_output
    assert "FAILED labs/01_a/01_a.ipynb::Cell 1" in pytest_output


def test_gpu_tests_are_skipped_with_their_reason(pytest_output: str) -> None:
    import torch

    if torch.cuda.is_available():
        assert "PASSED test_gpu.py::test_x" in pytest_output
    else:
        assert "needs a CUDA device" in pytest_output


def test_reexecution_saves_outputs_and_pictures_of_widgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "01_a.ipynb", "print(6 * 7)", WIDGET_CELL)
    monkeypatch.setattr(sys, "argv", ["notebooks.py", str(path)])
    monkeypatch.setattr(notebooks, "problems", lambda path: [])
    with pytest.raises(SystemExit) as stopped:
        notebooks.main()
    assert stopped.value.code == 0
    saved = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in saved.cells] == [1, 2]
    assert saved.cells[0].outputs[0].text == "42\n"
    [shown] = saved.cells[1].outputs
    assert shown.data["text/plain"] == notebooks.WIDGET_TEXT
    assert shown.metadata["image/png"]["alt"].startswith("A title")
    picture = Image.open(io.BytesIO(base64.b64decode(shown.data["image/png"])))
    assert picture.width < 2 * 100  # two inches, as a page shows them: no fine screen's pixels
    recorded = saved.metadata.pop("recorded")
    assert saved.metadata == notebooks.METADATA
    assert recorded["cells"].keys() == {saved.cells[1].id}  # no test compares a picture
    assert recorded["machine"] == machine() and recorded["busy_cells"] == []


def test_failed_notebook_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "01_a.ipynb", "print(1)", "1 / 0", outputs={0: "old\n"})
    before = path.read_bytes()
    monkeypatch.setattr(sys, "argv", ["notebooks.py", str(path)])
    with pytest.raises(SystemExit) as stopped:
        notebooks.main()
    assert stopped.value.code == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
