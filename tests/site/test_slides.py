"""`make slides`: a talk of each lesson, complete in itself, legible, and moved by keys."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.browser.cdp import Page
from tools.notebook_files import QUIZ, lessons
from tools.slides.talk import FEWEST, MAX_CODE_LINES, MOST, Slide, sections_of, talk_of

ROOT = Path(__file__).resolve().parents[2]
SLIDES = ROOT / "build" / "slides"


@pytest.fixture(scope="module")
def talks() -> dict[str, str]:
    """The files of all talks, by name."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "slides" / "build.py")],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return {path.stem: path.read_text("utf-8") for path in SLIDES.glob("*.html")}


def notebook(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))


# --- what is chosen -----------------------------------------------------------------------------


def markdown(*lines: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": ["\n".join(lines)]}


def code(source: str, figure: str = "", text: str = "It grows.", tags: tuple[str, ...] = ()) -> Any:
    outputs = [
        {
            "output_type": "display_data",
            "data": {"image/png": figure},
            "metadata": {"image/png": {"alt": text}},
        }
    ]
    return {
        "cell_type": "code",
        "metadata": {"tags": [*tags]},
        "source": [source],
        "outputs": outputs if figure else [],
    }


def small_lesson(*cells: dict[str, Any]) -> dict[str, Any]:
    first = markdown(
        "# 99 · A title", "", "**Goal.** You see", "it all.", "", "**Time.** 9 minutes."
    )
    return {"cells": [first, code("x", "no", tags=("bootstrap",)), *cells]}


def chosen(*cells: dict[str, Any]) -> list[Slide]:
    title, contents, *rest = talk_of(small_lesson(*cells))
    assert (title.title, title.text) == ("99 · A title", "You see it all.")
    assert contents.kind == "contents"
    return rest


def test_a_section_shows_its_figure_with_its_text_and_says_its_prose() -> None:
    cells = markdown("## Measure", "Some prose."), code("x = 1\ny = 2", "PNG", "It grows.")
    [slide] = chosen(*cells)
    assert (slide.kind, slide.title, slide.notes) == ("figure", "Measure", "Some prose.")
    assert slide.figure is not None and (slide.figure.png, slide.figure.text) == (
        "PNG",
        "It grows.",
    )


def test_each_slide_of_a_section_is_said_what_stands_by_it() -> None:
    cells = [
        markdown("## Measure", "Before. ", "", "$$a$$"),
        code("x", "A"),
        markdown("Between."),
        code("x", "B"),
        markdown("### Below", "After."),
    ]
    slides = chosen(*cells, *(markdown(f"## S{number}", "Text.") for number in range(9)))[:3]
    assert [slide.kind for slide in slides] == ["formula", "figure", "figure"]
    words = ("Before", "Between", "After")
    assert [[word in slide.notes for word in words] for slide in slides] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]


def test_a_formula_a_definition_or_first_sentences_stand_for_a_section_without_figure() -> None:
    definition, long = "def f():\n    return 1", "def g():\n" + "    x = 1\n" * MAX_CODE_LINES
    slides = chosen(
        markdown("## Cost", "It grows. Twice.", "", "$$a = b$$", "", "More."),
        markdown("## Build", "Here it is. And more."),
        code(long),
        code(definition),
        markdown(
            "## Talk",
            "A first sentence that is long enough to stand on its own. And.",
            "",
            "Another one.",
        ),
        code(long),
        markdown("### Below", "A third thing."),
    )
    kinds = {slide.title: slide for slide in slides}
    assert [slide.kind for slide in kinds.values()] == ["formula", "code", "text", "text"]
    assert kinds["Cost"].formula == "$$a = b$$" and "a = b" not in kinds["Cost"].text
    assert kinds["Build"].code == definition
    assert kinds["Talk"].text.splitlines() == [
        "- A first sentence that is long enough to stand on its own.",
        "- Another one.",
    ]


def test_recap_and_questions_close_the_talk_and_optional_parts_are_left_out() -> None:
    slides = chosen(
        markdown("## Beyond (optional)", "Nobody needs it."),
        markdown("## The same thing in vLLM", "| here | vLLM |", "|---|---|", *["| a | b |"] * 9),
        markdown(
            "## Recap",
            "- Keep this.",
            "",
            "### Questions",
            "",
            "<details><summary>Why?</summary>",
            "",
            "Because.",
            "</details>",
            "",
            "### Read on",
            "",
            "- A paper.",
        ),
    )
    assert [slide.kind for slide in slides] == ["table", "recap", "questions"]
    assert slides[0].text.count("| a | b |") == 7 and "2 more in the lesson" in slides[0].text
    assert slides[1].text == "- Keep this."
    assert slides[2].text.startswith("<details>") and "A paper" not in slides[2].text


def test_of_too_many_slides_figures_stay_and_nothing_that_is_said_is_lost() -> None:
    cells: list[Any] = []
    for number in range(15):
        cells += [markdown(f"## Seen {number}", f"Prose {number}."), code("x", "PNG")]
        cells += [markdown(f"## Told {number}", f"Words {number}.")]
    slides = talk_of(small_lesson(*cells))
    assert len(slides) == MOST
    assert sum(slide.kind == "figure" for slide in slides) == 15
    said = "\n".join(slide.notes for slide in slides)
    assert all(f"Words {number}." in said and f"Prose {number}." in said for number in range(15))


LESSONS = [path for path in lessons() if path != QUIZ]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_lesson_makes_a_talk(path: Path) -> None:
    slides = talk_of(notebook(path))
    assert FEWEST <= len(slides) <= MOST
    kinds = [slide.kind for slide in slides]
    assert kinds[:2] == ["title", "contents"] and "recap" in kinds[-2:]
    assert all(len(slide.code.splitlines()) <= MAX_CODE_LINES for slide in slides)
    assert all(slide.text or slide.formula or slide.code or slide.figure for slide in slides)
    shown = {slide.figure.png for slide in slides if slide.figure}
    drawn = [  # a talk leaves out what is optional
        figure.png
        for section in sections_of(notebook(path))
        if "optional" not in section.title.lower()
        for figure in section.figures
    ]
    assert shown <= set(drawn)
    assert len(shown) >= min(len(set(drawn)), 3) or path.stem.startswith("00")


# --- what is written ----------------------------------------------------------------------------


class Read(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.alts: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.fetched += [values[name] or "" for name in ("src", "srcset", "data") if name in values]
        if tag == "link":
            self.fetched.append(values.get("href") or "")
        if tag == "img":
            self.alts.append(values.get("alt"))


def test_a_talk_is_one_file_and_its_pictures_have_texts(talks: dict[str, str]) -> None:
    assert talks.keys() == {"index", *(path.stem for path in LESSONS)}
    for name, text in talks.items():
        page = Read(text)
        assert all(url.startswith("data:image/") for url in page.fetched), name
        assert all(
            (alt or "").strip() and not re.search(r"\.(png|svg)$", alt or "") for alt in page.alts
        ), name
        assert not re.search(r"url\(|@import|<!--[A-Z]+-->", text), name
        # Relative links would lead nowhere: a talk stands alone.
        links = re.findall(r'<a href="([^"]+)"', text)
        assert name == "index" or all(link.startswith(("https://", "http://")) for link in links)
        assert "$$" not in re.sub(r"<pre.*?</pre>", "", text, flags=re.DOTALL), name


@pytest.mark.parametrize("name", ["02_kv_cache", "07_speculative_decoding", "17_routing"])
def test_every_slide_is_legible_and_nothing_is_asked_for(
    page: Page, talks: dict[str, str], name: str
) -> None:
    page.asked.clear()
    address = (SLIDES / f"{name}.html").as_uri()
    page.open(address)
    number = page.evaluate("slides.length")
    assert number == talks[name].count('<section class="slide')
    for i in range(number):
        page.evaluate(f"show({i})")
        found = page.evaluate(
            "(() => { const at = slides[now].querySelector('.page');"
            " const image = at.querySelector(':scope > img');"
            " return {over: at.scrollHeight - at.clientHeight,"
            " size: parseFloat(getComputedStyle(at).fontSize),"
            " figure: image ? image.clientHeight * image.clientWidth : 1e9,"
            " shown: slides.filter((s) => s.offsetParent).length}; })()"
        )
        assert found["over"] <= 1 and found["shown"] == 1, f"slide {i + 1}: {found}"
        assert found["size"] >= 16, f"slide {i + 1}: {found}"
        assert found["figure"] > 0.3 * 1280 * 900, f"slide {i + 1}: {found}"
    assert [url for url in page.asked if not url.startswith("data:")] == [address]


KEY = "document.dispatchEvent(new KeyboardEvent('keydown', {{key: '{}', bubbles: true}}))"


def test_keys_move_and_show_notes(page: Page, talks: dict[str, str]) -> None:
    page.open((SLIDES / "02_kv_cache.html").as_uri() + "#3")
    place = "document.getElementById('place').textContent.split(' ')[0] + location.hash"
    assert page.evaluate(place) == "3#3"

    def press(key: str) -> str:
        page.evaluate(KEY.format(key).replace("document.dispatch", "document.body.dispatch"))
        return page.evaluate(place)

    assert press("ArrowRight") == "4#4"
    assert press("ArrowLeft") == "3#3"
    assert press("Home") == press("ArrowLeft") == "1#1"
    number = page.evaluate("slides.length")
    assert press("End") == press("PageDown") == f"{number}#{number}"
    press("Home")
    said = "getComputedStyle(slides[now].querySelector('.notes')).display"
    assert page.evaluate(said) == "none"
    press("n")
    assert page.evaluate(said) == "block"
    page.evaluate("document.getElementById('say').click()")
    assert page.evaluate(said) == "none"
    page.evaluate("document.getElementById('forth').click()")
    assert page.evaluate(place) == "2#2"


def test_on_paper_each_slide_is_a_page(page: Page, talks: dict[str, str]) -> None:
    page.open((SLIDES / "02_kv_cache.html").as_uri())
    printed = page._send("Page.printToPDF", preferCSSPageSize=True)["data"]
    pages = re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed))
    assert len(pages) == page.evaluate("slides.length")
