"""Six merges of the real model, all of which write good English: exercise 7."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.faults import Raised, attempt
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.runner import Mismatch, Passed
from utils.checks.lab_11.adapters import Config, Tensors, by_expression, scale_of
from utils.checks.lab_11.real_files import PATIENCE, read_adapter, read_base, real_adapter
from utils.hub import load_hf_model, load_tokenizer, resolve_model

PROMPT, TOKENS = "Once upon a time, there was a", 6
BLOCKS = ("model.layers.0.", "model.layers.1.")  # which the learner's check is given
ONE, PLACE = "model.layers.1.mlp.down_proj.weight", (3, 5)  # the one number that is wrong
RIGHT = "all is right"


@functools.cache
def scene() -> tuple[Config, Tensors, Tensors]:
    """config, tensors and base: peft's adapter, and the real model in float32."""
    config, tensors = read_adapter(Path(real_adapter()[0].name))
    base = read_base(resolve_model("bundled"))
    return config, tensors, {name: weight.float() for name, weight in base.items()}


def merged(base: Tensors, times: float = 1.0) -> Tensors:
    """All weights, float32, the update added so many times."""
    config, tensors, _ = scene()
    scale = times * scale_of(config)
    pairs = by_expression(config, tensors, base)
    return base | {name: base[name] + scale * (b @ a) for name, (a, b) in pairs.items()}


def in_four_bits(base: Tensors) -> Tensors:
    """What QLoRA trains on: the layers' weights in groups of 64, each with 15 levels."""

    def rounded(weight: Tensor) -> Tensor:
        groups = weight.view(-1, 64)
        step = groups.abs().amax(1, keepdim=True) / 7
        return ((groups / step).round() * step).view_as(weight)

    layers = [name for name, weight in base.items() if ".layers." in name and weight.dim() == 2]
    return base | {name: rounded(base[name]) for name in layers}


def with_a_wrong_number(model: Tensors) -> Tensors:
    weight = model[ONE].clone()
    weight[PLACE] += 0.02
    return model | {ONE: weight}


# What was done, and the model that came of it, made of the base.
SUSPECTS: dict[str, Callable[[Tensors], Tensors]] = {
    "the scale was forgotten": lambda base: merged(base, 1 / scale_of(scene()[0])),
    "the base was in 4 bits": lambda base: merged(in_four_bits(base)),
    "nothing is wrong": merged,
    "one number is wrong": lambda base: with_a_wrong_number(merged(base)),
    "the update was added twice": lambda base: merged(base, 2.0),
    "nothing was merged": lambda base: merged(base, 0.0),
}


def evidence(model: Tensors) -> tuple[Config, Tensors, Tensors, Tensors]:
    """What the learner's check is given, of two blocks: config, tensors, base, merged."""
    config, tensors, base = scene()
    theirs = {key: t for key, t in tensors.items() if any(block in key for block in BLOCKS)}
    names = [name for name in base if name.startswith(BLOCKS)]
    return (
        config,
        theirs,
        {name: base[name].bfloat16() for name in names},
        {name: model[name].to(torch.float16) for name in names},
    )


def verdict_on(done: str, config: Config, tensors: Tensors, base: Tensors) -> dict[str, str]:
    """A name -> a word for each weight that this suspect has wrong."""
    adapted = set(by_expression(config, tensors, base))
    layers = {name for name, weight in base.items() if weight.dim() == 2}
    found = {
        "the scale was forgotten": dict.fromkeys(adapted, "scale forgotten"),
        "the base was in 4 bits": dict.fromkeys(layers, "changed")
        | dict.fromkeys(adapted, "other"),
        "one number is wrong": {ONE: "other"},
        "the update was added twice": dict.fromkeys(adapted, "merged twice"),
        "nothing was merged": dict.fromkeys(adapted, "not merged"),
    }
    return found.get(done, {})


def counted(found: dict[str, str]) -> str:
    words = Counter(found.values()).most_common()
    return ", ".join(f"{count} x {word}" for word, count in words) or RIGHT


def judged_by(check_merge: Callable[..., Any]) -> Passed:
    """What each suspect writes, and what the learner's check says of it; or `Mismatch`."""
    tokenizer = load_tokenizer(resolve_model("bundled"))
    speaker = load_hf_model(resolve_model("bundled"), dtype=torch.float32, device="cpu")
    prompt = torch.tensor([tokenizer.encode(PROMPT)])
    rows = []
    for letter, (done, make) in zip("ABCDEF", SUSPECTS.items(), strict=True):
        model = make(scene()[2])
        given = evidence(model)
        expected = verdict_on(done, *given[:3])
        with watching(), patience_of(PATIENCE["real"]):
            got = attempt(check_merge, *given)
        if isinstance(got, Raised) or difference(expected, got):
            raise Mismatch(
                "Your check is right on small models, but not on the real one.",
                input=f"model {letter} of the case: {done}; two of its blocks",
                expected=counted(expected),
                got=got.says if isinstance(got, Raised) else str(got)[:200],
                look="What in your check holds only for small matrices?",
            )
        speaker.load_state_dict(model, strict=False)
        with torch.inference_mode():
            out = speaker.generate(prompt, max_new_tokens=TOKENS, do_sample=False)
        says = " ".join(tokenizer.decode(out[0, prompt.shape[1] :].tolist()).split())
        rows.append((letter, f"... {says} ...", counted(got), done))
    same = max(Counter(says for _, says, _, _ in rows).values())
    headline = (
        f"Case closed. All six models write English, and {same} of them the very same words. Your "
        "check, which reads two of the 30 blocks, finds the one that you can ship, and says what "
        "was done to the others, down to a single wrong number."
    )
    return Passed(headline, table(rows), "; ".join(": ".join(row) for row in rows))


def table(rows: Sequence[tuple[str, ...]]) -> Figure:
    """The case, one model in a row."""
    figure = Figure(figsize=(11, 2.6))
    axes = figure.subplots()
    axes.axis("off")
    axes.set_title(f'Six models go on with "{PROMPT}"', loc="left")
    drawn = axes.table(
        [list(row) for row in rows],
        colLabels=["model", "what it writes", "what your check says", "what was done"],
        colWidths=[0.06, 0.44, 0.26, 0.24],
        cellLoc="left",
        colLoc="left",
        loc="center",
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(9)
    drawn.scale(1, 1.5)
    return figure
