"""Stories of layers: a `LoRALinear` (exercise 7), and one with a way back (exercise 10)."""

from __future__ import annotations

import copy
import gc
import io
import math
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.lab.story import Story
from utils.checks.lab_10 import near
from utils.checks.lab_10.near import blame_number, form_of

ALPHAS: tuple[float, ...] = (1, 2, 16, 3, 0.5, 7.5, 0)
ROWS = ((3,), (), (1,), (2, 2), (0,))
SIZES = (1.0, 0.01, 300.0)  # of an update
ENOUGH = 200  # numbers, to judge how they are spread
FARTHEST = 2.9  # Kolmogorov and Smirnov's distance times sqrt(n): above it once in ten million
SLACK = 256  # bytes that nobody counts


def exact_sum(weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """W + (alpha / r) B A in double precision, not rounded."""
    return weight.detach().double() + alpha / len(a) * (b.detach().double() @ a.detach().double())


def rounded_once(got: Tensor, weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> bool:
    """Whether each number is the nearest one in its dtype, up to the errors of float32."""
    exact = exact_sum(weight, a, b, alpha)
    error = near.SUMMED * exact_sum(weight.abs(), a.abs(), b.abs(), abs(alpha))
    low, high = (end.to(weight.dtype) for end in (exact - error, exact + error))
    return form_of(got) == form_of(low) and bool(((low <= got) & (got <= high)).all())


def see_first_values(stage: Stage, a: Tensor, b: Tensor) -> None:
    """End a play unless A is uniform between both bounds, and B is zero."""
    bound = a.shape[1] ** -0.5
    states = ["random" if t.any() else "zero" for t in (a, b)]
    stage.expect("zero", "A random, B zero", f"A {states[0]}, B {states[1]}")
    if a.numel() > 1 and a.abs().unique().numel() < 0.95 * a.numel():
        stage.blame("repeated", "r x in_features numbers", "some numbers come again")
    share = (a.flatten().double().sort().values / bound + 1) / 2  # of uniform numbers: evenly on
    steps = torch.arange(a.numel(), dtype=torch.float64) / a.numel()
    far = (share - steps).abs().max() * math.sqrt(a.numel()) > FARTHEST
    if a.abs().max() > 1.001 * bound or (far and a.numel() > ENOUGH):
        within = f"between -{bound:.4g} and {bound:.4g}, each number as likely"
        stage.blame("spread", within, f"between {float(a.min()):.4g} and {float(a.max()):.4g}")


class Packed(nn.Linear):
    """As a 4-bit layer: its weight is stored as bytes, in another shape, and its output is
    bfloat16, whatever it is given."""

    def __init__(self, i: int, o: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__(i, o, bias, dtype=dtype)
        codes = torch.randint(0, 9, (i * o, 1), dtype=torch.uint8)
        self.weight: Any = nn.Parameter(codes, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = ((self.weight.to(x.dtype) - 4) / 4).reshape(self.out_features, self.in_features)
        return F.linear(x, weight, self.bias).bfloat16()


BASES: dict[str, Any] = {"nn.Linear": nn.Linear, "a layer with a packed weight": Packed}


class Setting(NamedTuple):
    """How a layer is made."""

    base_layer: str
    in_features: int
    out_features: int
    dtype: torch.dtype
    r: int
    lora_alpha: float
    bias: bool = True
    lora_dropout: float | None = None  # None: not given
    training: bool = False  # the base layer's mode at first


class LayerStory(Story):
    """A layer in the hands of an optimizer. A twin of its base layer, which nobody else has, says
    what is right."""

    kinds: Sequence[str] = ("forward", "backward", "fill", "merge", "mode", "fill")
    most = 8

    @classmethod
    def draw_setting(cls, c: Choices) -> Setting:
        bias, training = not c.rarely(3), c.rarely(2)
        dropout = c.pick((None, 0.0, None, 0.0, 0.25, 0.1, 0.5, 0.9))
        if dropout:  # the sizes that `see_dropout` needs
            return Setting("nn.Linear", 2, 5, torch.float32, 4, 8, bias, dropout, training)
        sizes, dtype = (c.size(1, 40), c.size(1, 40)), c.pick((torch.float32, *near.HALVES))
        base, r, alpha = c.pick(("nn.Linear", *BASES)), c.size(1, 9), c.pick(ALPHAS)
        return Setting(base, *sizes, dtype, r, alpha, bias, dropout, training)

    @staticmethod
    def draw_number(c: Choices, setting: Setting) -> tuple[int]:
        return (c.integer(0, 4),)

    draw_forward = draw_backward = draw_fill = draw_merge = draw_mode = draw_number

    @classmethod
    def tell(cls, setting: Setting) -> str:
        return near.told(setting)

    def start(self, layer_class: Any) -> None:
        setting, stage = self.setting, self.stage
        self.random, self.merged = torch.Generator().manual_seed(3), False
        torch.default_generator.manual_seed(1)
        make, sizes = BASES[setting.base_layer], setting[1:3]
        self.base = make(*sizes, bias=setting.bias, dtype=setting.dtype).train(setting.training)
        self.base.weight.data[0, 0] = -0.0  # plus zero it would be +0.0
        self.weight, self.twin = self.base.weight, copy.deepcopy(self.base)
        stage.step("a new layer")
        self.layer = self.new(layer_class, self.base)
        self.look_at_a_new_one(layer_class)
        if setting.lora_dropout:
            self.see_dropout(setting.lora_dropout)
        self.layer.train(setting.training)
        self.look()

    def new(self, layer_class: Any, base: nn.Module) -> Any:
        given = self.setting.lora_dropout
        rest = (self.setting.r, self.setting.lora_alpha) + (() if given is None else (given,))
        layer = self.stage.do(lambda b: layer_class(b, *rest), base)
        if isinstance(layer, Raised) or not isinstance(layer, nn.Module):
            self.stage.blame("new", "an nn.Module", layer)
        return layer

    def look_at_a_new_one(self, layer_class: Any) -> None:
        stage, layer, (_, i, o, _, r, *_) = self.stage, self.layer, self.setting
        stage.see("mode", self.base.training, mode_in_words)
        named = dict(layer.named_parameters())
        stage.see("trained", self.trained())
        for name, shape in (("lora_A", (r, i)), ("lora_B", (o, r))):
            form = f"{name}: {tuple(named[name].shape)}, {named[name].dtype}"
            stage.expect("form", f"{name}: {shape}, torch.float32", form)
        see_first_values(stage, *self.ab())
        other = self.new(layer_class, copy.deepcopy(self.base))
        shared = layer.lora_A is other.lora_A or layer.lora_B is other.lora_B
        stage.see("two", shared or torch.equal(layer.lora_A, other.lora_A))

    def look(self) -> None:
        """After each step: the layer's state and mode, and the base layer with its parameters."""
        stage = self.stage
        self.see_base()
        stage.see("merged", stage.read(self.layer, "merged"))
        stage.see("mode", self.layer.training, mode_in_words)
        stage.see("same parameter", self.base.weight is self.weight)
        params = dict(self.base.named_parameters())
        twins = self.twin.named_parameters()
        changed = [n for n, p in twins if n not in params or not same_bits(p, params[n])]
        stage.see("frozen", changed + [n for n, p in params.items() if p.requires_grad])

    def see_base(self) -> None:
        given, kept = "the layer that was given", getattr(self.layer, "base_layer", None)
        self.stage.expect("base", given, given if kept is self.base else "another layer, or none")

    def do_mode(self, number: int) -> None:
        self.stage.step(f"{mode_in_words(number > 2)}()")
        self.layer.train(number > 2)

    def do_fill(self, number: int) -> None:
        self.stage.step("A and B get numbers")
        size = SIZES[number % 3] ** 0.5
        with torch.no_grad():  # as an optimizer does
            for p in (self.layer.lora_A, self.layer.lora_B):
                p.copy_(torch.randn(p.shape, generator=self.random) * size)

    def ab(self) -> tuple[Tensor, Tensor]:
        return self.layer.lora_A.detach(), self.layer.lora_B.detach()

    def do_forward(self, number: int) -> None:
        self.stage.step("forward")
        self.output(self.x(number))
        self.look()

    def x(self, number: int) -> Tensor:
        shape = *ROWS[number], self.setting.in_features
        return torch.randn(shape, generator=self.random).to(self.setting.dtype)

    def output(self, x: Tensor) -> Tensor:
        """What the layer makes of x; ends the play unless it is right."""
        clause, out = "merged output" * self.merged or "output", self.stage.do(self.run, x)
        right = near.beside(self.twin(x), x, *self.ab(), self.alpha())
        if not isinstance(out, Tensor):
            self.stage.blame(clause, right.value, out)
        wanted, came = (str(t.dtype).removeprefix("torch.") for t in (right.value, out))
        self.stage.expect("dtype", wanted, came)
        same_shape = out.shape == right.value.shape
        if right.value.isfinite().all() and not (self.is_random() and same_shape):
            right.must_fit(self.stage, clause, out)
        return out

    def run(self, x: Tensor) -> Any:
        return self.layer(x)

    def alpha(self) -> float:
        return 0.0 if self.merged else self.setting.lora_alpha

    def is_random(self) -> bool:
        return bool(self.setting.lora_dropout and self.layer.training and not self.merged)

    def do_backward(self, number: int) -> None:
        self.stage.step("backward")
        stage, layer, x = self.stage, self.layer, self.x(number).requires_grad_()
        layer.zero_grad()
        out = self.output(x)
        above, copied = near.pulled(out), x.detach().clone().requires_grad_()
        if out.requires_grad:
            stage.see("output", stage.do(lambda t: t.backward(above.to(t.dtype)), out))
        self.twin(copied).backward(above.to(out.dtype))
        self.twin.zero_grad()
        assert copied.grad is not None
        rights = near.gradients(copied.grad, x, above, *self.ab(), self.alpha())
        given = ("x", x), ("lora_A", layer.lora_A), ("lora_B", layer.lora_B)
        for (name, mine), right in zip(given, rights, strict=True):
            if self.is_random() or (self.merged and name != "x"):
                continue
            if mine.grad is None:
                stage.blame("no gradient", f"a gradient of {name}", f"{name} has none")
            if name == "x":
                right.must_fit(stage, "gradient of x", mine.grad)
            right.must_fit(stage, "gradient", mine.grad, near.CLOSE)
        self.look()

    def do_merge(self, number: int) -> None:
        if self.setting.base_layer != "nn.Linear":
            return
        stage, before = self.stage, self.twin.weight.detach().clone()
        stage.step("merge()")
        a, b = self.take("merge")
        got, right = self.base.weight.detach(), exact_sum(before, a, b, self.alpha())
        if self.merged and not same_bits(got, before):
            blame_number(stage, "merge again", before, got)
        if not rounded_once(got, before, a, b, self.alpha()):
            blame_number(stage, "merge", right.to(before.dtype), got)
        stage.see("merge: trained", self.trained())
        self.twin.weight.data, self.merged = got.clone(), True
        self.look()

    def trained(self) -> list[str]:
        """The names of the layer's parameters that need a gradient."""
        return sorted(n for n, p in self.layer.named_parameters() if p.requires_grad)

    def take(self, name: str) -> list[Tensor]:
        """Call a method that takes nothing; an error ends the play. A and B as they must stay."""
        adapter = [t.clone() for t in self.ab()]
        got = self.stage.call(self.layer, name)
        if isinstance(got, Raised):
            self.stage.blame(name, "no error", got)
        for old, new in zip(adapter, self.ab(), strict=True):
            if not same_bits(old, new):
                self.stage.blame(f"{name}: kept", old, new)
        return adapter

    def see_dropout(self, p: float) -> None:
        """A copies both inputs twice; B passes the four numbers on, and adds up the first two. So
        the output shows which numbers were dropped, and where."""
        layer, whole = self.layer, torch.tensor([1.0, 1, 1, 1, 2]).expand(2000, 5)
        with torch.no_grad():
            layer.lora_A.copy_(torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]))
            nothing = self.update(training=True)
            layer.lora_B.copy_(torch.cat([torch.eye(4), torch.tensor([[1.0, 1, 0, 0]])]))
        self.stage.step("A and B such that the output shows what was dropped from 2000 rows")
        asleep, one, two = (self.update(training=t) for t in (False, True, True))
        first, second = one[:, [0, 2]], one[:, [1, 3]]
        dropped = first.abs() < 1e-3
        share, left = float(dropped.double().mean()), first[~dropped]
        spread = 6 * math.sqrt(p * (1 - p) / first.numel())
        times, up = float(left.mean()), 1 / (1 - p)
        behind = max((one[:, 0] + one[:, 1] - one[:, 4]).abs().max(), (first - second).abs().max())
        for clause, wrong, expected, got in (
            (
                "base",
                nothing.abs().max() > 1e-3,
                "base_layer(x)",
                "another output, while B is zero",
            ),
            ("eval", (asleep - whole).abs().max() > 1e-3, "nothing dropped", "inputs dropped"),
            ("nothing", (one - whole).abs().max() < 1e-3, "inputs dropped", "nothing dropped"),
            ("place", behind > 1e-2, "inputs of A dropped", "numbers behind A dropped"),
            ("same", torch.equal(one, two), "other inputs in each call", "the same inputs"),
            ("same", (first == first[0]).all(), "other inputs in each row", "the same inputs"),
            ("same", (first[:, 0] == first[:, 1]).all(), "each input by itself", "whole rows"),
            ("share", abs(share - p) > spread, f"{p:g}", f"{share:.2f}"),
            ("scale", (left - up).abs().max() > 1e-2, f"{up:.3g}", f"{times:.3g}"),
        ):
            if wrong:
                self.stage.blame(f"dropped: {clause}", expected, got)

    def update(self, training: bool) -> Tensor:
        """What the layer adds to the output of its base layer for rows of ones, [2000, 5]."""
        self.layer.train(training)
        x = torch.ones(40, 50, 2)
        out, base = self.stage.do(self.run, x), self.twin(x).detach()
        if not isinstance(out, Tensor) or out.shape != base.shape:
            self.stage.blame("output", base, out)
        return (out.detach() - base).flatten(0, 1) * self.setting.r / self.setting.lora_alpha


def mode_in_words(training: bool) -> str:
    return "train" if training else "eval"


def same_bits(one: Tensor, other: Tensor) -> bool:
    one, other = one.detach(), other.detach()
    return form_of(one) == form_of(other) and torch.equal(
        one.view(torch.uint8), other.view(torch.uint8)
    )


class SwitchStory(LayerStory):
    """A layer is merged, taken apart, and gets other customers' A and B; beside it is another."""

    kinds = ("merge", "unmerge", "fill", "forward", "merge", "unmerge", "other")

    @classmethod
    def draw_setting(cls, c: Choices) -> Setting:
        dtype = c.pick((torch.bfloat16, torch.float32, torch.float16))
        sizes = c.size(16, 60), c.size(16, 60)
        r, alpha, training = c.size(1, 5), c.pick((8.0, 1.0, 3.0)), c.rarely(2)
        return Setting("nn.Linear", *sizes, dtype, r, alpha, training=training)

    draw_unmerge = draw_other = LayerStory.draw_number
    parts = 10**9  # bytes that a layer holds anyway; not known yet

    def start(self, layer_class: Any) -> None:
        super().start(layer_class)
        self.original, self.mine = self.twin.weight.detach().clone(), self.layer
        twin = copy.deepcopy(self.twin)
        self.others = twin.weight.data.neg_().clone()
        self.other = self.new(layer_class, twin)
        self.other.lora_B.data.fill_(0.3)
        self.parts = held_bytes([self.base, self.layer.lora_A, self.layer.lora_B])
        self.look()

    def do_unmerge(self, number: int) -> None:
        self.stage.step("unmerge()")
        self.take("unmerge")
        self.twin.weight.data, self.merged = self.original.clone(), False
        self.look()

    def do_other(self, number: int) -> None:
        """Merge another layer, or take it apart."""
        what, self.layer = "unmerge" if self.other.merged else "merge", self.other
        self.stage.step(f"{what}() of another layer")
        self.take(what)
        self.layer, weight = self.mine, self.other.base_layer.weight.detach()
        if what == "unmerge" and not same_bits(weight, self.others):
            blame_number(self.stage, "bits", self.others, weight)
        self.look()

    def look(self) -> None:
        self.see_base()
        self.stage.see("merged", self.stage.read(self.layer, "merged"))
        got, right = self.base.weight.detach(), self.twin.weight.detach()
        if not same_bits(got, right):
            blame_number(self.stage, "merge again" if self.merged else "bits", right, got)
        super().look()
        more, room = held_bytes(self.layer) - self.parts, right.nbytes * self.merged
        if more > room + SLACK:
            state = "merged" if self.merged else "not merged"
            most = f"{room:,} bytes beside the base layer, A and B, while it is {state}"
            self.stage.blame("memory", most, f"about {more:,} bytes")


def held_bytes(value: Any) -> int:
    """The bytes of all numbers that an object holds, wherever they are: each memory once."""
    sizes: dict[int, int] = {}
    seen: dict[int, Any] = {}
    todo = [value]
    while todo:
        part = todo.pop()
        if id(part) not in seen:
            seen[id(part)] = part  # kept alive, so that no id comes again
            storage = part.untyped_storage() if isinstance(part, Tensor) else part
            if isinstance(storage, torch.UntypedStorage):
                sizes[storage._cdata] = storage.nbytes()
            elif isinstance(part, np.ndarray | memoryview):
                sizes[id(part)] = part.nbytes
            elif isinstance(part, bytes | bytearray):
                sizes[id(part)] = len(part)
            elif isinstance(part, io.BytesIO):
                sizes[id(part)] = part.getbuffer().nbytes
            elif isinstance(part, int | float | complex):
                sizes[id(part)] = 8
            todo += _inside(part)
    return sum(sizes.values())


def _inside(part: Any) -> Iterator[Any]:
    """What an object refers to; of a function, what it has closed over and its defaults."""
    if isinstance(part, types.FunctionType):
        yield from (part.__closure__, part.__defaults__, part.__kwdefaults__, vars(part))
    elif isinstance(part, Tensor):
        yield vars(part)
    elif not isinstance(part, type | types.ModuleType | types.CodeType):
        yield from gc.get_referents(part)
