"""Lessons on a card, cell by cell and without Jupyter: `python -m tests.device.lessons`.

    [--pretend BYTES] [--seconds N] [--side-by-side N] [NAME ...]

Runs the code cells of notebooks, one after the other; without a name, those of Part I, each in a
process of its own. Prints one JSON object for each lesson: how many cells it has, how many ran,
which were not run because a package is missing, what stopped it ("" if nothing), and the most
bytes that it held on the card.

With --pretend, the card is a pretend one of so many bytes ("said": as many as docs/hardware.md
says the lesson needs). That passes every operation through Python, so most lessons end with "too
slow".
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("COURSE_PROFILE", "gpu-bundled")
ROOT = Path(__file__).resolve().parents[2]
# What a CPU build cannot do on a card that it pretends to have, by a word of the error.
BEYOND_PRETENDING = {
    "vLLM": "vLLM starts on a real card only",
    "backward": "autograd takes no pretend card",
    "element 0 of tensors does not require grad": "autograd takes no pretend card",
}


class TooSlow(BaseException):
    """The time is over. Not an Exception: no cell may catch it."""


@dataclass
class Ran:
    """What became of a notebook's cells. `not_run` says why, by the cell's number from 0."""

    ran: int = 0
    not_run: dict[int, str] = field(default_factory=dict)
    stopped: str = ""


def missing_package(error: BaseException) -> str | None:
    """The package that an import, here or in a process that was started, did not find."""
    found = re.search(r"No module named '(\w+)", f"{error}")
    name = found.group(1) if found else None
    return name if name and importlib.util.find_spec(name) is None else None


def names_set(source: str) -> set[str]:
    """The names that a cell gives a value."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a magic line
        return set()
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    found = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return found


def run_cells(sources: list[str], seconds: float, excuses: dict[str, str]) -> Ran:
    """Run cells within a time.

    A cell that needs a package that is not here is passed over, and so is one that needs what such
    a cell would have made. Any other error ends it; `excuses` has what is said in its place, by a
    word of the error.
    """
    import matplotlib
    from IPython.core.interactiveshell import InteractiveShell

    def over(*_: Any) -> None:
        raise TooSlow

    shell = InteractiveShell.instance()
    matplotlib.use("module://matplotlib_inline.backend_inline")
    signal.signal(signal.SIGALRM, over)
    end = time.monotonic() + seconds
    done, never_set = Ran(), dict[str, str]()
    for number, source in enumerate(sources):
        left = end - time.monotonic()
        if left <= 0:
            done.stopped = "too slow"
            break
        signal.setitimer(signal.ITIMER_REAL, left)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            result = shell.run_cell(source)
        signal.setitimer(signal.ITIMER_REAL, 0)
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            done.ran += 1
            continue
        if isinstance(error, (TooSlow, KeyboardInterrupt)):
            done.stopped = "too slow"
            break
        why = None
        if package := missing_package(error):
            why = f"no {package} here"
        elif isinstance(error, NameError) and error.name in never_set:
            why = never_set[error.name]
        if why:
            done.not_run[number] = why
            never_set |= dict.fromkeys(names_set(source), why)
            continue
        text = f"cell {number}: {type(error).__name__}: {error}"
        done.stopped = next((said for word, said in excuses.items() if word in text), text)
        break
    return done


def run_lesson(name: str, seconds: float, pretend: float | None) -> None:
    """Run one in this process, and print its JSON object."""
    if pretend:
        from tests.device import pretend_card

        pretend_card.insert(pretend)
    from tools.notebook_files import code_cells

    cells = code_cells(ROOT / "notebooks" / f"{name}.ipynb")
    os.chdir(ROOT / "notebooks")
    begin = time.monotonic()
    done = run_cells(cells, seconds, BEYOND_PRETENDING if pretend else {})
    if pretend:
        peak = pretend_card.memory.peak
    else:
        import torch

        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    report = {
        "lesson": name,
        "cells": len(cells),
        "ran": done.ran,
        "not_run": done.not_run,
        "stopped": done.stopped,
        "peak_bytes": peak,
        "seconds": round(time.monotonic() - begin, 1),
    }
    print(f"\n{json.dumps(report)}", flush=True)


def said_bytes(name: str) -> float:
    """What docs/hardware.md says that a lesson holds on a T4."""
    from utils.pipeline.estimates.cards import CARDS
    from utils.pipeline.estimates.lessons import on_card
    from utils.profiles import PROFILES

    return max(0.1e9, on_card(name[:2], PROFILES["gpu-bundled"], CARDS["T4"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lessons", nargs="*", metavar="NAME", help="default: those of Part I")
    parser.add_argument("--seconds", type=float, default=60, help="for each lesson")
    parser.add_argument("--pretend", metavar="BYTES", help="a pretend card; or: said")
    parser.add_argument("--side-by-side", type=int, default=1)
    options = parser.parse_args()
    if len(options.lessons) == 1:
        [name] = options.lessons
        if options.pretend:
            from tests.device import pretend_card  # noqa: F401, before anything imports torch
        size = said_bytes(name) if options.pretend == "said" else options.pretend
        run_lesson(name, options.seconds, size and float(size))
        return 0
    from tools.notebook_files import part_one

    cores = len(os.sched_getaffinity(0)) // options.side_by_side
    environment = {"OMP_NUM_THREADS": f"{max(1, cores)}"} | os.environ

    def one(name: str) -> int:
        command = [sys.executable, "-m", "tests.device.lessons", name]
        command.append(f"--seconds={options.seconds}")
        if options.pretend:
            command.append(f"--pretend={options.pretend}")
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        line = done.stdout.strip() or json.dumps(
            {
                "lesson": name,
                "cells": 0,
                "ran": 0,
                "not_run": {},
                "peak_bytes": 0,
                "seconds": 0,
                "stopped": f"the process ended with {done.returncode}",
            }
        )
        print(f"\n{line}", flush=True)  # its own line: progress bars are left open
        return done.returncode

    names = options.lessons or [path.stem for path in part_one()]
    with ThreadPoolExecutor(options.side_by_side) as pool:
        return int(any(pool.map(one, names)))


if __name__ == "__main__":
    sys.exit(main())
