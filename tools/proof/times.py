"""Keep the times of the last `make test`: `python -m tools.proof.times`.

It copies them into proofs/times.json, from which the next runs know what takes long, and writes the
table in CONTRIBUTING.md. Run it after a run on a quiet machine, and commit both.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TIMES = ROOT / "proofs" / "times.json"
GUIDE = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(
    r"(<!-- times: python -m tools.proof.times -->\n).*?(<!-- end of times -->)", re.DOTALL
)
SHOWN = 4  # files that are named of each folder


def folder_of(file: str) -> str:
    """notebooks, solutions, or a folder of tests."""
    parts = file.split("/")
    return "/".join(parts[:2]) if parts[0] == "tests" and len(parts) > 2 else parts[0]


def table(times: dict[str, Any]) -> str:
    """Worker-minutes by folder, the largest first, each with its longest files."""
    total: Counter[str] = Counter()
    files: dict[str, list[tuple[float, str]]] = {}
    for file, seconds in times["seconds"].items():
        total[folder_of(file)] += seconds
        files.setdefault(folder_of(file), []).append((seconds, file.rsplit("/", 1)[-1]))
    rows = [
        f"{times['minutes']:.0f} minutes with {times['workers']} workers, set-up not counted, on "
        f"{times['machine']}, {times['when']}; {sum(total.values()) / 60:.0f} worker-minutes"
        f"{times.get('note', '')}.",
        "",
        "| part | worker-minutes | of which |",
        "|---|---:|---|",
    ]
    for folder, seconds in total.most_common():
        longest = sorted(files[folder], reverse=True)[:SHOWN]
        named = ", ".join(f"{n} {s / 60:.1f}" for s, n in longest if s >= 30)
        rows.append(f"| {folder} | {seconds / 60:.1f} | {named} |")
    return "\n".join(rows) + "\n"


def with_table(guide: str, times: dict[str, Any]) -> str:
    """The guide's text with this table between its marks.

    Raises:
        ValueError: the marks are not there.
    """
    text, found = BLOCK.subn(lambda m: m[1] + table(times) + m[2], guide)
    if found != 1:
        raise ValueError(f"CONTRIBUTING.md has {found} places for the times; expected one.")
    return text


def main() -> None:
    times = json.loads((ROOT / "build" / "proof" / "times.json").read_text())
    TIMES.write_text(json.dumps(times, indent=1, sort_keys=True) + "\n")
    GUIDE.write_text(with_table(GUIDE.read_text(encoding="utf-8"), times), encoding="utf-8")
    print(f"{TIMES.relative_to(ROOT)} and the table in {GUIDE.name} are of this run.")


if __name__ == "__main__":
    main()
