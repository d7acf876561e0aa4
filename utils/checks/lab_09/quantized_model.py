"""The engine with weights that a learner's quantizers gave back: the last exercise of lab 09."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.checks.kit.contracts.faults import Raised, attempt
from utils.checks.kit.contracts.guards import held_output, same
from utils.checks.kit.lab.engine import speaks_first
from utils.checks.kit.lab.lab import Check
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.reference import chat_token_ids
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_09 import picture
from utils.engine.llm import LLM
from utils.engine.sampling_params import SamplingParams
from utils.pipeline.stages.perplexity import CALIBRATION_TEXT, load_text, token_windows
from utils.quant import InputStats, relative_error
from utils.timing import one_thread

Quantizer = Callable[..., Tensor]
NAMES = ("my_rtn", "my_gptq")
NUM_LAYERS = 3  # the first ones: enough to see a difference, few enough for ten seconds
LINEARS = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
CONTEXT = 256
CALIBRATION_WINDOWS, EVALUATION_WINDOWS = 8, 4
QUESTION = "What is the capital of France?"
GROUP_SIZE, MAX_BITS = 64, 4  # of the quantizers that the lab hands in
PATIENCE = 4000  # ticks: a layer of the model takes seconds, or a minute on a slow machine
GIVEN = f"the first {NUM_LAYERS} decoder layers, in groups of {GROUP_SIZE}"


def run(make_quantizers: Callable[[], Any], checks: Mapping[str, Check]) -> Passed:
    """The parts by themselves, then the engine with what both quantizers give back."""
    pair = call(make_quantizers)
    if not isinstance(pair, tuple) or len(pair) != len(NAMES) or not all(map(callable, pair)):
        raise Mismatch("`my_quantizers` must return a pair of functions: `my_rtn` and `my_gptq`.")
    parts = {name: part for function in pair for name, part in parts_of(function).items()}
    for name, check in checks.items():
        if name in parts:
            speaks_first(check, parts[name])
    with held_output(), watching(), one_thread():
        weight, inputs = linears(0)[LINEARS[0]].weight.detach()[:16], layer_inputs(0)[LINEARS[0]]
        for name, function in zip(NAMES, pair, strict=True):  # so that what never ends is soon over
            given = "16 outputs of layer 0, qkv_proj, and 64 tokens"
            quantized(name, function, weight, inputs[:64], given)
        with patience_of(PATIENCE):
            return compare(*pair)


def parts_of(function: Any) -> dict[str, Any]:
    """The functions of the lab that this one calls by their names."""
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    return {name: known[name] for name in getattr(code, "co_names", ()) if name in known}


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


@contextmanager
def restored() -> Iterator[None]:
    """Whatever happens inside, the model has its own weights again afterwards."""
    every = [linear for layer in range(NUM_LAYERS) for linear in linears(layer).values()]
    before = [linear.weight.clone() for linear in every]
    try:
        yield
    finally:
        for linear, weight in zip(every, before, strict=True):
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


def generate(max_tokens: int = 16) -> str:
    """What the engine writes with the weights as they are now, greedily."""
    llm = model()
    llm.llm_engine = llm.new_engine()  # nothing cached from other weights
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    (output,) = llm.generate(chat_token_ids([QUESTION]), params, use_tqdm=False)
    return output.outputs[0].text.strip()


@functools.cache
def as_it_came() -> tuple[float, str]:
    """Perplexity and text of the model with its own weights."""
    return perplexity(), generate()


# What a quantizer may give back


def by_groups(weight: Tensor) -> Tensor:
    return weight.unflatten(1, (-1, GROUP_SIZE)).flatten(0, 1)


def num_values(back: Tensor) -> int:
    """The most different values that a group has."""
    steps = by_groups(back).sort().values.diff()
    return int((steps != 0).sum(1).max()) + 1


def quantized(name: str, function: Quantizer, weight: Tensor, inputs: Tensor, given: str) -> Tensor:
    """The weight that comes back, if it lies on grids and nothing was written over."""
    theirs = [weight.clone(), inputs.clone()][: 1 if name == "my_rtn" else 2]
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
    errors: dict[str, float]  # "layer 0 qkv_proj" -> relative output error
    values: int  # the most that a group has
    text: str


@torch.no_grad()
def with_weights_of(name: str, function: Quantizer) -> Outcome:
    """Quantize the first layers one after the other, then read and write with the model.

    Each layer is calibrated on what the quantized ones before it give.
    """
    errors, values = {}, 0
    with restored():
        for layer in range(NUM_LAYERS):
            inputs = layer_inputs(layer)
            for part, linear in linears(layer).items():
                weight = linear.weight.detach().clone()
                given = f"layer {layer}, {part}: weight {list(weight.shape)}"
                back = quantized(name, function, weight, inputs[part], given)
                stats, values = InputStats.of(inputs[part]), max(values, num_values(back))
                errors[f"layer {layer}, {part.split('.')[1]}"] = relative_error(weight, back, stats)
                write(linear, back)
        return Outcome(perplexity(), errors, values, generate())


def compare(rtn: Quantizer, gptq: Quantizer) -> Passed:
    """Perplexity with the learner's rounding and GPTQ, and what the engine then writes."""
    base, answer = as_it_came()
    rounded, better = (
        with_weights_of(name, function) for name, function in zip(NAMES, (rtn, gptq), strict=True)
    )
    few, many = ((found.values - 1).bit_length() for found in (rounded, better))
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
            look="No error reaches the later columns: exercise 9.",
        )
    figure = picture.one_chart(
        9.5,
        [name.replace(", ", "\n") for name in rounded.errors],
        {
            "round to nearest": [100 * error for error in rounded.errors.values()],
            "your GPTQ": [100 * error for error in better.errors.values()],
        },
        "GPTQ changes what each layer computes less than rounding does",
        "error of the output,\nin % of its square",
    )
    figure.axes[0].tick_params(axis="x", labelsize=7)
    alt = "The output error of each linear layer: rounding beside GPTQ."
    worse = [name for name in rounded.errors if not better.errors[name] < rounded.errors[name]]
    if worse:
        raise Mismatch(
            "In the real model, your GPTQ is no better than your rounding.",
            input=f"{GIVEN}; the first that is worse: {worse[0]}",
            expected=f"an error of less than {rounded.errors[worse[0]]:.2%}",
            got=f"{better.errors[worse[0]]:.2%}",
            look="Are these the inputs of this layer, in their order, and is the Hessian made of "
            "all of them?",
            figure=figure,
            alt=alt,
        )
    if not base < better.perplexity < rounded.perplexity:
        raise Mismatch(
            "Each layer's outputs are closer with your GPTQ, but the engine does not read better.",
            input=GIVEN,
            expected=f"perplexity between {base:.1f} (16 bits) and {rounded.perplexity:.1f} "
            "(rounded)",
            got=f"{better.perplexity:.1f}",
            look="Do both quantizers use as many bits, and groups as large, in every layer?",
            figure=figure,
            alt=alt,
        )
    return Passed(
        f"The engine runs on your weights: {GIVEN}. Perplexity: {base:.1f} before, "
        f"{rounded.perplexity:.1f} rounded, {better.perplexity:.1f} with your GPTQ. "
        f"It is asked: {QUESTION} Before, it wrote {answer!r}; rounded, {rounded.text!r}; with "
        f"your GPTQ, {better.text!r}",
        figure,
        alt,
    )
