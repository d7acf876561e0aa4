"""One report of a card, from the records of `make gpu-check OFFLINE=1`.

python tools/gpu/report.py FOLDER ...

Looks for records in the folders and in those below. Of a step with several, the last one given
counts. Writes benchmarks/results/gpu/CARD-offline.json, and the tables in docs/hardware.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.gpu import table  # noqa: E402
from tools.gpu.steps import file_name  # noqa: E402

STEPS = ("card", "tests", "throughput", "lessons", "training", "steps", "kernels")


def report_path(card: str, kind: str = "") -> Path:
    """Where the report of a card lies."""
    return table.RESULTS / f"{file_name(card)}{kind}.json"


def assemble(folders: Iterable[Path]) -> dict[str, Any]:
    """The report: the machine, and for each step its last record.

    Raises:
        ValueError: there are no records, or they are of several cards.
    """
    steps: dict[str, Any] = {}
    machines: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for name in STEPS:
            for file in sorted(folder.rglob(f"{name}.json")):
                record = json.loads(file.read_text())
                machine = record.pop("machine")
                machines[machine["card"]] = machine
                steps[name] = {key: value for key, value in record.items() if key != "key"}
    if len(machines) != 1:
        found = ", ".join(machines) or "none"
        raise ValueError(f"Records of one card are expected in these folders; found: {found}.")
    [machine] = machines.values()
    return {"machine": machine, "steps": {name: steps[name] for name in STEPS if name in steps}}


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    try:
        report = assemble(map(Path, sys.argv[1:]))
    except ValueError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    path = report_path(report["machine"]["card"], "-offline")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    table.main()
    print(f"{path.relative_to(ROOT)} and docs/hardware.md are written. Commit both.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
