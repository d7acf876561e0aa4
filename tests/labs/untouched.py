"""Labs as they are handed out: `python -m tests.labs.untouched NAME ...`.

Runs the code cells of each lab, one lab after the other in one process, and prints one JSON object
for each: how many cells ran, the errors, and of each check the points and the words that it shows.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[2]


def run_lab(lab: str) -> dict[str, Any]:
    """Run all code cells of a lab in a fresh namespace, in the lab's folder."""
    from IPython.core.interactiveshell import InteractiveShell

    path = ROOT / "labs" / lab / f"{lab}.ipynb"
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    shell = InteractiveShell.instance()
    shell.reset()
    os.chdir(path.parent)
    row: dict[str, Any] = {"lab": lab, "ran": 0, "errors": [], "checks": []}
    for cell in cells:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            result = shell.run_cell(cell.source)
        row["ran"] += 1
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            row["errors"].append(f"{type(error).__name__}: {error}, in: {cell.source[:200]}")
        elif cell.metadata.get("nbgrader", {}).get("grade"):
            bundle = result.result._repr_mimebundle_()
            row["checks"].append((bundle["text/plain"], bundle["text/html"]))
    return row


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("module://matplotlib_inline.backend_inline")
    for name in sys.argv[1:]:
        print(json.dumps(run_lab(name)), flush=True)
