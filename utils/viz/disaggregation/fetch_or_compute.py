"""The widget of notebook 16: is it quicker to fetch a prefix, or to compute it again?"""

from __future__ import annotations

from dataclasses import dataclass

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.viz.explore import Explorer
from utils.viz.style import BLUE, INK, ORANGE


@dataclass(frozen=True)
class Shape:
    """Of a model, as far as the cost of a prefix depends on it.

    Args:
        layers, hidden: `num_hidden_layers`, `hidden_size`.
        group: query heads that share a KV head.
        itemsize: bytes of a number in the cache.
        product: operations of a token's matrix products in a layer, divided by `hidden` squared.
    """

    layers: int
    hidden: int
    group: int
    itemsize: int = 2
    product: float = 22.0

    @property
    def kv_bytes(self) -> float:
        """Bytes of a token's keys and values."""
        return 2 * self.layers * self.hidden / self.group * self.itemsize

    def operations(self, tokens: float) -> float:
        """Of computing a prefix of so many tokens. Mooncake, FAST'25, section 2, equation 1."""
        attention = 4 * self.hidden * tokens**2
        return self.layers * (attention + self.product * self.hidden**2 * tokens)


# Attention and matrix products as in the paper, 22 for all: it differs a little between models.
MODELS = {
    "SmolLM2-135M": Shape(30, 576, 3),
    "LLaMA-3 8B": Shape(32, 4096, 4),
    "LLaMA-3 70B": Shape(80, 8192, 8),
    "OPT-13B (no sharing of heads)": Shape(40, 5120, 1),
}
# Operations per second in 16 bits, by data sheet.
MACHINES = {
    "8 x A800": 8 * 312e12,
    "8 x H800": 8 * 989e12,
    "1 x A100": 312e12,
    "1 x L4": 121e12,
    "2 cores, 0.1 TFLOP/s": 0.1e12,
}
# Bytes per second.
LINKS = {
    "Ethernet, 10 Gbit/s": 1.25e9,
    "SSD": 5e9,
    "Ethernet with RDMA, 100 Gbit/s": 12.5e9,
    "InfiniBand, 400 Gbit/s": 50e9,
    "8 network cards of 200 Gbit/s": 200e9,
}


def smallest_bandwidth(shape: Shape, operations_per_second: float, prefix: float) -> float:
    """Bytes per second from which on fetching a prefix is quicker than computing it.

    Mooncake, FAST'25, section 2, equation 2.
    """
    seconds = shape.operations(prefix) / operations_per_second
    return prefix * shape.kv_bytes / seconds


def plot_choice(model: str, machine: str, link: str, share: float, efficiency: float) -> Figure:
    """Seconds to fetch, and to compute, against the length of the prefix.

    Args:
        model, machine, link: names in `MODELS`, `MACHINES`, `LINKS`.
        share: of the link's bandwidth that one request gets, from 0 to 1.
        efficiency: of the machine's operations per second that a prefill gets, from 0 to 1.
    """
    shape, speed = MODELS[model], MACHINES[machine] * efficiency
    bandwidth = LINKS[link] * share
    prefixes = np.geomspace(128, 131072, 60)
    compute = shape.operations(prefixes) / speed  # type: ignore[arg-type]
    fetch = prefixes * shape.kv_bytes / bandwidth
    figure, axes = plt.subplots(figsize=(8, 3.9))
    axes.plot(prefixes, compute, color=ORANGE, linestyle="--", label="compute again")
    axes.plot(prefixes, fetch, color=BLUE, label="fetch")
    axes.fill_between(
        prefixes,
        fetch,
        compute,
        where=fetch < compute,
        color=BLUE,
        alpha=0.12,
        label="saved by fetching",
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens of the prefix")
    axes.set_ylabel("seconds")
    needed = smallest_bandwidth(shape, speed, 8192)
    factor = (compute / fetch)[np.argmin(np.abs(prefixes - 8192))]
    wins = (
        f"fetching is {factor:.1f} times as fast"
        if factor > 1
        else (f"computing is {1 / factor:.1f} times as fast")
    )
    axes.set_title(f"8,192 tokens: {wins}; break-even at {needed / 1e9:.3g} GB/s")
    axes.axvline(8192, color=INK, linestyle=":", linewidth=1.2)
    axes.legend(loc="upper left")
    return figure


def fetch_explorer() -> Explorer:
    """`plot_choice` with a control for each of its choices."""
    return Explorer(
        plot_choice,
        model=ipywidgets.Dropdown(options=list(MODELS), value="LLaMA-3 70B", description="model"),
        machine=ipywidgets.Dropdown(
            options=list(MACHINES), value="8 x A800", description="machine"
        ),
        link=ipywidgets.Dropdown(
            options=list(LINKS), value="Ethernet with RDMA, 100 Gbit/s", description="link"
        ),
        share=ipywidgets.FloatSlider(1.0, min=0.05, max=1.0, step=0.05, description="link share"),
        efficiency=ipywidgets.FloatSlider(
            1.0, min=0.1, max=1.0, step=0.05, description="efficiency"
        ),
    )
