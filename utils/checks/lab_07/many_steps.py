"""Many steps of a sampler with ordinary random numbers, the chi-square test, and its picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from utils.checks.kit.contracts import Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.runner import Mismatch, Passed

Rows = tuple[tuple[float, ...], ...]
# The experiment: two guesses, drawn from the draft's rows, which are far from the target's.
DRAFT_ROWS: Rows = ((0.4, 0.3, 0.2, 0.1), (0.25, 0.25, 0.25, 0.25))
TARGET_ROWS: Rows = ((0.1, 0.2, 0.3, 0.4), (0.5, 0.25, 0.15, 0.1), (0.3, 0.1, 0.2, 0.4))
STEPS = 3_000
# A right sampler fails a test of this level once in a million. Seeds are fixed: it never does so
# by chance on one day and not on another.
LEVEL = 1e-6
INK = "#1b1b1b"
ALT = "For each token of the output: the draft's, the target's and the obtained distribution."


def chi_square_p(counts: Sequence[float], expected: Sequence[float]) -> float:
    """How probable counts at least this far from the expected ones are, if those are right."""
    statistic = sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))
    half = torch.tensor([(len(counts) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def too_far(counts: Mapping[Any, float], expected: Mapping[Any, float]) -> bool:
    """Whether counts of outcomes are further from the expected ones than chance explains.

    Rare outcomes go together, as the test asks for: at least 5 are expected in each cell.
    """
    frequent = [outcome for outcome, number in expected.items() if number >= 5]
    cells = [(counts.get(outcome, 0.0), expected[outcome]) for outcome in frequent]
    came, wanted = (sum(cell[i] for cell in cells) for i in range(2))
    rest = sum(expected.values()) - wanted
    if rest >= 5:
        cells.append((sum(counts.values()) - came, rest))
    if len(cells) < 2:
        return False
    return chi_square_p([c for c, _ in cells], [e for _, e in cells]) < LEVEL


def experiment(function: Callable[..., Any]) -> Passed:
    """Guesses drawn from the draft: each token of the output must be distributed as the target."""
    p, q = torch.tensor(TARGET_ROWS), torch.tensor(DRAFT_ROWS)
    given = (
        f"{STEPS:,} steps, two guesses each, drawn from draft_probs "
        f"{[list(row) for row in DRAFT_ROWS]}; target_probs {[list(row) for row in TARGET_ROWS]}"
    )

    def run(drafts: list[list[int]]) -> list[list[int]]:
        generator = torch.Generator().manual_seed(7)
        outputs = []
        for draft in drafts:
            got = attempt(function, draft, q, p, generator)
            if isinstance(got, Raised):
                raise Mismatch(got.says, input=given, look=got.look)
            outputs.append(got)
        return outputs

    seed = torch.Generator().manual_seed(8)
    drafts = torch.multinomial(q, STEPS, replacement=True, generator=seed).T.tolist()
    if run(drafts[:40]) != run(drafts[:40]):
        raise Mismatch(
            "The same seed gives different tokens: not all random numbers come from `generator`.",
            input="the same 40 steps, twice, with equal generators",
            look="Nothing else may decide: no `random`, no NumPy, no clock, and nothing that is "
            "kept from call to call.",
        )
    outputs = run(drafts)
    counts = [Counter(o[place] for o in outputs if len(o) > place) for place in range(3)]
    shares = [[count[t] / max(1, count.total()) for t in range(4)] for count in counts]
    figure = distributions(
        [
            ("token 0 of the output", DRAFT_ROWS[0], TARGET_ROWS[0], shares[0]),
            ("token 1 of the output", DRAFT_ROWS[1], TARGET_ROWS[1], shares[1]),
            ("token 2: the bonus token", None, TARGET_ROWS[2], shares[2]),
        ],
        f"Your sampler turns the draft's distribution into the target's ({STEPS:,} steps)",
    )
    one, two = (
        sum(map(min, *rows)) for rows in zip(TARGET_ROWS, DRAFT_ROWS, strict=False)
    )  # the shares of the guesses that are accepted
    lengths = {1: 1 - one, 2: one * (1 - two), 3: one * two}
    came = Counter(map(len, outputs))
    wrong = ""
    if too_far(came, {n: STEPS * share for n, share in lengths.items()}):
        wrong = "Guesses are accepted too often or too seldom."
    for place, (count, row) in enumerate(zip(counts, TARGET_ROWS, strict=True)):
        wanted = {token: count.total() * share for token, share in enumerate(row)}
        if not wrong and too_far(count, wanted):
            wrong = f"Token {place} of the output is not distributed as the target says."
    if wrong:
        look = "Accept if `uniform < p / q`, with fresh random numbers."
        raise Mismatch(wrong, input=given, look=look, figure=figure, alt=ALT)
    return Passed(
        "Right: every outcome of a step comes exactly as often as it should. In the picture, "
        f"{STEPS:,} steps with ordinary random numbers: the guesses come from the grey "
        "distributions, and the output has the blue ones all the same. By theory "
        f"{one:.1%} of the first guesses and {two:.1%} of the second are accepted; you accepted "
        f"{(came[2] + came[3]) / STEPS:.1%} and {came[3] / max(1, came[2] + came[3]):.1%}.",
        figure,
        ALT,
    )


def distributions(
    panels: Sequence[tuple[str, Sequence[float] | None, Sequence[float], Sequence[float]]],
    title: str,
) -> Figure:
    """One panel of bars per output place: what the draft says, what the target says, what came.

    Args:
        panels: (name, draft's probabilities or None, target's, shares that came), each [vocab].
        title: of the figure.
    """
    figure = Figure(figsize=(max(5.5, 2.9 * len(panels)), 3.1), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (name, draft, target, came) in zip(axes, panels, strict=True):
        rows = [
            ("draft's probability", draft, "#c9c9c9", ""),
            ("target's probability: expected", target, "#1f5fa8", ""),
            ("yours: share of what came", came, "#f2a65a", "//"),
        ]
        bars = [row for row in rows if row[1] is not None]
        width = 0.8 / len(bars)
        for place, (label, heights, colour, hatch) in enumerate(bars):
            x = np.arange(len(target)) + (place - (len(bars) - 1) / 2) * width
            style = {"color": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.5}
            ax.bar(x, heights, width, label=label, **style)
        ax.set_title(name, size=9)
        ax.set_xticks(range(len(target)))
        ax.set_xlabel("token", size=9)
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("probability", size=9)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.suptitle(title, size=11)
    return figure
