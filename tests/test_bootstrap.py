"""The first cell: complete here, refused with a reason elsewhere, completed on Colab.

The real thing, in an environment that imitates Colab, is in tests/house/test_hosted.py.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from utils import bootstrap
from utils.bootstrap import NEEDED, NEEDED_LATER, need, ready, side_folder


@pytest.fixture
def colab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Colab's mark and an empty cache; `sys.path` as it was afterwards."""
    monkeypatch.setenv("COLAB_RELEASE_TAG", "x")
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    before = list(sys.path)
    yield side_folder()
    sys.path[:] = before


def fake_package(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
    """A package with one empty module, as an installer leaves it."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
    (folder / f"{name}.py").touch()


def test_everything_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    ready()
    need(*NEEDED_LATER)
    assert capsys.readouterr().out.splitlines()[-1].startswith("Ready. Profile: ")


def test_outside_colab_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was started"))
    monkeypatch.setitem(NEEDED, "no_such_module", ("no-such-package", "1 MB"))
    monkeypatch.setitem(NEEDED, "torch", ("torch>=99", "large"))
    with pytest.raises(RuntimeError, match=r"torch>=99, no-such-package\. Run `make setup`"):
        ready()
    with pytest.raises(ValueError, match=r"Unknown: nonsense\. There are torch"):
        need("nonsense")


def test_on_colab_what_is_missing_comes_with_what_it_requires(
    colab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []
    offered = {
        "new_one": ("new_one", "1.0", ("torch", "helper_one>=2", "never; extra == 'all'")),
        "helper_one>=2": ("helper_one", "2.1", ()),
    }

    def install(command: list[str], **kwargs: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        packages = command[command.index(str(colab)) + 1 :]
        for package in packages:
            fake_package(colab, *offered[package])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", install)
    monkeypatch.setitem(NEEDED_LATER, "new_one", ("new_one", "1 MB"))
    need("new_one")
    assert [command[-1] for command in commands] == ["new_one", "helper_one>=2"]
    assert all("--no-deps" in command and "--target" in command for command in commands)
    assert importlib.metadata.version("helper_one") == "2.1"
    assert sys.path[0] == str(colab)
    assert "Installing new_one (1 MB)" in capsys.readouterr().out
    need("new_one")
    assert len(commands) == 2  # it is here now


def test_what_the_lock_has_comes_with_hashes(colab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def install(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[-3:-1] == ["--require-hashes", "-r"]
        asked.append(Path(command[-1]).read_text())
        fake_package(colab, "tqdm", "99")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", install)
    bootstrap._install_beside(["tqdm>=4"])
    assert re.fullmatch(r"tqdm==[\d.]+( +--hash=sha256:[0-9a-f]{64})+", asked[0])
    assert bootstrap._locked("tqdm>=99") == bootstrap._locked("no-such-package") == ""
    monkeypatch.setattr(bootstrap, "LOCKED_FOR", (3, 3))
    assert bootstrap._locked("tqdm>=4") == ""


def test_all_that_is_needed_has_hashes() -> None:
    packages = [package for package, _ in (NEEDED | NEEDED_LATER).values()]
    without = {package for package in packages if not bootstrap._locked(package)}
    assert without == {"torch>=2.6"}  # which is never installed


def test_a_newer_copy_beside_hides_the_old_one(colab: Path) -> None:
    fake_package(colab, "packaging_probe", "3.0")
    bootstrap._look_into(colab)
    assert bootstrap._is_here("packaging_probe", "packaging_probe>=3")
    assert not bootstrap._is_here("packaging_probe", "packaging_probe>=4")


def test_torch_is_never_installed(colab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was started"))
    monkeypatch.setitem(NEEDED, "torch", ("torch>=99", "large"))
    with pytest.raises(
        RuntimeError, match=r"needs torch>=99, and Colab has another(.|\n)*Choose its newest"
    ):
        ready()


def test_a_failed_install_shows_why(colab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "no route to host")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setitem(NEEDED, "no_such_module", ("no-such-package", "1 MB"))
    with pytest.raises(RuntimeError, match=r"run this cell again(.|\n)*no route to host"):
        ready()


def test_the_first_cell_without_a_network_says_what_to_do(tmp_path: Path) -> None:
    """Away from the repository it fetches the course, and the address leads nowhere here."""
    cell = Path(__file__).parents[1] / "tools" / "bootstrap_cell.py"
    env = os.environ | {
        "PYTHONPATH": "",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{tmp_path}/nowhere.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
    }
    command = [sys.executable, "-S", "-c", cell.read_text()]  # -S: the course is not installed
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "and run this cell again." in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []  # nothing that would stop the next try


def test_the_first_cell_finds_the_installed_course_from_any_folder(tmp_path: Path) -> None:
    """A hub, or nbgrader's exchange, puts a lab into a folder that knows nothing of the course."""
    cell = Path(__file__).parents[1] / "tools" / "bootstrap_cell.py"
    command = [sys.executable, "-c", cell.read_text()]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Ready.")
    assert list(tmp_path.iterdir()) == []  # nothing was fetched
