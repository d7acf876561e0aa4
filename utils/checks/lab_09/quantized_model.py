"""The engine with weights that a learner's quantizers gave back: the last exercise of lab 09."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from types import CodeType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from utils.checks.kit.contracts.faults import Raised, attempt
from utils.checks.kit.contracts.guards import held_output, same
from utils.checks.kit.lab.engine import speaks_first
from utils.checks.kit.lab.lab import Check
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.reference import chat_token_ids
from utils.checks.kit.runner import Mismatch, NotWritten, Passed, call
from utils.checks.lab_09 import picture
from utils.engine.llm import LLM
from utils.engine.sampling_params import SamplingParams
from utils.pipeline.stages.perplexity import CALIBRATION_TEXT, load_text, token_windows
from utils.quant import InputStats, relative_error
from utils.timing import one_thread

Quantizer = Callable[..., Tensor]
# The quantizers of the lab, and what each is called in words.
NAMES = {"my_rtn": "rounded", "my_grid": "on your own grid", "my_gptq": "with your GPTQ"}
NUM_LAYERS = 2  # the first ones: enough to see a difference, few enough for half a minute
LINEARS = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
CONTEXT = 256
CALIBRATION_WINDOWS, EVALUATION_WINDOWS = 4, 2
GROUP_SIZE, MAX_BITS = 64, 4  # of the quantizers that the lab hands in
PATIENCE = 4000  # ticks: a layer of the model takes seconds, or a minute on a slow machine
GIVEN = f"the first {NUM_LAYERS} decoder layers, in groups of {GROUP_SIZE}"
# The weights of each version of the model that the last check has made, for `ask`.
VERSIONS: dict[str, list[Tensor]] = {}


def run(make_quantizers: Callable[[], Any], checks: Mapping[str, Check]) -> Passed:
    """The parts by themselves, then the engine with what the quantizers give back."""
    given = call(make_quantizers)
    if not isinstance(given, tuple) or len(given) != len(NAMES) or not all(map(callable, given)):
        names = ", ".join(f"`{name}`" for name in NAMES)
        raise Mismatch(f"`my_quantizers` must return three functions: {names}.")
    found = dict(zip(NAMES, given, strict=True))
    parts = {name: part for function in given for name, part in parts_of(function).items()}
    for name, check in checks.items():
        if name in parts:
            with suppress(NotWritten) if name == "fit_params" else nullcontext():
                speaks_first(check, parts[name])
    with held_output(), watching(), one_thread():
        weight, inputs = linears(0)[LINEARS[0]].weight.detach()[:16], layer_inputs(0)[LINEARS[0]]
        for name in NAMES:  # on a few weights first: what never ends is soon over
            where = "16 outputs of layer 0, qkv_proj, and 64 tokens"
            try:
                quantized(name, found[name], weight, inputs[:64], where)
            except NotWritten:
                if name != "my_grid":
                    raise
                del found[name]
        VERSIONS.clear()
        VERSIONS["in 16 bits"] = [linear.weight.clone() for linear in every_linear()]
        with patience_of(PATIENCE):
            return compare({name: with_weights_of(name, f) for name, f in found.items()})


def parts_of(function: Any) -> dict[str, Any]:
    """The functions of the lab that this one calls by their names, in comprehensions too."""
    known, names = getattr(function, "__globals__", {}), set[str]()
    codes = [getattr(function, "__code__", None)]
    for code in codes:
        if isinstance(code, CodeType):
            names |= {*code.co_names}
            codes += code.co_consts
    return {name: known[name] for name in names if name in known}


def ask(question: str, max_tokens: int = 24) -> dict[str, str]:
    """What each version of the model answers that the last check has made."""
    answers, llm = {}, model()
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    for name, weights in VERSIONS.items():
        with restored():
            for linear, weight in zip(every_linear(), weights, strict=True):
                write(linear, weight)
            llm.llm_engine = llm.new_engine()  # nothing cached from other weights
            with one_thread():
                (output,) = llm.generate(chat_token_ids([question]), params, use_tqdm=False)
            answers[name] = " ".join(output.outputs[0].text.split())
    return answers


# The model


@functools.cache
def model() -> LLM:
    """On the CPU in float32, also where there is a GPU: learners' tensors are made there."""
    return LLM(dtype="float32", max_model_len=512, num_gpu_blocks_override=64, device="cpu")


def linears(layer: int) -> dict[str, nn.Linear]:
    block = model().model.model.layers[layer]
    return {name: block.get_submodule(name) for name in LINEARS}


@torch.inference_mode()  # the engine's weights are inference tensors
def write(linear: nn.Linear, weight: Tensor) -> None:
    linear.weight.copy_(weight)


def every_linear() -> list[nn.Linear]:
    return [linear for layer in range(NUM_LAYERS) for linear in linears(layer).values()]


@contextmanager
def restored() -> Iterator[None]:
    """Whatever happens inside, the model has its own weights again afterwards."""
    before = [linear.weight.clone() for linear in every_linear()]
    try:
        yield
    finally:
        for linear, weight in zip(every_linear(), before, strict=True):
            write(linear, weight)


@functools.cache
def windows(text: str, count: int) -> list[list[int]]:
    return token_windows(model().tokenizer, [load_text(text)], count * CONTEXT, CONTEXT)


@torch.inference_mode()
def perplexity() -> float:
    """Of the model as it is now, on a novel that was not used for calibration."""
    llm, total, count = model(), 0.0, 0
    for window in windows("mansfield_park", EVALUATION_WINDOWS):
        ids = torch.tensor(window)
        hidden = llm.model(ids, torch.arange(len(ids)))  # [T, hidden]
        logits = llm.model.compute_logits(hidden[:-1])  # [T - 1, vocab]
        total += F.cross_entropy(logits, ids[1:], reduction="sum").item()
        count += len(ids) - 1
    return math.exp(total / count)


@torch.no_grad()
def layer_inputs(layer: int) -> dict[str, Tensor]:
    """What the linear layers of one decoder layer are given on the calibration text: [T, in]."""
    llm = model().model
    every = llm.model.layers
    caught: dict[str, list[Tensor]] = {name: [] for name in LINEARS}
    hooks = [
        linear.register_forward_pre_hook(
            lambda _, args, name=name: caught[name].append(args[0].clone())
        )
        for name, linear in linears(layer).items()
    ]
    llm.model.layers = every[: layer + 1]  # the later ones are not needed
    try:
        for window in windows(CALIBRATION_TEXT, CALIBRATION_WINDOWS):
            llm(torch.tensor(window), torch.arange(len(window)))
    finally:
        llm.model.layers = every
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(parts) for name, parts in caught.items()}


# What a quantizer may give back


def by_groups(weight: Tensor) -> Tensor:
    return weight.unflatten(1, (-1, GROUP_SIZE)).flatten(0, 1)


def num_values(back: Tensor) -> int:
    """The most different values that a group has."""
    steps = by_groups(back).sort().values.diff()
    return int((steps != 0).sum(1).max()) + 1


def quantized(name: str, function: Quantizer, weight: Tensor, inputs: Tensor, given: str) -> Tensor:
    """The weight that comes back, if it lies on grids and nothing was written over."""
    theirs = [weight.clone(), inputs.clone()][: 2 if name == "my_gptq" else 1]
    back = attempt(function, *theirs)

    def refuse(says: str, look: str = "", expected: str = "", got: str = "") -> Mismatch:
        return Mismatch(says, input=given, expected=expected, got=got, look=look)

    if isinstance(back, Raised):
        raise refuse(back.says, back.look)
    if not all(same(old, new) for old, new in zip((weight, inputs), theirs, strict=False)):
        raise refuse(f"`{name}` changes in place what it was given. The caller still needs it.")
    look = "Read the codes back, with the scales and zeros that they were made with."
    if not isinstance(back, Tensor) or back.shape != weight.shape:
        kind = type(back).__name__
        kind += f" of shape {tuple(back.shape)}" if isinstance(back, Tensor) else ""
        says = f"`{name}` returned {kind}; expected a weight of {tuple(weight.shape)}."
        raise refuse(says, look)
    if not torch.isfinite(back).all():
        raise refuse(f"The weight of `{name}` is not finite everywhere.", look)
    if (most := num_values(back)) > 2**MAX_BITS:
        says = f"`{name}` gives a group {most} different values."
        raise refuse(says, look, f"at most {2**MAX_BITS}, which is what {MAX_BITS} bits can tell")
    lost = float((back - weight).square().mean() / weight.square().mean())
    if lost > 0.25:
        says = f"What `{name}` returns is far from the weight it was given."
        raise refuse(says, look, "an error of at most 0.25 of its square", f"{lost:.3g}")
    return back


class Outcome(NamedTuple):
    """What the model is like with the weights of one quantizer."""

    perplexity: float
    errors: dict[str, float]  # "layer 0, qkv_proj" -> relative output error
    moved: float  # the squared error of the weights, as a share of their square
    values: int  # the most that a group has


@functools.cache
def as_it_came() -> float:
    """The perplexity of the model with its own weights."""
    return perplexity()


@torch.no_grad()
def with_weights_of(name: str, function: Quantizer) -> Outcome:
    """Quantize the first layers one after the other, then read and write with the model.

    Each layer is calibrated on what the quantized ones before it give.
    """
    errors, moved, values = {}, [], []
    with restored():
        for layer in range(NUM_LAYERS):
            inputs = layer_inputs(layer)
            for part, linear in linears(layer).items():
                weight = linear.weight.detach().clone()
                given = f"layer {layer}, {part}: weight {list(weight.shape)}"
                back = quantized(name, function, weight, inputs[part], given)
                error = relative_error(weight, back, InputStats.of(inputs[part]))
                errors[f"layer {layer}, {part.split('.')[1]}"] = error
                moved.append(float((back - weight).square().sum() / weight.square().sum()))
                values.append(num_values(back))
                write(linear, back)
        VERSIONS[NAMES[name]] = [linear.weight.clone() for linear in every_linear()]
        return Outcome(perplexity(), errors, sum(moved) / len(moved), max(values))


# What the learner sees


def compare(found: Mapping[str, Outcome]) -> Passed:
    """Perplexity and errors with each quantizer's weights."""
    came, rounded, better = as_it_came(), found["my_rtn"], found["my_gptq"]
    few, many = ((outcome.values - 1).bit_length() for outcome in (rounded, better))
    if many > few:
        raise Mismatch(
            "Your GPTQ gives a group more different values than your rounding does: more bits, or "
            "smaller groups. So they can't be compared.",
            expected=f"{2**few} codes, as for rounding",
            got=f"{2**many} codes",
            look="`BITS` and `GROUP_SIZE` are for both.",
        )
    if math.isclose(rounded.perplexity, better.perplexity, rel_tol=1e-4):
        raise Mismatch(
            "Your GPTQ gives the weights of plain rounding.",
            look="No error reaches the later columns: see the exercise `gptq`.",
        )
    figure = draw(came, found)
    alt = "The output error of each linear layer and the perplexity, with each quantizer's weights."
    worse = [name for name in rounded.errors if not better.errors[name] < rounded.errors[name]]
    if worse:
        raise Mismatch(
            "In the real model, your GPTQ is no better than your rounding.",
            input=f"{GIVEN}; the first that is worse: {worse[0]}",
            expected=f"an output error of less than {rounded.errors[worse[0]]:.2%}",
            got=f"{better.errors[worse[0]]:.2%}",
            look="A real layer has more columns and more tokens than the inputs of the other "
            "checks. Are these the inputs of this layer, in their order, all of them?",
            figure=figure,
            alt=alt,
        )
    if not came < better.perplexity < rounded.perplexity:
        raise Mismatch(
            "Each layer's outputs are closer with your GPTQ, but the engine doesn't read better.",
            input=GIVEN,
            expected=f"perplexity between {came:.1f} (16 bits) and "
            f"{rounded.perplexity:.1f} (rounded)",
            got=f"{better.perplexity:.1f}",
            look="Do the quantizers use as many bits, and groups as large, in every layer?",
            figure=figure,
            alt=alt,
        )
    names = {NAMES[name]: outcome for name, outcome in found.items()}
    read = ", ".join(f"{outcome.perplexity:.1f} {name}" for name, outcome in names.items())
    moved = ", ".join(f"{outcome.moved:.1%} {name}" for name, outcome in names.items())
    return Passed(
        f"The engine runs on your weights: {GIVEN}. The error of the *weights* is {moved}. The "
        f"perplexity, on a novel that nobody calibrated on, is {came:.1f} in 16 bits, {read}.",
        figure,
        alt,
    )


def draw(came: float, found: Mapping[str, Outcome]) -> Figure:
    """On the left the output error of each layer, on the right how well the model reads."""
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2.4, 1))
    picture.bars(
        left,
        [name.replace(", ", "\n") for name in found["my_rtn"].errors],
        {NAMES[name]: [100 * e for e in one.errors.values()] for name, one in found.items()},
        "How far each layer's output is off",
        "squared error, in % of the square",
    )
    left.tick_params(axis="x", labelsize=7)
    read = {
        NAMES[name].replace(" own", "\nown").replace("with your", "with your\n"): one.perplexity
        for name, one in found.items()
    }
    rows = {"": [came, *read.values()]}
    title, label = "How badly the model reads", "perplexity (lower is better)"
    picture.bars(right, ["in 16 bits", *read], rows, title, label, digits="%.1f")
    right.tick_params(axis="x", labelsize=7)
    right.margins(y=0.12)
    return figure
