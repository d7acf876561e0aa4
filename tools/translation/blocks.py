"""A Markdown cell as blocks: what a translator gets to see at once, and what may grow stale alone.

A block is what stands between blank lines: a paragraph, a heading, a list, a table. A formula or a
piece of code of several lines stays whole.
"""

from __future__ import annotations

import re

FENCE = re.compile(r"^\s*(```|~~~)")
# What has no words, or none that are translated. A formula's words are in \text{...}.
WORDLESS = re.compile(r"^(```|~~~).*?^\1|`[^`]*`|<[^>]+>|https?://\S+", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"`[^`]*`|(?P<formula>\$\$.+?\$\$|\$[^$\n]+\$)", re.DOTALL)
TEXT_IN_FORMULA = re.compile(r"\\text\{([^{}]*)\}")


def split(source: str) -> list[str]:
    """The blocks of a cell, in order. `join` puts them together again."""
    blocks: list[list[str]] = [[]]
    open_fence, open_formula = "", False
    for line in source.splitlines():
        if match := FENCE.match(line):
            if not open_fence:
                open_fence = match[1]
            elif match[1] == open_fence:
                open_fence = ""
        if line.count("$$") % 2 and not open_fence:
            open_formula = not open_formula
        if line.strip() or open_fence or open_formula:
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return ["\n".join(lines) for lines in blocks if lines]


def join(blocks: list[str]) -> str:
    return "\n\n".join(blocks)


def formulas(block: str) -> list[str]:
    """The formulas of a block, with their dollar signs."""
    return [match["formula"] for match in FORMULA.finditer(block) if match["formula"]]


def has_words(block: str) -> bool:
    """Whether there is something to translate: not where all is formula, code or a tag."""
    words = FORMULA.sub(_words_of_formula, block)
    return bool(re.search(r"[^\W\d_]{2}", WORDLESS.sub(" ", words)))


def _words_of_formula(match: re.Match[str]) -> str:
    return " ".join(TEXT_IN_FORMULA.findall(match["formula"])) if match["formula"] else " "
