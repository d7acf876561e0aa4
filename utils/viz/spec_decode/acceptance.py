"""How far guesses go: which share of passes accepts the first guess, the second, and so on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from utils.engine import LLMEngine
from utils.pipeline.confidence import share_interval
from utils.viz.explore import Explorer
from utils.viz.spec_decode.clock import decode_steps
from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE

COLORS = (GREY, GREEN, ORANGE, BLUE)
MARKERS = "sD^o"


@dataclass(frozen=True)
class Acceptance:
    """What came of a guesser's guesses.

    Args:
        passes: of the model, each over one request. Those without a guess count, too.
        accepted: of these, in how many the first guess was accepted, the first two, and so on.
    """

    passes: int
    accepted: tuple[int, ...]

    @classmethod
    def of(cls, engine: LLMEngine) -> Acceptance:
        """Of an engine that has traced its steps."""
        stats = engine.spec_decoding_stats
        assert stats is not None
        passes = sum(len(step.tokens) for step in decode_steps(engine))
        return cls(passes, tuple(stats.num_accepted_tokens_per_pos))

    @property
    def tokens_per_pass(self) -> float:
        """The accepted guesses, and the token that the model gives anyway."""
        return 1 + sum(self.accepted) / self.passes

    def shares(self) -> list[tuple[float, float, float]]:
        """For each position the share of passes that reach it, and the ends of its interval."""
        return [
            (count / self.passes, *share_interval(count, self.passes)) for count in self.accepted
        ]


def acceptance_table(guessers: Mapping[str, Acceptance], most: int = 4) -> str:
    """A line for each guesser: the share of passes that accept so many guesses or more."""
    head = "".join(f"{f'{i} or more' if i < most else f'{i}':>18}" for i in range(1, most + 1))
    lines = [f"{'guesses accepted':18}{head}   tokens per pass"]
    for name, of in guessers.items():
        cells = [f"{s:.0%} ({a:.0%} to {b:.0%})" for s, a, b in of.shares()[:most]]
        cells += ["–"] * (most - len(cells))
        lines.append(f"{name:18}{''.join(f'{c:>18}' for c in cells)}   {of.tokens_per_pass:.2f}")
    return "\n".join(lines)


def plot_acceptance(guessers: Mapping[str, Acceptance], title: str) -> Figure:
    """A line for each guesser, over the number of guesses accepted in a row."""
    figure, axes = plt.subplots(figsize=(8, 4.2))
    for number, (name, of) in enumerate(guessers.items()):
        shares = of.shares()
        places = [i + 1 + 0.06 * (number - (len(guessers) - 1) / 2) for i in range(len(shares))]
        middle = [share for share, _, _ in shares]
        spread = [[s - low for s, low, _ in shares], [high - s for s, _, high in shares]]
        axes.errorbar(
            places,
            middle,
            yerr=spread,
            color=COLORS[number % 4],
            marker=MARKERS[number % 4],
            capsize=3,
            label=f"{name}: {of.tokens_per_pass:.2f} tokens per pass",
        )
    _label(axes, max(len(of.accepted) for of in guessers.values()))
    axes.set_title(title)
    axes.legend(fontsize=9.5)
    return figure


def _label(axes: Axes, most: int) -> None:
    axes.set_xticks(range(1, most + 1))
    axes.set_xlabel("guesses accepted in a row, at least")
    axes.set_ylabel("share of the passes")
    axes.set_ylim(bottom=0)


def expected_shares(first: float, later: float, most: int) -> list[float]:
    """The share of passes that accept 1, 2, ... guesses.

    Args:
        first: how often the first guess is right.
        later: how often each later guess is right, where all before it are.
    """
    return [first * later**i for i in range(most)]


def acceptance_explorer() -> Explorer:
    """Sliders for how good the first guess and the later ones are, and what a pass gives then."""

    def slider(value: float, text: str) -> ipywidgets.FloatSlider:
        return ipywidgets.FloatSlider(
            value=value,
            min=0,
            max=1,
            step=0.05,
            description=text,
            style={"description_width": "15em"},
        )

    return Explorer(
        _draw_expected,
        first=slider(0.4, "first guess is right"),
        later=slider(0.4, "each later guess is right"),
        num_guesses=ipywidgets.IntSlider(
            value=4, min=1, max=8, description="guesses", style={"description_width": "15em"}
        ),
    )


def _draw_expected(first: float, later: float, num_guesses: int) -> Figure:
    shares = expected_shares(first, later, num_guesses)
    figure, axes = plt.subplots(figsize=(7, 3.2))
    axes.bar(range(1, num_guesses + 1), shares, color=BLUE, edgecolor=INK)
    _label(axes, num_guesses)
    axes.set_ylim(0, 1)
    axes.set_title(f"{1 + sum(shares):.2f} tokens per pass: 1 plus the heights of the bars")
    return figure
