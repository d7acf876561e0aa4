"""Translated lessons have pages, which say in which language they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.translate import languages


@pytest.mark.parametrize("into", languages(), ids=lambda into: into.code)
def test_pages_say_their_language(pages: Path, into) -> None:
    folder = pages / "translations" / into.code
    assert into.lessons()
    for name in ["README", "terms", *(f"notebooks/{lesson}" for lesson in into.lessons())]:
        html = (folder / f"{name}.html").read_text(encoding="utf-8")
        assert re.search(r"<html[^>]* lang=\"([^\"]+)\"", html)[1] == into.tag, name
    for name in ("index", "notebooks/00_start_here", "translations/README"):
        html = (pages / f"{name}.html").read_text(encoding="utf-8")
        assert re.search(r"<html[^>]* lang=\"([^\"]+)\"", html)[1] == "en", name


@pytest.mark.parametrize("into", languages(), ids=lambda into: into.code)
def test_english_pages_lead_to_translated_ones_and_back(pages: Path, into) -> None:
    for lesson in into.lessons():
        there = pages / "translations" / into.code / "notebooks" / f"{lesson}.html"
        html = (pages / "notebooks" / f"{lesson}.html").read_text(encoding="utf-8")
        link = re.search(rf'<a href="([^"]+)" hreflang="{into.tag}" lang="{into.tag}">', html)
        assert (pages / "notebooks" / link[1]).resolve() == there.resolve()
        assert f"../../../notebooks/{lesson}.html" in there.read_text(encoding="utf-8")
    html = (pages / "notebooks/02_kv_cache.html").read_text(encoding="utf-8")
    assert ("hreflang" in html) == ("02_kv_cache" in into.lessons())
