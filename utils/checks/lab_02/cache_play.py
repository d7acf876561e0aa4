"""Stories of one or two caches, told to the learner's class and to the engine's: exercise 3."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.kit.contracts.pretended_device import PRETENDED, PretendedDevice
from utils.checks.lab_02.cache_sizes import draw_config
from utils.engine.config.model import ModelConfig

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHOWN = 12  # tokens
GIVEN = ("all", "defaults", "another device", "a device's name")


@dataclass(frozen=True)
class Story:
    """`steps`: ("step", cache, T) appends to each layer in turn, ("append", cache, T, layer) to
    one of them, ("truncate", cache, n)."""

    config: ModelConfig
    slots: tuple[int, ...]  # of each cache
    dtype: torch.dtype
    given: str  # how dtype and device are given: one of GIVEN
    layout: str
    steps: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        c, slots = self.config, " and ".join(str(n) for n in self.slots)
        more = {
            "defaults": ", dtype and device not given",
            "another device": f", on {PRETENDED}",
            "a device's name": ", device='cpu'",
        }
        return (
            f"{_many(c.num_hidden_layers, 'layer')}, {_many(c.num_key_value_heads, 'KV head')}, "
            f"head_dim {c.head_dim}, {_many(len(self.slots), 'cache')} with {slots} "
            f"slot{'s' if self.slots[-1] > 1 else ''}, "
            f"{str(self.dtype).removeprefix('torch.')}{more.get(self.given, '')}"
            + ("" if self.layout == "contiguous" else f"; key and value are {self.layout}")
        )


def draw_story(c: Choices) -> Story:
    deep = c.rarely(25)
    config = draw_config(c, max_layers=40 if deep else 3, max_heads=16 if deep else 3)
    given = c.pick(("all", *GIVEN))
    dtype = torch.float32 if given == "defaults" else c.pick(DTYPES)
    long = c.rarely(12)
    slots = [c.integer(100, 150) if long else c.integer(1, 8)]
    slots += c.pick(((), (), (slots[0],), (5,)))

    def step() -> tuple[Any, ...]:
        kind, cache = c.pick(("step", "truncate", "append", "step")), c.integer(0, len(slots) - 1)
        if kind == "truncate":
            return kind, cache, c.pick((0, 1, 2, 3, 4, 71 if long else 5))
        size = c.pick((1, 2, 1, 2, 3, 4, 70 if long else 1))
        layer = (c.integer(0, config.num_hidden_layers - 1),) if kind == "append" else ()
        return kind, cache, size, *layer

    return Story(
        config,
        tuple(slots),
        dtype,
        given,
        c.pick(LAYOUTS),
        tuple(c.some(step, 0, 4 if deep else 10)),
    )


def play(stage: Stage, cache_class: Any, story: Story) -> None:
    _Teller(stage, story).tell(cache_class)


class _Teller:
    """A token is a letter; each row of numbers [H_kv, D] is known by its bytes."""

    def __init__(self, stage: Stage, story: Story) -> None:
        self.stage, self.story = stage, story
        elsewhere = story.given == "another device"
        self.device = PretendedDevice() if elsewhere else None
        self.names: dict[bytes, str] = {}
        self.first: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # answers, kept alive
        self.caches: list[Any] = []
        self.num_tokens = 0

    def tell(self, cache_class: Any) -> None:
        story, stage = self.story, self.stage
        for slots in story.slots:
            cache = stage.do(self._on_device, self._new, cache_class, slots)
            stage.see("new", cache if isinstance(cache, Raised) else "a cache")
            self.caches.append(cache)
        for index in range(len(self.caches)):
            self._counts(index, "new: num_tokens")
            stage.see("nbytes", stage.read(self.caches[index], "nbytes"))
        for kind, index, number, *layer in story.steps:
            if kind == "truncate":
                self._truncate(index, number)
                continue
            for at in layer or range(story.config.num_hidden_layers):
                if isinstance(self._append(index, at, number), Raised):
                    break
        for cache in self.caches:
            stage.see("nbytes", stage.read(cache, "nbytes"))

    def _new(self, cache_class: Any, slots: int) -> Any:
        config, dtype, given = self.story.config, self.story.dtype, self.story.given
        there = PRETENDED if self.device else torch.device("cpu")
        if given == "defaults":
            return cache_class(config, slots)
        return cache_class(config, slots, dtype, "cpu" if given == "a device's name" else there)

    def _truncate(self, index: int, number: int) -> None:
        self.stage.step(f"{self._cache(index)}truncate({number})")
        got = self.stage.call(self.caches[index], "truncate", number)
        self.stage.see("truncate", got if isinstance(got, Raised) else "no error")
        self._counts(index, "truncate: num_tokens")

    def _append(self, index: int, layer: int, count: int) -> Any:
        stage = self.stage
        letters = [_letter(self.num_tokens + i) for i in range(count)]
        key, value = (self._rows(kind, letters, index, layer) for kind in "kv")
        self.num_tokens += count
        words = " ".join(letters[:3]) + (" ..." if count > 3 else "")
        stage.step(f"{self._cache(index)}append({layer}, {words})")
        cache = self.caches[index]
        got = stage.do(self._on_device, lambda *a: cache.append(*a), layer, key, value)
        if isinstance(got, Raised):
            stage.see("append", got)
            self._counts(index, "refused: num_tokens")
            return got
        pair = isinstance(got, tuple | list) and len(got) == 2
        if not pair or not all(isinstance(t, Tensor) and t.dim() == 3 for t in got):
            stage.blame("append", "a pair of tensors [L, H_kv, D]", got)
        stage.see("append", "a pair")
        stage.see("dtype", [str(t.dtype) for t in got])
        stage.see("shape", [tuple(t.shape[1:]) for t in got])
        stage.see("tokens", [self._named(t) for t in got], _listing, _rows_picture)
        if self.device is not None:
            there = ["cpu", str(PRETENDED)]
            stage.see("device", [there[self.device.holds(t)] for t in got])
        first = self.first.setdefault((index, layer), tuple(got))
        pairs = zip(("keys", "values"), first, got, strict=True)
        moved = [name for name, a, b in pairs if a.data_ptr() != b.data_ptr()]
        stage.see("place", f"{' and '.join(moved)} in a new place" if moved else "views")
        self._counts(index, "append: num_tokens")
        for tensor in (key, value):
            tensor.fill_(-1)  # the caller may use its memory again
        return got

    def _counts(self, index: int, clause: str) -> None:
        for other, cache in enumerate(self.caches):
            clause_here = clause if other == index else "other: num_tokens"
            self.stage.see(clause_here, self.stage.read(cache, "num_tokens"))

    def _on_device(self, function: Any, *args: Any) -> Any:
        with self.device or contextlib.nullcontext():
            return function(*args)

    def _rows(self, kind: str, letters: list[str], index: int, layer: int) -> Tensor:
        shape = (self.story.config.num_key_value_heads, self.story.config.head_dim)
        seed = self.num_tokens * 64 + index * 16 + layer * 2 + (kind == "v")
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(len(letters), *shape, generator=generator).to(self.story.dtype)
        for letter, row in zip(letters, rows, strict=True):
            self.names[_bytes(row)] = f"{kind}:{letter}{layer}"
        rows = laid_out(rows, self.story.layout)
        return rows if self.device is None else self.device.mark(rows)

    def _named(self, tensor: Tensor) -> list[str]:
        return [self.names.get(_bytes(row), "?") for row in tensor.detach()]

    def _cache(self, index: int) -> str:
        return "" if len(self.caches) < 2 else f"cache {index + 1}: "


def _letter(number: int) -> str:
    return chr(ord("a") + number % 26) + (str(number // 26) if number >= 26 else "")


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _bytes(row: Tensor) -> bytes:
    return row.contiguous().view(torch.uint8).numpy().tobytes()


def _listing(both: Any) -> str:
    parts = []
    for name, rows in zip(("keys", "values"), both, strict=True):
        some = " ".join(rows[:SHOWN]) or "nothing"
        more = " ..." if len(rows) > SHOWN else ""
        parts.append(f"{name} {some}{more} ({_many(len(rows), 'token')})")
    return "; ".join(parts)


def _rows_picture(want: Any, got: Any) -> tuple[Figure, str]:
    expected, yours = ([rows[:SHOWN] for rows in side] for side in (want, got))
    figure = pictures.cache_rows(expected, yours, ["keys", "values"])
    return figure, "The slots of the cache, expected and yours."
