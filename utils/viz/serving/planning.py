"""Pictures of notebook 14b: what a million tokens cost, by card and by requests in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from utils.planning.plan import Deployment, Load, capacity, dollars
from utils.planning.prices import PRICES
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE, RED

COLORS = (ORANGE, BLUE, GREEN, RED, GREY)
MOST = 512  # requests in flight that are drawn


def _sizes(fit: int) -> list[int]:
    """Numbers of requests to draw: 1, 2, 3, 4, 6, 8, ... and the last that fits."""
    steps = {n for i in range(10) for n in (2**i, 3 * 2**i) if n < min(fit, MOST)}
    return sorted(steps | {min(fit, MOST)})


def plot_by_card(
    deployments: Sequence[Deployment], load: Load, promise: float, prices: Mapping[str, float]
) -> Figure:
    """Dollars for a million tokens out against the requests in flight, a line per deployment.

    A line ends where memory ends, and a large dot is the last point that keeps the promise.

    Args:
        promise: the mean seconds between two tokens.
        prices: dollars per hour of a card, by its name.
    """
    figure, axes = plt.subplots(figsize=(8, 4.6))
    best = {}
    for deployment, color in zip(deployments, COLORS, strict=False):
        price = prices[deployment.gpu]
        fit = deployment.memory.tokens // (load.prompt + load.answer)
        sizes = _sizes(fit)
        costs = [
            dollars(deployment, capacity(deployment, load, n), price).per_million_out for n in sizes
        ]
        able = capacity(deployment, load, promise=promise)
        best[str(deployment)] = dollars(deployment, able, price).per_million_out
        axes.plot(sizes, costs, color=color, label=str(deployment))
        axes.plot(able.requests, best[str(deployment)], "o", color=color, markersize=10)
        axes.annotate(
            f"${best[str(deployment)]:.2f}",
            (able.requests, best[str(deployment)]),
            textcoords="offset points",
            xytext=(9, 7),
        )
    cheap, dear = min(best, key=best.__getitem__), max(best, key=best.__getitem__)
    axes.set_title(
        f"With {cheap}, a million tokens out cost ${best[cheap]:.2f}, and\n"
        f"${best[dear]:.2f} with {dear}, if a token may take {1e3 * promise:.0f} ms"
    )
    axes.set_xlabel("requests in flight, logarithmic (dot: as many as the promise allows)")
    axes.set_ylabel("dollars for a million tokens out,\nlogarithmic")
    _logarithmic(figure)
    axes.legend()
    return figure


def plot_price(
    model: str, gpu: str, cards: int, weight_bits: int, prompt: int, hit: float
) -> Figure:
    """Dollars for a million tokens in and out against the requests in flight.

    Args:
        model, gpu, cards, weight_bits: see `Deployment`.
        prompt, hit: see `Load`. An answer has 300 tokens.
    """
    deployment, load = Deployment(model, gpu, cards, weight_bits), Load(prompt, 300, hit)
    price = PRICES[gpu].dollars
    figure, axes = plt.subplots(figsize=(8, 4.2))
    fit = deployment.memory.tokens // (prompt + load.answer)
    axes.set_xlabel("requests in flight, logarithmic; the line ends where memory ends")
    axes.set_ylabel("dollars for a million tokens,\nlogarithmic")
    if fit < 1:
        axes.set_title(
            f"{model} in {weight_bits} bits doesn't fit on {cards} x {gpu}\n"
            "with even one request of this length"
        )
        axes.set_xlim(1, MOST)
        axes.set_ylim(0.01, 100)
        _logarithmic(figure)
        return figure
    sizes = _sizes(fit)
    ables = [capacity(deployment, load, n) for n in sizes]
    costs = [dollars(deployment, able, price) for able in ables]
    axes.plot(sizes, [c.per_million_out for c in costs], "o-", color=ORANGE, label="tokens out")
    axes.plot(sizes, [c.per_million_in for c in costs], color=BLUE, label="tokens in")
    axes.set_title(
        f"{model} on {cards} x {gpu} (${price:.2f} an hour each): {sizes[-1]} in flight,\n"
        f"a million tokens out cost ${costs[-1].per_million_out:.2f}, and each takes "
        f"{1e3 * ables[-1].time_per_token:.0f} ms"
    )
    axes.set_ylim(0.01, 100)
    axes.set_xlim(0.9, MOST * 1.1)
    _logarithmic(figure)
    axes.legend()
    return figure


def _logarithmic(figure: Figure) -> None:
    [axes] = figure.axes
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def plan_explorer() -> Explorer:
    """`plot_price` with a control for each of its arguments."""
    models = ["Llama-3-8B", "Llama-3-70B"]
    return Explorer(
        plot_price,
        model=ipywidgets.Dropdown(options=models, value="Llama-3-70B", description="model"),
        gpu=ipywidgets.Dropdown(options=list(PRICES), value="H100", description="card"),
        cards=ipywidgets.SelectionSlider(options=[1, 2, 4, 8], value=2, description="cards"),
        weight_bits=ipywidgets.ToggleButtons(options=[16, 8, 4], description="weight bits"),
        prompt=ipywidgets.SelectionSlider(
            options=[250, 500, 1000, 2000, 4000, 8000], value=2000, description="tokens in"
        ),
        hit=ipywidgets.SelectionSlider(
            options=[0.0, 0.25, 0.5, 0.75, 0.9], value=0.0, description="prefix hits"
        ),
    )


def plot_in_and_out(
    batches: Sequence[int], read: Sequence[float], written: Sequence[float], ridge: float
) -> Figure:
    """Milliseconds of the processor per token in and per token out, by requests in a step.

    Args:
        read, written: seconds per token, for each batch.
        ridge: FLOPs per byte at which the machine's two limits meet.
    """
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    axes.plot(batches, [1e3 * s for s in written], "o-", color=ORANGE, label="a token out")
    axes.plot(batches, [1e3 * s for s in read], "s-", color=BLUE, label="a token in")
    bound = [1e3 * read[-1] * max(1.0, ridge / batch) for batch in batches]
    axes.plot(batches, bound, "--", color=INK, label="a token out, by the formula")
    ratios = [w / r for w, r in zip(written, read, strict=True)]
    axes.set_title(
        f"A token out costs {ratios[0]:.0f} times a token in when one request runs,\n"
        f"and {ratios[-1]:.1f} times when {batches[-1]} share each step"
    )
    axes.set_xlabel("requests in a step, logarithmic")
    axes.set_ylabel("milliseconds, logarithmic")
    _logarithmic(figure)
    axes.set_xticks(batches)
    axes.legend()
    return figure
