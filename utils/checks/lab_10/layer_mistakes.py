"""A right `LoRALinear`, what learners' layers get wrong, and the words for it: exercise 8."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.checks.kit.contracts import Clause, mistake


class RightLayer(nn.Module):
    """A right layer, for mistakes to change one thing of."""

    def __init__(
        self, base_layer: nn.Linear, r: int, lora_alpha: float, lora_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.base_layer: Any = base_layer.requires_grad_(False)
        bound = base_layer.in_features**-0.5
        self.lora_A = nn.Parameter(torch.empty(r, base_layer.in_features).uniform_(-bound, bound))
        self.lora_B = nn.Parameter(torch.zeros(base_layer.out_features, r))
        self.scaling, self.lora_dropout = lora_alpha / r, nn.Dropout(lora_dropout)
        self.alpha, self.merged = lora_alpha, False

    def forward(self, x: Tensor) -> Tensor:
        out = self.base(x)
        return out if self.merged else self.beside(out, self.update(x))

    def base(self, x: Tensor) -> Tensor:
        result: Tensor = self.base_layer(x)
        return result

    def update(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(self.lora_dropout(x.float()), self.lora_A), self.lora_B)

    def beside(self, out: Tensor, update: Tensor) -> Tensor:
        return (out + self.scaling * update).to(out.dtype)

    def delta(self) -> Tensor:
        return self.scaling * (self.lora_B.detach() @ self.lora_A.detach())

    def merge(self) -> None:
        if not self.merged:
            weight = self.base_layer.weight.data
            self.base_layer.weight.data = (weight.float() + self.delta()).to(weight.dtype)
            self.merged = True


def but(**changes: Any) -> type[RightLayer]:
    """The right layer with other methods."""
    return type("Changed", (RightLayer,), {"__module__": __name__, **changes})


def _without_bias(self: Any, x: Tensor) -> Tensor:
    return F.linear(x, self.base_layer.weight)


def _around_the_base(self: Any, x: Tensor) -> Tensor:
    layer = self.base_layer
    return F.linear(x, layer.weight, layer.bias)


def _dropped_once(self: Any, x: Tensor) -> Tensor:
    x = self.lora_dropout(x)
    out = self.base_layer(x)
    if self.merged:
        return out
    return self.beside(out, F.linear(F.linear(x.float(), self.lora_A), self.lora_B))


def _between(self: Any, x: Tensor) -> Tensor:
    return F.linear(self.lora_dropout(F.linear(x.float(), self.lora_A)), self.lora_B)


def _always_dropped(self: Any, x: Tensor) -> Tensor:
    dropped = F.dropout(x.float(), self.lora_dropout.p)
    return F.linear(F.linear(dropped, self.lora_A), self.lora_B)


def _in_the_type_of_x(self: Any, x: Tensor) -> Tensor:
    a, b = self.lora_A.to(x.dtype), self.lora_B.to(x.dtype)
    return F.linear(F.linear(self.lora_dropout(x), a), b)


def _merge_again(self: Any) -> None:
    self.merged = False
    RightLayer.merge(self)


def _merge_unscaled(self: Any) -> None:
    if not self.merged:
        self.base_layer.weight.data += (self.lora_B @ self.lora_A).detach()
        self.merged = True


def _merge_rounded_twice(self: Any) -> None:
    if not self.merged:
        weight = self.base_layer.weight.data
        self.base_layer.weight.data = weight + self.delta().to(weight.dtype)
        self.merged = True


def _forgets(self: Any) -> None:
    weight = self.base_layer.weight.data
    self.base_layer.weight.data = (weight.float() + self.delta()).to(weight.dtype)


def _trained_base(self: Any, base_layer: Any, *args: Any) -> None:
    RightLayer.__init__(self, base_layer, *args)
    for p in base_layer.parameters():
        p.requires_grad_(p.is_floating_point())


def _unscaled(self: Any, base_layer: Any, *args: Any) -> None:
    RightLayer.__init__(self, base_layer, *args)
    self.scaling = 1.0


_SUM = "base_layer(x), plus what A and B make of x, times lora_alpha / r: see exercise 6."
_DROP = "Only what goes into A is dropped, and only while training. `nn.Dropout` knows when."
CLAUSES = {
    "new": Clause("`LoRALinear(base_layer, r, lora_alpha, lora_dropout)` makes no module."),
    "base": Clause(
        "`layer.base_layer` is not the layer that was given.",
        "Keep the layer itself: a copy needs the memory twice.",
    ),
    "trained": Clause(
        "What is trained is not exactly `lora_A` and `lora_B`. An optimizer takes "
        "what is an nn.Parameter and needs a gradient.",
        "Freeze the base layer, its bias too. Keep A and B as `init_lora` makes "
        "them, without `.data` or `.detach()`.",
    ),
    "form": Clause("A or B has another shape or type than `init_lora` gives."),
    "kept": Clause(
        "Base layer's parameters are missing in `layer.parameters()`: they would "
        "neither be saved nor moved to a GPU.",
        "Keep the module itself.",
    ),
    "merged": Clause(
        "`layer.merged` is {got}; expected {expected}. It tells whether the update is "
        "in the weight.",
        "False at first, True after `merge()`; nothing else sets it.",
    ),
    "first": Clause(
        "A new layer does not give what its base layer gives. {says}",
        "B is zero at first (`init_lora`), so the update is zero.",
    ),
    "two": Clause(
        "Two layers have the same A and B, or begin with the same numbers.",
        "Call `init_lora` in `__init__`.",
    ),
    "mode": Clause(
        "The mode of the base layer (train or eval) is another one than before.",
        "Leave it to `train()` and `eval()`.",
    ),
    "type": Clause(
        "The output is {got}. It must have the type of the base layer's output, or the "
        "next layer cannot take it.",
        "`result = self.base_layer(x)` knows it.",
    ),
    "output": Clause("The output is not base_layer(x) + (lora_alpha / r) B A x. {says}", _SUM),
    "merged output": Clause(
        "After merging, the output is not that of the base layer alone: the "
        "update is added once more, or something else is.",
        "Ask `self.merged` first.",
    ),
    "frozen": Clause(
        "The base layer is changed or gets a gradient, though it is frozen. {got}",
        "`base_layer.requires_grad_(False)`; no new nn.Parameter.",
    ),
    "no gradient": Clause(
        "No gradient arrives: {got}.", "`.data`, `.detach()` and `no_grad` in `forward` cut it off."
    ),
    "gradient": Clause("The gradient of A or B is wrong. {says}", _SUM),
    "gradient of x": Clause(
        "The gradient of x is wrong. {says} It must pass through the "
        "frozen weight, to the layers below.",
        "Freeze the weight with `requires_grad_(False)`; do not wrap the base "
        "layer's call in `no_grad`.",
    ),
    "weight": Clause(
        "After `merge()` the base layer's weight is not the merged one. {says}",
        "What `merge_weight` returns belongs into `base_layer.weight.data`.",
    ),
    "merge again": Clause(
        "Merging a second time changes the weight once more.",
        "Do nothing if `self.merged` is set already.",
    ),
    "same parameter": Clause(
        "`base_layer.weight` is another object after `merge()`. Whoever "
        "holds the old one does not see the merged weight.",
        "Write into `.data`.",
    ),
    "dropped: eval": Clause(
        "Inputs are dropped in evaluation, too. The model would answer at random.", _DROP
    ),
    "dropped: base": Clause(
        "Inputs of the *base layer* are dropped, too. Only the update's are: W x must stay.", _DROP
    ),
    "dropped: nothing": Clause("Nothing is dropped in training.", _DROP),
    "dropped: scale": Clause(
        "What is left is not scaled up. Dropout multiplies it by 1 / (1 - p), "
        "so that the mean stays.",
        "`nn.Dropout` does that.",
    ),
    "dropped: share": Clause(
        "Of A's inputs, a share of {got} is dropped; expected about {expected}.",
        "Its number is the share that is dropped.",
    ),
    "dropped: place": Clause(
        "Dropout stands between A and B, or behind B. It belongs in front of A.", _DROP
    ),
    "dropped: same": Clause("The same inputs are dropped each time, or for each row of x.", _DROP),
}

MISTAKES = (
    mistake(
        "The bias of the base layer is lost.", "Call `self.base_layer(x)`.", but(base=_without_bias)
    ),
    mistake(
        "The base layer's weight is used, but its `forward` is not called. A 4-bit layer has "
        "one of its own.",
        "Call `self.base_layer(x)`.",
        but(base=_around_the_base),
    ),
    mistake(
        "The update is not scaled: lora_alpha / r is missing.",
        _SUM,
        but(beside=lambda s, out, update: (out + update).to(out.dtype)),
        but(__init__=_unscaled),
    ),
    mistake(
        "The update is scaled by lora_alpha, not divided by r.",
        _SUM,
        but(beside=lambda s, out, update: (out + s.alpha * update).to(out.dtype)),
    ),
    mistake(
        "The update is never added: the output is that of the base layer.",
        "Is `merged` asked the right way round?",
        but(beside=lambda s, out, update: out),
    ),
    mistake(
        "The update is computed in 16 bits. A and B are rounded there.",
        "A and B stay float32; x is converted.",
        but(update=_in_the_type_of_x),
    ),
    mistake(
        "The base layer is not frozen: it would be trained, too.",
        "`base_layer.requires_grad_(False)`, which also freezes the bias.",
        but(__init__=_trained_base),
    ),
    mistake(
        "Inputs of the *base layer* are dropped, too: the same dropout is in front of both. W "
        "x must stay.",
        _DROP,
        but(forward=_dropped_once),
    ),
    mistake(
        "Dropout stands between A and B. It belongs in front of A.", _DROP, but(update=_between)
    ),
    mistake(
        "Inputs are dropped in evaluation, too: `F.dropout` must be told whether it is training.",
        _DROP,
        but(update=_always_dropped),
    ),
    mistake(
        "After `merge()`, `layer.merged` is still False. So `forward` adds the update once more.",
        "`self.merged = True`, at the end of `merge`.",
        but(merge=_forgets),
    ),
    mistake(
        "Merging a second time adds the update once more.",
        "Do nothing if `self.merged` is set already.",
        but(merge=_merge_again),
    ),
    mistake(
        "What is merged is not scaled: lora_alpha / r is missing in `merge`.",
        "Your `merge_weight` of exercise 7.",
        but(merge=_merge_unscaled),
    ),
    mistake(
        "The update is rounded before it is merged, and the sum once more.",
        "Your `merge_weight` of exercise 7.",
        but(merge=_merge_rounded_twice),
    ),
)
