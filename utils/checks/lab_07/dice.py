"""Random numbers that are not left to chance: all that a sampler can do, run by run.

Within `Dice`, `torch.rand` and `torch.multinomial` with the learner's generator give what a script
says. So every way through a sampler can be walked, and the probability of each outcome is exact,
if all thresholds for uniform numbers lie between the parts of [0, 1) that the numbers come from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NOISE = 1e-6  # a share that rounding may leave


class Dice(TorchFunctionMode):
    """Decides what is drawn from `generator`.

    Args:
        grid: a uniform number is the middle of one of so many equal parts of [0, 1)
        rare: of the first part and the last, so much is a part of its own
        together: how many uniform numbers in one tensor may be scripted; others may be compared
            with each other, as in Gumbel-max, and on a grid they are equal more often
    """

    def __init__(
        self,
        generator: torch.Generator,
        grid: int,
        together: Container[int] = (1,),
        rare: float = 0.0,
    ) -> None:
        super().__init__()
        self._together = together
        self._generator = generator
        edges = {i / grid for i in range(grid + 1)} | {rare, 1 - rare}
        self._parts = list(itertools.pairwise(sorted(edges)))
        self._scratch = torch.Generator().manual_seed(0)
        self.unknown = False  # drawn in a way that cannot be scripted
        self.foreign = False  # drawn from another generator
        self.largest = 0  # numbers in one tensor
        self.begin([])

    def begin(self, script: list[int], always: float | None = None, last: bool = False) -> None:
        """Before a run.

        Args:
            script: which option each draw takes; the first, where it ends
            always: every uniform number, if given; no script then
            last: then every token is the last possible one, not the first
        """
        self.script, self._always, self._last = script, always, last
        self._options: list[list[float]] = []  # the probabilities of each draw's options

    @property
    def probability(self) -> float:
        """Of the run that has ended."""
        pairs = zip(self.script, self._options, strict=False)
        return math.prod(options[pick] for pick, options in pairs)

    def next_script(self) -> list[int]:
        """The next way that was not walked yet; empty after the last."""
        script = self.script[: len(self._options)]
        while script and script[-1] + 1 == len(self._options[len(script) - 1]):
            script.pop()
        return [*script[:-1], script[-1] + 1] if script else []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        generator = kwargs.get("generator")
        if generator is not self._generator:
            self.foreign |= generator is not None
            out = func(*args, **kwargs)
            if isinstance(out, Tensor):
                self.largest = max(self.largest, out.numel())
            return out
        # As torch does it: the form of what comes, and the errors.
        out = func(*args, **kwargs | {"generator": self._scratch})
        if name == "multinomial" and out.shape[-1] == 1:
            rows = args[0] if args else kwargs["input"]
            drawn: list[float] = [self._draw(row) for row in rows.reshape(-1, rows.shape[-1])]
        elif _plain_uniform(name, args, kwargs) and out.numel() in self._together:
            drawn = [self._uniform() for _ in range(out.numel())]
        else:
            self.unknown = True
            return func(*args, **kwargs)
        return out.copy_(torch.tensor(drawn, dtype=torch.float64).reshape(out.shape))

    def _uniform(self) -> float:
        if self._always is not None:
            return self._always
        return sum(self._parts[self._pick([end - start for start, end in self._parts])]) / 2

    def _draw(self, weights: Tensor) -> int:
        shares = weights.double() / weights.double().sum()
        possible = (shares > NOISE).nonzero()[:, 0]
        return int(possible[self._pick(shares[possible].tolist())])

    def _pick(self, options: list[float]) -> int:
        if self._always is not None:
            return len(options) - 1 if self._last else 0
        place = len(self._options)
        self._options.append(options)
        if place == len(self.script):
            self.script.append(0)
        self.script[place] = min(self.script[place], len(options) - 1)
        return self.script[place]


def _plain_uniform(name: str, args: Any, kwargs: Any) -> bool:
    """In [0, 1), not in other bounds."""
    return name in ("rand", "rand_like") or (
        name == "uniform_" and len(args) == 1 and len(kwargs) == 1
    )


def runs(dice: Dice, run: Callable[[], Any], most: int) -> Iterator[tuple[Any, float]]:
    """What comes of each way that the dice can fall, and its probability; at most so many."""
    script: list[int] = []
    for _ in range(most):
        dice.begin(script)
        got = run()
        yield got, dice.probability
        script = dice.next_script()
        if not script:
            return
