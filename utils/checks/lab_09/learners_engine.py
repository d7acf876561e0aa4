"""The engine with weights that a learner's quantizers gave back: the last check of lab 09."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.checks.kit.reference import chat_token_ids
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_09 import pictures
from utils.engine.llm import LLM
from utils.engine.sampling_params import SamplingParams
from utils.pipeline.stages.perplexity import CALIBRATION_TEXT, load_text, token_windows
from utils.quant import InputStats, relative_error

Quantizers = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]
QuantizersFactory = Callable[[], Quantizers]
GROUP_SIZE = 64  # of the quantizers that the lab hands in
MAX_BITS = 4
NUM_LAYERS = 3  # the first ones: enough to see a difference, few enough for a minute
LINEARS = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
CONTEXT = 256
CALIBRATION_WINDOWS, EVALUATION_WINDOWS = 8, 4
QUESTION = "What is the capital of France?"


# --- without a model -----------------------------------------------------------------------------


def rehearse(make_quantizers: QuantizersFactory) -> None:
    """Quantize one small layer, so that a function that is not written yet says so."""
    pair = call(make_quantizers)
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(callable(f) for f in pair):
        raise Mismatch("`my_quantizers` must return a pair of functions: `my_rtn` and `my_gptq`.")
    nearest, compensated = pair
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(16, 2 * GROUP_SIZE, generator=generator)
    mixing = torch.randn(2 * GROUP_SIZE, 2 * GROUP_SIZE, generator=generator) / 8
    inputs = torch.randn(512, 2 * GROUP_SIZE, generator=generator) @ mixing
    given = f"a small layer, weight {list(weight.shape)}, inputs {list(inputs.shape)}"
    rounded = call(nearest, weight.clone(), given=given)
    _check_grid("my_rtn", rounded, weight, given)
    gptq = call(compensated, weight.clone(), inputs.clone(), given=given)
    _check_grid("my_gptq", gptq, weight, given)
    if torch.allclose(rounded, gptq):
        raise Mismatch(
            "Your GPTQ gives the weights of plain rounding.", input=given,
            look="The check of exercise 9: no error reaches the later columns.",
        )  # fmt: skip
    stats = InputStats.of(inputs)
    before, after = (relative_error(weight, back, stats) for back in (rounded, gptq))
    if not after < before:
        raise Mismatch(
            "On a small layer, your GPTQ changes the outputs more than plain rounding does.",
            input=given, expected=f"less than {before:.2%} of the outputs' square",
            got=f"{after:.2%}", look="The checks of exercises 8 and 9.",
        )  # fmt: skip


def _check_grid(name: str, back: object, weight: Tensor, given: str) -> None:
    """A weight that was read back has the old shape, and few values per group."""
    if not isinstance(back, Tensor) or back.shape != weight.shape:
        kind = type(back).__name__
        kind += f" of shape {tuple(back.shape)}" if isinstance(back, Tensor) else ""
        raise Mismatch(f"`{name}` returned {kind}; expected a weight of {tuple(weight.shape)}.",
                       input=given)  # fmt: skip
    if not torch.isfinite(back).all():
        raise Mismatch(f"The weight of `{name}` is not finite everywhere.", input=given)
    most = max(len(group.unique()) for group in back.unflatten(1, (-1, GROUP_SIZE)).flatten(0, 1))
    if most > 2**MAX_BITS:
        raise Mismatch(
            f"`{name}` gives a group {most} different values. {MAX_BITS} bits have "
            f"{2**MAX_BITS} codes.",
            input=given, look="Return what is read back from codes: `dequantize(...)`.",
        )  # fmt: skip
    if (back - weight).square().mean() > 0.2 * weight.square().mean():
        raise Mismatch(f"What `{name}` returns is far from the weight it was given.", input=given,
                       look="The checks of exercises 1 to 3.")  # fmt: skip


# --- with the real model -------------------------------------------------------------------------


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
                back = call(quantize, weight.clone(), *more, given=given)
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


def compare(make_quantizers: QuantizersFactory) -> Passed:
    """Perplexity with the learner's rounding and GPTQ, and what the engine then writes."""
    nearest, compensated = make_quantizers()
    base, answer = _base()
    rtn = quantize_with(nearest, with_inputs=False)
    gptq = quantize_with(compensated, with_inputs=True)
    worse = [name for name in rtn.errors if gptq.errors[name] >= rtn.errors[name]]
    figure = pictures.layer_errors(
        list(rtn.errors), list(rtn.errors.values()), list(gptq.errors.values())
    )
    alt = "The output error of each linear layer: rounding beside GPTQ."
    given = f"the first {NUM_LAYERS} decoder layers quantized in groups of {GROUP_SIZE}"
    if worse or not base < gptq.perplexity < rtn.perplexity:
        raise Mismatch(
            "In the real model, your GPTQ is no better than your rounding.",
            input=given,
            expected=f"perplexity between {base:.1f} (16 bits) and {rtn.perplexity:.1f} (rounded)",
            got=f"{gptq.perplexity:.1f}" + _worse(worse),
            look="The checks of exercises 8 and 9.", figure=figure, alt=alt,
        )  # fmt: skip
    return Passed(
        f"The engine runs on your weights, with {given}. Perplexity: {base:.1f} before, "
        f"{rtn.perplexity:.1f} rounded, {gptq.perplexity:.1f} with your GPTQ. "
        f"It is asked: {QUESTION} Before, it wrote {answer!r}; rounded, {rtn.text!r}; with your "
        f"GPTQ, {gptq.text!r}",
        figure, alt,
    )  # fmt: skip


def _worse(names: Sequence[str]) -> str:
    return f"; output error not below rounding's in {', '.join(names[:3])}" if names else ""
