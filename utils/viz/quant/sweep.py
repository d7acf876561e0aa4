"""GPTQ on a small weight, column by column: the widget of notebook 09b."""

from __future__ import annotations

from collections.abc import Iterator

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from utils.quant import InputStats, find_params, inverse_cholesky, relative_error
from utils.quant.rtn import to_codes
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE


def sweep(
    weight: Tensor, hessian: Tensor, bits: int, damp: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """After each column: (the weight rounded so far, with GPTQ's shifts; with plain rounding).

    Args:
        weight: [out, in]; each row is one group.
        hessian: of its inputs, [in, in].
        bits: of a code.
        damp: share of the diagonal's mean that is added to it.
    """
    scale, zero = (found[:, None] for found in find_params(weight, bits, sym=True))
    w, plain, upper = weight.clone(), weight.clone(), inverse_cholesky(hessian, damp)
    rounded = (to_codes(weight, scale, zero, bits) - zero) * scale
    for i in range(w.shape[1]):
        before = w[:, [i]].clone()
        w[:, [i]] = (to_codes(before, scale, zero, bits) - zero) * scale
        w[:, i + 1 :] -= (before - w[:, [i]]) / upper[i, i] * upper[i, i + 1 :]
        plain[:, i] = rounded[:, i]
        yield w.clone(), plain.clone()


def _draw_sweep(axes: Axes, moved: np.ndarray, i: int) -> None:
    """One panel: columns before i rounded, i at its turn, the later ones by how far they moved."""
    rows, width = moved.shape
    shown = np.where(np.arange(width) > i, moved, np.nan)
    axes.imshow(shown, cmap="PuOr", vmin=-0.5, vmax=0.5, aspect="auto")
    axes.axvspan(-0.5, i - 0.5, facecolor="#dddddd", hatch="////", edgecolor=GREY, linewidth=0)
    axes.axvspan(i - 0.5, i + 0.5, facecolor=BLUE)
    axes.set_title(f"blue: column {i}; hatched: done", fontsize=10.5, weight="normal")
    axes.set_xlabel("input channel")
    axes.set_yticks(range(0, rows, 2))
    axes.grid(visible=False)


def plot_sweep_step(
    weight: Tensor, inputs: InputStats, column: int, bits: int, damp: float
) -> Figure:
    """Above: how far the later columns have moved. Below: the output's error after each column.

    Args:
        weight: [out, in], float32 on the CPU; each row is one group.
        inputs: of these channels.
        column: the one whose turn it is, from 0.
        bits, damp: see `sweep`.
    """
    scale = find_params(weight, bits, sym=True)[0][:, None]
    states = list(sweep(weight, inputs.hessian, bits, damp))
    gptq, plain = (
        [100 * relative_error(weight, state[which], inputs) for state in states] for which in (0, 1)
    )
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(9.5, 5), sharex=True, layout="constrained")
    _draw_sweep(top, ((states[column][0] - weight) / scale).numpy(), column)
    top.set_xlabel("")
    top.set_ylabel("output")
    figure.colorbar(top.images[0], ax=top, label="moved so far\n(steps)")
    places = range(len(states))
    bottom.plot(places, plain, color=ORANGE, linestyle="--", label="plain rounding")
    bottom.plot(places, gptq, color=BLUE, label="GPTQ")
    bottom.axvline(column, color=INK, linestyle=":", linewidth=1.2)
    bottom.set_xlabel("input channel: all up to here are rounded")
    bottom.set_ylabel("error of the output (%)")
    bottom.set_ylim(bottom=0)
    bottom.legend(loc="upper left", fontsize=9)
    bottom.set_title(
        f"After column {column}: GPTQ {gptq[column]:.2f} %, plain rounding {plain[column]:.2f} %; "
        f"at the end {gptq[-1]:.2f} % and {plain[-1]:.2f} %",
        fontsize=11,
    )
    return figure


def sweep_explorer(weight: Tensor, inputs: InputStats) -> Explorer:
    """Sliders for `plot_sweep_step`, on a small weight [out, in] and its inputs."""
    weight = weight.detach().float().cpu()
    style = {"description_width": "initial"}
    return Explorer(
        lambda column, bits, damp: plot_sweep_step(weight, inputs, column, bits, damp),
        column=ipywidgets.IntSlider(0, 0, weight.shape[1] - 1, description="column", style=style),
        bits=ipywidgets.IntSlider(4, 2, 8, description="bits", style=style),
        damp=ipywidgets.Dropdown(
            options=(0.002, 0.05, 1.0, 100.0), value=0.05, description="damping", style=style
        ),
    )
