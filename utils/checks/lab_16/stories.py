"""Stories of the two classes of lab 16: a store with a budget, and a scheduler's side."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from utils.checks.kit.contracts import Choices, InLockstep, Raised, Stage
from utils.checks.kit.lab.story import Story, Told
from utils.checks.lab_16.blocks import counted
from utils.checks.lab_16.learners_parts import BareRequest, Pair, Scheduled, Transfers

MANY = 3_500  # values in a large store: no recursion goes so deep


class LinedStory(Story):
    """A story that the feedback tells call by call, one below the other."""

    def __init__(self, stage: Stage, setting: Any) -> None:
        super().__init__(stage, setting)
        self.lines: list[str] = []
        self.say(self.head(setting))

    @classmethod
    def head(cls, setting: Any) -> str:
        """The first line: the setting in words."""
        raise NotImplementedError

    @classmethod
    def tell(cls, setting: Any) -> str:
        """Nothing: the lines tell the setting."""
        return ""

    @classmethod
    def judge(cls, right: Any) -> InLockstep:
        """As `Story.judge`; at the end of a story comes `finish`."""

        def play(stage: Stage, answer: Any, told: Told) -> None:
            story = cls(stage, told.setting)
            story.start(answer)
            for kind, arguments in told.steps:
                getattr(story, f"do_{kind}")(*arguments)
            story.finish()

        return InLockstep(play, right)

    def say(self, line: str) -> None:
        """The next call, in a line of its own."""
        self.lines.append(line)
        self.stage.now("\n".join(self.lines))

    def call(self, owner: Any, prefix: str, name: str, *args: Any) -> Any:
        """Tell a call with its arguments, make it, and return what came."""
        self.say(f"{prefix}{name}({', '.join(map(repr, args))})")
        return self.stage.call(owner, name, *args)

    def finish(self) -> None:
        """Look at everything once more."""


class StoreStory(LinedStory):
    """Two stores. At the end they are asked what they still hold: not before, since asking must
    not, but might, change what goes first."""

    kinds = ("store", "retrieve", "store", "retrieve", "contains", "many")
    most = 30

    @classmethod
    def draw_setting(cls, c: Choices) -> tuple[int, int]:
        return MANY if c.rarely(40) else c.integer(1, 12), c.integer(1, 12)

    @classmethod
    def head(cls, setting: tuple[int, int]) -> str:
        return f"one store with max_bytes={setting[0]}, another one with max_bytes={setting[1]}"

    @classmethod
    def draw_contains(cls, c: Choices, setting: tuple[int, int]) -> tuple[int, bytes]:
        return 1 if c.rarely(3) else 0, bytes([97 + c.integer(0, 4)])

    draw_retrieve = draw_contains

    @classmethod
    def draw_store(cls, c: Choices, setting: tuple[int, int]) -> tuple[int, bytes, bytes]:
        """Mostly small values, sometimes any, just too large or empty; often the same again."""
        which, key = cls.draw_contains(c, setting)
        size = c.integer(0, setting[which] + 1) if c.rarely(3) else c.pick((1, 2, 2, 3, 0))
        return which, key, bytes([c.pick((1, 1, 1, 2))]) * size

    @classmethod
    def draw_many(cls, c: Choices, setting: tuple[int, int]) -> tuple[()]:
        return ()

    def start(self, store_class: Any) -> None:
        self.stores = [self.stage.do(store_class, size) for size in self.setting]
        for store in self.stores:
            self.see("new", store, "a store")
        self.keys: list[dict[bytes, None]] = [{}, {}]  # that were stored, in order

    def ask(self, which: int, name: str, key: bytes, *value: bytes) -> None:
        self.stage.see(
            name, self.call(self.stores[which], f"store {which + 1}: ", name, key, *value)
        )

    def do_store(self, which: int, key: bytes, value: bytes) -> None:
        self.keys[which][key] = None
        told = repr(value) if len(value) <= 20 else f"{len(value)} bytes"
        self.say(f"store {which + 1}: store({key!r}, {told})")
        self.stage.see("store", self.stage.call(self.stores[which], "store", key, value))

    def do_retrieve(self, which: int, key: bytes) -> None:
        self.ask(which, "retrieve", key)

    def do_contains(self, which: int, key: bytes) -> None:
        self.ask(which, "contains", key)

    def do_many(self) -> None:
        """Fill the large store with values of 1 byte; then one value needs all of its room."""
        size = self.setting[0]
        if size < MANY or b"large" in self.keys[0]:
            return  # once is enough

        def some(numbers: range) -> None:
            for number in numbers:
                self.stores[0].store(b"%d" % number, b"\x01")

        self.say(f"store 1: store {size} values of 1 byte, each under another key")
        for start in range(0, size, 500):  # so that each call has a few seconds
            self.stage.see("store", self.stage.do(some, range(start, min(start + 500, size))))
        self.do_store(0, b"large", bytes(size))

    def finish(self) -> None:
        for which, store in enumerate(self.stores):
            for key in self.keys[which]:
                self.ask(which, "contains", key)
            self.say(f"store {which + 1}: num_bytes")
            self.stage.see("num_bytes", self.stage.read(store, "num_bytes"))


@dataclass
class Running:
    """A request that has its blocks.

    Attributes:
        block_ids: more than it needs; `room` says how many of them it is told of
        told: whether a step has told its loads
    """

    request: BareRequest
    block_ids: list[int]
    room: int
    told: bool = False


@dataclass
class Side:
    """A connector, how the feedback calls it, its requests by id, and what it has returned."""

    answer: Any
    name: str
    running: dict[str, Running] = field(default_factory=dict)
    earlier: list[tuple[Transfers, list[Pair], list[Pair]]] = field(default_factory=list)


@dataclass(frozen=True)
class Begin:
    """A request asks and gets blocks; all numbers but `num_tokens` count blocks.

    Attributes:
        family: requests of one family begin with the same tokens, and have the same keys
        local: in the engine's own cache
        external: in the store, behind the local ones; the local ones needn't be there
        earlier: what the engine had when it asked before
        settled: or nothing is loaded after all
        room: blocks that it gets beyond those it needs now
    """

    name: str
    family: int
    num_tokens: int
    local: int
    external: int
    earlier: tuple[int, ...]
    settled: bool
    room: int


class StepStory(LinedStory):
    """Requests ask, get blocks, compute step by step and end, in any order that an engine has.

    A request that begins although it runs has lost its blocks. `Setting`: block size, connectors.
    """

    kinds = ("begin", "step", "begin", "step", "begin", "step", "finish", "fail")
    most = 14
    names = ("a", "b", "c")

    @classmethod
    def draw_setting(cls, c: Choices) -> tuple[int, int]:
        return c.pick((2, 1, 4)), 1 + c.rarely(4)

    @classmethod
    def head(cls, setting: tuple[int, int]) -> str:
        return f"{'two connectors, ' * (setting[1] > 1)}block_size {setting[0]}"

    @classmethod
    def draw_begin(cls, c: Choices, setting: tuple[int, int]) -> tuple[Begin]:
        size = setting[0]
        num_tokens = c.integer(1, 5 * size)
        most = (num_tokens - 1) // size  # the block of the last token is computed
        local = c.pick((0, c.integer(0, most)))
        return (
            Begin(
                c.pick(cls.names),
                c.pick((0, 0, 1)),
                num_tokens,
                local,
                c.integer(0, most - local),
                tuple(c.some(lambda: c.integer(0, most), 0, 1)),
                not c.rarely(5),
                c.pick((0, 1, 3)),
            ),
        )

    @classmethod
    def draw_step(cls, c: Choices, setting: tuple[int, int]) -> tuple[tuple[int, ...]]:
        """Tokens that each request may compute; 0: it isn't in this step."""
        size = setting[0]
        return (tuple(c.pick((99, 0, size, size + 1, 1, 99)) for _ in cls.names),)

    @classmethod
    def draw_finish(cls, c: Choices, setting: tuple[int, int]) -> tuple[str]:
        return (c.pick(cls.names),)

    @classmethod
    def draw_fail(cls, c: Choices, setting: tuple[int, int]) -> tuple[str, int]:
        return c.pick(cls.names), c.integer(0, 4)

    def start(self, side_class: Any) -> None:
        size, count = self.setting
        self.stored: set[bytes] = set()
        self.sides = []
        for name in ("first", "second")[:count]:
            answer = self.stage.do(side_class, size, self.keys_of, self.matched)
            self.see("new", answer, "a connector")
            self.sides.append(Side(answer, f"{name} connector: " if count > 1 else ""))
        self.next_block = 9

    def keys_of(self, request: BareRequest) -> list[bytes]:
        size, family = self.setting[0], request.all_token_ids[0] // 1000
        ends = range(size, request.num_tokens + 1, size)
        return [f"{family}:{end - size}-{end - 1}".encode() for end in ends]

    def matched(self, request: BareRequest, num_computed_tokens: int) -> int:
        size = self.setting[0]
        last = (request.num_tokens - 1) // size
        keys = self.keys_of(request)[num_computed_tokens // size : last]
        return size * len(list(itertools.takewhile(self.stored.__contains__, keys)))

    def side_of(self, name: str) -> Side:
        return self.sides[self.names.index(name) % len(self.sides)]

    def do_begin(self, begin: Begin) -> None:
        size, side = self.setting[0], self.side_of(begin.name)
        running = side.running.get(begin.name)
        if running is not None and not running.told:
            return  # it is sure of its blocks until its loads have been told
        tokens = [1000 * begin.family + token for token in range(begin.num_tokens)]
        request = running.request if running is not None else BareRequest(begin.name, tokens)
        lost = ", again: it has lost its blocks" if running is not None else ""
        self.say(f"{begin.name}: a request of {counted(request.num_tokens, 'token')}{lost}")
        most = (request.num_tokens - 1) // size
        local = min(begin.local, most)
        end = min(local + begin.external, most)
        self.stored = set(self.keys_of(request)[local:end])
        for computed in (*begin.earlier, local):
            self.look_up(side, request, size * min(computed, most))
        external = size * (end - local) * begin.settled
        request.num_computed_tokens = size * local + external
        ids = list(range(self.next_block, self.next_block - 40, -1))
        self.next_block += 100
        running = side.running[begin.name] = Running(request, ids, begin.room)
        self.allocate(side, running, external)

    def look_up(self, side: Side, request: BareRequest, num_computed_tokens: int) -> None:
        name = "get_num_new_matched_tokens"
        self.say(f"{side.name}{name}({request.request_id}, {num_computed_tokens})")
        self.stage.see(name, self.stage.call(side.answer, name, request, num_computed_tokens))

    def blocks(self, running: Running, num_tokens: int) -> list[int]:
        return running.block_ids[: -(-num_tokens // self.setting[0]) + running.room]

    def allocate(self, side: Side, running: Running, external: int) -> None:
        name, request = "update_state_after_alloc", running.request
        ids = self.blocks(running, request.num_computed_tokens)
        self.say(
            f"{side.name}{name}({request.request_id}, {ids}, {external}), where its "
            f"num_computed_tokens is {request.num_computed_tokens}"
        )
        self.stage.see(name, self.stage.call(side.answer, name, request, ids, external))

    def do_step(self, counts: tuple[int, ...]) -> None:
        for side in self.sides:
            parts = [
                part
                for name, count in zip(self.names, counts, strict=True)
                if name in side.running and (part := self.part_of(side.running[name], count))
            ]
            self.build(side, parts)
            for part in parts:
                part.request.num_computed_tokens += part.num_scheduled_tokens
            for running in side.running.values():
                running.told = True

    def part_of(self, running: Running, count: int) -> Scheduled | None:
        """What a request computes in a step; where all is computed, it has got another token."""
        request = running.request
        if request.num_computed_tokens == request.num_tokens and count:
            request.all_token_ids.append(request.all_token_ids[0] + request.num_tokens)
        done = request.num_computed_tokens
        count = min(count, request.num_tokens - done)
        return (
            Scheduled(request, self.blocks(running, done + count), done, count) if count else None
        )

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
            request = side.running.pop(name).request
            self.say(f"{side.name}request_finished({name})")
            self.stage.see(
                "request_finished", self.stage.call(side.answer, "request_finished", request)
            )

    def do_fail(self, name: str, num_blocks: int) -> None:
        """A load has failed: what it held, and all that follows, is computed after all."""
        running = self.side_of(name).running.get(name)
        if running is not None and running.told:
            request = running.request
            before = request.num_computed_tokens
            request.num_computed_tokens = min(self.setting[0] * num_blocks, before)
            if request.num_computed_tokens < before:
                self.say(
                    f"a load of {name} has failed: its num_computed_tokens is "
                    f"{request.num_computed_tokens}"
                )
