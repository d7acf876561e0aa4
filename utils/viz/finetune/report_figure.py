"""The figure of the pipeline's report: four measures of each model."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from utils.viz.style import BLUE, GREEN


def draw(rows: list[dict[str, Any]], path: Path | io.BytesIO) -> Figure:
    """Four panels, one row of bars for each model; the title states the finding."""
    figure = Figure(figsize=(13, 4.4), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True)
    _bars(
        panels[0],
        rows,
        [("exact_match", 100, BLUE, "")],
        "exact match (%)",
        "Right answers",
        fmt="%.1f",
    )
    panels[0].set_xlim(0, 122)
    _bars(panels[1], rows, [("bytes", 1e-6, BLUE, "")], "weights on disk (MB)", "Size")
    off = "tokens_per_second_without_prefix_caching"
    _bars(
        panels[2],
        rows,
        [(off, 1, BLUE, "APC off"), ("tokens_per_second", 1, GREEN, "APC on")],
        "output tokens per second",
        "Throughput",
    )
    _bars(
        panels[3],
        rows,
        [("ttft_miss_seconds", 1e3, BLUE, "miss"), ("ttft_hit_seconds", 1e3, GREEN, "hit")],
        "time to first token (ms)",
        "First token",
    )
    panels[0].set_yticks(range(len(rows)), [row["label"] for row in rows])
    panels[0].invert_yaxis()
    figure.suptitle(finding(rows), x=0.01, ha="left", weight="bold", fontsize=12.5)
    figure.savefig(path, dpi=110)
    return figure


def finding(rows: list[dict[str, Any]]) -> str:
    """The figure's title, from the numbers."""
    row = {entry["name"]: entry for entry in rows}
    base, merged, gptq = row["base"], row["merge"], row["gptq"]
    small = gptq["bytes"] / merged["bytes"]
    faster = gptq["ttft_miss_seconds"] / gptq["ttft_hit_seconds"]
    return (
        f"Fine-tuning lifts exact match from {base['exact_match']:.1%} to "
        f"{merged['exact_match']:.1%}. In 4 bits, with {small:.0%} of the bytes, it is "
        f"{gptq['exact_match']:.1%} (GPTQ) and {row['awq']['exact_match']:.1%} (AWQ);\n"
        f"with GPTQ a cached prefix brings the first token {faster:.1f} times sooner"
    )


def _bars(
    axes: Any,
    rows: list[dict[str, Any]],
    series: list[tuple[str, float, str, str]],
    label: str,
    title: str,
    fmt: str = "%.0f",
) -> None:
    height = 0.7 / len(series)
    for number, (key, factor, color, name) in enumerate(series):
        values = [row[key] * factor for row in rows]
        centers = [i + (number - (len(series) - 1) / 2) * height for i in range(len(rows))]
        bars = axes.barh(centers, values, height * 0.92, color=color, label=name or None)
        axes.bar_label(bars, fmt=fmt, padding=3, fontsize=9.5)
    axes.set_xlabel(label)
    axes.set_title(title, loc="left", fontsize=11)
    axes.margins(x=0.18)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if len(series) > 1:
        axes.legend(
            frameon=False,
            loc="lower right",
            bbox_to_anchor=(1.02, 0.98),
            ncols=2,
            fontsize=9.5,
            handlelength=1,
            columnspacing=0.9,
            borderpad=0,
        )
