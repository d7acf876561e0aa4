"""axe finds nothing on the site's pages that keeps somebody out, but for what the theme brings."""

from __future__ import annotations

import pytest

from tests.browser.axe import Barrier, barriers
from tests.browser.cdp import Page

# (rule, part of where it is): what sphinx-book-theme 1.4 and Sphinx do, and why it stays so.
OF_THE_THEME = {
    ("region", ".sidebar-primary-item"): "the title above the list of pages is in no landmark",
    ("color-contrast", ".highlighted"): "search marks the words found in dark yellow, links stay "
    "blue; the words are marked by their place in the sentence, too",
}
START = "notebooks/00_start_here.html"
# With formulas, tables, feedback of checks, figures, a widget, folded answers, hints.
PAGES = (
    "index.html",
    "claims.html",
    "compare.html",
    "GLOSSARY.html",
    "search.html?q=block",
    START,
    "notebooks/02_kv_cache.html",
    "labs/02_kv_cache/02_kv_cache.html",
)
DARK = ("index.html", START)
# Hundreds of coloured words: their colours are one style, which is looked at on one page.
CODE, LOOKED_AT_WITH_CODE = ".highlight", {START}


def ours(found: list[Barrier]) -> list[Barrier]:
    return [
        barrier
        for barrier in found
        if not any(barrier.rule == rule and part in barrier.where for rule, part in OF_THE_THEME)
    ]


@pytest.mark.parametrize(("name", "dark"), [(n, False) for n in PAGES] + [(n, True) for n in DARK])
def test_nothing_of_ours_keeps_anybody_out(site: str, page: Page, name: str, dark: bool) -> None:
    page.open(f"{site}/{name}", dark=dark)
    if "search" in name:
        page.wait_for("document.querySelectorAll('#search-results li').length > 0")
    without = "" if name in LOOKED_AT_WITH_CODE else CODE
    assert ours(barriers(page, without=without)) == []


def test_a_barrier_is_found(site: str, page: Page) -> None:
    """If axe were not at work, the tests above would pass, too."""
    page.open(f"{site}/search.html")
    page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend',"
        """ '<img src="_static/favicon.svg"><p style="color:#bbb;background:#fff">pale</p>')"""
    )
    found = {barrier.rule for barrier in ours(barriers(page, within="main"))}
    assert {"image-alt", "color-contrast"} <= found
