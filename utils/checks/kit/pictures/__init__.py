"""The pictures of the checks. Plain matplotlib figures, without pyplot's global state."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor


def attention_maps(expected: Tensor, yours: Tensor, num_kv_heads: int) -> Figure:
    """Attention weights [H, T_q, T_k] of both, one column per query head."""
    heads, rows, columns = expected.shape
    group = heads // num_kv_heads
    figure = Figure(figsize=(2.1 * heads + 0.6, 4.2))
    axes = figure.subplots(2, heads, squeeze=False)
    for row, (name, weights) in enumerate((("expected", expected), ("yours", yours))):
        for head in range(heads):
            ax = axes[row][head]
            ax.imshow(weights[head].numpy(), cmap="Blues", vmin=0, vmax=1)
            for i in range(rows):
                for j in range(columns):
                    weight = float(weights[head, i, j])
                    colour = "white" if weight > 0.6 else "black"
                    ax.text(j, i, f"{weight:.2f}", ha="center", va="center", color=colour, size=7)
            kv = f"\n(KV head {head // group})" if row == 0 else ""
            ax.set_title(f"{name}: head {head}{kv}", size=9)
            ax.set_xticks(range(columns))
            ax.set_yticks(range(rows), [str(columns - rows + i) for i in range(rows)])
            ax.set_xlabel("key position", size=8)
            ax.set_ylabel("query position", size=8)
            ax.tick_params(labelsize=7)
    figure.suptitle("Who attends to whom", size=11)
    figure.tight_layout()
    return figure


def bars(expected: Tensor, yours: Tensor, xlabel: str, ylabel: str, title: str) -> Figure:
    """Two rows of bars over the same indices."""
    figure = Figure(figsize=(6.4, 2.8))
    ax = figure.subplots()
    positions = range(len(expected))
    ax.bar([p - 0.2 for p in positions], expected.tolist(), 0.4, label="expected", color="#1f5fa8")
    ax.bar(
        [p + 0.2 for p in positions],
        yours.tolist(),
        0.4,
        label="yours",
        color="#f2a65a",
        hatch="//",
        edgecolor="#7a4a12",
    )
    ax.set_xticks(list(positions))
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.set_title(title, size=11)
    ax.legend()
    return figure


def rotation(before: Tensor, expected: Tensor, yours: Tensor) -> Figure:
    """Pairs (x[i], x[i + D/2]) of one head as arrows in the plane: [T, D/2, 2] each."""
    tokens, pairs = before.shape[:2]
    figure = Figure(figsize=(3.0 * pairs + 0.8, 2.9 * tokens + 0.8), layout="constrained")
    axes = figure.subplots(tokens, pairs, squeeze=False)
    limit = 1.15 * float(max(before.norm(dim=-1).max(), yours.norm(dim=-1).max()))
    for token in range(tokens):
        for pair in range(pairs):
            ax = axes[token][pair]
            for tensor, colour, style, name in (
                (before, "#a0a0a0", ":", "before"),
                (expected, "#1f5fa8", "-", "expected"),
                (yours, "#d9622b", "--", "yours"),
            ):
                x, y = tensor[token, pair].tolist()
                ax.plot([0, x], [0, y], style, color=colour, marker="o", markevery=[1], label=name)
            ax.set_xlim(-limit, limit)
            ax.set_ylim(-limit, limit)
            ax.set_aspect("equal")
            ax.set_title(f"token {token}, pair {pair}", size=9)
            ax.set_xlabel("number in the first half", size=8)
            ax.set_ylabel("number in the second half", size=8)
            ax.tick_params(labelsize=7)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle("RoPE turns each pair by an angle, and keeps its length", size=11)
    return figure


def cache_rows(
    expected: Sequence[Sequence[str]], yours: Sequence[Sequence[str]], names: Sequence[str]
) -> Figure:
    """Which token lies in which slot, as labelled cells: expected above, yours below."""
    width = max([len(row) for row in (*expected, *yours)] + [1])
    figure = Figure(figsize=(0.7 * width + 2.6, 0.75 * 2 * len(names) + 0.9))
    ax = figure.subplots()
    labels = []
    y = 0
    for name, want, have in zip(names, expected, yours, strict=True):
        for kind, row in (("expected", want), ("yours", have)):
            for x, token in enumerate(row):
                right = kind == "expected" or (x < len(want) and want[x] == token)
                colour = "#cfe0f3" if right else "#f6c9a8"
                box = dict(facecolor=colour, edgecolor="black", boxstyle="square,pad=0.35")
                ax.text(x, -y, token, ha="center", va="center", size=8, bbox=box)
            if not row:
                ax.text(0, -y, "(empty)", ha="center", va="center", size=8)
            labels.append(f"{name}, {kind}")
            y += 1
    ax.set_xlim(-0.7, width - 0.3)
    ax.set_ylim(-y + 0.3, 0.7)
    ax.set_yticks([-i for i in range(y)], labels)
    ax.set_xticks(range(width))
    ax.set_xlabel("slot")
    ax.set_title("What append returns: one cell per token", size=11)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    return figure
