"""The moving picture of the home page: the engine at work, drawn from a real run, step by step.

Run it in the course's environment: `.venv/bin/python site/moving_picture.py`. It writes
notebooks/images/engine.webp, the first picture of the README, and in lesson 00, too, and its middle
as engine.png for those who want no motion.
"""

from __future__ import annotations

import io
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from utils.engine import LLM, SamplingParams  # noqa: E402
from utils.engine.llm_engine import LLMEngine  # noqa: E402
from utils.viz.style import BLUE, GREEN, GREY, INK, ORANGE, RED  # noqa: E402

SYSTEM = (
    "You answer questions of children about the world. You use short words and short sentences. "
    "You answer in one sentence, and you stop after it. You never ask a question back. If you do "
    "not know an answer, you say so."
)
# (the step at which it arrives, what it asks)
QUESTIONS = (
    (0, "Why is the sky blue?"),
    (0, "What is the moon?"),
    (3, "Where do penguins live?"),
    (9, "Why do we sleep?"),
    (16, "What do bees make?"),
)
COLORS = (BLUE, ORANGE, GREEN, RED, "#7a5ba6")
NUM_BLOCKS, COLUMNS, MAX_SEQS, MAX_TOKENS = 20, 5, 3, 26
MS_PER_STEP = 500


@dataclass
class Moment:
    """What is drawn of one step: texts and states by request, owners by block."""

    texts: dict[str, str]
    states: dict[str, str]
    owners: dict[int, list[int]]
    kept: set[int]
    num_tokens: int


def run() -> list[Moment]:
    """The requests through the engine; one moment for each step."""
    llm = LLM(
        device="cpu",
        max_model_len=128,
        max_num_seqs=MAX_SEQS,
        num_gpu_blocks_override=NUM_BLOCKS + 1,
    )
    engine, names = llm.llm_engine, [question for _, question in QUESTIONS]
    engine.step_trace = []
    moments: list[Moment] = []
    while len(moments) <= QUESTIONS[-1][0] or engine.has_unfinished_requests():
        for arrival, name in QUESTIONS:
            if arrival == len(moments):
                messages = [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": name},
                ]
                prompt = llm.get_tokenizer().apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=False
                )
                engine.add_request(
                    name, prompt, SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
                )
        answers = {o.request_id: o for o in engine.step()}
        moments.append(_moment(engine, names, answers, moments[-1] if moments else None))
    return moments


def _moment(
    engine: LLMEngine, names: list[str], answers: dict[str, object], before: Moment | None
) -> Moment:
    texts = dict(before.texts) if before else {}
    states, owners = {}, {}
    waiting = {request.request_id for request in engine.scheduler.waiting}
    for number, name in enumerate(names):
        if name in answers:
            texts[name] = answers[name].outputs[0].text  # type: ignore[attr-defined]
        running = name in answers and not answers[name].finished  # type: ignore[attr-defined]
        states[name] = (
            "running" if running else "waiting" if name in waiting else _end(name, answers, before)
        )
        if running:
            for block in engine.kv_cache_manager.get_block_ids(name):
                owners.setdefault(block, []).append(number)
    pool = engine.kv_cache_manager.block_pool
    kept = {b.block_id for b in pool.blocks if b.block_hash is not None and b.ref_cnt == 0}
    num_tokens = sum(tokens.num_new for tokens in engine.step_trace[-1].tokens.values())
    return Moment(texts, states, owners, kept, num_tokens)


def _end(name: str, answers: dict[str, object], before: Moment | None) -> str:
    """How a request ended, in this step or in one before it."""
    if name not in answers:
        return before.states[name] if before else ""
    cut = answers[name].outputs[0].finish_reason == "length"  # type: ignore[attr-defined]
    return f"stopped at {MAX_TOKENS} tokens" if cut else "done"


def draw(moment: Moment, step: int) -> Figure:
    figure = plt.figure(figsize=(9, 5), dpi=100, facecolor="white")
    left, right = (
        figure.add_axes((0.02, 0.04, 0.58, 0.84)),
        figure.add_axes((0.64, 0.14, 0.33, 0.68)),
    )
    words = "1 token" if moment.num_tokens == 1 else f"{moment.num_tokens} tokens"
    title = f"Step {step + 1}: {words} in one pass of the model"
    figure.text(0.02, 0.93, title, color=INK, size=15, weight="bold")
    _draw_requests(left, moment)
    _draw_pool(right, moment)
    labels = [
        Patch(facecolor=INK, label="shared by several"),
        Patch(facecolor="white", edgecolor=GREY, hatch="////", label="free, notes kept"),
        Patch(facecolor="white", edgecolor=GREY, label="free"),
    ]
    figure.legend(
        handles=labels,
        loc="lower right",
        bbox_to_anchor=(0.99, 0.02),
        ncols=3,
        frameon=False,
        fontsize=9.5,
    )
    return figure


def _draw_requests(ax: Axes, moment: Moment) -> None:
    ax.set_xlim(0, 1)
    ax.set_ylim(len(QUESTIONS), 0)
    ax.axis("off")
    for row, (_, name) in enumerate(QUESTIONS):
        state = moment.states[name]
        if not state:
            continue
        faded = GREY if state == "waiting" else INK
        ax.add_patch(
            Rectangle(
                (0, row + 0.1),
                0.016,
                0.78,
                color=COLORS[row],
                alpha=0.25 if state == "waiting" else 1,
            )
        )
        ax.text(0.04, row + 0.22, name, size=11.5, weight="bold", color=faded, va="center")
        ax.text(0.99, row + 0.22, state, size=11, color=faded, va="center", ha="right")
        text = " ".join(moment.texts.get(name, "").split())
        for line, words in enumerate(textwrap.wrap(text, 66)[:2]):
            ax.text(0.04, row + 0.5 + 0.24 * line, words, size=10, color=INK, va="center")


def _draw_pool(ax: Axes, moment: Moment) -> None:
    ax.set_xlim(0, COLUMNS)
    ax.set_ylim(NUM_BLOCKS // COLUMNS, 0)
    ax.set_aspect("equal")
    ax.axis("off")
    ax.set_title(
        f"{NUM_BLOCKS} blocks of KV cache, 16 tokens each", size=11.5, loc="left", color=INK
    )
    for index in range(NUM_BLOCKS):
        block, (y, x) = index + 1, divmod(index, COLUMNS)  # block 0 is never given out
        held = moment.owners.get(block, [])
        color = INK if len(held) > 1 else COLORS[held[0]] if held else "white"
        kept = block in moment.kept
        ax.add_patch(
            Rectangle(
                (x + 0.07, y + 0.07),
                0.86,
                0.86,
                facecolor=color,
                edgecolor=GREY,
                linewidth=0.8,
                hatch="////" if kept else None,
            )
        )
        if len(held) > 1:
            ax.text(
                x + 0.5,
                y + 0.52,
                str(len(held)),
                color="white",
                size=11,
                weight="bold",
                ha="center",
                va="center",
            )


def picture(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    plt.close(figure)
    return Image.open(buffer).convert("RGB")


def main() -> None:
    moments = run()
    frames = [picture(draw(moment, step)) for step, moment in enumerate(moments)]
    durations = [MS_PER_STEP] * (len(frames) - 1) + [6 * MS_PER_STEP]
    images = HERE.parent / "notebooks" / "images"
    frames[0].save(
        images / "engine.webp",
        save_all=True,
        append_images=frames[1:],
        duration=durations,
        loop=0,
        lossless=False,
        quality=70,
        method=6,
    )
    busiest = max(range(len(moments)), key=lambda i: len(moments[i].owners))
    frames[busiest].quantize(64).save(images / "engine.png", optimize=True)
    size = (images / "engine.webp").stat().st_size
    print(f"{len(frames)} steps, {size / 1e3:.0f} KB")


if __name__ == "__main__":
    main()
