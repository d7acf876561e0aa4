"""The table of cards in docs/hardware.md: what was measured, by benchmarks/results/gpu/*.json.

python tools/gpu/table.py        write it there
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from utils.pipeline.estimates import lessons  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "gpu"
PAGE = ROOT / "docs" / "hardware.md"
MARKS = "<!-- {0}: python tools/gpu/table.py -->", "<!-- end of {0} -->"
COLUMNS = (
    "card", "driver's CUDA", "tests", "cells of Part I", "fine-tuned, GPTQ, AWQ right",
    "tokens/s: ours, vLLM, HF",
)  # fmt: skip


def load_results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """One report of `make gpu-check` for each card."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def table(reports: list[dict[str, Any]]) -> str:
    """The table in Markdown; a cell says "not yet measured" where a report lacks it."""
    nothing = ["none", *["not yet measured"] * (len(COLUMNS) - 1)]
    rows = [_row(report) for report in reports] or [nothing]
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(report: dict[str, Any]) -> list[str]:
    steps = report["steps"]
    machine = report["machine"]
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    cells = [f"{machine['card']}, {memory}", machine["driver_cuda"]]
    columns = (
        ("tests", _counts), ("lessons", _counts), ("pipeline", _pipeline), ("throughput", _speed),
    )  # fmt: skip
    for name, in_words in columns:
        result = steps.get(name, {}).get("result")
        cells.append(in_words(result) if result else "not yet measured")
    return cells


def _counts(result: dict[str, Any]) -> str:
    return f"{result['passed']} passed, {result['failed']} failed"


def _pipeline(result: dict[str, Any]) -> str:
    right = {row["name"]: row["exact_match"] for row in result["rows"]}
    return ", ".join(f"{right[model]:.0%}" for model in ("merge", "gptq", "awq"))


def _speed(result: dict[str, Any]) -> str:
    """Of the largest batch, in the first number format."""
    workloads = next(iter(result["engines"].values()))
    largest = max(
        (name for name in workloads if name.startswith("batch")), key=lambda n: int(n[6:])
    )
    speeds = (
        workloads[largest].get(engine, {}).get("tokens_per_s") for engine in ("ours", "vLLM", "HF")
    )
    listed = ", ".join("failed" if speed is None else f"{speed:,.0f}" for speed in speeds)
    return f"{listed} ({largest})"


def with_table(readme: str, name: str, text: str) -> str:
    """The page with a table between the marks of its name.

    Raises:
        ValueError: the marks are missing.
    """
    begin, end = (mark.format(name) for mark in MARKS)
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(readme):
        raise ValueError(f"docs/hardware.md lacks the marks {begin} and {end}.")
    return pattern.sub(lambda _: f"{begin}\n{text}\n{end}", readme)


def with_tables(readme: str) -> str:
    """The page with both tables as they are now."""
    return with_table(with_table(readme, "cards", table(load_results())), "memory", lessons.table())


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    main()
