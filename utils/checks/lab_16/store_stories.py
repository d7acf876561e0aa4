"""What lab 16 says of a store with a budget: exercise 3."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.engine.kv_transfer.store import MemoryStore


@dataclass(frozen=True)
class Story:
    """What two stores of `max_bytes` are asked, one after another."""

    max_bytes: int
    steps: tuple[tuple[Any, ...], ...]

    def __str__(self) -> str:
        return f"two stores of {self.max_bytes} bytes each"


def draw(c: Choices) -> Story:
    """Values of any size, some larger than the store, some empty, often the same once more."""
    max_bytes = c.integer(1, 12)

    def step() -> tuple[Any, ...]:
        which, key = c.integer(0, 1), bytes([97 + c.integer(0, 4)])
        kind = c.pick(["store", "store", "retrieve", "retrieve", "contains"])
        if kind == "store":
            size = c.integer(0, max_bytes + 1) if c.rarely(3) else c.pick((1, 2, 2, 3, 0))
            return which, kind, key, bytes([c.pick((1, 1, 1, 2))]) * size
        return which, kind, key

    return Story(max_bytes, tuple(c.some(step, 0, 40)))


def play(stage: Stage, store_class: Any, story: Story) -> None:
    """Every answer, and after each step the bytes that are kept."""
    stores = [stage.do(store_class, story.max_bytes) for _ in range(2)]
    for store in stores:
        stage.see("new", store if isinstance(store, Raised) else "a store")
    for which, name, *args in story.steps:
        stage.step(f"store {which + 1}: {name}({', '.join(map(repr, args))})")
        stage.see(name, stage.call(stores[which], name, *args))
        for store in stores:
            stage.see("num_bytes", stage.read(store, "num_bytes"))


class Variant:
    """A right store with one switch per known mistake."""

    touch, look, replace, fits, entries, oversize, order = True, False, True, True, False, "", 0

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.values, self.num_bytes = max_bytes, OrderedDict[bytes, bytes](), 0

    def store(self, key: bytes, value: bytes) -> None:
        if key in self.values:
            old = self.values[key] if self.order else self.values.pop(key)
            self.num_bytes -= len(old) if self.replace else 0
            if self.order:
                self.values[key] = b""
        if len(value) > self.max_bytes:
            if self.oversize == "clear":
                self.values.clear()
                self.num_bytes = 0
            if self.oversize != "keep":
                self.values.pop(key, None)
                return
        while self.values and not self._room(len(value)):
            _, gone = self.values.popitem(last=False)
            self.num_bytes -= len(gone)
        self.values[key] = value
        self.num_bytes += len(value)

    def _room(self, size: int) -> bool:
        if self.entries:
            return len(self.values) < self.max_bytes
        after = self.num_bytes + size
        return after <= self.max_bytes if self.fits else after < self.max_bytes

    def retrieve(self, key: bytes) -> bytes | None:
        if self.touch and key in self.values:
            self.values.move_to_end(key)
        return self.values.get(key)

    def contains(self, key: bytes) -> bool:
        if self.look and key in self.values:
            self.values.move_to_end(key)
        return key in self.values


def with_switches(**switches: Any) -> type[Variant]:
    """The store that makes one mistake."""
    return type("Wrong", (Variant,), switches)


LRU_STORE = Contract(
    inputs=draw,
    judge=InLockstep(play, MemoryStore),
    passed="Right in all stories of two stores: never above the budget, and the least recently "
    "used value goes first.",
    clauses={
        "new": Clause("`LRUStore(max_bytes)` makes no store."),
        "store": Clause("`store` returns {got}; expected None."),
        "retrieve": Clause(
            "`retrieve` returns {got}; expected {expected}.",
            "Who was used longest ago goes first; storing and retrieving are uses.",
        ),
        "contains": Clause(
            "`contains` returns {got}; expected {expected}.",
            "Who was used longest ago goes first; storing and retrieving are uses.",
        ),
        "num_bytes": Clause(
            "`num_bytes` is {got}; expected {expected}.",
            "The lengths of all values that are kept, together.",
        ),
    },
    mistakes=(
        mistake(
            "A value that is retrieved does not count as used. That is first in, first out.",
            "`move_to_end` when a value is retrieved.",
            with_switches(touch=False),
        ),
        mistake(
            "To ask `contains` counts as a use. Many ask for keys that they never fetch.",
            "Only `store` and `retrieve` are uses.",
            with_switches(look=True),
        ),
        mistake(
            "A value that is replaced is still counted.",
            "Subtract the old value's length first.",
            with_switches(replace=False),
        ),
        mistake(
            "A value that would just fit makes another one go.",
            "As long as the sum is *larger* than `max_bytes`.",
            with_switches(fits=False),
        ),
        mistake(
            "You count values; the budget is in bytes.",
            "Add up the lengths.",
            with_switches(entries=True),
        ),
        mistake(
            "A value that is larger than the whole store throws out everything else.",
            "Look at its length first. It is not kept, and nobody goes for it.",
            with_switches(oversize="clear"),
        ),
        mistake(
            "A value that is larger than the whole store is kept.",
            "Then it is not kept.",
            with_switches(oversize="keep"),
        ),
        mistake(
            "A value that is stored again keeps its old place in the queue.",
            "To store is a use: it goes to the end.",
            with_switches(order=1),
        ),
    ),
    examples=250,
)
