"""Numbers with a unit in a lesson's text, of which nothing says where they come from.

A measured number is printed by a cell or stands in a figure's title, so that it is the reader's
own; a formula's result stands beside the formula; what others have measured has its source. The
rest is a number that somebody typed, and that is wrong on the next machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nbformat import NotebookNode

UNITS = "ms|µs|ns|s|seconds?|minutes?|%|percent|[kMGT]i?B(?:/s)?|tokens?/s|times|[GT]FLOPS?(?:/s)?"
NUMBER = re.compile(rf"(?<![\w.,/^-])(\d[\d,]*(?:\.\d+)?)\s?(?:{UNITS})(?![\w/])")
SMALL = 3  # "three times" and the like are words of the language
# What says where a paragraph's numbers come from, or that they are only supposed.
EXCUSED = re.compile(r"https?://|\]\(|\bpaper\b|\bpaper's\b|\bsection \d|=|Predict|<details>|^\|")
CODE_AND_MATH = re.compile(r"`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", re.DOTALL)


def problems(notebook: NotebookNode) -> Iterator[str]:
    """A sentence for each such number. Left out: the title's cell, and what is only to be tried."""
    shown = {number.replace(",", "") for number in _numbers_shown(notebook)}
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "markdown" or index == 0:
            continue
        for paragraph in re.split(r"\n\s*\n", cell.source.partition("### Try it yourself")[0]):
            if EXCUSED.search(paragraph):
                continue
            for match in NUMBER.finditer(CODE_AND_MATH.sub("", paragraph)):
                number = match[1].replace(",", "")
                if number not in shown and float(number) > SMALL:
                    yield (
                        f"cell {index}: {' '.join(match[0].split())!r} is printed by no cell, and "
                        "has no source and no formula beside it"
                    )


def _numbers_shown(notebook: NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts = [cell.source.replace("_", "")]
            for output in cell.get("outputs", []):
                texts += [output.get("text", ""), output.get("data", {}).get("text/plain", "")]
                texts.append(output.get("metadata", {}).get("image/png", {}).get("alt", ""))
            for text in texts:
                yield from re.findall(r"\d[\d,]*(?:\.\d+)?", text)
