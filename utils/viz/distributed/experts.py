"""How evenly a router deals tokens out to experts, and to the ranks that hold them."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE


def imbalance(num_routed: Tensor, num_ranks: int) -> Tensor:
    """The busiest rank's rows, in multiples of its equal share, of each layer.

    Args:
        num_routed: [layers, experts] rows that went to each expert.
        num_ranks: among how many the experts are dealt out, in order.
    """
    layers, experts = num_routed.shape
    if experts % num_ranks:
        raise ValueError(f"{experts} experts cannot be divided among {num_ranks} ranks.")
    by_rank = num_routed.view(layers, num_ranks, -1).sum(-1).double()
    return by_rank.max(-1).values / by_rank.mean(-1)


def plot_experts(num_routed: Tensor, num_ranks: int, layer: int = 0) -> Figure:
    """Left: rows of each expert in one layer. Right: how much busier the busiest rank is, by layer.

    Args:
        num_routed: [layers, experts] rows that went to each expert.
        num_ranks: among how many the experts are dealt out, in order.
        layer: which one is shown on the left.
    """
    factors = imbalance(num_routed, num_ranks)
    counts = num_routed[layer].tolist()
    per_rank = len(counts) // num_ranks
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), width_ratios=(1, 1.2))
    colors = [(BLUE, ORANGE, GREEN, GREY)[(i // per_rank) % 4] for i in range(len(counts))]
    left.bar(range(len(counts)), counts, color=colors, edgecolor="white")
    equal = left.axhline(sum(counts) / len(counts), color=INK, linestyle="--", linewidth=1.4)
    left.set_xlabel("expert")
    left.set_ylabel("rows received")
    left.set_xticks(range(len(counts)))
    left.set_title(
        f"Layer {layer}: the busiest rank gets\n{float(factors[layer]):.2f} x its equal share",
        fontsize=11,
    )
    left.grid(axis="x", visible=False)
    handles = [
        Patch(color=(BLUE, ORANGE, GREEN, GREY)[rank % 4], label=f"rank {rank}")
        for rank in range(min(num_ranks, 4))
    ]
    equal.set_label("equal shares")
    left.legend(handles=[*handles, equal], fontsize=9.5)
    right.plot(range(len(factors)), factors.tolist(), "o", color=BLUE)
    right.axhline(1, color=INK, linestyle="--", linewidth=1.4, label="equal shares")
    right.legend(fontsize=9.5)
    right.set_xlabel("layer")
    right.set_ylabel("busiest rank / equal share")
    right.set_xlim(-0.5, len(factors) - 0.5)
    right.set_ylim(0.95, max(1.2, 1.15 * float(factors.max())))
    right.grid(axis="x", visible=False)
    average = float(factors.mean())
    right.set_title(
        f"All layers: the busiest rank gets\n{average:.2f} x its equal share on average",
        fontsize=11,
    )
    return figure
