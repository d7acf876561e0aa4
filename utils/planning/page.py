"""The tables of the site's page about dollars, from the planner's own numbers.

python -m utils.planning.page        write them into site/cost.md
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from utils.distributed.hardware import GIB, GPUS
from utils.planning.plan import Deployment, Load, capacity, dollars
from utils.planning.prices import PRICES

PAGE = Path(__file__).resolve().parents[2] / "site" / "cost.md"
MARKS = "<!-- {0}: python -m utils.planning.page -->", "<!-- end of {0} -->"
LOAD, PROMISE = Load(prompt=2000, answer=300), 0.050  # seconds for a token, on average
PLANS = (
    Deployment("Llama-3-8B", "L4"),
    Deployment("Llama-3-8B", "L4", weight_bits=4),
    Deployment("Llama-3-8B", "A100 80GB"),
    Deployment("Llama-3-8B", "H100"),
    Deployment("Llama-3-8B", "H200"),
    Deployment("Llama-3-70B", "A100 80GB", 4),
    Deployment("Llama-3-70B", "H100", 2),
    Deployment("Llama-3-70B", "H100", 4),
    Deployment("Llama-3-70B", "H100", 1, weight_bits=4),
    Deployment("Llama-3-70B", "H200", 2),
    Deployment("Llama-3-70B", "B200", 1),
)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cards() -> str:
    """What each card's data sheet says, and an example of what its hour costs."""
    rows = [
        [
            name,
            f"{GPUS[name].memory / GIB:.0f} GiB",
            f"{GPUS[name].bandwidth / 1e9:,.0f} GB/s",
            f"{GPUS[name].flops / 1e12:,.0f} TFLOP/s",
            f"{GPUS[name].flops / GPUS[name].bandwidth:.0f}",
            GPUS[name].source,
            f"${price.dollars:.2f} ({price.source})",
        ]
        for name, price in PRICES.items()
    ]
    columns = (
        "card",
        "memory",
        "bandwidth",
        "16 bit, dense",
        "ridge",
        "source",
        "an hour, example",
    )
    return table(columns, rows)


def plans() -> str:
    """Dollars for a million tokens of some deployments, or why there are none."""
    rows = []
    for plan in PLANS:
        row = [plan.model, f"{plan.cards} x {plan.gpu}", f"{plan.weight_bits}"]
        try:
            able = capacity(plan, LOAD, promise=PROMISE)
        except ValueError as error:
            rows.append([*row, str(error), "", "", ""])
            continue
        cost = dollars(plan, able, PRICES[plan.gpu].dollars)
        row += [str(able.requests), f"{able.requests_per_second:.2f}"]
        rows.append([*row, f"${cost.per_million_in:.2f}", f"${cost.per_million_out:.2f}"])
    columns = ("model", "cards", "weight bits", "in flight", "requests/s", "a million in", "out")
    return table(columns, rows)


def filled(text: str) -> str:
    """The page with today's tables between its marks.

    Raises:
        ValueError: the page has no place for one of them.
    """
    for name, make in (("cards", cards), ("plans", plans)):
        begin, end = (mark.format(name) for mark in MARKS)
        place = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"{PAGE.name} has no place for the table {name!r}: {begin}")
        before, after = place.split(text, maxsplit=1)
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
