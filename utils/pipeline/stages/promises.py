"""What the pipeline promises, and whether a run kept it.

A run answers some hundred messages: a sample, whose shares are known to a few points only. So a
promise about accuracy counts as broken when the measurement rules it out: when all of its 95 %
confidence interval lies on the wrong side. A sound model does not fail by bad luck then, and a
broken one still does.

The base model's is the one promise that must be proven, because it is asked fewer messages: all of
its interval must lie on the right side.
"""

from __future__ import annotations

from typing import Any

from utils.pipeline.confidence import loss_interval, share_interval

CERTAINTY = (
    "In brackets: 95 % confidence intervals. The messages are a sample; for all messages of their "
    "kind, the figure lies between the two numbers in 19 of 20 such runs. A promise is broken when "
    "the whole interval breaks it."
)
BASE_NOTE = (
    "The bundled base model comes from a file in which the linear layers' weights already lie on "
    "a 4-bit grid (Q4_1: at most 16 values in each group of 32). So what 4 bits cost here is not "
    "what they cost a clean 16-bit model. Fine-tuning moves the weights off that grid."
)

MAX_BASE_EXACT_MATCH = 0.10
MIN_EXACT_MATCH = 0.85
# 4 bits cost a model of 135 million parameters more than they cost larger ones. Chosen on messages
# of another seed than the held-out ones.
MAX_LOSS_BY_4_BITS = 0.15


def check_promises(
    rows: list[dict[str, Any]], server: dict[str, Any], judges_accuracy: bool = True
) -> list[tuple[str, bool]]:
    """Each promise of the pipeline, with the measured values, and whether it was kept.

    Args:
        rows: see `report.table_rows`.
        server: what the serve stage saw of the server: `is_valid_answer`, `has_metrics`.
        judges_accuracy: False for a run that trained too little to promise any accuracy: then
            neither shares of right answers nor the form of the server's answer are judged.
    """
    row = {entry["name"]: entry for entry in rows}
    promises = []
    if judges_accuracy:
        promises += [_base_fails(row["base"]), _fine_tuned_is_right(row["merge"])]
        promises += [_keeps_its_accuracy(row[name]) for name in ("gptq", "awq")]
    promises += [_hit_is_faster(entry) for entry in rows]
    answers = "answers with the expected keys, and " if judges_accuracy else ""
    promises.append(
        (
            f"The OpenAI-compatible server {answers}shows its metrics",
            server["has_metrics"] and (server["is_valid_answer"] or not judges_accuracy),
        )
    )
    return promises


def _base_fails(row: dict[str, Any]) -> tuple[str, bool]:
    _, high, words = _exact_match(row)
    text = f"The base model fails the task: {words}, at most {MAX_BASE_EXACT_MATCH:.0%}"
    return text, high <= MAX_BASE_EXACT_MATCH


def _fine_tuned_is_right(row: dict[str, Any]) -> tuple[str, bool]:
    _, high, words = _exact_match(row)
    text = f"Fine-tuned, it is right: {words}, at least {MIN_EXACT_MATCH:.0%}"
    return text, high >= MIN_EXACT_MATCH


def _exact_match(row: dict[str, Any]) -> tuple[float, float, str]:
    """The ends of its interval, and all of it in words."""
    total = row["num_examples"]
    low, high = share_interval(round(row["exact_match"] * total), total)
    return low, high, f"{row['exact_match']:.1%} exact match [{low:.0%} to {high:.0%}]"


def _keeps_its_accuracy(row: dict[str, Any]) -> tuple[str, bool]:
    total = row["num_examples"]
    lost = (row["lost"] - row["won"]) / total
    low, high = loss_interval(row["lost"], row["won"], total)
    text = (
        f"{row['label']}: {row['exact_match']:.1%} exact match, {lost * 100:+.1f} points lost "
        f"[{low * 100:+.1f} to {high * 100:+.1f}], at most {MAX_LOSS_BY_4_BITS * 100:.0f}"
    )
    return text, low <= MAX_LOSS_BY_4_BITS


def _hit_is_faster(row: dict[str, Any]) -> tuple[str, bool]:
    hit, miss = row["ttft_hit_seconds"], row["ttft_miss_seconds"]
    text = (
        f"{row['label']}: first token after {hit * 1e3:.0f} ms on a hit, {miss * 1e3:.0f} ms "
        "on a miss"
    )
    return text, hit < miss
