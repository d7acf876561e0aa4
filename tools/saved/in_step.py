"""Does each saved output still belong to its cell? A notebook says what it was recorded from.

    python -m tools.saved.in_step              what the end of `make test` lists
    python -m tools.saved.in_step --refuse     fails if a release must not be made of it

A notebook's metadata have the key `recorded`, which `make notebooks` writes:

    cells    id of a cell -> hash of the code that its output shows (see shown_code.py)
    deeper   hash of the code below: engine, simulators, and how figures look
    commit, when, machine, session, others_percent, spread_percent, busy_cells    (see quiet.py)

What nbval compares needs no hash: the tests run it. Every other output does: cells whose output is
ignored, and all figures. If a hash differs, the rule fails: the output is older than its code. If
only `deeper` differs, the notebook is listed; a release refuses such a list, a commit doesn't. What
was recorded on a busy machine is listed, too, and refused nowhere.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from tools.notebook_files import RECORDED, lessons
from tools.saved.shown_code import code_hash, deeper_hash, title_patterns

RUN = "run `python tools/notebooks.py` with this notebook"
# Lessons that show the same measurements (a token for one request), so they are recorded in one go.
TOGETHER = (("01", "02", "05", "06"),)


# Outputs that are known to be older than their code: they need the pipeline at full size. They are
# listed at the end of each run, and a release refuses them.
KNOWN_OLD: dict[str, frozenset[str]] = {}


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def codes_of(notebook: NotebookNode) -> list[str]:
    """The code of a notebook's cells; the first cell, which finds the course, shows nothing."""
    return [
        "" if "bootstrap" in cell.metadata.get("tags", []) else cell.source
        for cell in code_cells(notebook)
    ]


def varies(cell: NotebookNode) -> bool:
    """Whether a code cell gives another output at each run, such as a time."""
    return "nbval-ignore-output" in cell.metadata.get("tags", [])


def is_not_compared(cell: NotebookNode) -> bool:
    """Whether a code cell has an output that no test compares: one that varies, or a picture."""
    pictures = (kind for o in cell.outputs for kind in o.get("data", {}) if "image/" in kind)
    return bool(cell.outputs) and (varies(cell) or any(pictures))


def hashes(notebook: NotebookNode) -> dict[str, str]:
    """id -> hash of the code that a cell's output shows, for the outputs that no test compares."""
    cells, codes = code_cells(notebook), codes_of(notebook)
    return {cell.id: code_hash(codes, n) for n, cell in enumerate(cells) if is_not_compared(cell)}


def record(notebook: NotebookNode, about: dict[str, Any]) -> None:
    """Write into an executed notebook what code its outputs come from.

    Args:
        about: what else the record says: commit, machine and so on.
    """
    notebook.metadata[RECORDED] = nbformat.from_dict(
        {**about, "deeper": deeper_hash(codes_of(notebook)), "cells": hashes(notebook)}
    )


def problems(notebook: NotebookNode, known_old: Set[str] = frozenset()) -> Iterator[str]:
    """A sentence for each saved output that is older than its code.

    Args:
        known_old: ids of the cells of which this is known.
    """
    recorded = notebook.metadata.get(RECORDED, {}).get("cells", {})
    wanted, codes = hashes(notebook), codes_of(notebook)
    for number, cell in enumerate(code_cells(notebook)):
        where = f"cell {notebook.cells.index(cell)}"
        if cell.id in known_old:
            if recorded.get(cell.id) == wanted.get(cell.id):
                yield f"{where}: its output is in step again: take {cell.id} out of KNOWN_OLD"
            continue
        if cell.id in wanted:
            if cell.id not in recorded:
                yield f"{where}: nothing says which code its output comes from: {RUN}"
            elif recorded[cell.id] != wanted[cell.id]:
                yield f"{where}: its output is older than its code, or than what draws it: {RUN}"
        for text in _figure_texts(cell):
            if not any(pattern.match(text) for pattern in title_patterns(codes, number)):
                yield f"{where}: no code gives its figure the title {text[:60]!r}: {RUN}"
    if left_over := recorded.keys() - wanted.keys():
        yield f"records outputs that it doesn't have, of {', '.join(sorted(left_over))}: {RUN}"


def _figure_texts(cell: NotebookNode) -> Iterator[str]:
    """The texts of a cell's figures; each begins with the figure's title."""
    for output in cell.outputs:
        if text := output.get("metadata", {}).get("image/png", {}).get("alt"):
            yield re.sub(r"\s+", " ", text)


def to_record_anew(paths: Sequence[Path]) -> list[str]:
    """A line for each notebook whose engine, simulators or style have changed since its record."""
    lines = []
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        recorded = notebook.metadata.get(RECORDED, {})
        said = f"{path.stem}: recorded at commit {recorded.get('commit', 'unknown')}"
        if old := KNOWN_OLD.get(path.stem):
            lines.append(f"{said}; the output of {len(old)} cells is older than their code")
        elif recorded.get("deeper") != deeper_hash(codes_of(notebook)):
            lines.append(said)
    return lines


def recorded_busy(paths: Sequence[Path]) -> list[str]:
    """A line for each notebook that was recorded on a busy machine, or apart from its group."""
    lines, sessions = [], {}
    for path in paths:
        recorded = nbformat.read(path, as_version=4).metadata.get(RECORDED, {})
        if "busy_cells" not in recorded:
            lines.append(f"{path.stem}: recorded before the machine was watched")
        elif busy := len(recorded["busy_cells"]):
            lines.append(f"{path.stem}: the machine was busy during {busy} of its cells")
        sessions[path.stem.partition("_")[0]] = recorded.get("session")
    for group in TOGETHER:
        if len({sessions[name] for name in group if name in sessions}) > 1:
            lines.append(f"{', '.join(group)}: show the same measurements, but were recorded apart")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--refuse", action="store_true", help="fail if an output may be old")
    options = parser.parse_args(arguments)
    old = to_record_anew(lessons())
    for line in old + recorded_busy(lessons()):
        print(line)
    if options.refuse and old:
        sys.exit(f"{len(old)} lessons have older outputs: run `make notebooks` before a release.")


if __name__ == "__main__":
    main()
