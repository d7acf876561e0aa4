"""Pages in another language say so, to browsers and screen readers; English ones link to them."""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

TRANSLATIONS = Path(__file__).parent / "translations"
# The folder of a language -> its settings, with its tag and its name.
LANGUAGES = {
    path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
    for path in sorted(TRANSLATIONS.glob("*/language.toml"))
}


def _speak(app: Sphinx, page: str, _template: str, context: dict[str, Any], _tree: object) -> None:
    folder, _, rest = page.partition("/")
    if folder == "translations" and (code := rest.partition("/")[0]) in LANGUAGES:
        context["language"] = LANGUAGES[code]["tag"]  # what the theme writes into <html lang="">
        return
    links = [
        f'<a href="{app.builder.get_relative_uri(page, name)}" hreflang="{tag}" lang="{tag}">'
        f"{escape(language['name'])}</a>"
        for code, language in LANGUAGES.items()
        if (name := f"translations/{code}/{page}") in app.env.found_docs
        if (tag := escape(language["tag"]))
    ]
    if links and "body" in context:
        context["body"] = f"<p>Also in: {', '.join(links)}</p>\n{context['body']}"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", _speak)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
