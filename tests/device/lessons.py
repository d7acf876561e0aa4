"""Lessons on the pretend card: `python -m tests.device.lessons [NAME [SECONDS [BYTES]]]`.

Runs the code cells of a notebook, one after the other, on a card of so many bytes; without a name,
those of Part I. Prints one JSON object for each: how many cells ran, what stopped it ("" if
nothing), and the most bytes that it held. The pretend card passes every operation through Python,
so most lessons end with "too slow".
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ["COURSE_PROFILE"] = "gpu-bundled"
ROOT = Path(__file__).resolve().parents[2]
# What a CPU build cannot do on a card that it pretends to have, by a word of the error.
BEYOND_PRETENDING = {
    "vLLM": "vLLM starts on a real card only",
    "backward": "autograd takes no pretend card",
    "element 0 of tensors does not require grad": "autograd takes no pretend card",
}


class TooSlow(BaseException):
    """The time is over. Not an Exception: no cell may catch it."""


def run_cells(sources: list[str], seconds: float) -> tuple[int, str]:
    """How many cells ran within the time, and what stopped the next one."""
    import matplotlib
    from IPython.core.interactiveshell import InteractiveShell

    def over(*_: Any) -> None:
        raise TooSlow

    shell = InteractiveShell.instance()
    matplotlib.use("module://matplotlib_inline.backend_inline")
    signal.signal(signal.SIGALRM, over)
    end = time.monotonic() + seconds
    for number, source in enumerate(sources):
        left = end - time.monotonic()
        if left <= 0:
            return number, "too slow"
        signal.setitimer(signal.ITIMER_REAL, left)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            result = shell.run_cell(source)
        signal.setitimer(signal.ITIMER_REAL, 0)
        error = result.error_before_exec or result.error_in_exec
        if isinstance(error, (TooSlow, KeyboardInterrupt)):
            return number, "too slow"
        if error is not None:
            text = f"{type(error).__name__}: {error}"
            return number, next((r for word, r in BEYOND_PRETENDING.items() if word in text), text)
    return len(sources), ""


def main(name: str, seconds: float = 120.0, size: float = 15.6e9) -> None:
    from tests.device import pretend_card

    pretend_card.insert(size)
    from tools.notebook_files import code_cells

    cells = code_cells(ROOT / "notebooks" / f"{name}.ipynb")
    os.chdir(ROOT / "notebooks")
    begin = time.monotonic()
    ran, stopped = run_cells(cells, seconds)
    report = {"lesson": name, "cells": len(cells), "ran": ran, "stopped": stopped,
              "peak_bytes": pretend_card.memory.peak,
              "seconds": round(time.monotonic() - begin, 1)}  # fmt: skip
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], *map(float, sys.argv[2:]))
    else:  # each in a process of its own, on a card with no more than the README says it needs
        from tools.notebook_files import part_one
        from utils.pipeline.estimates.cards import CARDS
        from utils.pipeline.estimates.lessons import on_card
        from utils.profiles import PROFILES

        for path in part_one():
            said = max(0.1e9, on_card(path.name[:2], PROFILES["gpu-bundled"], CARDS["T4"]))
            command = [sys.executable, "-m", "tests.device.lessons", path.stem, "60", str(said)]
            subprocess.run(command, cwd=ROOT, check=True)
