"""What lab 10 says of `training_step`: exercise 10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_10.whole_model import Toy

MAX_NORM, RATE, STEPS = 1.0, 0.5, 4
STEP_GIVEN = (
    f"a toy model, SGD with learning rate {RATE}, {STEPS} steps, max_norm {MAX_NORM:g}; "
    "once more with small logits, and so with small gradients"
)
_BATCH = (torch.tensor([[1, 5, 3, 7, 2], [4, 4, 9, 0, 0]]),
          torch.tensor([[-100, -100, 3, 7, 2], [-100, 4, 9, -100, -100]]))  # fmt: skip


class _Trace(NamedTuple):
    losses: list[float]
    weights: list[Tensor]  # all parameters in one vector, after each step


def _loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    logits = model(ids)[:, :-1].float()
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


Step = Callable[..., Any]


def _simulate(step: Step) -> _Trace:
    losses, weights = [], []
    for size in (6.0, 0.1):  # gradients that are longer than the limit, and shorter ones
        model = Toy()
        trained = list(model.parameters())
        with torch.no_grad():
            model.lm_head.weight *= size
        optimizer = torch.optim.SGD(trained, lr=RATE)
        for _ in range(STEPS):
            losses.append(call(step, model, trained, optimizer, *_BATCH, given=STEP_GIVEN))
            weights.append(torch.cat([p.detach().flatten().clone() for p in trained]))
    return _Trace(losses, weights)


def _reference(
    model: nn.Module, trained: Any, optimizer: Any, ids: Tensor, labels: Tensor, *,
    zero: bool = True, clip: str = "norm", steps: int = 1, loss_after: bool = False,
) -> float:  # fmt: skip
    """A step with one switch per known mistake."""
    loss = _loss(model, ids, labels)
    if zero:
        optimizer.zero_grad()
    loss.backward()
    if clip == "norm":
        torch.nn.utils.clip_grad_norm_(trained, MAX_NORM)
    elif clip == "each":
        for p in trained:
            torch.nn.utils.clip_grad_norm_([p], MAX_NORM)
    elif clip == "always":
        length = torch.stack([p.grad.norm() for p in trained]).norm()
        for p in trained:
            p.grad /= length
    elif clip == "value":
        torch.nn.utils.clip_grad_value_(trained, MAX_NORM)
    for _ in range(steps):
        optimizer.step()
    return _loss(model, ids, labels).item() if loss_after else loss.item()


_STEP_MISTAKES: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"zero": False}, "Gradients add up from step to step: they are never set to zero.",
     "`optimizer.zero_grad()` once in each step, before `backward`."),
    ({"zero": False, "clip": "none"},
     "Gradients add up from step to step, and they are not clipped.",
     "`optimizer.zero_grad()`, and `clip_grad_norm_` between `backward` and `step`."),
    ({"steps": 0}, "The weights do not move.", "Is there a `loss.backward()` and an "
     "`optimizer.step()`? And are the gradients still there when it steps? Zero them before "
     "`backward`, or after `step`."),
    ({"clip": "none"}, "The gradients are not clipped before the step.",
     "`torch.nn.utils.clip_grad_norm_(trained, 1.0)` between `backward` and `step`."),
    ({"clip": "each"}, "Each parameter is clipped by itself. Then the direction of the step "
     "changes. The norm is that of all gradients together.",
     "Hand the whole list to `clip_grad_norm_`."),
    ({"clip": "value"}, "Each number is clipped by itself, not the norm of all together.",
     "`clip_grad_norm_`, not `clip_grad_value_`."),
    ({"clip": "always"}, "Gradients with a norm below 1 are scaled *up* to it. Clipping leaves "
     "them as they are.", "`torch.nn.utils.clip_grad_norm_(trained, 1.0)` keeps short ones."),
    ({"steps": 2}, "The weights move twice in a step.", "One `optimizer.step()`."),
    ({"loss_after": True}, "You return the loss after the step. It is computed anew, which costs "
     "a second forward pass.", "Return the loss whose gradient you took."),
)  # fmt: skip


def judge_training_step(function: Step) -> str:
    """Check `training_step(model, trained, optimizer, input_ids, labels)`."""
    got, expected = _simulate(function), _simulate(_reference)
    for loss in got.losses:
        if isinstance(loss, Tensor):
            raise Mismatch(
                "You return a tensor. It keeps the whole graph of the step in memory, as long as "
                "somebody keeps the loss.", input=STEP_GIVEN, look="`return loss.item()`.",
            )  # fmt: skip
        if not isinstance(loss, float):
            raise Mismatch(f"You return {loss!r}; expected the loss, a float.", input=STEP_GIVEN)
    if _same(got, expected):
        return "Loss, gradients, clipped by their common norm, one step, and the slate is clean."
    says, look = "After the steps, the weights are not where they should be.", ""
    for options, words, where in _STEP_MISTAKES:
        wrong = _simulate(lambda *args, options=options: _reference(*args, **options))
        if _same(got, wrong):
            says, look = words, where
            break
    if not look and abs(got.losses[0] - expected.losses[0]) > 1e-3:
        says = "The first loss is wrong already, before any weight has moved."
        look = "Is it `answer_loss(model(input_ids), labels)`, with your function of exercise 4?"
    shown = [", ".join(f"{loss:.4f}" for loss in trace.losses[:STEPS]) for trace in (expected, got)]
    raise Mismatch(says, input=STEP_GIVEN, expected=f"losses {shown[0]}", got=shown[1], look=look)


def _same(one: _Trace, other: _Trace) -> bool:
    if not torch.allclose(torch.tensor(one.losses), torch.tensor(other.losses), rtol=1e-4):
        return False
    pairs = zip(one.weights, other.weights, strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)
