"""The end of a run: what it proved now, and what `make test-full` proved, when and where."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tools.proof.parts import PARTS, part_of, recipe

ROOT = Path(__file__).resolve().parents[2]
FULL_PROOF = ROOT / "proofs" / "full.json"


def full_proof(file: Path = FULL_PROOF) -> dict[str, dict[str, Any]]:
    """The committed rows of `make test-full`, by part."""
    rows: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["parts"]
    return rows


def outdated(rows: dict[str, dict[str, Any]]) -> list[str]:
    """The parts whose proof at full size is missing, or was made by another recipe."""
    return [part for part in PARTS if rows.get(part, {}).get("recipe") != recipe(part)]


def table(outcomes: dict[str, str], seconds: dict[str, float], rows: dict[str, Any]) -> str:
    """A line for each part: counts and worker-minutes of this run, then its full proof.

    Args:
        outcomes: by node id, "passed", "failed" or "skipped".
        seconds: by file.
        rows: see `full_proof`.
    """
    counts: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
    minutes: Counter[str] = Counter()
    for node, outcome in outcomes.items():
        counts[part_of(node.partition("::")[0])][outcome] += 1
    for file, spent in seconds.items():
        minutes[part_of(file)] += spent / 60  # type: ignore[assignment]
    late = outdated(rows)
    lines = [f"{'part':9} {'proven now':>34} {'worker-minutes':>15}   proven by make test-full"]
    for part in PARTS:
        now = ", ".join(f"{counts[part][kind]} {kind}" for kind in ("passed", "failed", "skipped"))
        row = rows.get(part)
        full = (
            "never"
            if row is None
            else (
                f"{row['when']}, {row['tests']} tests, at {row['commit'][:7]}, on {row['machine']}"
            )
        )
        note = f"  RECIPE CHANGED: run make test-full PART={part}" if part in late else ""
        lines.append(f"{part:9} {now:>34} {minutes[part]:15.1f}   {full}{note}")
    return "\n".join(lines)
