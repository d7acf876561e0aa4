"""`make setup`: interrupted, killed, updated, behind a proxy, on another Python.

With a uv that installs nothing and says what it was asked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tools.setup import PYTHONS, UV_VERSION

ROOT = Path(__file__).resolve().parents[2]
UV = f"""#!{sys.executable}
import json, os, signal, sys, venv
from pathlib import Path

log = Path(os.environ["UV_LOG"])
with log.open("a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
call = len(log.read_text().splitlines())
folder = Path(sys.argv[-1])
if sys.argv[1] == "venv":
    (folder / "bin").mkdir(parents=True)
    if call == int(os.environ.get("UV_FAILS", 0)):
        sys.exit("failed half-way")
    (folder / "pyvenv.cfg").write_text("home = {Path(sys.executable).resolve().parent}")
    (folder / "bin" / "python").symlink_to({str(Path(sys.executable).resolve())!r})
if sys.argv[1] == "pip" and "--quiet" not in sys.argv:
    print(*[f" + package-{{number}}==1" for number in range(300)], sep="\\n", file=sys.stderr)
if call == int(os.environ.get("UV_FAILS", 0)):
    sys.exit("failed")
if call == int(os.environ.get("UV_KILLS", 0)):
    os.kill(os.getppid(), signal.SIGKILL)
"""
STEPS = 5  # calls of uv: venv, packages, probe for torch, torch, the course itself
BEFORE = "import sys; sys.path.insert(0, 'tools'); {}import setup; setup.BYTES_NEEDED = 0; "

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the steps are those on Linux")


class Course:
    """A course of one package, to set up again and again."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, root / "uv.log"
        for folder in ("tools", "requirements/hashes", "utils", "home"):
            (root / folder).mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "setup.py", root / "tools")
        (root / "pyproject.toml").touch()
        (root / "utils" / "hub.py").write_text("print('model')")
        self.lock("one")
        self.put_uv(root / ".cache" / f"uv-{UV_VERSION}" / "bin")

    def put_uv(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "uv").write_text(UV)
        (folder / "uv").chmod(0o755)

    def lock(self, text: str) -> None:
        (self.root / "requirements" / "cpu.lock").write_text(f"# {text}\ntorch==1+cpu\n")
        hashes = f"uv=={UV_VERSION} --hash=sha256:0\n"
        (self.root / "requirements" / "hashes" / "cpu.txt").write_text(hashes)

    def set_up(
        self, python: str | Path = sys.executable, before: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        usual = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "UV_", "SSL_", "HTTP"))
        }
        usual |= {"HOME": str(self.root / "home"), "PIP_CONFIG_FILE": os.devnull}
        return subprocess.run(
            [python, "-c", BEFORE.format(before) + "setup.main()"],
            cwd=self.root,
            env=usual | {"UV_LOG": str(self.log)} | env,
            capture_output=True,
            text=True,
        )

    def asked(self) -> list[tuple[list[str], dict[str, str]]]:
        """What uv was asked in the last run, and with which environment."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def is_whole(self) -> bool:
        python = self.root / ".venv" / "bin" / "python"
        found = subprocess.run([python, "-c", "import sys; print(sys.prefix)"], capture_output=True)
        return (
            (self.root / ".venv" / ".complete").exists()
            and not (self.root / ".venv.old").exists()
            and found.stdout.decode().strip() == str(self.root / ".venv")
        )

    def stamp(self) -> str:
        return (self.root / ".venv" / ".complete").read_text()


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return Course(tmp_path)


def test_set_up_once(course: Course) -> None:
    result = course.set_up()
    assert result.returncode == 0, result.stderr
    assert len(course.asked()) == STEPS and course.is_whole()
    assert len((result.stdout + result.stderr).splitlines()) <= 10  # uv alone says 600
    result = course.set_up()
    assert (result.returncode, result.stdout, course.asked()) == (0, "", [])


def test_a_new_lock_is_set_up_also_by_the_environments_own_python(course: Course) -> None:
    """From the second time on `python3` is the one in .venv, which is about to be replaced."""
    course.set_up()
    before = course.stamp()
    course.lock("two")
    result = course.set_up(course.root / ".venv" / "bin" / "python")
    assert result.returncode == 0, result.stderr
    assert course.is_whole() and course.stamp() != before
    [venv_call] = [words for words, _ in course.asked() if words[0] == "venv"]
    assert ".venv" not in venv_call[venv_call.index("--python") + 1]


def outside_of_make() -> dict[str, str]:
    """The environment of a terminal; tests themselves are run by `make test`."""
    names = ("PYTHON", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    return {name: value for name, value in os.environ.items() if name not in names}


def test_make_looks_python_up_outside_of_the_environment(tmp_path: Path) -> None:
    own = tmp_path / ".venv" / "bin" / "python3"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    shutil.copy(ROOT / "Makefile", tmp_path)
    show = "--eval=show: ; @echo $(PYTHON); command -v python3"
    told = subprocess.run(
        ["make", show, "show"],
        cwd=tmp_path,
        env=outside_of_make(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert told[1] == str(own) != told[0]


@pytest.mark.parametrize(("step", "updating"), [(1, False), (STEPS, False), (1, True), (4, True)])
def test_what_failed_is_made_anew_and_the_old_one_is_kept(
    course: Course, step: int, updating: bool
) -> None:
    if updating:
        course.set_up()
        before = course.stamp()
        course.lock("two")
    result = course.set_up(UV_FAILS=str(step))
    assert result.returncode == 1 and "run the same make command again" in result.stderr
    assert re.search("^failed", result.stderr, re.MULTILINE)  # what uv said
    if updating:
        assert course.is_whole() and course.stamp() == before
    else:
        assert not (course.root / ".venv").exists()
    assert course.set_up().returncode == 0 and course.is_whole()
    if updating:
        assert course.stamp() != before


@pytest.mark.parametrize("step", [1, STEPS])
def test_after_a_kill_too(course: Course, step: int) -> None:
    course.set_up()
    before = course.stamp()
    course.lock("two")
    assert course.set_up(UV_KILLS=str(step)).returncode == -signal.SIGKILL
    assert course.set_up(UV_FAILS="1").returncode == 1  # the complete one is still known
    assert course.is_whole() and course.stamp() == before
    assert course.set_up(UV_KILLS=str(step)).returncode == -signal.SIGKILL
    assert course.set_up().returncode == 0 and course.is_whole() and course.stamp() != before


def test_an_environment_that_was_being_removed_is_made_anew(course: Course) -> None:
    """pyvenv.cfg gone, bin/python there: for uv that is the system's own Python."""
    course.set_up()
    for name in (".complete", "pyvenv.cfg"):
        (course.root / ".venv" / name).unlink()
    course.lock("two")
    assert course.set_up().returncode == 0 and course.is_whole()


def test_pips_settings_reach_uv(course: Course, tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://mirror/simple\ntrusted-host = mirror\n  other\n"
        "cert = /company.pem\nproxy = http://proxy:3128\nextra-index-url = https://more/simple\n"
        "find-links = /one\n[install]\nfind-links = /two\n  /three\n"
    )
    course.set_up(PIP_CONFIG_FILE=str(settings))
    _, env = course.asked()[1]
    expected = {
        "UV_DEFAULT_INDEX": "https://mirror/simple",
        "UV_INDEX": "https://more/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/two,/three",
        "UV_INSECURE_HOST": "mirror other",
        "SSL_CERT_FILE": "/company.pem",
        "HTTPS_PROXY": "http://proxy:3128",
        "HTTP_PROXY": "http://proxy:3128",
    }
    assert {name: env.get(name) for name in expected} == expected
    course.lock("two")
    course.set_up(PIP_CONFIG_FILE=str(settings), PIP_FIND_LINKS="/four", UV_INDEX="mine")
    _, env = course.asked()[1]
    assert (env["UV_FIND_LINKS"], env["UV_INDEX"]) == ("/four", "mine")


def without_pip(folder: Path) -> Path:
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


@pytest.mark.parametrize("has_uv", [False, True])
def test_a_python_without_pip(course: Course, tmp_path: Path, has_uv: bool) -> None:
    shutil.rmtree(course.root / ".cache")
    if has_uv:
        course.put_uv(tmp_path / "programs")
    result = course.set_up(without_pip(tmp_path / "bare"), PATH=str(tmp_path / "programs"))
    if has_uv:
        assert result.returncode == 0 and course.is_whole()
    else:
        assert result.returncode == 1 and "sudo apt install python3-pip" in result.stderr
        assert not (course.root / ".venv").exists()


@pytest.mark.parametrize("version", [(3, 8, 18), (PYTHONS[1][0], PYTHONS[1][1] + 1, 0)])
def test_another_python_is_brought_by_uv(course: Course, version: tuple[int, ...]) -> None:
    result = course.set_up(before=f"sys.version_info = {version}; ")
    assert result.returncode == 0, result.stderr
    words: list[str] = course.asked()[0][0]
    assert words[words.index("--python") + 1] == "3.12" and "(3, 12)" in course.stamp()
    assert "uv finds or fetches Python 3.12" in result.stdout
    course.lock("two")
    result = course.set_up(before=f"sys.version_info = {version}; ", UV_FAILS="1")
    assert result.returncode == 1 and "make setup PYTHON=python3.12" in result.stderr


def test_a_python_too_old_for_set_up_itself_is_told_so(tmp_path: Path) -> None:
    recipe = subprocess.run(
        ["make", "-n", "setup", f"PYTHON={sys.executable}"],
        cwd=ROOT,
        env=outside_of_make(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[0]
    told = recipe.replace("import sys;", "import sys; sys.version_info = (3, 6, 9);")
    result = subprocess.run(["sh", "-c", told], capture_output=True, text=True)
    assert result.returncode == 1 and "Python 3.8 or newer" in result.stderr
    assert subprocess.run(["sh", "-c", recipe]).returncode == 0
