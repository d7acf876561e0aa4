"""Colours can be told apart in grey and by readers who see no red, no green or no blue.

How such a reader sees a colour: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A
Physiologically-based Model for Simulation of Color Vision Deficiency", IEEE TVCG 15(6), 2009,
table 1, severity 1.0, on linear RGB. How different two colours look: the distance in CIELAB
(CIE 1976), in which 100 lies between black and white. Contrast: WCAG 2.2, success criteria 1.4.3
(words: 4.5) and 1.4.11 (what has to be seen in a picture: 3).
"""

from __future__ import annotations

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from utils.checks.kit import feedback
from utils.viz import style

PALETTE = {name: getattr(style, name) for name in ("INK", "BLUE", "ORANGE", "GREEN", "GREY", "RED")}
READERS = {
    "all colours": np.eye(3),
    "no red": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no blue": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
# Two patches side by side differ clearly; one step is what a trained eye just sees.
CLEARLY, IN_GREY = 20, 9
# The pages on which feedback stands: white, JupyterLab's dark, the site's dark.
PAGES = ("#ffffff", "#111111", "#14181e")


def linear(color: str) -> NDArray[np.float64]:
    """Linear RGB of an sRGB colour (IEC 61966-2-1)."""
    rgb = np.array(to_rgb(color))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIELAB of linear RGB, white D65."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / (0.9505, 1.0, 1.089)
    x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of relative luminances: 1 to 21."""
    dark, light = sorted(float(linear(c) @ (0.2126, 0.7152, 0.0722)) for c in (one, other))
    return (light + 0.05) / (dark + 0.05)


def test_the_measures_are_right() -> None:
    """Against values that WCAG and CIE publish."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert lab(linear("#ff0000")) == pytest.approx([53.24, 80.09, 67.20], abs=0.1)
    for matrix in READERS.values():
        assert matrix.sum(axis=1) == pytest.approx([1, 1, 1], abs=1e-5)  # greys stay grey
    # Red and a green as bright are hard to tell apart without green-sensitive cones.
    red, green = (READERS["no green"] @ linear(c) for c in ("#c04040", "#6b6f20"))
    seen_by_all = np.linalg.norm(lab(linear("#c04040")) - lab(linear("#6b6f20")))
    assert np.linalg.norm(lab(red) - lab(green)) < seen_by_all / 2


@pytest.mark.parametrize("reader", READERS)
def test_every_two_colours_differ_clearly_for(reader: str) -> None:
    seen = {name: lab(READERS[reader] @ linear(color)) for name, color in PALETTE.items()}
    near = {(a, b): float(np.linalg.norm(seen[a] - seen[b])) for a, b in combinations(seen, 2)}
    assert {pair: d for pair, d in near.items() if d < CLEARLY} == {}


def test_every_two_colours_differ_in_grey() -> None:
    lightness = {name: float(lab(linear(color))[0]) for name, color in PALETTE.items()}
    near = {(a, b): abs(lightness[a] - lightness[b]) for a, b in combinations(lightness, 2)}
    assert {pair: d for pair, d in near.items() if d < IN_GREY} == {}


def test_colours_stand_out_from_a_figures_background() -> None:
    style.use_course_style()
    assert plt.rcParams["figure.facecolor"] == "white"
    assert plt.rcParams["savefig.facecolor"] == "auto"  # the figure's own
    found = {name: contrast(color, "white") for name, color in PALETTE.items()}
    # Were GREEN as dark as the others, too few steps of grey would be left between all of them.
    assert [name for name, ratio in found.items() if ratio < 2.99] == ["GREEN"]
    assert found["GREY"] >= 4.5 and found["INK"] >= 4.5  # words are written in them


@pytest.mark.parametrize("status", feedback._COLOURS)
def test_feedback_is_read_on_every_page(status: feedback.Status) -> None:
    color = feedback._COLOURS[status]
    assert contrast(color, "#ffffff") >= 4.5  # the word, in white on it
    assert all(contrast(color, page) >= 3 for page in PAGES)  # the bar beside all of it
    html = feedback.Feedback("t", status, 0, 1, "h").to_html()
    assert f"color:#ffffff;background:{color}" in html and feedback._LABELS[status] in html
