"""The tables of cards in docs/hardware.md: what was measured, by benchmarks/results/gpu/*.json.

python tools/gpu/table.py        write them there
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from utils.pipeline.estimates import lessons  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "gpu"
PAGE = ROOT / "docs" / "hardware.md"
MARKS = "<!-- {0}: python tools/gpu/table.py -->", "<!-- end of {0} -->"
CARDS = ("card", "driver's CUDA", "tests", "Part I", "training", "fine-tuned, GPTQ, AWQ right")
SPEEDS = (
    "card, format",
    "requests",
    "ours, Triton",
    "ours, PyTorch",
    "vLLM",
    "Hugging Face",
    "of what the card allows",
)
SHARES = (
    "card",
    "requests",
    "layers run",
    "step, ms",
    "the card computes",
    "kernels",
    "started by",
    "copies",
    "waits",
)
KERNELS = ("card", "kernel", "model", "of what", "µs", "floor, µs", "without, µs")
UNKNOWN = "not yet measured"
WAYS = {
    "torch_cudnn": "PyTorch, cuDNN's attention",
    "torch": "PyTorch",
    "cuda_graph": "PyTorch, as a CUDA graph",
    "triton": "Triton, as a CUDA graph",
}


def load_results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """One report of `make gpu-check` for each card."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. Without rows it says that nothing was measured."""
    nothing = ["none", *[UNKNOWN] * (len(columns) - 1)]
    lines = [columns, ["---"] * len(columns), *(list(rows) or [nothing])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cards(reports: list[dict[str, Any]]) -> str:
    """What ran on each card; a cell says "not yet measured" where a report lacks it."""
    columns = (
        ("tests", _counts),
        ("lessons", _cells),
        ("training", _training),
        ("pipeline", _pipeline),
    )
    rows = []
    for report in reports:
        machine = report["machine"]
        memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
        row = [f"{machine['card']}, {memory}", machine["driver_cuda"]]
        for name, in_words in columns:
            result = _result(report, name)
            row.append(in_words(result) if result else UNKNOWN)
        rows.append(row)
    return markdown(CARDS, rows)


def speeds(reports: list[dict[str, Any]]) -> str:
    """Tokens per second of each engine, by card and number of requests."""
    rows = []
    for report in reports:
        result = _result(report, "throughput") or {"engines": {}}
        for dtype, workloads in result["engines"].items():
            limits = result.get("limits", {}).get(dtype, {})
            for name in sorted((n for n in workloads if n.startswith("batch")), key=_requests):
                engines = workloads[name]
                cells = [
                    _speed(engines.get(engine))
                    for engine in ("ours", "ours, PyTorch", "vLLM", "HF")
                ]
                share = f"{limits[name]['reached']:.0%}" if name in limits else UNKNOWN
                rows.append(
                    [f"{report['machine']['card']}, {dtype}", f"{_requests(name)}", *cells, share]
                )
    return markdown(SPEEDS, rows)


def shares(reports: list[dict[str, Any]]) -> str:
    """Where a decode step's time goes, by card, number of requests, and way through the layers."""
    rows = []
    for report in reports:
        for name, ways in (_result(report, "steps") or {}).items():
            for way, found in ways.items():
                rows.append(
                    [
                        report["machine"]["card"],
                        f"{_requests(name)}",
                        WAYS.get(way, way),
                        f"{found['step_us'] / 1e3:.2f}",
                        f"{found['card_busy_share']:.0%} of it",
                        f"{found['kernels_run']:.0f}",
                        f"{found['kernel_starts']:.0f} calls, {found['graph_starts']:.0f} graph",
                        f"{sum(found['copies'].values()):.0f}",
                        f"{found['waits']:.0f}",
                    ]
                )
    return markdown(SHARES, rows)


def kernels(reports: list[dict[str, Any]]) -> str:
    """The time of each Triton kernel, the least that the card allows, and what it stands for."""
    rows = []
    for report in reports:
        for line in (_result(report, "kernels") or {"kernels": []})["kernels"]:
            if "floor_us" not in line:  # it was compared with a reference only
                continue
            if "shape" in line:
                tokens, inputs, outputs = line["shape"]
                model, size = "", f"{tokens} tokens, {inputs} x {outputs}"
            elif "requests" in line:
                model, size = line["model"], f"{line['requests']} x {line['tokens']} tokens"
            else:
                model, size = line["model"], f"{line['tokens']} tokens"
            before = line.get("bfloat16_us") or line.get("gathered_us")
            numbers = (line["us"], line["floor_us"], before)
            cells = ["" if number is None else f"{number:.1f}" for number in numbers]
            rows.append([report["machine"]["card"], line["kernel"], model, size, *cells])
    return markdown(KERNELS, rows)


def _result(report: dict[str, Any], step: str) -> Any:
    return report["steps"].get(step, {}).get("result")


def _requests(workload: str) -> int:
    return int(workload.removeprefix("batch "))


def _counts(result: dict[str, Any]) -> str:
    not_run = result.get("not_run")
    more = f", {len(not_run)} not run" if not_run else ""
    return f"{result['passed']} passed, {result['failed']} failed{more}"


def _cells(result: dict[str, Any]) -> str:
    """Of an offline check: cells that ran, and lessons that stopped."""
    if "lessons" not in result:
        return _counts(result)
    not_run = f", {len(result['not_run'])} not run" if result["not_run"] else ""
    stopped = f"; {result['failed']} lessons stopped" if result["failed"] else ""
    return f"{result['passed']} cells{not_run}{stopped}"


def _training(result: dict[str, Any]) -> str:
    measures = result["finetune"]["measures"]
    return (
        f"loss {measures['first_loss']:.2f} to {measures['last_loss']:.3f}, "
        f"{result['finetune']['seconds']:.0f} s"
    )


def _pipeline(result: dict[str, Any]) -> str:
    right = {row["name"]: row["exact_match"] for row in result["rows"]}
    return ", ".join(f"{right[model]:.0%}" for model in ("merge", "gptq", "awq"))


def _speed(engine: dict[str, Any] | None) -> str:
    if engine is None:
        return "not run"
    speed = engine.get("tokens_per_s")
    return "failed" if speed is None else f"{speed:,.0f}"


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


def with_tables(page: str) -> str:
    """The page with all tables as they are now."""
    reports = load_results()
    for name, text in (
        ("cards", cards(reports)),
        ("speeds", speeds(reports)),
        ("shares", shares(reports)),
        ("kernels", kernels(reports)),
        ("memory", lessons.table()),
    ):
        page = with_table(page, name, text)
    return page


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    main()
