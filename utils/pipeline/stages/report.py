"""The end of the pipeline: one table, one figure, which promises were kept, and the adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from utils.pipeline.manifests import MANIFEST
from utils.pipeline.stages.adapter_card import write_adapter
from utils.pipeline.stages.promises import BASE_NOTE, CERTAINTY, check_promises

RESULTS, TABLE, FIGURE, ADAPTER = "results.json", "report.md", "report.png", "adapter"
LABELS = {
    "base": "base, 16 bit",
    "merge": "QLoRA merged, 16 bit",
    "gptq": "GPTQ, 4 bit",
    "awq": "AWQ, 4 bit",
}


def write_report(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Write results.json, report.md and report.png from the manifests of the earlier stages.

    Also the folder `adapter`: the trained adapter with its model card, ready to be given away.
    """
    from utils.viz.finetune.report_figure import draw

    manifests = {
        name: json.loads((folder / MANIFEST).read_text()) for name, folder in inputs.items()
    }
    rows = table_rows(manifests["evaluate"]["measures"], manifests["serve"]["measures"])
    promises = check_promises(
        rows, manifests["serve"]["measures"]["server"], settings.get("judges_accuracy", True)
    )
    stages = {
        name: {"seconds": manifest["seconds"], "peak_memory_bytes": manifest["peak_memory_bytes"]}
        for name, manifest in manifests.items()
        if name != "data"
    }
    results = {
        "profile": settings["profile"],
        "model": settings["model"],
        "rows": rows,
        "promises": [{"promise": text, "kept": kept} for text, kept in promises],
        "stages": stages,
        "tools": {name: manifests[name]["measures"].get("tool") for name in ("gptq", "awq")},
        "versions": {k: v for m in manifests.values() for k, v in m["versions"].items()},
    }
    (out / RESULTS).write_text(json.dumps(results, indent=1, ensure_ascii=False))
    (out / TABLE).write_text(markdown(results))
    draw(rows, out / FIGURE)
    write_adapter(results, manifests, inputs["finetune"], out / ADAPTER)
    return {"kept": all(kept for _, kept in promises)}


def table_rows(evaluated: dict[str, Any], served: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each model. Seconds, bytes, tokens per second, and shares from 0 to 1.

    `lost` and `won` count messages against the merged model (see `evaluate.compare`).
    """
    return [
        {
            "name": name,
            "label": LABELS[name],
            "valid_json": evaluated[name]["valid_json"],
            "exact_match": evaluated[name]["exact_match"],
            "num_examples": evaluated[name]["num_examples"],
            "lost": evaluated[name].get("lost"),
            "won": evaluated[name].get("won"),
            "num_examples_served": served[name]["num_examples"],
            "field_accuracy": evaluated[name]["field_accuracy"],
            "answer_perplexity": evaluated[name]["perplexity"]["answer"],
            "text_perplexity": evaluated[name]["perplexity"]["text"],
            "bytes": evaluated[name]["bytes"],
        }
        | {
            key: served[name][key]
            for key in (
                "tokens_per_second_without_prefix_caching",
                "tokens_per_second",
                "ttft_miss_seconds",
                "ttft_hit_seconds",
                "hit_rate",
            )
        }
        for name in LABELS
    ]


COLUMNS = (
    "model",
    "valid JSON",
    "exact match",
    "perplexity, answers",
    "perplexity, text",
    "MB",
    "tokens/s",
    "tokens/s, APC",
    "TTFT miss, ms",
    "TTFT hit, ms",
    "hit rate",
)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One row as texts, in the order of `COLUMNS`."""
    return (
        row["label"],
        f"{row['valid_json']:.1%}",
        f"{row['exact_match']:.1%}",
        f"{row['answer_perplexity']:.3f}",
        f"{row['text_perplexity']:.1f}",
        f"{row['bytes'] / 1e6:.0f}",
        f"{row['tokens_per_second_without_prefix_caching']:.0f}",
        f"{row['tokens_per_second']:.0f}",
        f"{row['ttft_miss_seconds'] * 1e3:.0f}",
        f"{row['ttft_hit_seconds'] * 1e3:.0f}",
        f"{row['hit_rate']:.1%}",
    )


def markdown(results: dict[str, Any]) -> str:
    """The report as Markdown."""
    lines = [
        "# From a base model to a served 4-bit model",
        "",
        f"Profile `{results['profile']}`, model `{results['model']}`.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---" + "|---:" * (len(COLUMNS) - 1) + "|",
        *("| " + " | ".join(cells(row)) + " |" for row in results["rows"]),
        "",
        "Exact match: every field right, on messages whose templates and values training never "
        f"saw: {_numbers(results['rows'])}. "
        "Perplexity on plain English text, and on the right answers. Tokens per second: output of "
        f"one batch with {results['rows'][0]['num_examples_served']} of the messages, without and "
        "with Automatic Prefix Caching (APC). "
        "TTFT: time to the first token, median, with an empty cache (miss) and with the system "
        "prompt cached (hit). Hit rate: share of the batch's prompt tokens found in the cache.",
        "",
        *([BASE_NOTE, ""] if results["model"] == "bundled" else []),
        CERTAINTY,
        "",
        *(f"- {'PASS' if p['kept'] else 'FAIL'}: {p['promise']}" for p in results["promises"]),
        "",
        "| stage | seconds | peak memory, GB |",
        "|---|---:|---:|",
        *(
            f"| {name} | {stage['seconds']:.0f} | {stage['peak_memory_bytes'] / 1e9:.1f} |"
            for name, stage in results["stages"].items()
        ),
        "",
    ]
    return "\n".join(lines)


def _numbers(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{row['num_examples']} by {row['label']}" for row in rows)


def print_report(out: Path) -> bool:
    """Print the table and the promises; True when all were kept."""
    from rich.console import Console
    from rich.table import Table

    results = json.loads((out / RESULTS).read_text())
    table = Table(title=f"From a base model to a served 4-bit model ({results['profile']})")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if number else "left")
    for row in results["rows"]:
        table.add_row(*cells(row))
    # A pipe has no width; the table has about 110 columns.
    console = Console(highlight=False)
    if not console.is_terminal or console.width < 110:
        console = Console(highlight=False, width=120)
    console.print(table)
    if results["model"] == "bundled":
        console.print(BASE_NOTE)
    console.print(CERTAINTY)
    for promise in results["promises"]:
        # The brackets are text, not rich's markup.
        console.print(
            f"{'PASS' if promise['kept'] else 'FAIL'}  {promise['promise']}", markup=False
        )
    console.print(f"Figure: {out / FIGURE}", soft_wrap=True)
    console.print(f"Adapter, with its model card: {out / ADAPTER}", soft_wrap=True)
    return all(promise["kept"] for promise in results["promises"])
