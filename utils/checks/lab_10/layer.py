"""Stories of a `LoRALinear`: outputs, gradients, modes, merging, dropout: exercise 8."""

from __future__ import annotations

import contextlib
import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.checks.kit.contracts import Choices, Contract, InLockstep, Raised, Stage
from utils.checks.lab_10.gradients import Near, pulled
from utils.checks.lab_10.layer_mistakes import CLAUSES, MISTAKES, RightLayer
from utils.checks.lab_10.low_rank_update import (
    ALPHAS,
    FINE,
    HALVES,
    SUMMED,
    exact_sum,
    finely,
    near_output,
    rounded_once,
)

BASES = ("linear", "linear", "of its own", "packed", "other type")
DROPPED = (0.0, 0.0, 0.1, 0.5)
STEPS = ("forward", "backward", "fill", "merge", "eval", "train", "finely")
ROWS = ((3,), (), (1,), (2, 2), (0,))


class OwnForward(nn.Linear):
    """A kind of linear layer that computes in its own way, as a 4-bit layer does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2 + 1


class Packed(nn.Linear):
    """Its weight is stored as bytes, in another shape; its forward unpacks it."""

    def __init__(self, i: int, o: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__(i, o, bias, dtype=dtype)
        codes = torch.randint(0, 9, (i * o, 1), dtype=torch.uint8)
        self.weight: Any = nn.Parameter(codes, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight.to(x.dtype) - 4) / 4
        return F.linear(x, weight.reshape(self.out_features, self.in_features), self.bias)


class OtherType(nn.Linear):
    """It computes in bfloat16, whatever it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).bfloat16()


KINDS: dict[str, Any] = {
    "linear": nn.Linear,
    "of its own": OwnForward,
    "packed": Packed,
    "other type": OtherType,
}


@dataclass(frozen=True)
class Story:
    base: str
    sizes: tuple[int, int, int]  # in, out, r
    bias: bool
    dtype: torch.dtype
    alpha: float
    dropout: float | None  # None: not given
    training: bool  # the base layer's mode at first
    steps: tuple[tuple[str, Any], ...]
    wide: bool = False  # a story about dropout alone

    def __str__(self) -> str:
        i, o, r = self.sizes
        kind = {
            "linear": "nn.Linear",
            "of its own": "a subclass of nn.Linear with its own forward",
            "packed": "a layer whose weight is packed into bytes",
            "other type": "a layer whose output is bfloat16",
        }[self.base]
        text = f"{kind} ({i} to {o}, {'with' if self.bias else 'without'} bias, {self.dtype}), "
        text = text.replace("torch.", "") + f"r = {r}, lora_alpha = {self.alpha:g}"
        return text + ("" if self.dropout is None else f", lora_dropout = {self.dropout:g}")


def draw_story(c: Choices) -> Story:
    if c.rarely(6):
        sizes, p = c.pick(((150, 150, 150), (200, 3, 1))), c.pick((0.25, 0.1, 0.5, 0.9))
        return Story("linear", sizes, True, torch.float32, 8, p, c.rarely(2), (), wide=True)
    base = c.pick(BASES)
    dtype = torch.float32 if base == "other type" else c.pick((torch.float32, *HALVES))
    sizes = c.size(1, 40), c.size(1, 40), c.size(1, 9)
    options = [s for s in STEPS if s != "merge" or base in ("linear", "of its own")]
    steps = c.some(lambda: (c.pick(options), c.pick(ROWS)), 0, 8)
    alpha = c.pick(ALPHAS)
    if any(kind == "finely" for kind, _ in steps):
        alpha = FINE
    dropout = c.pick((None, *DROPPED))
    return Story(base, sizes, not c.rarely(3), dtype, alpha, dropout, c.rarely(2), tuple(steps))


def play(stage: Stage, layer_class: Any, story: Story) -> None:
    _Teller(stage, story).tell(layer_class)


class _Teller:
    """Knows what is right from a copy of the base layer, which nobody else has."""

    def __init__(self, stage: Stage, story: Story) -> None:
        self.stage, self.story, self.random = stage, story, torch.Generator().manual_seed(3)
        i, o, self.r = story.sizes
        torch.default_generator.manual_seed(1)
        self.base = KINDS[story.base](i, o, bias=story.bias, dtype=story.dtype)
        self.base.train(story.training)
        self.weight, self.twin = self.base.weight, copy.deepcopy(self.base)
        self.layer: Any = None
        self.merged = False

    def tell(self, layer_class: Any) -> None:
        story, stage = self.story, self.stage
        stage.step("a new layer")
        self.layer = self._new(layer_class, self.base)
        self._attributes(layer_class)
        if story.wide:
            return self._tell_dropout()
        self.layer.train(story.training)
        self._forward((3,), "first")
        for kind, rows in story.steps:
            stage.step(
                {
                    "fill": "A and B get numbers",
                    "finely": "A and B get fine numbers",
                    "merge": "merge()",
                    "eval": "eval()",
                    "train": "train()",
                }.get(kind, kind)
            )
            if kind in ("fill", "finely"):
                self._fill(last_bits=kind == "finely")
            elif kind == "merge":
                self._merge()
            elif kind == "forward":
                self._forward(rows, "output")
            elif kind == "backward":
                self._backward(rows)
            else:
                self.layer.train(kind == "train")
            stage.see("merged", stage.read(self.layer, "merged"))
        kept = getattr(self.layer, "base_layer", None) is self.base
        stage.expect(
            "base",
            "the layer that was given",
            "the layer that was given" if kept else "another one",
        )
        return None

    def _new(self, layer_class: Any, base: nn.Module) -> Any:
        rest = () if self.story.dropout is None else (self.story.dropout,)
        layer = self.stage.do(lambda b: layer_class(b, self.r, self.story.alpha, *rest), base)
        if isinstance(layer, Raised) or not isinstance(layer, nn.Module):
            self.stage.blame("new", "an nn.Module", layer)
        return layer

    def _attributes(self, layer_class: Any) -> None:
        stage, layer, i, o = self.stage, self.layer, *self.story.sizes[:2]
        stage.see("mode", ["eval", "train"][self.base.training])
        kept = getattr(layer, "base_layer", None) is self.base
        stage.expect(
            "base",
            "the layer that was given",
            "the layer that was given" if kept else "another one, or none",
        )
        named = dict(layer.named_parameters())
        stage.see("trained", sorted(n for n, p in named.items() if p.requires_grad))
        wanted = {"lora_A": (self.r, i), "lora_B": (o, self.r)}
        for name, shape in wanted.items():
            got = tuple(named[name].shape), str(named[name].dtype)
            stage.expect("form", f"{name}: {shape}, torch.float32", f"{name}: {got[0]}, {got[1]}")
        stage.expect(
            "first", "B all zeros", "B all zeros" if not layer.lora_B.any() else "B is not zero"
        )
        stage.see("kept", all(any(p is q for q in named.values()) for p in self.base.parameters()))
        stage.see("merged", stage.read(layer, "merged"))
        other = self._new(layer_class, copy.deepcopy(self.base))
        pairs = ((layer.lora_A, other.lora_A), (layer.lora_B, other.lora_B))
        stage.see("two", any(a is b for a, b in pairs) or torch.equal(*pairs[0]))

    def _fill(self, last_bits: bool) -> None:
        a, b = (torch.randn(t.shape, generator=self.random) for t in self._ab())
        if last_bits and self.story.dtype in HALVES:
            _, a, b = finely("A", self._x(()), a, b)
        with torch.no_grad():  # as an optimizer does
            self.layer.lora_A.copy_(a), self.layer.lora_B.copy_(b)

    def _ab(self) -> tuple[Tensor, Tensor]:
        return self.layer.lora_A.detach(), self.layer.lora_B.detach()

    def _x(self, rows: tuple[int, ...]) -> Tensor:
        fine = any(kind == "finely" for kind, _ in self.story.steps)
        x = torch.randn(*rows, self.story.sizes[0], generator=self.random)
        return (torch.ones_like(x) if fine else x).to(self.story.dtype)

    def _random(self) -> bool:
        return bool(self.story.dropout and self.layer.training and not self.merged)

    def _right(self, x: Tensor) -> Near:
        base = self.twin(x).detach()
        a, b = self._ab()
        near = near_output(base, x, a, b, 0.0 if self.merged else self.story.alpha)
        return Near(near.value, near.tolerance + 1e-5 * base.double().abs() + 1e-5)

    def _forward(self, rows: tuple[int, ...], clause: str) -> Any:
        x = self._x(rows)
        out = self.stage.do(lambda v: self.layer(v), x)
        near = self._right(x)
        if not isinstance(out, Tensor):
            self.stage.blame(clause, near.value, out)
        if out.dtype != near.value.dtype:
            right, mine = (str(t.dtype).removeprefix("torch.") for t in (near.value, out))
            self.stage.blame("type", right, mine)
        if not near.fits(out) and (not self._random() or out.shape != near.value.shape):
            clause = "merged output" if self.merged else clause
            self.stage.blame(clause, near.value, out.detach())
        self.stage.see(clause, "right")
        return out

    def _backward(self, rows: tuple[int, ...]) -> None:
        stage, x = self.stage, self._x(rows).requires_grad_()
        self.layer.zero_grad()
        out = stage.do(lambda v: self.layer(v), x)
        if isinstance(out, Raised):
            stage.blame("output", self._right(x).value, out)
        if out.requires_grad:
            done = stage.do(lambda t: t.backward(pulled(t).to(t.dtype)), out)
            stage.see("output", done)
        a, b = (t.double().requires_grad_() for t in self._ab())
        exact = x.detach().double().requires_grad_()
        copied = x.detach().clone().requires_grad_()
        above = self.twin(copied)
        above.backward(pulled(above).to(above.dtype))
        scale = 0.0 if self.merged else self.story.alpha / self.r
        below = scale * exact @ a.T @ b.T
        below.backward(pulled(below))
        assert copied.grad is not None
        total = copied.grad.double() + exact.grad  # type: ignore[operator]
        for name, mine, right in (
            ("x", x, total),
            ("lora_A", self.layer.lora_A, a.grad),
            ("lora_B", self.layer.lora_B, b.grad),
        ):
            if self._random() or (self.merged and name != "x"):
                continue
            if mine.grad is None:
                stage.blame("no gradient", f"a gradient of {name}", f"none of {name}")
            size = (abs(scale) + 1) * (1 + a.detach().abs().max()) * (1 + b.detach().abs().max())
            eps = torch.finfo(above.dtype).eps if name == "x" else SUMMED
            assert right is not None
            near = 4 * eps * (size * 4 * sum(self.story.sizes) ** 0.5 + right.abs())
            if not Near(right.to(mine.dtype), near).fits(mine.grad):
                stage.blame(
                    "gradient of x" if name == "x" else "gradient", right.to(mine.dtype), mine.grad
                )
        stage.see("frozen", all(p.grad is None for p in self.base.parameters()))

    def _merge(self) -> None:
        stage, (a, b) = self.stage, self._ab()
        before = self.twin.weight.detach().clone()
        done = stage.do(lambda: self.layer.merge())
        if isinstance(done, Raised):
            stage.blame("weight", "the merged weight", done)
        now = self.base.weight
        stage.see("same parameter", now is self.weight)
        stage.see("frozen", [p.requires_grad for p in self.base.parameters()])
        got = now.detach()
        if self.merged:
            if not torch.equal(got, before):
                stage.blame("merge again", before, got)
        else:
            right = exact_sum(before, a, b, self.story.alpha).to(before.dtype)
            same = got.shape == right.shape and got.dtype == right.dtype
            if not same or not rounded_once(got, before, a, b, self.story.alpha):
                stage.blame("weight", right, got)
        with torch.no_grad():
            self.twin.weight.copy_(got)
        self.merged = True
        if self.story.bias:
            stage.see("frozen", bool(torch.equal(self.base.bias, self.twin.bias)))

    def _tell_dropout(self) -> None:
        """A and B make of x all ones what shows which of its numbers were dropped."""
        stage, layer, (i, o, r), p = self.stage, self.layer, self.story.sizes, self.story.dropout
        assert p is not None
        with torch.no_grad():
            layer.lora_A.copy_(torch.eye(i) if r == i else torch.full((1, i), 1 / i))
            layer.lora_B.copy_(torch.eye(o) if r == o else torch.ones(o, 1))
        x, kept = torch.ones(40, i), layer.lora_B.detach().clone()
        stage.step("A and B such that dropped inputs show; eval()")
        layer.eval()
        first = self._update(x)
        if not torch.allclose(first, torch.ones_like(first), atol=1e-3):
            stage.blame("dropped: eval", "no inputs dropped", "inputs dropped")
        stage.step("train()")
        layer.train()
        with torch.no_grad():
            layer.lora_B.zero_()
        if self._update(x).abs().max() > 1e-3:
            stage.blame("dropped: base", "base_layer(x)", "another output, though B is zero")
        with torch.no_grad():
            layer.lora_B.copy_(kept)
        one, two = self._update(x), self._update(x)
        if torch.allclose(one, torch.ones_like(one), atol=1e-3):
            stage.blame("dropped: nothing", "some inputs dropped", "none")
        if torch.equal(one, two) or torch.equal(one[0], one[1]):
            stage.blame("dropped: same", "others each time", "the same")
        if r == 1:  # A takes a mean: dropped in front of it, that stays near what it was
            spread = 6 * math.sqrt(p / (1 - p) / i)
            if not ((one - 1).abs() < spread).all() or not torch.allclose(
                one, one[:, :1].expand_as(one), atol=1e-3
            ):
                mean = float(one.mean())
                clause = "scale" if abs(mean - (1 - p)) < spread / 4 < abs(mean - 1) else "place"
                stage.blame(f"dropped: {clause}", "about 1 each", "others")
            return
        left = one[one.abs() > 1e-3]
        share = 1 - left.numel() / one.numel()
        if abs(share - p) > 6 * math.sqrt(p * (1 - p) / one.numel()):
            stage.blame("dropped: share", f"{p:g}", f"{share:.2f}")
        with contextlib.suppress(RuntimeError):
            if (left - 1 / (1 - p)).abs().max() > 1e-2:
                stage.blame("dropped: scale", f"{1 / (1 - p):.3g}", f"{float(left.mean()):.3g}")

    def _update(self, x: Tensor) -> Tensor:
        out = self.stage.do(lambda v: self.layer(v), x)
        base = self.twin(x).detach()
        if not isinstance(out, Tensor) or out.shape != base.shape:
            self.stage.blame("output", base, out)
        return (out.detach() - base) * self.r / self.story.alpha


LORA_LINEAR = Contract(
    inputs=draw_story,
    judge=InLockstep(play, RightLayer),
    passed="It starts as its base layer, trains A and B alone, drops inputs of A only while "
    "training, and merges once into one plain weight.",
    clauses=CLAUSES,
    mistakes=MISTAKES,
)
