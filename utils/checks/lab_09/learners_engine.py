"""The engine with weights that a learner's quantizers gave back: the last check of lab 09.

First each part by itself, then both quantizers on small layers, then the real model: what fails is
shown where it is smallest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.checks.kit.contracts.faults import Raised, attempt
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.reference import chat_token_ids
from utils.checks.kit.runner import Mismatch, Passed
from utils.checks.lab_09 import pictures
from utils.checks.lab_09.small_layers import GROUP_SIZE, QuantizersFactory, the_pair
from utils.engine.llm import LLM
from utils.engine.sampling_params import SamplingParams
from utils.pipeline.stages.perplexity import CALIBRATION_TEXT, load_text, token_windows
from utils.quant import InputStats, relative_error

NUM_LAYERS = 3  # the first ones: enough to see a difference, few enough for a minute
LINEARS = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
CONTEXT = 256
CALIBRATION_WINDOWS, EVALUATION_WINDOWS = 8, 4
QUESTION = "What is the capital of France?"
PATIENCE = 4000  # ticks: a layer of the model takes seconds, or a minute on a slow machine


def run(make_quantizers: QuantizersFactory) -> Passed:
    """The parts, both quantizers on small layers, the engine on what they give."""
    nearest, compensated = the_pair(make_quantizers)
    with held_output(), watching(), patience_of(PATIENCE):
        return compare(nearest, compensated)


@functools.cache
def model() -> LLM:
    """On the CPU in float32, also where there is a GPU: learners' tensors are made there."""
    return LLM(dtype="float32", max_model_len=512, num_gpu_blocks_override=64, device="cpu")


def linears(layer: int) -> dict[str, nn.Linear]:
    found = {}
    for name in LINEARS:
        module = model().model.model.layers[layer].get_submodule(name)
        assert isinstance(module, nn.Linear)
        found[name] = module
    return found


@torch.inference_mode()  # the engine's weights are inference tensors
def _write(linear: nn.Linear, weight: Tensor) -> None:
    linear.weight.copy_(weight)


@contextmanager
def restored() -> Iterator[None]:
    """Whatever happens inside, the model has its own weights again afterwards."""
    before = {
        (layer, name): linear.weight.clone()
        for layer in range(NUM_LAYERS)
        for name, linear in linears(layer).items()
    }
    try:
        yield
    finally:
        for (layer, name), weight in before.items():
            _write(linears(layer)[name], weight)


@functools.cache
def _windows(text: str, count: int) -> list[list[int]]:
    return token_windows(model().tokenizer, [load_text(text)], count * CONTEXT, CONTEXT)


@torch.inference_mode()
def perplexity() -> float:
    """Of the model as it is now, on a novel that was not used for calibration."""
    llm, total, count = model(), 0.0, 0
    for window in _windows("mansfield_park", EVALUATION_WINDOWS):
        ids = torch.tensor(window)
        hidden = llm.model(ids, torch.arange(len(ids)))  # [T, hidden]
        logits = llm.model.compute_logits(hidden[:-1])  # [T - 1, vocab]
        total += F.cross_entropy(logits, ids[1:], reduction="sum").item()
        count += len(ids) - 1
    return math.exp(total / count)


@functools.cache
def _base() -> tuple[float, str]:
    """Perplexity and text of the model as it came."""
    return perplexity(), generate()


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
        for window in _windows(CALIBRATION_TEXT, CALIBRATION_WINDOWS):
            llm(torch.tensor(window), torch.arange(len(window)))
    finally:
        llm.model.layers = every
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(parts) for name, parts in caught.items()}


class Outcome(NamedTuple):
    perplexity: float
    errors: dict[str, float]  # "layer 0 qkv_proj" -> relative output error
    text: str


@torch.no_grad()
def quantize_with(quantize: Callable[..., Tensor], with_inputs: bool) -> Outcome:
    """Quantize the first layers one after the other, then read and write with the model.

    Each layer is calibrated on what the quantized ones before it give.
    """
    errors = {}
    with restored():
        for layer in range(NUM_LAYERS):
            inputs = layer_inputs(layer)
            for name, linear in linears(layer).items():
                weight = linear.weight.detach().clone()
                given = f"layer {layer}, {name}: weight {list(weight.shape)}"
                more = (inputs[name],) if with_inputs else ()
                back = attempt(quantize, weight.clone(), *(x.clone() for x in more))
                if isinstance(back, Raised):
                    raise Mismatch(back.says, input=given, look=back.look)
                if not isinstance(back, Tensor) or back.shape != weight.shape:
                    raise Mismatch("This is no weight of the layer's shape.", input=given)
                stats = InputStats.of(inputs[name])
                errors[f"layer {layer}, {name.split('.')[1]}"] = relative_error(weight, back, stats)
                _write(linear, back)
        return Outcome(perplexity(), errors, generate())


def generate(max_tokens: int = 16) -> str:
    """What the engine writes with the weights as they are now, greedily."""
    llm = model()
    llm.llm_engine = llm.new_engine()  # nothing cached from other weights
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    (output,) = llm.generate(chat_token_ids([QUESTION]), params, use_tqdm=False)
    return output.outputs[0].text.strip()


def compare(nearest: Callable[..., Any], compensated: Callable[..., Any]) -> Passed:
    """Perplexity with the learner's rounding and GPTQ, and what the engine then writes."""
    base, answer = _base()
    rtn = quantize_with(nearest, with_inputs=False)
    gptq = quantize_with(compensated, with_inputs=True)
    worse = [name for name in rtn.errors if not gptq.errors[name] < rtn.errors[name]]
    figure = pictures.layer_errors(
        list(rtn.errors), list(rtn.errors.values()), list(gptq.errors.values())
    )
    alt = "The output error of each linear layer: rounding beside GPTQ."
    given = f"the first {NUM_LAYERS} decoder layers quantized in groups of {GROUP_SIZE}"
    if worse:
        name, smallest = worse[0], _smallest(worse[0], nearest, compensated)
        raise Mismatch(
            "In the real model, your GPTQ is no better than your rounding. On small layers it is, "
            "and its parts are right.",
            input=f"{given}; the first that is worse: {name}{smallest}",
            expected=f"less than {rtn.errors[name]:.2%} of the outputs' square (rounded)",
            got=f"{gptq.errors[name]:.2%}",
            look="What is here that no small layer has: more columns, or the inputs' order?",
            figure=figure,
            alt=alt,
        )
    if not base < gptq.perplexity < rtn.perplexity:
        raise Mismatch(
            "Each layer's outputs are closer with your GPTQ, but the engine does not read better.",
            input=given,
            expected=f"perplexity between {base:.1f} (16 bits) and {rtn.perplexity:.1f} (rounded)",
            got=f"{gptq.perplexity:.1f}",
            look="Do both quantizers use as many bits, and groups as large, in every layer?",
            figure=figure,
            alt=alt,
        )
    return Passed(
        f"The engine runs on your weights, with {given}. Perplexity: {base:.1f} before, "
        f"{rtn.perplexity:.1f} rounded, {gptq.perplexity:.1f} with your GPTQ. "
        f"It is asked: {QUESTION} Before, it wrote {answer!r}; rounded, {rtn.text!r}; with your "
        f"GPTQ, {gptq.text!r}",
        figure,
        alt,
    )


@torch.no_grad()
def _smallest(name: str, nearest: Callable[..., Any], compensated: Callable[..., Any]) -> str:
    """How few outputs and tokens of this layer show it, too; those before it as they came."""
    layer = int(name.split(",")[0].split()[1])
    linear = next(n for n in LINEARS if n.endswith(name.split(", ")[1]))
    weight = linears(layer)[linear].weight.detach().clone()
    inputs = layer_inputs(layer)[linear]
    for outputs in (4, 32, 256):
        for tokens in (64, 512):
            w, x = weight[:outputs].clone(), inputs[:tokens].clone()
            pair = attempt(nearest, w.clone()), attempt(compensated, w.clone(), x.clone())
            if any(not isinstance(back, Tensor) or back.shape != w.shape for back in pair):
                continue
            rounded, mine = (relative_error(w, back, InputStats.of(x)) for back in pair)
            if not mine < rounded:
                return f"; it shows on its first {outputs} outputs and {tokens} tokens"
    return ""
