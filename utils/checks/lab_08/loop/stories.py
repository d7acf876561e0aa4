"""What happens to an engine in the stories of exercise 9."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from utils.checks.kit.contracts import Choices

COMMON = (9, 8, 7, 6, 12, 20, 31, 6, 15)  # prompts begin with some of these


class Add(NamedTuple):
    name: str
    prompt: tuple[int, ...]
    settings: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.settings if value)
        return f"request {self.name} comes: tokens {list(self.prompt)}, {told}"


class Abort(NamedTuple):
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"abort_requests({list(self.names)})"


class Step(NamedTuple):
    """A step; `breaks` says where it breaks off."""

    breaks: str = ""
    error: type[BaseException] = RuntimeError

    def __str__(self) -> str:
        where = {
            "model": "in the forward pass",
            "schedule": "at the end of `schedule`",
            "books": "when the first request is booked",
        }
        error = f" breaks off {where[self.breaks]}: {self.error.__name__}" if self.breaks else ""
        return f"step(){error}"


@dataclass(frozen=True)
class Story:
    """What happens to an engine; in the end it runs until nothing is left to do."""

    changes: dict[str, Any] = field(hash=False)
    events: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"an engine with {', '.join(f'{k}={v}' for k, v in self.changes.items())}"


def draw(c: Choices) -> Story:
    """Requests come, go, are dropped and come again; little memory; steps that break off."""
    least = c.pick((0, 7))  # with long ones memory runs short
    changes = {
        "num_gpu_blocks": c.pick((40, 12, 12)),
        "max_num_seqs": c.pick((4, 1, 2, 3)),
        "max_num_batched_tokens": c.pick((64, 4, 7)),
        "enable_prefix_caching": not c.rarely(4),
    }

    def event() -> Any:
        kind = c.pick(("step", "add", "abort", "break", "add", "step", "add", "step", "add"))
        if kind == "add":
            return Add(f"R{c.integer(0, 7)}", _prompt(c, least), _settings(c, least))
        if kind == "abort":
            names = c.some(lambda: f"R{c.integer(0, 7)}", 0, 3)
            return Abort(tuple(names))
        if kind == "break":
            return Step(
                c.pick(("model", "schedule", "books")), c.pick((RuntimeError, KeyboardInterrupt))
            )
        return Step()

    return Story(changes, tuple(c.some(event, 1, 28)))


def _prompt(c: Choices, least: int) -> tuple[int, ...]:
    own = c.some(lambda: c.integer(6, 31), least, 11)
    return (*COMMON[: c.integer(0, 9)], *own, 9)


def _settings(c: Choices, least: int) -> tuple[tuple[str, Any], ...]:
    max_tokens = c.integer(1 + least, 20)
    seed = c.pick((None, None, c.integer(0, 9)))
    return tuple(
        {
            "max_tokens": max_tokens,
            "ignore_eos": c.pick((True, False)),
            "min_tokens": c.pick((0, 0, min(3, max_tokens))),
            "stop_token_ids": c.pick((None, [7, 11], [20])),
            "stop": c.pick((None, ["#"], ["&", "$%"])),
            "temperature": 0.0 if seed is None else 1.5,
            "seed": seed,
        }.items()
    )
