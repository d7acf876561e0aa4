"""What differs between a committed file and its page. Nothing is written back to the notebooks."""

from __future__ import annotations

import json
import posixpath
import re
import tomllib
from html import escape, unescape
from pathlib import Path
from typing import Any

import measured_tables
import widgets
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")
BADGE = re.compile(r"\[!\[[^\]]*\]\(https?:[^)]*\)\]\([^)]*\)\n?")  # a picture from elsewhere
KEYS = re.compile(r"^\*\*▶ [^\n]*\*\*\n\n", re.MULTILINE)  # to be pressed in JupyterLab only
HEAD = re.compile(r"^<(h1|p) align=.*?</\1>\n", re.MULTILINE | re.DOTALL)  # for GitHub only
PICTURE = re.compile(r'<p align="center"><img src="(notebooks/[^"]+)"[^>]* alt="([^"]*)"></p>')
WIDGET = (
    '<p class="needs-kernel">This picture is the first of a widget. It computes as you move its '
    "controls, so it needs Python: open this page in Colab, Binder or JupyterLab (above).</p>"
)


def linked(text: str, folder: str) -> str:
    """Links to what is no page lead to the repository.

    Args:
        text: Markdown
        folder: of its file, from the repository's root
    """

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        if (HERE / path).is_file():  # whose headings have anchors in small letters here
            return f"]({match[1]}{(match[2] or '').lower()})"
        own = posixpath.relpath(path, "site")  # the site's own pages are at its root
        if (HERE / own).is_file():
            return f"]({posixpath.relpath(own, folder or '.')}{match[2] or ''})"
        kind = "blob" if posixpath.splitext(path)[1] or path == "LICENSE" else "tree"
        return f"]({REPOSITORY}/{kind}/main/{path}{match[2] or ''})"

    return LINK.sub(target, text)


def page_of(notebook: dict[str, Any], folder: str, name: str = "") -> dict[str, Any]:
    """A notebook as its page shows it: without set-up cells, with texts for its figures.

    Args:
        notebook: is changed.
        folder: of the notebook, from the repository's root.
        name: of the lesson, if it is one; its recorded widgets take the place of their pictures.
    """
    for cell in notebook["cells"]:
        tags = cell["metadata"].setdefault("tags", [])
        if cell["cell_type"] == "markdown":
            cell["source"] = linked(KEYS.sub("", "".join(cell["source"])), folder)
            continue
        if "bootstrap" in tags:
            tags.append("remove-cell")
        for data in (output.get("data", {}) for output in cell["outputs"]):
            if "text/markdown" in data:  # is not looked through for links to pages
                text = "".join(data["text/markdown"])
                data["text/markdown"] = text.replace(".ipynb)", ".html)")
        # myst-nb reads a figure's text from the cell's metadata only.
        texts = [o.get("metadata", {}).get("image/png", {}).get("alt") for o in cell["outputs"]]
        alt = next(filter(None, texts), "")
        cell["metadata"].setdefault("mystnb", {})["image"] = {"alt": alt}
        tag = next((tag for tag in tags if tag.split("-")[0] == "widget"), "")
        if name and tag:
            live = widgets.element(name + tag.removeprefix("widget"))
            if not live and not cell["outputs"]:
                raise ExtensionError(f"{name}: the widget {tag!r} was never run, nor recorded")
            cell["outputs"] = [_html(live)] if live else [*cell["outputs"], _html(WIDGET)]
    return notebook


def _html(text: str) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": text}}


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    folder = posixpath.dirname(name)
    if app.env.doc2path(name).suffix == ".ipynb":
        lesson = posixpath.basename(name) if folder == "notebooks" else ""
        source[0] = json.dumps(page_of(json.loads(source[0]), folder, lesson))
    else:
        text = PICTURE.sub(r"![\2](\1)", BADGE.sub("", source[0]))
        text = measured_tables.filled(text, HERE / "benchmarks" / "results")
        source[0] = linked(HEAD.sub("", text), folder)
        if name == "README":
            source[0] = f"# From KV Cache to vLLM\n\n{source[0]}"


def site_address() -> str:
    """Where GitHub publishes the site of the repository."""
    owner, name = REPOSITORY.rstrip("/").split("/")[-2:]
    return f"https://{owner.lower()}.github.io/{name}/"


def _introduce(
    app: Sphinx, page: str, _template: str, context: dict[str, Any], tree: nodes.document | None
) -> None:
    """What a link to the page shows elsewhere: title, what it is about, and the moving engine."""
    said = [node.astext() for node in tree.findall(nodes.paragraph)] if tree else []
    goal = next((text for text in said if text.startswith("Goal.")), "")
    about = " ".join(goal.removeprefix("Goal.").split()) or PROJECT["description"]
    title = unescape(re.sub("<[^>]+>", "", context.get("title") or app.config.project))
    tags = {
        "og:type": "website",
        "og:site_name": app.config.project,
        "og:title": title,
        "og:description": about,
        "og:url": f"{site_address()}{page}.html",
        "og:image": f"{site_address()}_static/engine.png",
        "og:image:alt": "An inference engine at work: requests share blocks of one KV cache.",
    }
    lines = [f'<meta property="{name}" content="{escape(text)}">' for name, text in tags.items()]
    lines.append(f'<meta name="description" content="{escape(about)}">')
    lines.append('<meta name="twitter:card" content="summary_large_image">')
    context["metatags"] = "\n".join([context.get("metatags", ""), *lines])


def _look_for_texts(app: Sphinx, tree: nodes.document, name: str) -> None:
    """A figure that says nothing to those who cannot see it is a warning, and so an error."""
    for image in tree.findall(nodes.image):
        if not image.get("alt"):
            logging.getLogger(__name__).warning("a figure without text", location=image)


def setup(app: Sphinx) -> dict[str, bool]:
    widgets.unpack()
    # A page is built anew when a widget has changed, though its notebook has not.
    app.add_config_value("recorded_widgets", widgets.version(), "env", [str])
    app.connect("source-read", _read)
    app.connect("html-page-context", _introduce)
    app.connect("doctree-resolved", _look_for_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
