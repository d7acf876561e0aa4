"""The checks of lab 10.

Oracles: counting, the same sums in double precision written out token by token or as one matrix,
autograd through the merged matrix, right classes told the same story, and the engine's answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_10 import (
    counts,
    first_values,
    layer,
    learners_engine,
    low_rank_update,
    one_step,
    switching,
    what_is_learned,
    whole_model,
)


@exercise("Exercise 1: lora_parameters", points=1)
def lora_parameters(function: Callable[..., int]) -> str | Passed:
    """Check `lora_parameters(linears, r)`."""
    return counts.LORA_PARAMETERS.check(function)


@exercise("Exercise 2: training_bytes", points=1)
def training_bytes(function: Callable[..., float]) -> str | Passed:
    """Check `training_bytes(num_frozen, bits_per_frozen, num_trained)`."""
    return counts.TRAINING_BYTES.check(function)


@exercise("Exercise 3: make_labels", points=2)
def make_labels(function: Callable[..., tuple[list[int], list[int]]]) -> str | Passed:
    """Check `make_labels(prompt_ids, answer_ids, eos_token_id)`."""
    return what_is_learned.MAKE_LABELS.check(function)


@exercise("Exercise 4: answer_loss", points=3)
def answer_loss(function: Callable[..., Tensor]) -> str | Passed:
    """Check `answer_loss(logits, labels)`."""
    return what_is_learned.ANSWER_LOSS.check(function)


@exercise("Exercise 5: init_lora", points=2)
def init_lora(function: Callable[..., tuple[nn.Parameter, nn.Parameter]]) -> str | Passed:
    """Check `init_lora(in_features, out_features, r)`."""
    return first_values.INIT_LORA.check(function)


@exercise("Exercise 6: lora_forward", points=3)
def lora_forward(function: Callable[..., Tensor]) -> str | Passed:
    """Check `lora_forward(x, weight, lora_A, lora_B, lora_alpha)`."""
    return low_rank_update.LORA_FORWARD.check(function)


@exercise("Exercise 7: merge_weight", points=2)
def merge_weight(function: Callable[..., Tensor]) -> str | Passed:
    """Check `merge_weight(weight, lora_A, lora_B, lora_alpha)`."""
    return low_rank_update.MERGE_WEIGHT.check(function)


@exercise("Exercise 8: LoRALinear", points=4)
def lora_linear(factory: Callable[..., nn.Module]) -> str | Passed:
    """Check the class `LoRALinear(base_layer, r, lora_alpha, lora_dropout)`."""
    return layer.LORA_LINEAR.check(factory)


@exercise("Exercise 9: add_lora", points=3)
def add_lora(function: Callable[..., list[nn.Parameter]]) -> str | Passed:
    """Check `add_lora(model, target_modules, r, lora_alpha)`."""
    return whole_model.ADD_LORA.check(function)


@exercise("Exercise 10: training_step", points=2)
def training_step(function: Callable[..., float]) -> str | Passed:
    """Check `training_step(model, trained, optimizer, input_ids, labels)`."""
    return one_step.TRAINING_STEP.check(function)


@exercise("Exercise 11: SwitchableLoRALinear", points=3)
def switchable(factory: Callable[..., nn.Module]) -> str | Passed:
    """Check the class `SwitchableLoRALinear`: `merge()` and `unmerge()`, to the last bit."""
    return switching.SWITCHABLE.check(factory)


@exercise("Exercise 12: your LoRA teaches the model", points=3)
def engine(make_parts: Callable[[], tuple[Any, Any, Any]]) -> Passed:
    """Check `my_parts()`: train the real model, merge, and let the engine answer."""
    return learners_engine.run(make_parts)


ask = learners_engine.ask
