"""JupyterLab as `make lab` starts it, in a copy of the course, for somebody who was never here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tests.browser.cdp import Page
from utils.processes.supervised import stop, supervised

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("Makefile", "GLOSSARY.md", "tools", "utils", "notebooks", ".gitignore")
PATIENCE_S = 120  # a busy machine
# What the notebook in front is to JavaScript.
FRONT = "jupyterapp.shell.currentWidget"


@dataclass(frozen=True)
class Lab:
    """A server that runs. `address` is what `make lab` opens in a browser."""

    address: str
    course: Path

    def changed(self) -> str:
        """What git finds changed in the copy."""
        return git(self.course, "status", "--porcelain")


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def copy_course(folder: Path) -> None:
    """The files that lessons need, as a repository with everything committed."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            skip = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
            shutil.copytree(source, target, ignore=skip)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "the course")


def said_by_server(home: Path) -> dict[str, Any]:
    """What a server writes down about itself once it listens; empty until it is all written."""
    for file in home.glob("jpserver-*.json"):
        with suppress(json.JSONDecodeError):
            return json.loads(file.read_text())
    return {}


@contextmanager
def a_lab(folder: Path) -> Iterator[Lab]:
    """A server in `folder`, with its kernels ended in every case."""
    course, home = folder / "course", folder / "home"
    home.mkdir()
    course.mkdir()
    copy_course(course)
    options = "--no-browser --ServerApp.port=0 --LabApp.expose_app_in_browser=True"
    command = ["make", "--old-file=setup", "lab", f"COURSE={sys.executable}"]
    unwanted = ("JUPYTER", "JPY_", "MAKE", "MFLAGS", "PYTHONPATH", "INSTRUCTOR", "MPLBACKEND")
    env = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    # The model is converted once per machine, not once per home.
    cache = env.get("COURSE_CACHE") or str(Path("~/.cache/from-kv-cache-to-vllm").expanduser())
    env |= {
        "HOME": str(home),
        "COURSE_CACHE": cache,
        "JUPYTER_RUNTIME_DIR": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COURSE_PROFILE": "cpu",
    }
    with open(home / "log", "w") as log:
        server = subprocess.Popen(
            supervised([*command, f"LAB_OPTIONS={options}"]),
            cwd=course,
            env=env,
            stdout=log,
            stderr=log,
        )
    try:
        end = monotonic() + PATIENCE_S
        while not (about := said_by_server(home)):
            assert server.poll() is None and monotonic() < end, (home / "log").read_text()
            sleep(0.1)
        assert about["hostname"] == "127.0.0.1"
        yield Lab(f"{about['url']}?token={about['token']}", course)
    finally:
        stop(server)


def open_notebook(page: Page, name: str) -> None:
    """Open a notebook in the lab that the page shows, as a double click does."""
    page.evaluate(f"jupyterapp.commands.execute('docmanager:open', {{path: '{name}'}}) && 0")
    wait_for_notebook(page, name)


def wait_for_notebook(page: Page, name: str) -> None:
    """Until a notebook is in front, and its kernel waits for work."""
    page.wait_for(
        f"window.jupyterapp && {FRONT}?.context?.isReady && {FRONT}.context.path === '{name}'"
        f" && {FRONT}.sessionContext.session?.kernel?.status === 'idle'",
        PATIENCE_S,
    )


def run(page: Page, command: str, patience_s: float = PATIENCE_S) -> None:
    """Run a command of JupyterLab's menus, and wait for its end."""
    page.evaluate(
        f"window.ended = ''; jupyterapp.commands.execute('{command}')"
        ".then(() => { window.ended = 'well' }, error => { window.ended = String(error) }) && 0"
    )
    assert page.wait_for("window.ended", patience_s) == "well"


def run_cell(page: Page, number: int) -> None:
    """Run one cell of the notebook in front, and wait for its end."""
    page.evaluate(f"{FRONT}.content.activeCellIndex = {number}")
    run(page, "notebook:run-cell")


def outputs(page: Page) -> list[tuple[int | None, list[str]]]:
    """Of each code cell of the notebook in front: its number of execution, its outputs' types."""
    return page.evaluate(
        f"[...{FRONT}.content.widgets].map(c => c.model).filter(m => m.type === 'code')"
        ".map(m => [m.executionCount, [...Array(m.outputs.length).keys()]"
        ".map(i => m.outputs.get(i).type)])"
    )
