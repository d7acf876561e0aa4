"""The widget of notebook 12: any weight of three 4-bit files, from the stored bits to its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from utils.pipeline.studies.stored_weights import (
    PROJECTIONS,
    StoredWeight,
    awq_weight,
    gguf_weight,
    gptq_weight,
    read_tensor,
)
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE

PALE = "#e8eef7"
Reader = Callable[[int, str, int, int], StoredWeight]


KINDS = (
    "embedding",
    "linear, 16 bits",
    "codes",
    "scales",
    "zeros",
    "g_idx",
    "norms",
    "tokenizer, config",
)
_TONES = (GREY, "#c9c9c9", BLUE, ORANGE, "#f3c98b", INK, INK, "#a9c6ea")
_HATCHES = ("", "", "", "////", "....", "", "", "xx")


def plot_bytes(files: Mapping[str, Mapping[str, int]]) -> Figure:
    """What the bytes of each file are spent on.

    Args:
        files: name -> kind of content, of `KINDS` -> bytes. The first is the 16-bit model.
    """
    figure, axes = plt.subplots(figsize=(9.5, 3.4))
    for place, parts in enumerate(files.values()):
        left = 0.0
        for kind, tone, hatch in zip(KINDS, _TONES, _HATCHES, strict=True):
            size = parts.get(kind, 0) / 1e6
            axes.barh(
                place,
                size,
                0.62,
                left=left,
                color=tone,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.4,
            )
            if size > 0.1 * sum(next(iter(files.values())).values()) / 1e6:
                ink = INK if tone in ("#c9c9c9", "#a9c6ea") else "white"
                axes.text(
                    left + size / 2,
                    place,
                    f"{kind}\n{size:.0f}",
                    ha="center",
                    va="center",
                    color=ink,
                    fontsize=9,
                )
            left += size
        axes.text(left, place, f"  {left:.0f} MB", va="center", fontsize=9.5)
    axes.set_yticks(range(len(files)), list(files))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.12 * max(sum(parts.values()) for parts in files.values()) / 1e6)
    axes.set_xlabel("megabytes on disk")
    small = files["GPTQ"]
    axes.set_title(
        f"In the GPTQ file, the 16-bit embedding takes "
        f"{small['embedding'] / sum(small.values()):.0%} of the bytes"
    )
    shown = {kind for parts in files.values() for kind in parts}
    handles = [
        Patch(facecolor=tone, hatch=hatch, edgecolor="white", label=kind)
        for kind, tone, hatch in zip(KINDS, _TONES, _HATCHES, strict=True)
        if kind in shown and kind != "norms"  # too thin to be seen
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=9)
    return figure


def plot_stored_weight(
    stored: StoredWeight, title: str, before: Tensor | None = None, label: str = "in 16 bits"
) -> Figure:
    """Above: the integer's bits, code by code. Below: the group that shares the scale.

    Args:
        stored: the weight.
        title: which one it is.
        before: the group's weights in 16 bits, where they can be compared.
        label: what `before` is.
    """
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(9.5, 4.9), gridspec_kw={"height_ratios": (1, 1.9)}
    )
    _draw_word(top, stored)
    top.set_title(f"{title}: code {stored.codes[stored.place]}", fontsize=11)
    places = range(len(stored.group))
    levels = sorted(set(stored.group.tolist()))
    for level in levels:
        bottom.axhline(level, color="#dddddd", linewidth=0.9, zorder=0)
    if before is not None:
        bottom.plot(places, before.float(), "o", color=BLUE, markersize=5, label=label)
    bottom.plot(
        places, stored.group, "_", color=INK, markersize=10, markeredgewidth=2.2, label="read back"
    )
    bottom.plot(
        stored.group_place,
        stored.value,
        "s",
        markersize=12,
        markerfacecolor="none",
        markeredgecolor=ORANGE,
        markeredgewidth=2.2,
        label="this weight",
    )
    bottom.grid(visible=False)
    bottom.set_xlabel("weight of the group, by input")
    bottom.set_ylabel("value")
    bottom.set_title(f"{stored.formula}     the group uses {len(levels)} of 16 levels", fontsize=11)
    figure.legend(
        *bottom.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9.5
    )
    return figure


def _draw_word(axes: Axes, stored: StoredWeight) -> None:
    """The highest bits left, as one writes numbers."""
    count = len(stored.codes)
    for i, (code, owner) in enumerate(zip(stored.codes, stored.owners, strict=True)):
        x, picked = count - 1 - i, i == stored.place
        axes.add_patch(
            Rectangle(
                (x, 0), 1, 1, facecolor=ORANGE if picked else PALE, edgecolor=INK, linewidth=1.2
            )
        )
        weight = "bold" if picked else "normal"
        axes.text(
            x + 0.5,
            0.64,
            f"{code:04b}",
            ha="center",
            va="center",
            family="monospace",
            fontsize=11.5,
            weight=weight,
        )
        axes.text(x + 0.5, 0.27, str(code), ha="center", va="center", weight=weight)
        axes.text(x + 0.5, -0.12, owner, ha="center", va="top", fontsize=9, color=INK)
    digits = stored.bits // 4
    axes.text(
        -0.15,
        0.5,
        f"0x{stored.word:0{digits}x}",
        ha="right",
        va="center",
        family="monospace",
        fontsize=11,
        color=GREY,
    )
    axes.set_xlim(-1.7, 8.1)  # an int32 and a byte in one scale
    axes.set_ylim(-0.45, 1.05)
    axes.axis("off")


def before_gptq(merged: Path, layer: int, name: str, row: int) -> Tensor:
    """The row of the merged model's weight."""
    return read_tensor(merged, f"model.layers.{layer}.{name}.weight")[row].float()


def before_awq(merged: Path, awq: Path, layer: int, name: str, row: int) -> Tensor | None:
    """The row times AWQ's scales, which the norm before it gives away; None where that is not so.

    `up_proj` and `v_proj` have the same kind of input, but their rows may be divided by the scales
    of the layer after them.
    """
    if name != "mlp.gate_proj":
        return None
    norm = f"model.layers.{layer}.post_attention_layernorm.weight"
    scales = read_tensor(merged, norm).float() / read_tensor(awq, norm).float()
    return before_gptq(merged, layer, name, row) * scales


def checkpoint_explorer(
    merged: Path, gptq: Path, awq: Path, reader: Any, base: Path | None = None
) -> Explorer:
    """Choose a file and a weight; see its bits, its code, and how the value comes about.

    Args:
        merged: folder of the 16-bit model that was quantized.
        gptq, awq: folders of its 4-bit checkpoints.
        reader: a `gguf.GGUFReader` of a file with Q4_1 layers.
        base: folder of that file's model in 16 bits, if there is one.
    """
    readers: dict[str, Reader] = {
        "GPTQ": partial(gptq_weight, gptq),
        "AWQ": partial(awq_weight, awq),
        "GGUF (Q4_1)": partial(gguf_weight, reader),
    }

    def before(file: str, layer: int, name: str, row: int) -> Tensor | None:
        if file == "GPTQ":
            return before_gptq(merged, layer, name, row)
        if file == "AWQ":
            return before_awq(merged, awq, layer, name, row)
        return before_gptq(base, layer, name, row) if base else None

    def draw(file: str, layer: int, tensor: str, output: int, input: int) -> Figure:
        stored = readers[file](layer, tensor, output, input)
        title = f"{file}, layer {layer}, {tensor}, output {output}, input {input}"
        whole = before(file, layer, tensor, output)
        size = len(stored.group)
        start = input // size * size  # groups are neighbours in all of these files
        part = whole[start : start + size] if whole is not None else None
        label = "in 16 bits, times AWQ's scale" if file == "AWQ" else "in 16 bits"
        return plot_stored_weight(stored, title, part, label)

    style = {"description_width": "initial"}
    return Explorer(
        draw,
        file=ipywidgets.Dropdown(options=list(readers), description="file", style=style),
        layer=ipywidgets.BoundedIntText(0, 0, 200, description="layer", style=style),
        tensor=ipywidgets.Dropdown(
            options=list(PROJECTIONS), value="mlp.gate_proj", description="tensor", style=style
        ),
        output=ipywidgets.BoundedIntText(5, 0, 10**6, description="output", style=style),
        input=ipywidgets.BoundedIntText(9, 0, 10**6, description="input", style=style),
    )
