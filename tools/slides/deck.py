"""Write a talk as one HTML file: its style, its script and its pictures are in it.

    python tools/slides/deck.py build/slides

Runs in the site's environment, for Markdown and formulas (MathML, which browsers draw themselves).
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
import sys
import tomllib
from html import escape
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "site"), str(HERE)]
from mathml import mathml  # noqa: E402
from talk import Slide, talk_of  # noqa: E402

REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
LINK = re.compile(r"(?<!!)\]\((?!https?:|#|mailto:|data:)([^)\s#]+)(#[^)\s]*)?\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:|data:)([^)\s]+)\)")
HELP = "← → move · N notes · Home, End · print for a PDF"


def renderer() -> MarkdownIt:
    """Markdown to HTML, as notebooks have it: tables, formulas, and a little HTML."""

    def formula(latex: str, options: dict[str, Any]) -> str:
        return mathml(latex, "block" if options.get("display_mode") else "inline")

    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    return markdown.use(dollarmath_plugin, renderer=formula, double_inline=True)


def local(text: str, folder: str) -> str:
    """Links lead to the repository, because a talk stands alone; pictures come along."""

    def address(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        kind = "blob" if (ROOT / path).is_file() else "tree"
        return f"]({REPOSITORY}/{kind}/main/{path}{match[2] or ''})"

    def picture(match: re.Match[str]) -> str:
        file = ROOT / folder / match[2]
        kind = "svg+xml" if file.suffix == ".svg" else file.suffix.removeprefix(".")
        data = base64.b64encode(file.read_bytes()).decode()
        return f"![{match[1]}](data:image/{kind};base64,{data})"

    return LINK.sub(address, PICTURE.sub(picture, text))


def html_of(slide: Slide, number: int, total: int, markdown: MarkdownIt) -> str:
    """One slide, with its notes."""

    def rendered(text: str) -> str:
        return markdown.render(local(text, "notebooks"))

    level = 1 if slide.kind == "title" else 2
    title = markdown.renderInline(slide.title)
    body = [f"<h{level}>{title}</h{level}>"]
    if slide.text:
        body.append(f'<div class="text">{rendered(slide.text)}</div>')
    if slide.formula:
        body.append(f'<div class="formula">{rendered(slide.formula)}</div>')
    if slide.code:
        body.append(f'<pre tabindex="0"><code>{escape(slide.code)}</code></pre>')
    if slide.figure:
        text = escape(slide.figure.text)
        body.append(f'<img src="data:image/png;base64,{slide.figure.png}" alt="{text}">')
    notes = f'<aside class="notes" tabindex="0" aria-label="Notes">{rendered(slide.notes)}</aside>'
    label = f'aria-label="Slide {number} of {total}"'
    return (
        f'<section class="slide of-{slide.kind}" id="{number}" {label}>'
        f'\n<div class="page">{"".join(body)}</div>\n{notes if slide.notes else ""}</section>'
    )


def page(title: str, slides: list[Slide]) -> str:
    """A whole talk."""
    markdown = renderer()
    sections = [
        html_of(slide, number, len(slides), markdown)
        for number, slide in enumerate(slides, start=1)
    ]
    parts = {
        "TITLE": escape(title),
        "STYLE": (HERE / "deck.css").read_text(encoding="utf-8"),
        "SCRIPT": (HERE / "deck.js").read_text(encoding="utf-8"),
        "HELP": escape(HELP),
        "SLIDES": "\n".join(sections),
    }
    text = (HERE / "deck.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part)
    return text


def index(talks: list[tuple[str, str, int]]) -> str:
    """The list of talks: file, title, number of slides."""
    items = "".join(
        f'<li><a href="{escape(file)}">{escape(title)}</a>, {number} slides</li>'
        for file, title, number in talks
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Slides</title>'
        '<meta name="viewport" content="width=device-width">'
        "<style>body{font:1.2rem/1.6 system-ui,sans-serif;max-width:44rem;margin:3rem auto;"
        f"padding:0 1rem}}</style><main><h1>Slides</h1><p>{escape(HELP)}</p><ul>{items}</ul></main>"
        "</html>\n"
    )


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.html"):
        old.unlink()
    talks = []
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text = file.read_text(encoding="utf-8")
        if "## Recap" not in text:  # a quiz, and no lesson
            continue
        slides = talk_of(json.loads(text))
        text = page(slides[0].title, slides)
        (out / f"{file.stem}.html").write_text(text, encoding="utf-8")
        talks.append((f"{file.stem}.html", slides[0].title, len(slides)))
        print(f"{file.stem}: {len(slides)} slides, {len(text) / 1e6:.1f} MB", flush=True)
    (out / "index.html").write_text(index(talks), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
