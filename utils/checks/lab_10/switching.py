"""A layer that can be merged and taken apart again, by whatever design: exercise 11."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.lab_10.layer_mistakes import RightLayer
from utils.checks.lab_10.low_rank_update import HALVES, exact_sum, rounded_once

STEPS = ("merge", "unmerge", "fill", "forward", "merge", "unmerge")
SLACK = 256  # bytes that nobody counts


@dataclass(frozen=True)
class Story:
    sizes: tuple[int, int, int]  # in, out, r
    dtype: torch.dtype
    alpha: float
    num_layers: int
    steps: tuple[tuple[str, int, float], ...]  # what, which layer, how large a new update is

    def __str__(self) -> str:
        i, o, r = self.sizes
        text = f"nn.Linear({i}, {o}) in {str(self.dtype).removeprefix('torch.')}, r = {r}, "
        more = "" if self.num_layers == 1 else f"; {self.num_layers} layers"
        return text + f"lora_alpha = {self.alpha:g}{more}"


def draw_story(c: Choices) -> Story:
    sizes = c.size(16, 60), c.size(16, 60), c.size(1, 5)
    num_layers = c.pick((1, 1, 2))
    steps = c.some(
        lambda: (c.pick(STEPS), c.integer(0, num_layers - 1), c.pick((1.0, 0.01, 300.0))), 1, 10
    )
    dtype = c.pick((torch.bfloat16, torch.float32, torch.float16))
    return Story(sizes, dtype, c.pick((8.0, 1.0, 3.0)), num_layers, tuple(steps))


class RightSwitch(RightLayer):
    """One of several right designs: the old memory is kept while another takes its place."""

    kept: Tensor | None = None

    def merge(self) -> None:
        if not self.merged:
            kept = self.base_layer.weight.data
            super().merge()
            self.kept = kept

    def unmerge(self) -> None:
        if self.merged:
            self.base_layer.weight.data, self.kept, self.merged = self.kept, None, False


def held_bytes(value: Any, seen: set[int] | None = None) -> int:
    """The bytes of all numbers that an object holds, each memory counted once."""
    seen = set() if seen is None else seen
    total = 0
    for part, place, size in _memory(value, seen):
        if place not in seen:
            seen |= {place, id(part)}
            total += size
    return total


def _memory(value: Any, seen: set[int]) -> Iterator[tuple[Any, int, int]]:
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        yield value, storage._cdata, storage.nbytes()
    elif isinstance(value, np.ndarray | bytes | bytearray):
        yield value, id(value), value.nbytes if isinstance(value, np.ndarray) else len(value)
    elif isinstance(value, dict | list | tuple | set | nn.Module) and id(value) not in seen:
        seen.add(id(value))
        inner = vars(value) if isinstance(value, nn.Module) else value
        for part in inner.values() if isinstance(inner, dict) else inner:
            yield from _memory(part, seen)


def play(stage: Stage, layer_class: Any, story: Story) -> None:
    torch.default_generator.manual_seed(1)
    shelves = [_Layer(stage, layer_class, story) for _ in range(story.num_layers)]
    for what, index, size in story.steps:
        which = f" of layer {index + 1}" if story.num_layers > 1 else ""
        stage.step(("A and B get numbers" if what == "fill" else what) + which)
        shelves[index].do(what, size)
        for shelf in shelves:
            shelf.see()


class _Layer:
    """A layer, with what its weight must be."""

    def __init__(self, stage: Stage, layer_class: Any, story: Story) -> None:
        self.stage, self.story = stage, story
        i, o, r = story.sizes
        self.base = nn.Linear(i, o, dtype=story.dtype)
        self.bias = self.base.bias.detach().clone()
        self.weight = self.original = self.base.weight.detach().clone()
        self.layer: Any = stage.do(lambda b: layer_class(b, r, story.alpha), self.base)
        if isinstance(self.layer, Raised) or not isinstance(self.layer, nn.Module):
            stage.blame("new", "a module", self.layer)
        self.merged, self.random = False, torch.Generator().manual_seed(2)
        self.parts = held_bytes([self.base, self.layer.lora_A, self.layer.lora_B])
        self._fill(1.0)

    def _fill(self, size: float) -> None:
        with torch.no_grad():
            for p in (self.layer.lora_A, self.layer.lora_B):
                p.copy_(torch.randn(p.shape, generator=self.random) * size**0.5)

    def do(self, what: str, size: float) -> None:
        if what == "fill":
            return self._fill(size)
        if what == "forward":
            return self._forward()
        done = self.stage.do(lambda: getattr(self.layer, what)())
        if isinstance(done, Raised):
            self.stage.blame(what, "no error", done)
        if what == "merge" and not self.merged:
            ab = self.layer.lora_A.detach(), self.layer.lora_B.detach(), self.story.alpha
            got = self.base.weight.detach()
            right = exact_sum(self.original, *ab).to(got.dtype)
            if got.dtype != self.original.dtype or not rounded_once(got, self.original, *ab):
                self.stage.blame("merge", right, got)
            self.weight = got.clone()
        if what == "unmerge":
            self.weight = self.original
        self.merged = what == "merge"
        return None

    def _forward(self) -> None:
        x = torch.randn(2, self.story.sizes[0], generator=self.random).to(self.story.dtype)
        out = self.stage.do(lambda v: self.layer(v), x)
        a, b = self.layer.lora_A.detach().double(), self.layer.lora_B.detach().double()
        scale = 0.0 if self.merged else self.story.alpha / len(a)
        base = nn.functional.linear(x, self.weight, self.bias).double()
        right = base + scale * (x.double() @ a.T @ b.T)
        eps = 4e-6 if self.story.dtype not in HALVES else 3 * torch.finfo(self.story.dtype).eps
        near = eps * (1 + base.abs() + scale * (x.double().abs() @ a.abs().T @ b.abs().T))
        fits = isinstance(out, Tensor) and out.shape == right.shape
        if (
            not fits
            or not ((out.double() - right).abs() <= near)
            .logical_or(out == right.to(out.dtype))
            .logical_or(out.isnan())
            .all()
        ):
            self.stage.blame("forward", right.to(self.story.dtype), out)

    def see(self) -> None:
        stage, got = self.stage, self.base.weight.detach()
        if got.shape != self.weight.shape or not torch.equal(
            got.view(torch.uint8), self.weight.view(torch.uint8)
        ):
            stage.blame("merge again" if self.merged else "bits", self.weight, got)
        stage.see("merged", stage.read(self.layer, "merged"))
        more = held_bytes(self.layer) - self.parts - SLACK
        room = self.weight.nbytes if self.merged else 0
        if more > room:
            state = "merged" if self.merged else "not merged"
            stage.blame(
                "memory",
                f"{state}: at most {room:,} bytes beside base layer, A and B",
                f"{more + SLACK:,} bytes",
            )


def but(**changes: Any) -> type[RightSwitch]:
    """The right layer with other methods."""
    return type("Changed", (RightSwitch,), {"__module__": __name__, **changes})


def _minus(self: Any) -> None:
    if self.merged:
        weight = self.base_layer.weight.data
        self.base_layer.weight.data = (weight.float() - self.delta()).to(weight.dtype)
        self.merged, self.kept = False, None


def _kept_from_the_start(self: Any, base_layer: Any, *args: Any) -> None:
    RightLayer.__init__(self, base_layer, *args)
    self.first = base_layer.weight.detach().clone()


def _wide_copy(self: Any) -> None:
    if not self.merged:
        self.kept = self.base_layer.weight.data.double()
        RightLayer.merge(self)


def _back_from_wide(self: Any) -> None:
    if self.merged:
        self.base_layer.weight.data = self.kept.to(self.base_layer.weight.dtype)
        self.kept, self.merged = None, False


def _no_copy(self: Any) -> None:
    if not self.merged:
        self.kept = self.base_layer.weight.data
        merged = self.kept.float() + self.delta()
        self.base_layer.weight.data.copy_(merged)
        self.merged = True


def _kept_afterwards(self: Any) -> None:
    if self.merged:
        self.base_layer.weight.data, self.merged = self.kept.clone(), False


def _not_asked(self: Any) -> None:
    if self.merged:
        RightSwitch.unmerge(self)
    else:
        self.base_layer.weight.data -= self.delta().to(self.base_layer.weight.dtype)


def _saves_again(self: Any) -> None:
    self.kept = self.base_layer.weight.data.clone()
    RightLayer.merge(self)


_WAYS = "What you need to go back has to be kept while the layer is merged, and only then."
SWITCHABLE = Contract(
    inputs=draw_story,
    judge=InLockstep(play, RightSwitch),
    passed="Merged, taken apart, and merged with another adapter, as often as one likes: the base "
    "weight comes back to the last bit, and nothing is left behind.",
    clauses={
        "new": Clause("`SwitchableLoRALinear(base_layer, r, lora_alpha)` makes no module."),
        "merge": Clause(
            "After `merge()` the weight is not the merged one, rounded once. {says}", "Exercise 7."
        ),
        "unmerge": Clause("`unmerge()` fails. {says}"),
        "merge again": Clause(
            "A merged layer's weight changes, though nobody may change it. {says}",
            "Merging twice, or another layer's steps, do nothing.",
        ),
        "bits": Clause(
            "A layer that is not merged has not its own weight, to the last bit. {says}",
            "What was rounded away cannot be computed again. " + _WAYS,
        ),
        "merged": Clause("`merged` is {got}; expected {expected}."),
        "memory": Clause("Too much memory is held. {expected}; yours: {got}.", _WAYS),
        "forward": Clause(
            "`forward` gives other numbers than it should. {says}",
            "Merged: the base layer alone. Else with the update beside it.",
        ),
    },
    mistakes=(
        mistake(
            "The update is subtracted again. But the sum was rounded, so what comes back is "
            "near the old weight, not the old weight. After a hundred adapters it is another "
            "model.",
            _WAYS,
            but(unmerge=_minus),
        ),
        mistake(
            "A copy of the weight is kept all the time. Most layers are not merged most of the "
            "time.",
            _WAYS,
            but(__init__=_kept_from_the_start),
        ),
        mistake(
            "The copy is kept in a wider type than the weight has.",
            "As many bytes as the weight has are enough.",
            but(merge=_wide_copy, unmerge=_back_from_wide),
        ),
        mistake(
            "What you keep is the same memory that `merge` writes into. So it changes, too.",
            "Keep a copy, or put new memory in its place.",
            but(merge=_no_copy),
        ),
        mistake("After `unmerge()` the copy is still there.", _WAYS, but(unmerge=_kept_afterwards)),
        mistake(
            "`unmerge()` of a layer that is not merged changes its weight.",
            "Then there is nothing to do.",
            but(unmerge=_not_asked),
        ),
        mistake(
            "A second `merge()` keeps the merged weight as if it were the old one.",
            "Keep it only if the layer is not merged yet.",
            but(merge=_saves_again),
        ),
    ),
    examples=100,
)
