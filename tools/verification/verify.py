"""Run your own labs again and write a page about it. Behind `make verify`.

    python -m tools.verification.verify            all labs
    python -m tools.verification.verify 02 04      these two

Each lab runs in fresh processes, shut in as `make grade` does it, with the course's own checks.
After each, what was measured is saved: an interrupted run goes on where it was. A lab in which
nothing was written is not run. The page says how anybody can do the same again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat

from tools.grading import isolation
from tools.grading.grade import PATIENCE
from tools.make_labs import ROOT, lab_names
from tools.verification import page
from tools.verification.provenance import checks_hash, code_hash, git_state, versions
from tools.verification.rerun import nothing_earned, untouched
from utils.hub import resolve_model
from utils.pipeline.manifests import file_hash
from utils.processes.supervised import stop, supervised

TARGET = ROOT / "build" / "verify"
RESULTS = "results.json"
MINUTE = "a minute"  # a rule for labs: CONTRIBUTING.md


class Verification:
    """Labs to run, and what is known of them: see `run`.

    Args:
        labs: the learner's copies, `labs`/NN_name/NN_name.ipynb.
        solutions: the source of each lab, in the same form.
        target: the folder for the page and the results, which are kept between runs.
        isolated: whether the labs' code runs shut in.
        patience: seconds for one lab. One that takes longer is ended.
        cell_limit: seconds for one cell; None: what grading allows.
    """

    def __init__(
        self,
        labs: Path = ROOT / "labs",
        solutions: Path = ROOT / "solutions",
        target: Path = TARGET,
        isolated: bool = True,
        patience: float = PATIENCE,
        cell_limit: int | None = None,
    ) -> None:
        self.labs, self.solutions, self.target = labs, solutions, target
        self.isolated, self.patience, self.cell_limit = isolated, patience, cell_limit
        self.names = sorted(path.parent.name for path in solutions.glob("*/*.ipynb"))
        self.results = _read(target / RESULTS)

    def run(self, wanted: Collection[str] = ()) -> Path:
        """Run the wanted labs, or all, and write the page. Interrupt it, and a later call goes on.

        Returns:
            The page.
        """
        rows = self.results["labs"]
        if wanted:
            left = [name for name in self.names if name in wanted]
        else:
            kept = self._unfinished()
            left = [name for name in self.names if name not in kept]
            if kept:
                print(f"Going on after an interruption: {count(len(kept), 'lab')} had been run.")
            self.results["complete"] = False
        idle = {name for name in left if self._why_not(name)}
        print(
            f"{count(len(left) - len(idle), 'lab')} to run, about {MINUTE} each on two cores; "
            f"{count(len(idle), 'lab')} with nothing to run."
        )
        try:
            for place, name in enumerate(left, 1):
                print(f"[{place}/{len(left)}] {name} ...", end=" ", flush=True)
                rows[name] = self._measure(name)
                self._save()
                print(
                    _line(rows[name])
                    + _remaining(rows, [n for n in left[place:] if n not in idle]),
                    flush=True,
                )
            if not wanted:
                self.results["complete"] = True
        finally:
            self._save()
        return self.target / page.NAME

    def _unfinished(self) -> set[str]:
        """What the last run, if it was interrupted, measured of labs that are still the same."""
        if self.results["complete"]:
            return set()
        rows = self.results["labs"]
        return {name for name in self.names if name in rows and self._is_current(rows[name])}

    def _is_current(self, row: dict[str, Any]) -> bool:
        """Whether nothing has changed since a lab was measured: its notebook, checks, or how."""
        return all(row.get(key) == value for key, value in self._identity(row["lab"]).items())

    def _identity(self, name: str) -> dict[str, Any]:
        notebook = self._copy(name)
        return {
            "notebook": file_hash(notebook) if notebook.is_file() else "",
            "checks": checks_hash(ROOT, name),
            "course": code_hash(ROOT, [ROOT / "utils"]),
            "solution": file_hash(self._solution(name)),
            "isolated": self.isolated,
        }

    def _copy(self, name: str) -> Path:
        return self.labs / name / f"{name}.ipynb"

    def _solution(self, name: str) -> Path:
        return self.solutions / name / f"{name}.ipynb"

    def _measure(self, name: str) -> dict[str, Any]:
        """Everything that the page says of one lab."""
        started = time.monotonic()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"lab": name, "at": now, "versions": versions(), **self._identity(name)}
        row |= self._rerun(name)
        points, of = (sum(e[key] for e in row["exercises"]) for key in ("points", "of"))
        return row | {"points": points, "of": of, "seconds": time.monotonic() - started}

    def _rerun(self, name: str) -> dict[str, Any]:
        """The exercises, notes, and whether it ran: "" or why not."""
        why = self._why_not(name)
        found: dict[str, Any] = {}
        if not why:
            found, why = self._in_a_program_of_its_own(name)
        if why:
            solution = nbformat.read(self._solution(name), as_version=4)
            found = {"exercises": [vars(e) for e in nothing_earned(solution, why)], "notes": []}
        return found | {"not_run": why}

    def _why_not(self, name: str) -> str:
        """Why there is nothing to run, or ""."""
        try:
            notebook = nbformat.read(self._copy(name), as_version=4)
            return "nothing is written yet" if untouched(notebook) else ""
        except FileNotFoundError:
            return "there is no notebook"
        except Exception as error:  # whatever the file is, the others are run
            return f"is no notebook: {type(error).__name__}"

    def _in_a_program_of_its_own(self, name: str) -> tuple[dict[str, Any], str]:
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            command = [
                sys.executable,
                "-m",
                "tools.verification.rerun",
                str(self._copy(name)),
                str(self._solution(name)),
                str(result),
            ]
            command += [] if self.isolated else ["--trust"]
            command += [] if self.cell_limit is None else [f"--cell-limit={self.cell_limit}"]
            with open(Path(folder) / "log", "w+") as log:
                # In a session of its own: an interruption reaches us, and we end all of it.
                program = subprocess.Popen(
                    supervised(command), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
                )
                try:
                    program.wait(self.patience)
                except subprocess.TimeoutExpired:
                    return {}, f"was not done after {self.patience:g} seconds"
                finally:
                    stop(program)
                log.seek(0)
                said = log.read().strip().splitlines()
            if program.returncode:
                return {}, f"could not be run: {said[-1] if said else 'it said nothing'}"
            return json.loads(result.read_text()), ""

    def _save(self) -> None:
        """Write results and page, each all at once."""
        self.target.mkdir(parents=True, exist_ok=True)
        _write(self.target / RESULTS, json.dumps(self.results, indent=1))
        rows: dict[str, dict[str, Any] | None] = dict.fromkeys(self.names)
        for name, row in self.results["labs"].items():
            if name in rows:
                rows[name] = row | {"changed_since": not self._is_current(row)}
        _write(self.target / page.NAME, page.html_page(rows, git_state(ROOT)))


def target_for(labs: Path) -> Path:
    """Where the page of a folder of labs goes. Somebody else's don't mix with your own."""
    if labs == ROOT / "labs":
        return TARGET
    return TARGET / f"{labs.name}-{hashlib.sha256(str(labs).encode()).hexdigest()[:8]}"


def _read(path: Path) -> dict[str, Any]:
    """The results of earlier runs; none, if there are none or they are damaged."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        if set(found) == {"complete", "labs"}:
            return found
    return {"complete": True, "labs": {}}


def _write(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def count(number: int, noun: str) -> str:
    """`1 lab`, `2 labs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _line(row: dict[str, Any]) -> str:
    if row["not_run"]:
        return f"0 of {row['of']:g} points: {row['not_run']}"
    return f"{row['points']:g} of {row['of']:g} points, {row['seconds']:.0f} s"


def _remaining(rows: dict[str, Any], left: list[str]) -> str:
    """How long the labs that are left will take: each as last time, or else as the others' mean."""
    known = {name: row["seconds"] for name, row in rows.items() if not row["not_run"]}
    if not left or not known:
        return ""
    mean = sum(known.values()) / len(known)
    return f". About {sum(known.get(n, mean) for n in left) / 60:.1f} minutes left"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wanted", nargs="*", metavar="NN", help="such as 02; default: all labs")
    parser.add_argument("--labs", type=Path, default=ROOT / "labs", help="a folder of copies")
    parser.add_argument("--trust", action="store_true", help="run their code as yourself")
    told = parser.parse_args()
    names = {wanted: [n for n in lab_names() if n.startswith(wanted)] for wanted in told.wanted}
    if unknown := [wanted for wanted, found in names.items() if len(found) != 1]:
        parser.error(f"no such lab: {', '.join(unknown)}. Labs are: {', '.join(lab_names())}")
    if not told.labs.is_dir():
        parser.error(f"there is no folder {told.labs}")
    if not told.trust and (reason := isolation.unavailable()):
        parser.error(
            f"code cannot be shut in here: {reason}\nIf you wrote these labs yourself, run them as "
            "you do in Jupyter: make verify TRUST=1"
        )
    resolve_model()  # what runs shut in finds what is derived from it, and can write nothing there
    labs = told.labs.resolve()
    work = Verification(labs, target=target_for(labs), isolated=not told.trust)
    try:
        written = work.run([name for found in names.values() for name in found])
    except KeyboardInterrupt:
        print("\nInterrupted. What was measured is kept; `make verify` goes on from here.")
        return 130
    print(f"The page: {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
