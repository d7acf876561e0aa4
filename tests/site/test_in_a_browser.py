"""The site in a real browser: it asks nobody else, finds words, fits a phone, can be dark."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.browser.cdp import Page

WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
START, LESSON = "/notebooks/00_start_here.html", "/notebooks/04_paged_allocator.html"
LAB, SEARCH = "/labs/02_kv_cache/02_kv_cache.html", "/search.html?q=copy-on-write"


def test_no_request_leaves_the_page(site: str, page: Page) -> None:
    page.asked.clear()
    for path in (
        "/index.html",
        START,
        LESSON,
        LAB,
        SEARCH,
        "/measured.html",
        "/claims.html",
        "/cost.html",
    ):
        page.open(site + path)
        page.evaluate("for (const image of document.images) image.loading = 'eager'")
        page.wait_for("[...document.images].every(i => i.complete)")
    hosts = {urlsplit(url).hostname for url in page.asked if not url.startswith("data:")}
    assert hosts == {"127.0.0.1"}


def test_the_first_picture_moves_into_view(site: str, page: Page) -> None:
    page.open(f"{site}/index.html")
    page.wait_for("document.querySelector('img.moving').naturalWidth > 0")
    top = page.evaluate("document.querySelector('img.moving').getBoundingClientRect().top")
    assert 0 < top < 500


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        START,
        LESSON,
        LAB,
        SEARCH,
        "/GLOSSARY.html",
        "/TEACHING.html",
        "/claims.html",
        "/compare.html",
        "/measured.html",
        "/cost.html",
    ],
)
def test_a_phone_scrolls_in_one_direction(site: str, page: Page, path: str) -> None:
    page.open(site + path, width=390, height=844)
    assert page.evaluate("innerWidth") == 390
    assert page.evaluate(WIDE) <= 0


def test_search_finds_a_lesson(site: str, page: Page) -> None:
    page.open(site + SEARCH)
    page.wait_for("document.querySelectorAll('#search-results li').length > 0")
    assert "04_paged_allocator" in page.evaluate(
        "document.querySelector('#search-results').innerHTML"
    )


def test_a_word_is_searched_with_keys_alone(site: str, page: Page) -> None:
    page.open(site + LESSON)
    page.evaluate("document.querySelector('.search-button, .search-button-field').click()")
    page.wait_for("document.activeElement.type === 'search'")
    page.write("perplexity")
    page.press("Enter")
    page.wait_for("location.pathname === '/search.html'")
    page.wait_for("document.querySelectorAll('#search-results li').length > 0")


def test_dark_mode_is_dark(site: str, page: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    page.open(site + LESSON, dark=True)
    page.wait_for(f"Math.max(...{colour}.slice(0, 3)) < 60")
