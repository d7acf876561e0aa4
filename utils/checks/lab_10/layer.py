"""What lab 10 says of `LoRALinear`: exercise 8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_10.dropout import judge_dropout

IN, OUT, R, ALPHA = 6, 5, 2, 8
GIVEN = f"nn.Linear({IN}, {OUT}) with a bias, r = {R}, lora_alpha = {ALPHA}"
Factory = Callable[..., nn.Module]


def _base(width: int = IN, out: int = OUT) -> nn.Linear:
    return nn.Linear(width, out)


def _make(factory: Factory, base: nn.Linear, dropout: float, r: int = R) -> Any:
    layer = call(factory, base, r, ALPHA, dropout, given=GIVEN)
    if not isinstance(layer, nn.Module):
        raise Mismatch("`LoRALinear` must be a subclass of nn.Module.", input=GIVEN)
    return layer


def judge_lora_linear(factory: Factory) -> str:
    """Check the class `LoRALinear(base_layer, r, lora_alpha, lora_dropout)`."""
    _judge_parameters(factory)
    _judge_output(factory)
    _judge_training(factory)
    _judge_type(factory)
    judge_dropout(factory)
    _judge_merge(factory)
    return (
        "It starts as its base layer, trains A and B alone, drops inputs of A only while "
        "training, and merges once into one plain weight."
    )


def _judge_parameters(factory: Factory) -> None:
    base = _base()
    layer = _make(factory, base, 0.0)
    if getattr(layer, "base_layer", None) is not base:
        raise Mismatch(
            "`layer.base_layer` is not the layer that was given.", input=GIVEN,
            look="`self.base_layer = base_layer`; no copy, or the memory is needed twice.",
        )  # fmt: skip
    trained = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    missing = [n for n in ("lora_A", "lora_B") if n not in trained]
    if missing:
        raise Mismatch(
            f"`{missing[0]}` is no trained parameter of the layer: an optimizer would not find it.",
            input=GIVEN, expected="`lora_A` and `lora_B` are nn.Parameter",
            got=f"trained are {sorted(trained) or 'none'}",
            look="`self.lora_A, self.lora_B = init_lora(...)`, without `.data` or `.detach()`.",
        )  # fmt: skip
    if len(trained) > 2:
        more = sorted(set(trained) - {"lora_A", "lora_B"})
        raise Mismatch(
            f"The base layer is not frozen: {', '.join(more)} would be trained, too.",
            input=GIVEN, look="`base_layer.requires_grad_(False)`, which also freezes the bias.",
        )  # fmt: skip
    if getattr(layer, "merged", None) is not False:
        says = "`layer.merged` is not False at first. Then the update is never added."
        if not hasattr(layer, "merged"):
            says = (
                "The layer has no attribute `merged`. It tells whether the update is in the weight."
            )
        raise Mismatch(says, input=GIVEN, look="`self.merged = False` in `__init__`.")
    if not any(p is base.weight for p in layer.parameters()):
        raise Mismatch(
            "The base layer's weight is not among the layer's parameters, so it would be neither "
            "saved nor moved to a GPU.", input=GIVEN, look="Keep the module itself.",
        )  # fmt: skip


def _fill(layer: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    for p in (layer.lora_A, layer.lora_B):
        p.data = torch.randn(p.shape, generator=generator)


def _expected(layer: Any, base: nn.Linear, x: Tensor) -> Tensor:
    delta = ALPHA / layer.lora_A.shape[0] * (layer.lora_B.double() @ layer.lora_A.double())
    out = x.double() @ (base.weight.double() + delta).T + base.bias.double()
    return out.float()


def _differs(got: Any, expected: Tensor) -> bool:
    return (
        not isinstance(got, Tensor)
        or got.shape != expected.shape
        or not torch.allclose(got.double(), expected.double(), rtol=1e-3, atol=1e-4)
    )


def _judge_output(factory: Factory) -> None:
    base = _base()
    layer = _make(factory, base, 0.0)
    x = torch.randn(3, IN)
    got = call(layer, x, given=GIVEN)
    if _differs(got, base(x)):
        if isinstance(got, Tensor) and not _differs(got, base(x) - base.bias):
            says, look = "The bias of the base layer is lost.", "Call `self.base_layer(x)`."
        else:
            says = "A new layer does not give what its base layer gives."
            look = "B is zero at first (`init_lora`), so the update is zero."
        raise Mismatch(says, input=GIVEN, look=look)
    _fill(layer)
    got, expected = call(layer, x, given=GIVEN), _expected(layer, base, x)
    if not _differs(got, expected):
        return
    says, look = "The output is not W x + bias + (lora_alpha / r) B A x.", "See exercise 6."
    if not _differs(got, base(x)):
        says = "The update is never added: the output is that of the base layer."
        look = "Is `merged` False at first, and asked the right way round?"
    elif not _differs(got, expected - base.bias):
        says, look = "The bias of the base layer is lost.", "Call `self.base_layer(x)`."
    elif not _differs(got, expected + base.bias):
        says, look = "The bias is added twice.", "`self.base_layer(x)` has added it already."
    elif not _differs(got, base(x) + (expected - base(x)) / (ALPHA / R)):
        says, look = "The update is not scaled: lora_alpha / r is missing.", "See exercise 6."
    elif not _differs(got, base(x) + (expected - base(x)) * R):
        says, look = "The update is scaled by lora_alpha, not divided by r.", "See exercise 6."
    raise Mismatch(says, input=f"{GIVEN}; A and B random", look=look)


def _judge_training(factory: Factory) -> None:
    """One step of an optimizer over all parameters: the base must stay as it is."""
    base = _base()
    layer = _make(factory, base, 0.0)
    _fill(layer)
    before = (base.weight.detach().clone(), base.bias.detach().clone())
    optimizer = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], lr=0.1)
    call(layer, torch.randn(3, IN), given=GIVEN).square().sum().backward()
    for name in ("lora_A", "lora_B"):
        if getattr(layer, name).grad is None:
            raise Mismatch(
                f"No gradient arrives at `{name}`.", input=GIVEN,
                look="`.data`, `.detach()` and `no_grad` in `forward` cut it off.",
            )  # fmt: skip
    optimizer.step()
    _fill(layer)  # the step may have gone far
    if not (torch.equal(base.weight, before[0]) and torch.equal(base.bias, before[1])):
        raise Mismatch("Training changes the frozen base layer.", input=GIVEN)
    x = torch.randn(3, IN, requires_grad=True)
    call(layer, x, given=GIVEN).sum().backward()
    whole = base.weight + ALPHA / R * layer.lora_B @ layer.lora_A
    if x.grad is None or not torch.allclose(x.grad, whole.sum(0).expand(3, -1), 1e-3, 1e-3):
        raise Mismatch(
            "The gradient of x is wrong: it must pass through the frozen weight, to the layers "
            "below.", input=GIVEN, look="Freeze the weight with `requires_grad_(False)`; do not "
            "wrap the base layer's call in `no_grad`.",
        )  # fmt: skip


def _judge_type(factory: Factory) -> None:
    """Beside a layer in bfloat16, with A and B in float32."""
    base = _base().bfloat16()
    layer = _make(factory, base, 0.0)
    given = f"{GIVEN}, in bfloat16; x in bfloat16, A and B in float32"
    got = call(layer, torch.randn(3, IN).bfloat16(), given=given)
    if not isinstance(got, Tensor) or got.dtype != torch.bfloat16:
        kind = str(getattr(got, "dtype", type(got).__name__)).removeprefix("torch.")
        raise Mismatch(
            f"The output is {kind}. It must have the type of the base layer's output, or the next "
            "layer cannot take it.", input=given, expected="bfloat16", got=kind,
            look="`result = self.base_layer(x)`, and `.to(result.dtype)` at the very end.",
        )  # fmt: skip


def _judge_merge(factory: Factory) -> None:
    base = _base()
    layer = _make(factory, base, 0.0)
    _fill(layer)
    layer.eval()
    x = torch.randn(3, IN)
    expected = _expected(layer, base, x)
    whole = (base.weight + ALPHA / R * layer.lora_B @ layer.lora_A).detach()
    weight_before = base.weight.detach().clone()
    call(layer.merge, given="layer.merge()")
    merged = layer.base_layer.weight.detach()
    if torch.equal(merged, weight_before):
        raise Mismatch(
            "After `merge()` the base layer's weight is what it was.",
            look="Write what `merge_weight` returns into `base_layer.weight.data`.",
        )
    if not torch.allclose(merged, whole, rtol=1e-3, atol=1e-4):
        raise Mismatch("After `merge()` the base layer's weight is not the merged one.",
                       look="See exercise 7: the scale, and its order B A.")  # fmt: skip
    if layer.merged is not True:
        raise Mismatch(
            f"`layer.merged` is {layer.merged!r} after `merge()`. So `forward` adds the update "
            "once more.", input=GIVEN, look="`self.merged = True`, at the end of `merge`.",
        )  # fmt: skip
    got = call(layer, x, given="x after merge()")
    if _differs(got, expected):
        raise Mismatch(
            "After merging, the output changes: the update is in the weight, and is added once "
            "more." if not _differs(got, 2 * expected - x @ weight_before.T - base.bias)
            else "After merging, the output changes. It must be the same as before.",
            input=GIVEN, look="`if self.merged: return self.base_layer(x)`.",
        )  # fmt: skip
    call(layer.merge, given="layer.merge() for the second time")
    if not torch.allclose(layer.base_layer.weight, whole, rtol=1e-3, atol=1e-4):
        raise Mismatch(
            "Merging a second time adds the update once more.", input=GIVEN,
            look="Set `self.merged = True`, and do nothing if it is set already.",
        )  # fmt: skip
    if layer.base_layer.weight.requires_grad:
        raise Mismatch("After merging, the base layer's weight is no longer frozen.",
                       look="Write into `.data`, and make no new nn.Parameter.")  # fmt: skip
