"""The widget of notebook 13: what a prefix cache finds of requests with shared instructions."""

from __future__ import annotations

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from utils.sim.prompt_cache import find_cached_tokens
from utils.viz.explore import Explorer
from utils.viz.style import BLUE, GREY, INK, ORANGE

_LIGHT = "#f6d5a8"


def tenant_prompts(tenants: int, requests: int, shared: int, own: int) -> list[list[int]]:
    """Prompts of tenants that take turns: each has `shared` tokens of its own system prompt."""
    return [
        [1000 * (number % tenants) + i for i in range(shared)]
        + [1_000_000 + 1000 * number + i for i in range(own)]
        for number in range(requests)
    ]


def plot_hits(
    shared: int, own: int, block_size: int, tenants: int, cache_tokens: int, requests: int = 24
) -> Figure:
    """What is found of the last of 24 requests, block by block, and of each request.

    Args:
        shared: tokens of a tenant's system prompt.
        own: tokens of each message.
        block_size: tokens in a block.
        tenants: how many different system prompts there are; their requests take turns.
        cache_tokens: size of the cache, in tokens.
        requests: how many there are in all.

    Raises:
        ValueError: one prompt needs more blocks than the cache has.
    """
    num_blocks = cache_tokens // block_size
    needed = -(-(shared + own) // block_size)
    if num_blocks < needed:
        raise ValueError(f"One prompt needs {needed} blocks; the cache has {num_blocks}.")
    prompts = tenant_prompts(tenants, requests, shared, own)
    found = find_cached_tokens(prompts, block_size, num_blocks)
    rate = sum(found) / sum(map(len, prompts))
    figure, (blocks, each) = plt.subplots(
        2, 1, figsize=(9, 4.2), height_ratios=(1, 1.25), gridspec_kw={"hspace": 0.1}
    )
    _draw_last(blocks, shared, own, block_size, found[-1])
    blocks.set_title(
        f"{found[-1]} of {shared + own} tokens found; over all {requests} requests {rate:.0%}"
    )
    numbers = range(1, requests + 1)
    each.bar(numbers, [shared + own] * requests, color=GREY, alpha=0.35, label="computed")
    each.bar(numbers, found, color=BLUE, label="found")
    each.axhline(shared, color=INK, linestyle="--", linewidth=1.4)
    each.set_xlabel("request, in the order of arrival (dashed: tokens that are shared)")
    each.set_ylabel("tokens")
    each.set_xlim(0.3, requests + 0.7)
    each.set_ylim(0, 1.4 * (shared + own))
    each.legend(loc="upper left", ncols=2)
    each.grid(axis="x", visible=False)
    return figure


def _draw_last(axes: plt.Axes, shared: int, own: int, block_size: int, hit: int) -> None:
    for start in range(0, shared + own, block_size):
        end = min(start + block_size, shared + own)
        color = BLUE if end <= hit else ORANGE if end <= shared else _LIGHT
        axes.barh([0], [end - start], left=start, color=color, edgecolor="white", height=0.7)
    axes.plot([shared] * 2, [-0.45, 0.42], color=INK, linestyle="--", linewidth=1.4)
    axes.set_yticks([])
    axes.set_ylim(-0.45, 0.85)
    axes.set_xlabel("tokens of the last prompt (dashed: where the shared part ends)")
    axes.grid(visible=False)
    meanings = {"found": BLUE, "shared, computed again": ORANGE, "has tokens of its own": _LIGHT}
    handles = [Patch(color=color, label=label) for label, color in meanings.items()]
    axes.legend(handles=handles, ncols=3, loc="upper left")


def hit_explorer() -> Explorer:
    """`plot_hits` with a control for each of its choices. No model runs."""
    return Explorer(
        plot_hits,
        shared=ipywidgets.IntSlider(268, min=0, max=600, step=4, description="shared"),
        own=ipywidgets.IntSlider(80, min=1, max=300, description="own"),
        block_size=ipywidgets.Dropdown(
            options=[16, 32, 64, 128, 256], value=128, description="block size"
        ),
        tenants=ipywidgets.IntSlider(3, min=1, max=12, description="tenants"),
        cache_tokens=ipywidgets.SelectionSlider(
            options=[1024, 1536, 2048, 3072, 4096, 8192], value=2048, description="cache tokens"
        ),
    )
