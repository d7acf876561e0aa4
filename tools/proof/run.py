"""Run the suite. Behind `make test` and `make test-full`.

    python -m tools.proof.run [--workers 2]              the small size: what CI runs
    python -m tools.proof.run --full [--part pipeline]   full sizes; goes on where it was stopped

First style, types and the rules of the house; if they are broken, nothing else is run. Then
everything, on two workers. Then a second look at what failed, and a table of what was proven.
Failures are printed when they happen. A run that was cut off, or that left out a test without
saying so, is not green: it says NOT PROVEN.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.notebook_files import lessons
from tools.proof.parts import PARTS, TESTPATHS, files_of, recipe
from tools.proof.second_look import Verdict, look_again
from tools.proof.style import HOUSE, broken_style
from tools.proof.table import FULL_PROOF, full_proof, outdated, table
from tools.saved import in_step
from tools.saved.machine import machine

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "proof"
RECORD = "COURSE_PROOF_RECORD"  # names the file in which a run writes down what it did
# pytest's exit statuses: all passed, some failed.
PASSED, FAILED = 0, 1


def pytest(record: Path, *arguments: str) -> int:
    """Run pytest; what it did stands in the file `record` afterwards."""
    record.unlink(missing_ok=True)
    environment = os.environ | {RECORD: str(record)}
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def read(record: Path) -> dict[str, Any]:
    """What a run did; empty if it was cut off before it could say so."""
    nothing: dict[str, Any] = {"collected": 0, "outcomes": {}, "reasons": {}, "seconds": {}}
    return json.loads(record.read_text()) if record.is_file() else nothing


def run(workers: int, paths: list[str], name: str) -> int:
    """Style, house rules, everything in `paths`, second look, table. The exit status."""
    OUT.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    if broken := broken_style():
        return _not_proven(f"style or types: {', '.join(broken)}. Nothing else was run.")
    parallel = ["-n", str(workers), "--no-loadscope-reorder"]
    house, first = OUT / f"{name}-house.json", OUT / f"{name}.json"
    if pytest(house, "-q", *parallel, *HOUSE) != PASSED:
        return _not_proven("the rules of the house are broken. Nothing else was run.")
    ignored = [f"--ignore={path}" for path in HOUSE]
    others = [path for path in paths if not path.startswith(HOUSE)]
    status = pytest(first, *parallel, *ignored, *others)
    done = read(first)
    missing = done["collected"] - len(done["outcomes"])
    if status not in (PASSED, FAILED) or missing or not done["outcomes"]:
        return _not_proven(f"pytest ended with status {status}; {missing} tests were not run.")

    def run_alone(file: str) -> bool:
        return pytest(OUT / "again.json", "-q", "-n", "0", file) == PASSED

    failed = [node for node, outcome in done["outcomes"].items() if outcome == "failed"]
    verdict = look_again(failed, run_alone) if failed else Verdict()
    outcomes = read(house)["outcomes"] | done["outcomes"]
    for node in failed:
        if node.partition("::")[0] in verdict.unsteady:
            outcomes[node] = "passed"
    seconds = read(house)["seconds"] | done["seconds"]
    times = {
        "when": datetime.date.today().isoformat(),
        "machine": machine(),
        "workers": workers,
        "minutes": round((time.monotonic() - started) / 60, 1),
        "seconds": seconds,
    }
    (OUT / "times.json").write_text(json.dumps(times))
    late = _say(verdict, outcomes, done["reasons"], seconds, started)
    return int(bool(verdict.broken) or bool(late and not _is_full()))


def _say(
    verdict: Verdict,
    outcomes: dict[str, str],
    reasons: dict[str, str],
    seconds: dict[str, float],
    started: float,
) -> list[str]:
    """Print the end of the run; the parts whose proof at full size is out of date."""
    print(f"\n{'=' * 30} what was proven {'=' * 30}")
    rows = full_proof()
    print(table(outcomes, seconds, rows))
    postponed = sum(reason.startswith("full size:") for reason in reasons.values())
    if postponed:
        print(f"{postponed} tests run at full size alone; the small size proves their promise.")
    for line in in_step.to_record_anew(lessons()):
        print(f"TO BE RECORDED before a release: {line}")
    for file in verdict.unsteady:
        print(f"UNSTEADY: {file} failed beside another worker, and passed alone.")
    for node in verdict.quarantined:
        print(f"IN QUARANTINE: {node} failed; see tests/unsteady.toml.")
    for file in verdict.broken:
        print(f"BROKEN: {file}")
    counts = [sum(o == kind for o in outcomes.values()) for kind in ("passed", "failed", "skipped")]
    print(
        f"{(time.monotonic() - started) / 60:.0f} minutes, {sum(seconds.values()) / 60:.0f} of "
        f"workers; unsteady files: {len(verdict.unsteady)}, in quarantine: "
        f"{len(verdict.quarantined)}"
    )
    late = outdated(rows)
    if late and not _is_full():
        print(f"NOT PROVEN at full size: {', '.join(late)}: run make test-full PART={late[0]}.")
    print("proof: {} passed, {} failed, {} skipped".format(*counts), flush=True)
    return late


def run_full(workers: int, part: str | None) -> int:
    """Each part at full size; what this very commit has proven already is not run again."""
    # The rows that it writes itself are no change of what they are about.
    if changed := _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!proofs"):
        sys.exit(f"The full proof is about a commit; commit or undo this first:\n{changed}")
    commit = _git("rev-parse", "HEAD")
    OUT.mkdir(parents=True, exist_ok=True)
    for name in [part] if part else PARTS:
        mark = OUT / f"full-{name}.json"
        if mark.is_file() and json.loads(mark.read_text())["commit"] == commit:
            print(f"{name}: proven at this commit already")
            continue
        begin = time.monotonic()
        if status := run(workers, files_of(name), f"run-{name}"):
            return status
        row = {
            "when": datetime.date.today().isoformat(),
            "commit": commit,
            "machine": machine(),
            "recipe": recipe(name),
            "tests": len(read(OUT / f"run-{name}.json")["outcomes"]),
            "minutes": round((time.monotonic() - begin) / 60),
        }
        mark.write_text(json.dumps(row))
        rows = full_proof() | {name: row}
        FULL_PROOF.write_text(json.dumps({"parts": rows}, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: proven at full size. Commit proofs/{FULL_PROOF.name}.")
    return 0


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def _is_full() -> bool:
    return os.environ.get("COURSE_SCALE") == "full"


def _not_proven(why: str) -> int:
    print(f"\nNOT PROVEN: {why}", flush=True)
    return 1


def _cut_off(number: int, frame: object) -> None:
    print(f"\nNOT PROVEN: the run was cut off by {signal.Signals(number).name}.", flush=True)
    raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--full", action="store_true", help="full sizes")
    parser.add_argument("--part", choices=PARTS, help="with --full: only this part")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _cut_off)
    if options.part and not options.full:
        parser.error("--part is for --full; the small size is run whole")
    if options.full:
        os.environ["COURSE_SCALE"] = "full"
        sys.exit(run_full(options.workers, options.part))
    sys.exit(run(options.workers, list(TESTPATHS), "run"))


if __name__ == "__main__":
    main()
