"""Every lesson and lab has its page, which is complete without a network and without eyes."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tools import navigation
from tools.set_repository_url import configured_slug, site_of

ROOT = Path(__file__).resolve().parents[2]
# What a browser fetches by itself when it shows a page.
FETCHED = {
    "img": ("src", "srcset"),
    "script": ("src",),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "embed": ("src",),
    "object": ("data",),
}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect"}


class Read(HTMLParser):
    """What a page fetches, shows as a picture, and links to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.texts: list[str | None] = []
        self.links: list[str] = []
        self.meta: dict[str, str] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.fetched += [values[name] or "" for name in FETCHED.get(tag, ()) if name in values]
        if tag == "link" and FETCHED_LINKS & set((values.get("rel") or "").split()):
            self.fetched.append(values.get("href") or "")
        if tag == "meta" and (name := values.get("property") or values.get("name")):
            self.meta[name] = values.get("content") or ""
        if tag == "img":
            self.texts.append(values.get("alt"))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")


@pytest.fixture(scope="module")
def read(pages: Path) -> dict[str, Read]:
    return {
        path.relative_to(pages).as_posix(): Read(path.read_text(encoding="utf-8"))
        for path in sorted(pages.rglob("*.html"))
        if "_static" not in path.parts
    }


def test_every_lesson_and_lab_has_a_page_and_no_solution_has(read: dict[str, Read]) -> None:
    for folder in ("notebooks", "labs"):
        for path in (ROOT / folder).rglob("*.ipynb"):
            assert path.relative_to(ROOT).with_suffix(".html").as_posix() in read
    assert not [name for name in read if name.startswith("solutions")]


def test_nothing_is_fetched_from_elsewhere(read: dict[str, Read], pages: Path) -> None:
    away = {
        f"{name}: {url}"
        for name, page in read.items()
        for url in page.fetched
        if re.match(r"(https?:)?//", url)
    }
    assert away == set()
    for sheet in pages.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import\s+['\"]?http", sheet.read_text())


def test_every_figure_has_a_text(read: dict[str, Read]) -> None:
    said = [(name, (text or "").strip()) for name, page in read.items() for text in page.texts]
    assert [name for name, text in said if not text or re.search(r"\.(png|svg|jpg)$", text)] == []
    assert len(said) > 100


def test_links_between_pages_lead_somewhere(read: dict[str, Read], pages: Path) -> None:
    dead = set()
    for name, page in read.items():
        for link in page.links:
            url = urlsplit(link)
            if not url.scheme and not url.netloc and url.path:
                target = (pages / name).parent / unquote(url.path)
                if not target.exists():
                    dead.add(f"{name}: {link}")
    assert dead == set()


def test_a_link_to_a_page_shows_what_it_is_about(read: dict[str, Read], pages: Path) -> None:
    address = site_of(configured_slug())
    for name, page in read.items():
        assert page.meta["og:title"] and len(page.meta["description"]) > 40, name
        assert page.meta["og:url"] == address + name
        picture = page.meta["og:image"].removeprefix(address)
        assert (pages / picture).is_file() and page.meta["og:image"].startswith("https://")
    about = read["notebooks/02_kv_cache.html"].meta
    assert about["og:title"] == "02 · The KV cache"
    assert about["description"].startswith("You find out what each decode step recomputes")


def test_next_leads_from_a_lesson_to_its_lab_and_on(pages: Path) -> None:
    order = [navigation.public(path) for path in navigation.course()]
    for path, after in itertools.pairwise(order):
        html = (pages / path.relative_to(ROOT)).with_suffix(".html").read_text(encoding="utf-8")
        link = re.search(r'<a class="right-next"\s+href="([^"]+)"', html)
        target = (pages / path.relative_to(ROOT).parent / link[1]).resolve()
        assert target == (pages / after.relative_to(ROOT)).with_suffix(".html")


def test_lessons_open_in_the_cloud(read: dict[str, Read]) -> None:
    lessons = [page for name, page in read.items() if name.startswith("notebooks/")]
    for host in ("colab.research.google.com", "mybinder.org"):
        assert all(any(host in link for link in page.links) for page in lessons)


def test_formulas_are_drawn_by_the_browser(pages: Path) -> None:
    found = 0
    for path in (pages / "notebooks").glob("*.html"):
        for formula in re.findall(r"<math.*?</math>", path.read_text(), re.DOTALL):
            found += 1
            text = re.sub(r"<[^>]+>", "", formula)
            assert "\\" not in text and "&amp;" not in text and not re.search(r"&(?!#)", text)
    assert found > 50


def test_the_first_cell_is_not_shown(pages: Path) -> None:
    for path in (pages / "notebooks").glob("*.html"):
        assert "Finds the course's code" not in re.sub(r"<[^>]+>", "", path.read_text())
