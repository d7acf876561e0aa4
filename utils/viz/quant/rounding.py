"""The widget of notebook 09: bits, group size and outliers against the error of rounding."""

from __future__ import annotations

import ipywidgets
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.quant import quantize_nf4, rtn
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE

SHOWN = 64  # weights drawn one by one
GRIDS = ("asymmetric", "symmetric", "NF4")


def read_back(weight: Tensor, bits: int, group_size: int, grid: str) -> tuple[Tensor, float]:
    """Quantize a weight [out, in]; return what it is read back as, and bits per weight.

    NF4 has 4 bits, whatever `bits` says.
    """
    if grid == "NF4":
        nf4 = quantize_nf4(weight, blocksize=group_size)
        return nf4.dequantize(), nf4.bits_per_weight
    quantized = rtn(weight, bits=bits, group_size=group_size, sym=grid == "symmetric")
    return quantized.dequantize(), quantized.bits_per_weight


def plot_rounding(weight: Tensor, bits: int, group_size: int, outlier: int, grid: str) -> Figure:
    """One row of weights and what it is read back as; its error, group by group.

    Args:
        weight: [out, in]; the first row is drawn.
        bits, group_size, grid: see `read_back`.
        outlier: the weight of channel 9 is set to so many standard deviations of its row; 0: as
            it is.
    """
    weight = weight.detach().float().cpu().clone()
    if outlier:
        weight[0, 9] = outlier * weight[0].std()
    after, cost = read_back(weight, bits, group_size, grid)
    row, rounded = weight[0], after[0]
    groups = (rounded - row).square().unflatten(0, (-1, group_size)).mean(1)
    shares = 100 * groups / groups.sum()
    same_group = torch.arange(len(row)) < group_size  # of weight 9, without itself
    same_group[9] = False
    pair = float((rounded - row)[same_group].square().sum() / row[same_group].square().sum())

    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(9.5, 5.2), gridspec_kw={"height_ratios": (2, 1.1)}
    )
    places = torch.arange(SHOWN)
    top.vlines(places, row[:SHOWN], rounded[:SHOWN], color=GREY, linewidth=1.2)
    top.plot(places, row[:SHOWN], "o", color=BLUE, markersize=5, label="weight")
    top.plot(
        places,
        rounded[:SHOWN],
        "_",
        color=ORANGE,
        markersize=9,
        markeredgewidth=2.4,
        label="read back",
    )
    for edge in range(group_size, SHOWN, group_size):
        top.axvline(edge - 0.5, color=INK, linestyle=":", linewidth=1.2)
    usual = float(row[:SHOWN].abs().sort().values[-2])  # the largest but one
    if outlier and abs(row[9]) > 2 * usual:  # beyond the axis, or the others would be a line
        top.set_ylim(-2 * usual, 2.6 * usual)
        top.annotate(
            f"{row[9]:.2f}, read back as {rounded[9]:.2f}",
            (9, 2.5 * usual),
            (12, 2.1 * usual),
            arrowprops={"arrowstyle": "->", "color": INK},
            fontsize=9.5,
        )
    top.set_ylabel("weight")
    top.set_xlabel(f"input channel (the first {SHOWN} of {len(row)})")
    top.legend(loc="upper right", ncols=2, fontsize=9)
    top.set_title(
        f"{cost:.2f} bits per weight; squared error of the other {int(same_group.sum())} weights "
        f"in channel 9's group: {100 * pair:.1f} %",
        fontsize=11,
    )
    bottom.bar(range(len(shares)), shares, color=BLUE, width=0.8)
    bottom.set_xlabel(f"number of the group ({group_size} weights each)")
    bottom.set_xticks(range(0, len(shares), max(1, len(shares) // 9)))
    bottom.set_ylabel("share of this\nrow's error (%)")
    bottom.grid(axis="x", visible=False)
    return figure


def rounding_explorer(weight: Tensor) -> Explorer:
    """Sliders for `plot_rounding` on a real weight [out, in]."""
    width = weight.shape[1]
    sizes = sorted({width, *(g for g in (16, 32, 64, 128, 192) if width % g == 0)})
    style = {"description_width": "initial"}
    return Explorer(
        lambda bits, group_size, outlier, grid: plot_rounding(
            weight, bits, group_size, outlier, grid
        ),
        bits=ipywidgets.IntSlider(4, 2, 8, description="bits", style=style),
        group_size=ipywidgets.Dropdown(
            options=sizes, value=64, description="group size", style=style
        ),
        outlier=ipywidgets.IntSlider(
            0, 0, 60, step=5, description="outlier (standard deviations; 0: as it is)", style=style
        ),
        grid=ipywidgets.Dropdown(options=GRIDS, value=GRIDS[0], description="grid", style=style),
    )
