"""Record the lessons' widgets for the site. Behind `make frames`.

    python -m tools.frames.record                       what is not in step with its lesson
    python -m tools.frames.record 04_paged_allocator    this one, in step or not
    python -m tools.frames.record --check               say which are not in step

Runs of a lesson the cells that its widget needs, in a kernel, and then walks through the widget's
states. Each recording is one file in `site/recorded/`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import zipfile
from pathlib import Path

import nbformat

from tools.frames.calculators import record_calculator
from tools.frames.cells import NOTEBOOKS, ROOT, Lesson, fingerprints
from tools.frames.plans import LIMIT, NOT_RECORDED, PLANS, Calculator, Grid, Loads
from tools.frames.states import Recording
from tools.notebooks import run

RECORDED = ROOT / "site" / "recorded"
TIMEOUT_S = 1800  # of a cell; the last one draws all pictures


def out_of_step(name: str) -> list[str]:
    """What has changed since a lesson's widget was recorded; empty: nothing."""
    path = RECORDED / f"{name}.zip"
    if not path.exists():
        return ["it was never recorded"]
    made_from = states(path)["made_from"]
    now = fingerprints(Lesson.read(name), PLANS[name])
    return [
        what
        for what in sorted(now.keys() | made_from.keys())
        if now.get(what) != made_from.get(what)
    ]


def states(path: Path) -> dict[str, object]:
    """What a recording says of its states."""
    with zipfile.ZipFile(path) as file:
        return json.loads(file.read("states.json"))


def printed(lesson: Lesson, plan: Grid) -> dict[str, float]:
    """The numbers that a plan takes from what the committed lesson printed.

    Raises:
        ValueError: the lesson printed no such thing, or several.
    """
    found = {}
    for name, (pattern, factor) in plan.printed.items():
        matches = re.findall(pattern, "\n".join(lesson.printed))
        if len(matches) != 1:
            raise ValueError(f"{lesson.name} printed {pattern!r} {len(matches)} times, not once.")
        found[name] = float(matches[0]) * factor
    return found


def run_lesson(lesson: Lesson, path: Path) -> None:
    """Run the cells that the widget needs, and record it.

    Raises:
        CellExecutionError, CellTimeoutError, DeadKernelError: a cell failed.
    """
    plan = PLANS[lesson.name]
    given = printed(lesson, plan) if isinstance(plan, Grid) else {}
    codes = [lesson.codes[i] for i in lesson.to_run(given)]
    codes[-1:-1] = [f"{name} = {value!r}" for name, value in given.items()]
    widget = "dashboard" if isinstance(plan, Loads) else "Out[max(Out)]"
    last = "from tools.frames.walk import record_widget\n"
    codes.append(f"{last}await record_widget({widget}, {lesson.name!r}, {str(path)!r})")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in codes])
    run(notebook, NOTEBOOKS, TIMEOUT_S)


def record(name: str) -> int:
    """Record one lesson's widget; the bytes of the file.

    Raises:
        ValueError: the file is larger than a page may hold.
    """
    lesson, plan = Lesson.read(name), PLANS[name]
    made_from = fingerprints(lesson, plan)
    path = RECORDED / f"{name}.zip"
    unchecked = path.with_suffix(".unchecked")
    if isinstance(plan, Calculator):
        record_calculator(plan.name).save(unchecked)
    else:
        run_lesson(lesson, unchecked)
    Recording.sign(unchecked, made_from)
    size = unchecked.stat().st_size
    if size > LIMIT:
        raise ValueError(
            f"{name}: {size:,} bytes, and a page may have {LIMIT:,}. Plan fewer states "
            f"(tools/frames/plans.py). What was recorded is in {unchecked}."
        )
    unchecked.replace(path)
    return size


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lessons", nargs="*", choices=[[], *PLANS], help="default: out of step")
    parser.add_argument("--check", action="store_true", help="record nothing")
    arguments = parser.parse_args()
    wanted = [name for name in PLANS if name not in NOT_RECORDED]
    names = arguments.lessons or [name for name in wanted if out_of_step(name)]
    if arguments.check:
        for name in names:
            print(f"{name}: {', '.join(out_of_step(name))}")
        sys.exit(bool(names))
    for name in names:
        started = time.monotonic()
        print(f"{name} ...", end=" ", flush=True)
        size = record(name)
        count = len(states(RECORDED / f"{name}.zip").get("frames", []))
        print(f"{count} frames, {size / 1e3:,.0f} kB, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
