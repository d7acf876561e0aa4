"""The widget of notebook 13: what a prefix cache would find, and how long the first token takes."""

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


def plot_prediction(
    shared: int,
    own: int,
    block_size: int,
    tenants: int,
    cache_tokens: int,
    per_step: float,
    per_token: float,
    requests: int = 24,
) -> Figure:
    """What is found of the last of 24 requests of tenants that take turns, and what it saves.

    Args:
        shared: tokens of a tenant's system prompt.
        own: tokens of each message.
        block_size: tokens in a block.
        tenants: how many different system prompts there are.
        cache_tokens: size of the cache, in tokens.
        per_step, per_token: seconds of a step with one token, and of each further token.
        requests: how many there are in all.
    """
    prompts = tenant_prompts(tenants, requests, shared, own)
    num_blocks = cache_tokens // block_size
    needed = -(-(shared + own) // block_size)
    if num_blocks < needed:
        raise ValueError(f"One prompt needs {needed} blocks; the cache has {num_blocks}.")
    found = find_cached_tokens(prompts, block_size, num_blocks)
    rate = sum(found) / sum(map(len, prompts))
    hit = found[-1]
    figure, (blocks, times) = plt.subplots(
        2, 1, figsize=(9, 3.9), height_ratios=(1, 1.25), gridspec_kw={"hspace": 0.1}
    )
    for start in range(0, shared + own, block_size):
        end = min(start + block_size, shared + own)
        color = BLUE if end <= hit else ORANGE if end <= shared else _LIGHT
        blocks.barh([0], [end - start], left=start, color=color, edgecolor="white", height=0.7)
    blocks.plot([shared] * 2, [-0.45, 0.42], color=INK, linestyle="--", linewidth=1.4)
    blocks.set_yticks([])
    blocks.set_ylim(-0.45, 0.85)
    blocks.set_xlabel("tokens of the last prompt (dashed: where the shared part ends)")
    blocks.grid(visible=False)
    blocks.set_title(
        f"{hit} of {shared + own} tokens found; over all {requests} requests {rate:.0%}"
    )
    meanings = {"found": BLUE, "shared, computed again": ORANGE, "partly or wholly its own": _LIGHT}
    handles = [Patch(color=color, label=label) for label, color in meanings.items()]
    blocks.legend(handles=handles, ncols=3, loc="upper left")
    miss_ms, hit_ms = (
        1e3 * (per_step + (left - 1) * per_token) for left in (shared + own, shared + own - hit)
    )
    bars = times.barh(
        ["nothing found", "this request"], [miss_ms, hit_ms], color=[GREY, BLUE], height=0.6
    )
    times.bar_label(bars, [f" {miss_ms:.0f} ms", f" {hit_ms:.0f} ms, {miss_ms / hit_ms:.1f} x"])
    times.invert_yaxis()
    times.margins(x=0.15)
    times.grid(axis="y", visible=False)
    times.set_xlabel("time to first token, predicted (ms)")
    return figure


def hit_explorer(per_step: float, per_token: float) -> Explorer:
    """`plot_prediction` with a control for each of its choices; the times are this machine's."""

    def draw(shared: int, own: int, block_size: int, tenants: int, cache: int) -> Figure:
        return plot_prediction(shared, own, block_size, tenants, cache, per_step, per_token)

    return Explorer(
        draw,
        shared=ipywidgets.IntSlider(268, min=0, max=600, step=4, description="shared"),
        own=ipywidgets.IntSlider(80, min=1, max=300, description="own"),
        block_size=ipywidgets.Dropdown(
            options=[16, 32, 64, 128, 256], value=128, description="block size"
        ),
        tenants=ipywidgets.IntSlider(3, min=1, max=12, description="tenants"),
        cache=ipywidgets.SelectionSlider(
            options=[1024, 1536, 2048, 3072, 4096, 8192], value=2048, description="cache tokens"
        ),
    )
