"""The lessons' widgets as pages show them: recorded states, or a formula, with native controls."""

from __future__ import annotations

import hashlib
import html
import json
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
TIME = "step"  # a control of this name goes through time, so it can be played
UNPACKED = HERE / "static" / "frames"  # from where Sphinx copies it beside the pages
NOTE = {
    "grid": "Recorded: each state was drawn when the lesson ran. In JupyterLab the lesson's own "
    "widget takes all values.",
    "graph": "Recorded: each state was drawn when the lesson ran. In JupyterLab the lesson's own "
    "widget takes any prompt.",
    "calculator": "This page computes it.",
}


def unpack() -> None:
    """Lay the recordings out as files: a picture is fetched when it is shown."""
    for path in sorted(RECORDED.glob("*.zip")):
        folder = UNPACKED / path.stem
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path) as file:
            for name in file.namelist():
                if name.endswith(".webp"):
                    (folder / name).write_bytes(file.read(name))
        # A script, and no JSON: a browser reads it from a folder on a disk, too.
        said = json.dumps(read(path.stem), ensure_ascii=False, separators=(",", ":"))
        text = f"courseStates({json.dumps(path.stem)},{said});"
        (folder / "states.js").write_text(text, encoding="utf-8")


def version() -> str:
    """Another one when any recording, or the way it is shown, has changed."""
    files = [Path(__file__), *sorted(RECORDED.glob("*.zip"))]
    return hashlib.sha256(
        b"".join(file.name.encode() + file.read_bytes() for file in files)
    ).hexdigest()


def read(name: str) -> dict[str, Any]:
    """What a recording says of its states."""
    with zipfile.ZipFile(RECORDED / f"{name}.zip") as file:
        states = json.loads(file.read("states.json"))
    states.pop("made_from", None)
    return states


def element(name: str) -> str | None:
    """The widget of a lesson as HTML; None: it was not recorded.

    What it shows at first is there without JavaScript, but for a formula's.
    """
    if not (RECORDED / f"{name}.zip").is_file():
        return None
    states = read(name)
    folder = f"../_static/frames/{name}"
    rows = [_control(name, number, axis) for number, axis in enumerate(states.get("axes", []))]
    rows += [
        f'<button type="button" data-button>{html.escape(text)}</button>'
        for text in states.get("buttons", [])
    ]
    words, shown = _first(states, folder)
    fixed = "; ".join(f"{key}: {value}" for key, value in states.get("fixed", {}).items())
    scripts = ["frames.js"]
    if states["kind"] == "calculator":
        scripts = ["calculators/figure.js", f"calculators/{states['calculator']}.js", *scripts]
    parts = [
        f'<div class="frames" id="widget-{name}" role="group" aria-label="Widget" '
        f'data-folder="{folder}">',
        f'<div class="frames-controls">{"".join(rows)}</div>',
        f'<p class="frames-fixed">Fixed here: {html.escape(fixed)}.</p>' if fixed else "",
        f'<p class="frames-words" aria-live="polite">{html.escape(words)}</p>',
        f'<div class="frames-place">{shown}</div>',
        f'<p class="frames-note">{NOTE[states["kind"]]}</p></div>',
        *(f'<script defer src="../_static/{script}"></script>' for script in scripts),
    ]
    return "".join(parts)


def _first(states: dict[str, Any], folder: str) -> tuple[str, str]:
    """The words and the picture of the state that a page begins with."""
    if states["kind"] == "calculator":
        return "", "<noscript>It needs JavaScript.</noscript>"
    place = states.get("start", 0)
    for axis in states.get("axes", []):
        place = place * len(axis["values"]) + axis["start"]
    frame = states["frames"][states["index"][place]]
    words = f"{states.get('said', '')} {frame['words']}".strip()
    if "file" not in frame:
        return words, frame.get("html", "")
    width, height = frame["size"]
    return words, (
        f'<img class="dark-light" src="{folder}/{frame["file"]}" loading="lazy" '
        f'alt="{html.escape(frame["alt"])}" width="{width}" height="{height}">'
    )


def _control(name: str, number: int, axis: dict[str, Any]) -> str:
    """A native control with its label."""
    this, values, start = f"widget-{name}-{number}", axis["values"], axis["start"]
    label = f'<label for="{this}">{html.escape(axis["label"])}</label>'
    same = f'id="{this}" data-axis="{number}"'
    if axis["control"] == "checkbox":
        control = f'<input type="checkbox" {same}{" checked" * start}>'
    elif axis["control"] == "range":
        now, all_values = html.escape(values[start]), html.escape(json.dumps(values))
        control = (
            f'<input type="range" {same} min="0" max="{len(values) - 1}" value="{start}" '
            f'aria-valuetext="{now}" data-values="{all_values}" autocomplete="off">'
            f'<output for="{this}">{now}</output>'
        )
        if axis["name"] == TIME:
            control += f'<button type="button" data-plays="{this}">Play</button>'
    else:
        options = "".join(
            f'<option value="{i}"{" selected" * (i == start)}>{html.escape(value)}</option>'
            for i, value in enumerate(values)
        )
        control = f'<select {same} autocomplete="off">{options}</select>'
    return f'<span class="frames-control">{label}{control}</span>'
