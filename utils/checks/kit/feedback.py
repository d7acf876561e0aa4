"""What a check answers: points for nbgrader, words and a picture for the learner.

A check is the last expression of a grade cell. nbgrader reads the cell's `text/plain` output as
the points earned (its "partial credit"), JupyterLab shows the `text/html` beside it. So one object
serves both: its repr is exactly the points, its HTML is the feedback. `print(feedback)` gives the
same words without HTML.
"""

from __future__ import annotations

import base64
import html
import io
import re
from dataclasses import dataclass
from typing import Literal

from matplotlib.figure import Figure

Status = Literal["passed", "failed", "not written yet"]

# White words on them have a contrast of 4.5, and they 3 with a white and with a near-black page.
_COLOURS: dict[Status, str] = {
    "passed": "#218350",
    "failed": "#c04f1c",
    "not written yet": "#6b7683",
}
WHERE_TO_LOOK = "Where to look"
_LABELS: dict[Status, str] = {
    "passed": "Passed",
    "failed": "Not yet right",
    "not written yet": "Not written yet",
}


@dataclass(frozen=True, repr=False)
class Feedback:
    """The answer of one check.

    `details` are (label, text) pairs, shown in order; text in backticks is set as code, text of
    several lines is shown as is. In HTML, advice on where to look is folded: to think first, from
    the input alone, is the exercise. `picture` is a PNG, `picture_alt` says the same in words;
    `in_lab` is what this lab has given so far, in words.
    """

    title: str
    status: Status
    points: float
    max_points: float
    headline: str
    details: tuple[tuple[str, str], ...] = ()
    picture: bytes | None = None
    picture_alt: str = ""
    in_lab: str = ""

    @property
    def passed(self) -> bool:
        return self.status == "passed"

    @property
    def message(self) -> str:
        """The feedback in plain words."""
        lines = [f"{_LABELS[self.status]}: {self.title} ({self._score()})", self.headline]
        for label, text in self.details:
            separator = "\n" if "\n" in text else " "
            lines.append(f"{label}:{separator}{text}")
        return "\n".join(line for line in lines if line)

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return repr(float(self.points))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.to_html()}

    def to_html(self) -> str:
        """The feedback as one self-contained HTML element, for light and dark pages."""
        colour = _COLOURS[self.status]
        parts = [
            f'<div role="status" style="border-left:6px solid {colour};padding:0.6em 1em;'
            'margin:0.3em 0;background:rgba(128,138,150,0.10);color:inherit;line-height:1.5">',
            f'<div><strong style="color:#ffffff;background:{colour};padding:0 0.5em;'
            f'border-radius:3px">{_LABELS[self.status]}</strong> '
            f"<strong>{_inline(self.title)}</strong> ({self._score()})</div>",
        ]
        if self.headline:
            parts.append(f'<div style="margin-top:0.3em">{_inline(self.headline)}</div>')
        for label, text in self.details:
            if label == WHERE_TO_LOOK and "\n" not in text:  # else it is the line with the error
                parts.append(
                    '<details style="margin-top:0.5em"><summary style="cursor:pointer"><strong>'
                    f"{label}</strong></summary>{_inline(text)}</details>"
                )
                continue
            parts.append(f'<div style="margin-top:0.5em"><strong>{html.escape(label)}</strong>')
            if "\n" in text:
                parts.append(
                    '<pre style="margin:0.2em 0;padding:0.4em 0.7em;overflow-x:auto;color:inherit;'
                    f'background:rgba(128,138,150,0.14)">{html.escape(text)}</pre></div>'
                )
            else:
                parts.append(f" {_inline(text)}</div>")
        if self.picture is not None:
            data = base64.b64encode(self.picture).decode("ascii")
            parts.append(
                f'<img src="data:image/png;base64,{data}" alt="{html.escape(self.picture_alt)}" '
                'style="max-width:100%;margin-top:0.6em;border-radius:4px">'
            )
        parts.append("</div>")
        return "".join(parts)

    def _score(self) -> str:
        score = f"{self.points:g} of {self.max_points:g} points"
        return f"{score}; {self.in_lab}" if self.in_lab else score


def png(figure: Figure) -> bytes:
    """Render a figure on white, so that it reads the same on light and dark pages."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, facecolor="white", bbox_inches="tight")
    return buffer.getvalue()


def _inline(text: str) -> str:
    """Escape `text`; set what stands in backticks as code, and *this* as emphasis."""
    style = "background:rgba(128,138,150,0.18);padding:0 0.25em;border-radius:3px;color:inherit"
    parts = html.escape(text).split("`")
    for place, part in enumerate(parts):
        if place % 2 and place < len(parts) - 1:
            parts[place] = f'<code style="{style}">{part}</code>'
        else:
            parts[place] = re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", part)
    return "".join(parts)
