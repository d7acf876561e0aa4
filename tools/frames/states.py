"""What a recording holds: the controls' values, and for each state a picture or a text."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from tools.frames.plans import Evenly
from utils.viz.explore import png
from utils.viz.figure_text import figure_text

COLORS = 32  # of a picture: the course's figures have few
STATES = "states.json"
_SLIDERS = (
    ipywidgets.IntSlider,
    ipywidgets.FloatSlider,
    ipywidgets.SelectionSlider,
    ipywidgets.BoundedIntText,
)


class NoTitle(Exception):
    """A figure that cannot say its state."""


@dataclass(frozen=True)
class Shown:
    """What a widget shows in one state.

    Attributes:
        words: the state in words, read out when it is reached.
        alt: the picture's text.
        picture: PNG; empty where the widget answers in words only.
        html: what it shows in place of a picture.
    """

    words: str
    alt: str = ""
    picture: bytes = b""
    html: str = ""

    @classmethod
    def of(cls, figure: Figure, before: str = "") -> Shown:
        """A figure, and what a message above it says."""
        alt, words = figure_text(figure), finding(figure)
        if not words:
            raise NoTitle("This figure has no title, so it says nothing in words. Give it one.")
        return cls(f"{before} {words}".strip(), alt, png(figure))


def finding(figure: Figure) -> str:
    """What a figure says: its title, or else those of its axes. Labels are left to the alt text."""
    titles = [figure.get_suptitle()]
    if not titles[0]:
        places = ("left", "center", "right")
        titles = [axes.get_title(loc=place) for axes in figure.axes for place in places]
    lines = (title.strip().rstrip(".").replace("\n", "; ") for title in titles)
    shown = dict.fromkeys(" ".join(line.split()) for line in lines)
    return ". ".join(title for title in shown if title) + "." * any(shown)


@dataclass(frozen=True)
class Axis:
    """A control on the page.

    Attributes:
        control: "range", "select" or "checkbox".
        values: as the page says them, in order.
        start: number of the value at first.
    """

    name: str
    label: str
    control: str
    values: list[str]
    start: int

    @classmethod
    def of(cls, name: str, control: Any, values: Sequence[object]) -> Axis:
        """From a widget's control, with these of its values.

        Raises:
            ValueError: what it shows at first is not among the values.
        """
        kind = "range" if isinstance(control, _SLIDERS) else "select"
        if isinstance(control, ipywidgets.Checkbox):
            kind = "checkbox"
        known = {value: text for text, value in choices(control)}
        same = [i for i, value in enumerate(values) if _same(value, control.value)]
        if not same:
            raise ValueError(
                f"{name}: {control.value!r} is what the lesson shows at first, and it is not among "
                f"the recorded values {list(values)}."
            )
        texts = [known.get(value, _text(value)) for value in values]
        return cls(name, control.description or name, kind, texts, same[0])


def choices(control: Any) -> list[tuple[str, Any]]:
    """All values of a control, with their texts.

    Raises:
        TypeError: the control has no finite list of values.
    """
    options = getattr(control, "options", None)
    if options is not None:
        return [o if isinstance(o, tuple) else (_text(o), o) for o in options]
    if isinstance(control, ipywidgets.IntSlider | ipywidgets.BoundedIntText):
        values: Sequence[Any] = range(control.min, control.max + 1, control.step)
    elif isinstance(control, ipywidgets.FloatSlider):
        count = round((control.max - control.min) / control.step) + 1
        values = [round(control.min + i * control.step, 6) for i in range(count)]
    elif isinstance(control, ipywidgets.Checkbox):
        values = [False, True]
    else:
        raise TypeError(f"{type(control).__name__} has no finite list of values: plan them.")
    return [(_text(value), value) for value in values]


def _same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) < 1e-9
    return a == b


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass
class Recording:
    """Of one widget.

    Attributes:
        kind: "grid": a state for each combination of the axes' values; "graph": buttons lead from
            state to state; "calculator": the page computes.
        fixed: controls that stay as they are, name -> value.
        index: grid: the frame of each combination, the last axis fastest.
        buttons, edges: graph: edges[state][button] is the state it leads to, and what it says.
        start, said: graph: the state at first, and what it says.
        tables: calculator: the numbers that it reads.
    """

    kind: str
    axes: list[Axis] = field(default_factory=list)
    fixed: dict[str, str] = field(default_factory=dict)
    index: list[int] = field(default_factory=list)
    buttons: list[str] = field(default_factory=list)
    edges: list[list[tuple[int, str] | None]] = field(default_factory=list)
    calculator: str = ""
    tables: dict[str, Any] = field(default_factory=dict)
    start: int = 0
    said: str = ""
    frames: list[Shown] = field(default_factory=list)

    def add(self, shown: Shown) -> int:
        """Keep a frame, once; its number."""
        if shown not in self.frames:
            self.frames.append(shown)
        return self.frames.index(shown)

    def save(self, path: Path) -> None:
        """Write the file from which the site is built."""
        pictures = _compact([frame.picture for frame in self.frames])
        states = asdict(self)
        states["frames"] = []
        for i, (frame, (data, size)) in enumerate(zip(self.frames, pictures, strict=True)):
            entry: dict[str, Any] = {"words": frame.words}
            if data:
                entry |= {"file": f"{i:03}.webp", "size": size, "alt": frame.alt}
            if frame.html:
                entry["html"] = frame.html
            states["frames"].append(entry)
        files = {f"{i:03}.webp": data for i, (data, _) in enumerate(pictures) if data}
        _write(path, {key: value for key, value in states.items() if value}, files)

    @staticmethod
    def sign(path: Path, made_from: Mapping[str, str]) -> None:
        """Write into a saved recording from which sources it was made."""
        with zipfile.ZipFile(path) as file:
            content = {name: file.read(name) for name in file.namelist()}
        states = json.loads(content.pop(STATES))
        _write(path, states | {"made_from": dict(made_from)}, content)


def _write(path: Path, states: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(states, ensure_ascii=False, separators=(",", ":"))
    with zipfile.ZipFile(path, "w") as file:
        _put(file, STATES, text.encode(), zipfile.ZIP_DEFLATED)
        for name, data in files.items():
            _put(file, name, data, zipfile.ZIP_STORED)


def _put(file: zipfile.ZipFile, name: str, data: bytes, how: int) -> None:
    """With a fixed date, so that the same frames give the same file."""
    info = zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))
    info.compress_type = how
    file.writestr(info, data)


def _compact(pictures: Sequence[bytes]) -> list[tuple[bytes, tuple[int, int] | None]]:
    """Few colours, WebP without loss, and all of one width: a slider shall not make them jump."""
    opened = [Image.open(io.BytesIO(p)).convert("RGB") if p else None for p in pictures]
    width = max((image.width for image in opened if image), default=0)
    compact: list[tuple[bytes, tuple[int, int] | None]] = []
    for image in opened:
        if image is None:
            compact.append((b"", None))
            continue
        canvas = Image.new("RGB", (width, image.height), "white")
        canvas.paste(image)
        out = io.BytesIO()
        _with_few_colours(canvas).save(out, "WEBP", lossless=True, quality=50, method=3)
        compact.append((out.getvalue(), canvas.size))
    return compact


def _planned(control: Any, plan: Sequence[object] | Evenly | None) -> list[Any]:
    """The values of a control that are recorded."""
    if plan is not None and not isinstance(plan, Evenly):
        return list(plan)
    values = [value for _, value in choices(control)]
    if plan is None or plan.count >= len(values):
        return values
    last = len(values) - 1
    places = {round(i * last / (plan.count - 1)) for i in range(plan.count)}
    return [values[i] for i in sorted(places | {values.index(control.value)})]


def _with_few_colours(image: Image.Image) -> Image.Image:
    """Those that stand out, exactly: white stays white, and a line has its legend's colour.

    One after another, the colour that is far from all chosen ones and fills much of the picture.
    """
    pixels = np.asarray(image).reshape(-1, 3)
    colors, place, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    all_colors, weights = colors.astype(int), counts**0.5
    chosen = [int(counts.argmax())]
    far = np.abs(all_colors - all_colors[chosen[0]]).sum(axis=1)
    while len(chosen) < COLORS and far.any():
        chosen.append(int((weights * far).argmax()))
        far = np.minimum(far, np.abs(all_colors - all_colors[chosen[-1]]).sum(axis=1))
    kept = all_colors[chosen]
    far = np.abs(all_colors[:, None, :] - kept).sum(axis=2)
    mapped = kept[far.argmin(axis=1)].astype(np.uint8)[place.reshape(-1)]
    return Image.fromarray(mapped.reshape(image.height, image.width, 3))


def record_grid(
    controls: Mapping[str, Any],
    show: Callable[..., Shown],
    values: Mapping[str, Sequence[object] | Evenly] | None = None,
) -> Recording:
    """Every combination of the controls' values.

    Args:
        controls: of the widget, by name.
        show: the state with these values.
        values: of the controls that have too many; one value fixes a control.
    """
    planned = values or {}
    values = {name: _planned(control, planned.get(name)) for name, control in controls.items()}
    recording = Recording("grid")
    for name, control in controls.items():
        axis = Axis.of(name, control, values[name])
        if len(axis.values) > 1:
            recording.axes.append(axis)
        else:
            recording.fixed[axis.label] = axis.values[0]
    seen: dict[bytes, int] = {}
    for combination in itertools.product(*values.values()):
        shown = show(**dict(zip(values, combination, strict=True)))
        key = hashlib.sha256(repr((shown.words, shown.html)).encode() + shown.picture).digest()
        if key not in seen:
            seen[key] = len(recording.frames)
            recording.frames.append(shown)
        recording.index.append(seen[key])
    return recording
