"""What a translation must have in common with its English, whatever the language: all but words."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

from markdown_it import MarkdownIt

from tools.translation.blocks import FORMULA, TEXT_IN_FORMULA, formulas

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
TAG = re.compile(r"</?\w+")
PARSER = MarkdownIt("commonmark").enable("table")
# What is counted, and how it is called in messages.
COUNTED = {
    "list_item_open": "items of lists",
    "tr_open": "rows of tables",
    "td_open": "cells of tables",
    "fence": "pieces of code",
    "emphasis": "emphasised words (*one* or **two** stars)",
}


def faults(english: str, text: str) -> list[str]:
    """What is in the English block and not in its translation, or the other way round.

    Args:
        english, text: Markdown
    """
    return list(_faults(english, text))


def _faults(english: str, text: str) -> Iterator[str]:
    yield from _differing("formula", _formulas(english), _formulas(text))
    wanted, found = _content(english), _content(text)
    for kind in ("code", "link", "tag", "heading"):
        yield from _differing(kind, wanted[kind], found[kind])
    for kind, name in COUNTED.items():
        if len(wanted[kind]) != len(found[kind]):
            yield f"{name}: {len(found[kind])} here, {len(wanted[kind])} in English"
    lost = sorted(set(wanted["number"]) - set(found["number"]))
    yield from (f"the number {number} is lost" for number in lost)
    if any("**" in words for words in found["words"]):
        yield "** is shown as it is: put a space, no punctuation mark, outside next to the stars"


def _differing(kind: str, wanted: Iterable[str], found: Iterable[str]) -> Iterator[str]:
    here, there = Counter(found), Counter(wanted)
    yield from (f"{kind} {thing} is lost or changed" for thing in there - here)
    yield from (f"{kind} {thing} is not in the English" for thing in here - there)


def _formulas(block: str) -> list[str]:
    # The words in a formula may be translated.
    return [TEXT_IN_FORMULA.sub(r"\\text{...}", formula) for formula in formulas(block)]


def _content(block: str) -> dict[str, list[str]]:
    """The things in a block by their kind, as Markdown is read; formulas are left out."""
    found: dict[str, list[str]] = {kind: [] for kind in COUNTED}
    found |= {"code": [], "link": [], "tag": [], "heading": [], "number": [], "words": []}
    plain = FORMULA.sub(lambda m: " " if m["formula"] else m[0], textwrap.dedent(block))
    for token in PARSER.parse(plain):
        found.get(token.type, []).append(token.content)
        if token.type == "heading_open":
            found["heading"].append(token.markup)
        if token.type == "html_block":
            found["tag"] += TAG.findall(token.content)
            found["code"] += re.findall(r"`[^`]+`", token.content)
            found["number"] += NUMBER.findall(re.sub(r"<[^>]+>|`[^`]+`", " ", token.content))
        for child in token.children or []:
            match child.type:
                case "code_inline":
                    found["code"].append(f"`{child.content}`")
                case "link_open" | "image":
                    found["link"].append(str(child.attrs.get("href") or child.attrs.get("src")))
                case "html_inline":
                    found["tag"] += TAG.findall(child.content)
                case "em_open" | "strong_open":
                    found["emphasis"].append(child.markup)
                case "text":
                    found["words"].append(child.content)
                    found["number"] += NUMBER.findall(child.content)
    return found
