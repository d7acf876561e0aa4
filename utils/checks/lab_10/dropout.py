"""What lab 10 says of a `LoRALinear`'s dropout: a part of exercise 8."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from utils.checks.kit.runner import Mismatch, call

ALPHA = 8
Factory = Callable[..., nn.Module]


def judge_dropout(factory: Factory) -> None:
    """Inputs of A are dropped, nothing else, only while training, and in the right share."""
    _judge_share(factory)
    _judge_place(factory)


def _judge_share(factory: Factory) -> None:
    """The identity as A and B shows which inputs were dropped, and by what the rest was scaled."""
    width, p = 400, 0.25
    base = nn.Linear(width, width)
    given = f"lora_dropout = {p}; A and B the identity, {width} wide; x all ones"
    layer: Any = call(factory, base, width, ALPHA, p, given=given)
    layer.lora_A.data, layer.lora_B.data = torch.eye(width), torch.eye(width)
    x = torch.ones(1, width)
    layer.eval()
    update = (call(layer, x, given=given) - base(x)).detach()[0] * width / ALPHA
    if not torch.allclose(update, torch.ones(width), atol=1e-3):
        raise Mismatch(
            "Inputs are dropped in evaluation, too. The model would answer at random.",
            input=f"{given}; after `layer.eval()`",
            look="`nn.Dropout` as a submodule knows whether it is training. "
            "`F.dropout` must be told: `training=self.training`.",
        )  # fmt: skip
    layer.train()
    _judge_base(layer, base, x, given)
    out = call(layer, x, given=given).detach()
    update = (out - base(x).detach())[0] * width / ALPHA
    kept = update[update.abs() > 1e-3]
    share = 1 - len(kept) / width
    if share == 0:
        raise Mismatch("Nothing is dropped in training.", input=f"{given}; after `layer.train()`",
                       look="`self.lora_dropout(x)` in front of A.")  # fmt: skip
    shares = [p + sign * 6 * math.sqrt(p * (1 - p) / width) for sign in (-1, 1)]
    if abs(kept.mean().item() - 1 / (1 - p)) < 0.02 and shares[0] < share < shares[1]:
        return
    if abs(kept.mean().item() - 1) < 0.02:
        raise Mismatch(
            "What is left is not scaled up. Dropout multiplies it by 1 / (1 - p), so that the "
            "mean stays.", input=given, look="`nn.Dropout` does that.",
        )  # fmt: skip
    raise Mismatch(
        f"A share of {share:.2f} of A's inputs is dropped; expected about {p}.", input=given,
        look="`nn.Dropout(lora_dropout)`: its number is the share that is dropped.",
    )  # fmt: skip


def _judge_base(layer: Any, base: nn.Linear, x: Tensor, given: str) -> None:
    """With B zero, only W x is left, and that is never dropped."""
    kept = layer.lora_B.data
    layer.lora_B.data = torch.zeros_like(kept)
    alone = call(layer, x, given=given)
    layer.lora_B.data = kept
    if not torch.allclose(alone, base(x), rtol=1e-3, atol=1e-4):
        raise Mismatch(
            "Inputs of the *base layer* are dropped, too. Only the update's are: W x must stay.",
            input=given, look="`self.base_layer(x)` with x as it came; dropout only in front of A.",
        )  # fmt: skip


def _judge_place(factory: Factory) -> None:
    """A takes the mean of many inputs: dropped in front of A, its result stays close to 1."""
    width, p = 400, 0.25
    base = nn.Linear(width, 3)
    given = f"lora_dropout = {p}, r = 1; A is {width} times 1/{width}, B three ones; x all ones"
    layer: Any = call(factory, base, 1, ALPHA, p, given=given)
    layer.lora_A.data = torch.full((1, width), 1 / width)
    layer.lora_B.data = torch.ones(3, 1)
    layer.train()
    x = torch.ones(64, width)
    update = (call(layer, x, given=given) - base(x)).detach() / ALPHA
    if ((update - 1).abs() < 0.25).all():  # 8 standard deviations
        return
    between = torch.allclose(update, update[:, :1].expand_as(update), atol=1e-3)
    raise Mismatch(
        "Dropout stands between A and B. It belongs in front of A." if between
        else "Dropout stands behind B. It belongs in front of A.",
        input=given, expected="each output of the update close to 1",
        got=f"outputs such as {sorted({round(v, 2) for v in update.flatten().tolist()})[:4]}",
        look="`self.lora_dropout(x)` first, then A, then B.",
    )  # fmt: skip
