"""Stories of the two classes of lab 16: a store with a budget, and a scheduler's side."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from utils.checks.kit.contracts import Choices, Raised
from utils.checks.kit.lab.story import LinedStory
from utils.checks.lab_16.answers import blocks_to_save
from utils.checks.lab_16.blocks import counted
from utils.checks.lab_16.learners_parts import BareRequest, Pair, Scheduled, Transfers

MANY = 3_500  # values in a large store: no recursion goes so deep


class StoreStory(LinedStory):
    """Two stores. At the end they are asked what they still hold: not before, since asking must
    not, but might, change what goes first."""

    kinds = ("store", "retrieve", "store", "retrieve", "contains")
    most = 40

    @classmethod
    def draw_setting(cls, c: Choices) -> tuple[int, int]:
        usual = c.pick((2, 3, 3, c.integer(1, 12)))
        return MANY if c.rarely(40) else usual, c.integer(1, 12)

    @classmethod
    def tell(cls, setting: tuple[int, int]) -> str:
        return f"one store with max_bytes={setting[0]}, another one with max_bytes={setting[1]}"

    @classmethod
    def draw_contains(cls, c: Choices, setting: tuple[int, int]) -> tuple[int, bytes]:
        return 1 if c.rarely(5) else 0, bytes([97 + c.integer(0, 3)])

    draw_retrieve = draw_contains

    @classmethod
    def draw_store(cls, c: Choices, setting: tuple[int, int]) -> tuple[int, bytes, bytes]:
        """Often a key's usual value, so that it is stored again; else of any size, or too large."""
        which, key = cls.draw_contains(c, setting)
        size = 1 + (key == b"d")
        if c.rarely(5):
            size = c.pick((0, c.integer(0, setting[which] + 1)))
        return which, key, key * size

    def start(self, store_class: Any) -> None:
        self.stores = [self.stage.do(store_class, size) for size in self.setting]
        for store in self.stores:
            self.see("new", store, "a store")
        self.keys: list[dict[bytes, None]] = [{}, {}]  # that were stored, in order
        if self.setting[0] >= MANY:
            self.fill(self.setting[0])

    def ask(self, which: int, name: str, key: bytes) -> None:
        self.say(f"store {which + 1}: {name}({key!r})")
        self.stage.see(name, self.stage.call(self.stores[which], name, key))

    def do_store(self, which: int, key: bytes, value: bytes) -> None:
        self.keys[which][key] = None
        told = repr(value) if len(value) <= 20 else f"{len(value)} bytes"
        self.say(f"store {which + 1}: store({key!r}, {told})")
        self.stage.see("store", self.stage.call(self.stores[which], "store", key, value))

    def do_retrieve(self, which: int, key: bytes) -> None:
        self.ask(which, "retrieve", key)

    def do_contains(self, which: int, key: bytes) -> None:
        self.ask(which, "contains", key)

    def fill(self, size: int) -> None:
        """Values of 1 byte, as many as there is room for; then one value needs all of the room."""

        def some(numbers: range) -> None:
            for number in numbers:
                self.stores[0].store(b"%d" % number, b"\x01")

        self.say(f"store 1: store {size} values of 1 byte, each under another key")
        for start in range(0, size, 500):  # so that each call has a few seconds
            self.stage.see("store", self.stage.do(some, range(start, min(start + 500, size))))
        self.do_store(0, b"large", bytes(size))

    def end(self) -> None:
        for which, store in enumerate(self.stores):
            for key in self.keys[which]:
                self.ask(which, "contains", key)
            self.say(f"store {which + 1}: num_bytes")
            self.stage.see("num_bytes", self.stage.read(store, "num_bytes"))


class Begin(NamedTuple):
    """A request asks, and gets blocks. All numbers but `num_tokens` count blocks."""

    name: str
    family: int  # requests of one family begin with the same tokens, so they have the same keys
    num_tokens: int
    local: int  # in the engine's own cache; the store needn't have them
    external: int  # in the store, after the local ones
    earlier: tuple[int, ...]  # what the engine had when it asked before
    settled: bool  # or nothing is loaded after all
    room: int  # blocks that it gets beyond those that it needs now


@dataclass
class Running:
    """A request that has its blocks, and whether a step has told its loads."""

    request: BareRequest
    block_ids: list[int]
    room: int
    told: bool = False


@dataclass
class Side:
    """A connector, what the feedback calls it, its requests by id, and what it has returned."""

    answer: Any
    name: str
    running: dict[str, Running] = field(default_factory=dict)
    earlier: list[tuple[Transfers, list[Pair], list[Pair]]] = field(default_factory=list)


class StepStory(LinedStory):
    """Requests ask, get blocks, compute step by step and end, in any order that an engine has.

    A request that begins although it runs has lost its blocks. The setting: block size, connectors.
    """

    kinds = ("begin", "step", "begin", "finish")
    most = 16
    names = ("a", "b", "c")

    @classmethod
    def draw_setting(cls, c: Choices) -> tuple[int, int]:
        return c.pick((2, 1, 4)), 1 + c.rarely(4)

    @classmethod
    def tell(cls, setting: tuple[int, int]) -> str:
        return f"{'two connectors, ' * (setting[1] > 1)}block_size {setting[0]}"

    @classmethod
    def draw_begin(cls, c: Choices, setting: tuple[int, int]) -> Begin:
        name, family = c.pick(cls.names), c.pick((0, 0, 0, 1))
        num_tokens = c.integer(1, 5 * setting[0])
        most = (num_tokens - 1) // setting[0]  # the block of the last token is computed
        local = c.pick((0, 0, c.integer(0, most)))
        external = c.pick((most - local, c.integer(0, most - local)))
        earlier = c.some(lambda: c.integer(0, most), 0, 1)
        settled, room = not c.rarely(5), c.pick((0, 1, 3))
        return Begin(name, family, num_tokens, local, external, tuple(earlier), settled, room)

    @classmethod
    def draw_step(cls, c: Choices, setting: tuple[int, int]) -> list[int]:
        """Tokens that each request may compute; 0: the step does without it."""
        size = setting[0]
        return [c.pick((99, 0, size, size + 1, 1, 99)) for _ in cls.names]

    @classmethod
    def draw_finish(cls, c: Choices, setting: tuple[int, int]) -> tuple[str]:
        return (c.pick(cls.names),)

    def start(self, side_class: Any) -> None:
        self.size, count = self.setting
        self.stored: set[bytes] = set()
        self.sides, self.next_block = [], 49
        functions = (self.keys_of, self.matched, self.to_save)
        for name in ("first connector: ", "second connector: ")[:count]:
            answer = self.stage.do(side_class, self.size, *functions)
            self.see("new", answer, "a connector")
            self.sides.append(Side(answer, name if count > 1 else ""))

    def keys_of(self, request: BareRequest) -> list[bytes]:
        ends = range(self.size, request.num_tokens + 1, self.size)
        family = request.all_token_ids[0] // 1000
        return [f"{family}:{end - self.size}-{end - 1}".encode() for end in ends]

    def matched(self, request: BareRequest, num_computed_tokens: int) -> int:
        last = (request.num_tokens - 1) // self.size
        keys = self.keys_of(request)[num_computed_tokens // self.size : last]
        return self.size * len(list(itertools.takewhile(self.stored.__contains__, keys)))

    def to_save(self, part: Scheduled) -> list[Pair]:
        return blocks_to_save(part, self.keys_of(part.request), self.size)

    def side_of(self, name: str) -> Side:
        return self.sides[self.names.index(name) % len(self.sides)]

    def ask(self, side: Side, told: str, name: str, *args: Any) -> None:
        self.say(f"{side.name}{name}({told})")
        self.stage.see(name, self.stage.call(side.answer, name, *args))

    def do_begin(self, *drawn: Any) -> None:
        begin = Begin(*drawn)
        side = self.side_of(begin.name)
        running = side.running.get(begin.name)
        if running is not None and not running.told:
            return  # it is sure of its blocks until its loads have been told
        tokens = [1000 * begin.family + token for token in range(begin.num_tokens)]
        request = running.request if running is not None else BareRequest(begin.name, tokens)
        lost = ", once more: it has lost its blocks" if running is not None else ""
        most = (request.num_tokens - 1) // self.size
        local = min(begin.local, most)
        end = min(local + begin.external, most)
        stored = f"blocks {[*range(local, end)]}" if end > local else "none of its blocks"
        self.say(
            f"{begin.name}: a request of {counted(request.num_tokens, 'token')}{lost}; the store "
            f"has {stored}"
        )
        self.stored = set(self.keys_of(request)[local:end])
        for found in (*begin.earlier, local):
            computed = self.size * min(found, most)
            told = f"{begin.name}, {computed}"
            self.ask(side, told, "get_num_new_matched_tokens", request, computed)
        external = self.size * (end - local) * begin.settled
        request.num_computed_tokens = self.size * local + external
        ids = list(range(self.next_block, self.next_block - 40, -1))
        self.next_block += 100
        running = side.running[begin.name] = Running(request, ids, begin.room)
        now = self.blocks(running, request.num_computed_tokens)
        told = f"{begin.name}, {now}, {external}"
        self.say(
            f"the engine sets {begin.name}.num_computed_tokens = {request.num_computed_tokens}"
        )
        self.ask(side, told, "update_state_after_alloc", request, now, external)

    def blocks(self, running: Running, num_tokens: int) -> list[int]:
        return running.block_ids[: -(-num_tokens // self.size) + running.room]

    def do_step(self, *counts: int) -> None:
        for side in self.sides:
            parts = []
            for name, most in zip(self.names, counts, strict=True):
                if running := side.running.get(name):
                    request, done = running.request, running.request.num_computed_tokens
                    if most and done == request.num_tokens:  # the answer has another token
                        request.all_token_ids.append(request.all_token_ids[0] + done)
                    count = min(most, request.num_tokens - done)
                    ids = self.blocks(running, done + count)
                    parts += [Scheduled(request, ids, done, count)] if count else []
            self.build(side, parts)
            for part in parts:
                part.request.num_computed_tokens += part.num_scheduled_tokens
            for running in side.running.values():
                running.told = True

    def build(self, side: Side, parts: list[Scheduled]) -> None:
        told = ", ".join(
            f"Scheduled({p.request.request_id}, {p.block_ids}, {p.num_computed_tokens}, "
            f"{p.num_scheduled_tokens})"
            for p in parts
        )
        self.say(f"{side.name}build_connector_meta([{told}])")
        meta = self.stage.call(side.answer, "build_connector_meta", parts)
        self.stage.see("meta", meta if isinstance(meta, Raised) else f"a {type(meta).__name__}")
        for name in ("loads", "saves"):
            pairs = getattr(meta, name)
            self.stage.see(name, sorted(pairs, key=repr) if isinstance(pairs, list) else pairs)
        for then, loads, saves in side.earlier:
            self.stage.expect("earlier", (loads, saves), (then.loads, then.saves))
        side.earlier.append((meta, list(meta.loads), list(meta.saves)))

    def do_finish(self, name: str) -> None:
        side = self.side_of(name)
        if name in side.running and side.running[name].told:
            self.ask(side, name, "request_finished", side.running.pop(name).request)
