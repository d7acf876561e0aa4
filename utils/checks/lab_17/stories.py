"""Stories of the classes of lab 17: a history, an index, and the router made of them."""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Raised
from utils.checks.kit.contracts.differences import shown
from utils.checks.kit.lab.story import LinedStory
from utils.checks.lab_17 import answers
from utils.kv_events.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    ExternalBlockHash,
)
from utils.routing.policies import ReplicaLoad, RoutingRequest
from utils.routing.router.block_names import block_names

ITEMS_TOLD = 8
KEPT = 10  # lists that were returned, and are looked at again


class BookStory(LinedStory):
    """Two books of what replicas hold, which can be asked for `matches`."""

    what = ""

    def start(self, answer: Any) -> None:
        self.returned: list[tuple[list[Any], list[Any]]] = []  # what callers have, and its copy
        self.ids: set[int] = set()  # of all that was returned, and is kept
        self.books = [
            self.see("new", self.stage.do(answer, *self.setting.arguments), self.what)
            for _ in range(2)
        ]

    def ask(self, which: int, names: Sequence[Any], clauses: Sequence[str]) -> None:
        """Look at what `matches` returns: for each replica, below the clause that is named."""
        got = self.stage.call(self.books[which], "matches", names)
        is_list = isinstance(got, list) and len(got) == len(clauses)
        numbers = f"a list with {len(clauses)} number{'s' if len(clauses) > 1 else ''}"
        kind = numbers if is_list else shown(got)
        self.stage.see("list", got if isinstance(got, Raised) else kind)
        if id(got) in self.ids:
            self.stage.blame("earlier", "a new list", "the same list")
        self.ids.add(id(got))
        for replica, (clause, number) in enumerate(zip(clauses, got, strict=True)):
            self.stage.see(clause, number, f"{{}} for replica {replica}".format)
        for old, then in self.returned[-KEPT:]:
            if old != then:
                self.stage.blame("earlier", then, old)
        self.returned.append((got, list(got)))


# Exercise 3

PROMPTS = ("abcd", "abce", "abfg", "ax", "y", "", "yzab", "abcdefgh", "x", "z")
SHORT = ("x", "y", "z", "ax")  # only of many short ones some are old, and yet remembered
# Names that an `if name:` passes over, and one that is another's text.
STRANGE: dict[str, Any] = {"y": 0, "z": "", "x": "0"}
LONG = 1200  # blocks


def names_of(prompt: str) -> list[Any]:
    """Of blocks of one letter: a name is all letters up to the block's end."""
    ends = [prompt[: i + 1] for i in range(len(prompt))]
    return [STRANGE.get(end, end) for end in ends]


@dataclass(frozen=True)
class Memory:
    """How two histories are made, and of which prompts they hear."""

    num_replicas: int
    max_blocks: int
    palette: tuple[str, ...]

    @property
    def arguments(self) -> tuple[int, int]:
        return self.num_replicas, self.max_blocks

    def __str__(self) -> str:
        return f"two histories, num_replicas {self.num_replicas}, max_blocks {self.max_blocks}"


class HistoryStory(BookStory):
    """Two routers that see the same replicas; each remembers what it sent itself."""

    what = "a history"
    kinds = ("sent", "ask", "sent", "ask", "sent", "lost", "emptied")
    most = 40

    @classmethod
    def draw_setting(cls, c: Choices) -> Memory:
        max_blocks = c.integer(101, 140) if c.rarely(6) else c.size(1, 9)
        palette = c.pick((SHORT, PROMPTS))
        return Memory(c.size(1, 3), LONG if c.rarely(40) else max_blocks, palette)

    # Mostly the first of the first: only there so much happens that blocks become old.

    @staticmethod
    def draw_which(c: Choices, setting: Memory) -> tuple[int, int]:
        return c.pick((0, 0, 0, 1)), c.pick((0, 0, *range(setting.num_replicas)))

    @staticmethod
    def draw_names(c: Choices, setting: Memory) -> Any:
        names = names_of(c.pick(setting.palette))
        if c.rarely(6):  # about as long as what is remembered
            names = list(range(1, max(1, setting.max_blocks + c.integer(-2, 2)) + 1))
        return tuple(names) if c.rarely(4) else names

    @classmethod
    def draw_sent(cls, c: Choices, setting: Memory) -> tuple[Any, ...]:
        return *cls.draw_which(c, setting), cls.draw_names(c, setting)

    @classmethod
    def draw_ask(cls, c: Choices, setting: Memory) -> tuple[int, Any]:
        return c.pick((0, 0, 0, 1)), cls.draw_names(c, setting)

    draw_lost = draw_which

    @staticmethod
    def draw_emptied(c: Choices, setting: Memory) -> tuple[()]:
        return ()

    def start(self, answer: Any) -> None:
        super().start(answer)
        self.last: list[Any] = []  # the list that the last `sent` was given
        # Of each replica in each history: why its number of blocks is what it is.
        self.because = [["never sent"] * self.setting.num_replicas for _ in self.books]

    def do_sent(self, which: int, replica: int, names: Sequence[Any]) -> None:
        given = copy.copy(names)
        self.say(f"history {which + 1}: sent({replica}, {listed(names)})")
        self.stage.see("sent", self.stage.call(self.books[which], "sent", replica, given))
        self.last = given if isinstance(given, list) else []
        lost = self.because[which][replica] in ("lost: matches", "lost before")
        self.because[which][replica] = "lost before" if lost else "matches"

    def do_lost(self, which: int, replica: int) -> None:
        self.say(f"history {which + 1}: lost({replica})")
        self.stage.see("lost", self.stage.call(self.books[which], "lost", replica))
        others = ["another lost" if b == "matches" else b for b in self.because[which]]
        self.because[which] = [*others[:replica], "lost: matches", *others[replica + 1 :]]

    def do_emptied(self) -> None:
        """The list is the caller's."""
        if self.last:
            self.say("the caller empties the list that `sent` was given")
            self.last.clear()
            for replicas in self.because:
                replicas[:] = ["emptied" if b == "matches" else b for b in replicas]

    def do_ask(self, which: int, names: Sequence[Any]) -> None:
        self.say(f"history {which + 1}: matches({listed(names)})")
        self.ask(which, copy.copy(names), self.because[which])


def listed(names: Sequence[Any]) -> str:
    if len(names) <= ITEMS_TOLD:
        return str(names)
    return f"[{names[0]!r}, {names[1]!r}, ..., {len(names)} in all]"


# Exercise 7. Prompts, and the size of their blocks. Each event has its own.

CUT_PROMPTS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1, 2, 3, 4), 2),
    ((1, 2, 3, 4, 5, 6), 2),
    ((1, 2, 7, 8), 2),
    ((5, 6), 2),
    ((5, 6, 3, 4), 2),
    ((9, 9, 9, 9, 9, 9), 2),
    ((1, 2, 3, 4, 5, 6), 3),
    (tuple(range(LONG)), 1),
)
NAMES_OF = [block_names(*prompt) for prompt in CUT_PROMPTS]
NUMBER = {name: i for i, name in enumerate(dict.fromkeys(itertools.chain(*NAMES_OF)))}
ASKED = (1, 2, 4, 5, 6)  # the others are beginnings of these
ODD = ("unknown parent", "not known")
LONG_ONE = len(CUT_PROMPTS) - 1


@functools.cache
def external(replica: int, name: int, cleared: int) -> dict[str, ExternalBlockHash]:
    """An engine's own hash of a block, of each kind. It is not the router's name of it.

    Most kinds are counted by each engine, in another order; cleared, it begins anew.
    """
    number, large = NUMBER[name], name * 0x9E3779B97F4A7C15 + 1
    count = (number - replica - cleared) % len(NUMBER)
    return {
        "the same": 100 + number,
        "large": large % 2**64,
        "each engine's own": (large + replica) % 2**64,
        "small": count,
        "bytes as": hashlib.blake2b(f"{name} {replica}".encode(), digest_size=32).digest(),
        "bytes, all alike at both ends, as": b"all begin%dand end so" % count,
        "zeros in bytes as": bytes(1 + count),
        "neighboring large": 2**63 + count,  # as floats they are equal
        "far apart": count << 48,  # their lower bits are equal
    }


KINDS = tuple(external(0, NAMES_OF[0][0], 0))


@dataclass(frozen=True)
class Engines:
    """Whose events two indexes hear. `hashes`: what kind, see `external`."""

    num_replicas: int
    hashes: str
    only: int | None  # of one engine, and of this prompt; None: of all

    @property
    def arguments(self) -> tuple[int]:
        return (self.num_replicas,)

    def __str__(self) -> str:
        return f"two indexes, num_replicas {self.num_replicas}; {self.hashes} hashes"


class IndexStory(BookStory):
    """What some engines say, to the first index or the second. After each event, both are asked."""

    what = "an index"
    kinds = ("stored",) * 6 + ("removed",) * 6 + ("cleared",)

    @classmethod
    def draw_setting(cls, c: Choices) -> Engines:
        # With the same hashes, what engines have is mixed up first.
        num_replicas, hashes = c.size(1, 3), c.pick(("the same",) * 4 + KINDS)
        return Engines(num_replicas, hashes, c.pick((0, 1, 1)) if c.rarely(2) else None)

    @classmethod
    def longest(cls, setting: Engines) -> int:
        return 30 if setting.only is None else 60

    @staticmethod
    def draw_cleared(c: Choices, setting: Engines) -> tuple[int, int, int]:
        # Mostly the first engine, and the first prompts: only there so much happens that a block is
        # removed twice, stored three times, or stored again behind a parent that was cleared.
        if setting.only is not None:
            return 0, 0, setting.only
        which, replica = c.pick((0, 0, 0, 1)), c.pick((0, *range(setting.num_replicas)))
        prompt = c.pick((0, 0, *range(LONG_ONE)))
        return which, replica, LONG_ONE if c.rarely(200) else prompt

    @classmethod
    def draw_stored(cls, c: Choices, setting: Engines) -> tuple[int, ...]:
        which, replica, prompt = cls.draw_cleared(c, setting)
        last = len(NAMES_OF[prompt]) - 1
        if prompt == LONG_ONE:
            return which, replica, prompt, 0, last
        first = c.integer(0, last) if setting.only is not None or c.integer(0, 2) else 0
        return which, replica, prompt, first, c.integer(first, last)

    @classmethod
    def draw_removed(cls, c: Choices, setting: Engines) -> tuple[Any, ...]:
        which, replica, prompt = cls.draw_cleared(c, setting)
        last = len(NAMES_OF[prompt]) - 1
        return which, replica, prompt, tuple(c.some(lambda: c.integer(0, last), 1, 3))

    def start(self, answer: Any) -> None:
        super().start(answer)
        self.cleared: Counter[tuple[int, int]] = Counter()
        self.right = [answers.KVIndex(self.setting.num_replicas) for _ in self.books]
        # What a replica was told that is to change nothing. If it does, this shows only later.
        self.odd: dict[tuple[int, int], str] = {}

    def hashes_of(self, which: int, replica: int, prompt: int) -> list[ExternalBlockHash]:
        """An engine's hashes of a prompt's blocks, as it gives them at present."""
        cleared = self.cleared[which, replica]
        return [external(replica, name, cleared)[self.setting.hashes] for name in NAMES_OF[prompt]]

    def do_stored(self, which: int, replica: int, prompt: int, first: int, last: int) -> None:
        hashes, (tokens, size) = self.hashes_of(which, replica, prompt), CUT_PROMPTS[prompt]
        parent = hashes[first - 1] if first else None
        now = slice(first * size, (last + 1) * size)
        event = stored(hashes[first : last + 1], parent, tokens[now], size)
        unknown = parent is not None and parent not in self.right[which].names[replica]
        self.apply(which, replica, prompt, event, "unknown parent" if unknown else "stored")

    def do_removed(self, which: int, replica: int, prompt: int, blocks: tuple[int, ...]) -> None:
        hashes, copies = self.hashes_of(which, replica, prompt), self.right[which].copies[replica]
        gone = Counter(hashes[i] for i in blocks)
        clause = "removed" if copies.keys() & gone.keys() else "not known"
        if (copies - gone).keys() & gone.keys():
            clause = "a copy left"
        event = BlockRemoved([*gone.elements()], MEDIUM_GPU)
        self.apply(which, replica, prompt, event, clause)

    def do_cleared(self, which: int, replica: int, prompt: int) -> None:
        self.cleared[which, replica] += 1
        self.apply(which, replica, prompt, AllBlocksCleared(), "cleared")

    def apply(self, which: int, replica: int, prompt: int, event: Event, clause: str) -> None:
        """Tell one index an event, and ask both. `clause`: what this replica's blocks say."""
        self.say(f"index {which + 1}: apply({replica}, {event_told(event)})")
        if clause in ODD:
            self.odd[which, replica] = clause
        clause = self.odd.get((which, replica), clause)
        self.right[which].apply(replica, event)
        given = copy.deepcopy(event)
        self.stage.see("apply", self.stage.call(self.books[which], "apply", replica, given))
        self.stage.see("event", "as it was" if event == given else "changed")
        replicas = range(self.setting.num_replicas)
        clauses = [clause if i == replica else "another replica" for i in replicas]
        asked = (*ASKED, LONG_ONE) if prompt == LONG_ONE else ASKED
        for number in asked if self.setting.only is None else (1,):
            self.ask_for(which, number, clauses)
        if self.setting.only is None:
            self.ask_for(1 - which, 1, ["another index" for _ in replicas])

    def ask_for(self, which: int, prompt: int, clauses: Sequence[str]) -> None:
        tokens, size = CUT_PROMPTS[prompt]
        words = f"index {which + 1}: matches(block_names({listed([*tokens])}, {size}))"
        self.stage.now("\n".join([*self.lines, words]))
        self.ask(which, list(NAMES_OF[prompt]), clauses)


def stored(
    hashes: Sequence[ExternalBlockHash],
    parent: ExternalBlockHash | None,
    tokens: Sequence[int],
    block_size: int,
) -> BlockStored:
    return BlockStored(list(hashes), parent, list(tokens), block_size, None, MEDIUM_GPU, None)


def event_told(event: Event) -> str:
    """An event in short."""
    if isinstance(event, AllBlocksCleared):
        return "AllBlocksCleared()"
    hashes = ", ".join(map(_short, event.block_hashes[:ITEMS_TOLD]))
    if len(event.block_hashes) > ITEMS_TOLD:
        hashes += f", ..., {len(event.block_hashes)} hashes in all"
    if isinstance(event, BlockRemoved):
        return f"BlockRemoved([{hashes}])"
    behind = "None" if event.parent_block_hash is None else _short(event.parent_block_hash)
    size = f", block_size {event.block_size}" if event.block_size != 2 else ""
    return f"BlockStored([{hashes}], parent {behind}, tokens {listed(event.token_ids)}{size})"


def _short(block_hash: ExternalBlockHash) -> str:
    words = str(block_hash)
    return words if len(words) < 40 else f"{words[:12]}...{words[-8:]}"


# Exercise 8


class RouterStory(LinedStory):
    """Two routers, each in front of its own replicas, and what they hear and are asked.

    The setting has, for each router, the number of its replicas and its block size. Prompts are of
    two groups, of which each shares its beginning.
    """

    kinds = ("choose", "heard", "choose", "heard", "choose", "heard", "died")
    most = 20

    @classmethod
    def draw_setting(cls, c: Choices) -> list[tuple[int, int]]:
        return [(c.integer(1, 4), c.pick((16, 4, 1, 32))) for _ in range(2)]

    @classmethod
    def tell(cls, setting: list[tuple[int, int]]) -> str:
        (n, size), (m, other) = setting
        return f"MyRouter({n}, {size}) is router 1, MyRouter({m}, {other}) is router 2"

    @staticmethod
    def draw_died(c: Choices, setting: list[tuple[int, int]]) -> tuple[int, int]:
        which = c.pick((0, 0, 0, 1))
        return which, c.integer(0, setting[which][0] - 1)

    @classmethod
    def draw_heard(cls, c: Choices, setting: list[tuple[int, int]]) -> tuple[int, int, Event]:
        which, replica = cls.draw_died(c, setting)
        size, blocks = setting[which][1], c.integer(1, 4)
        tokens = shared_tokens(c.integer(0, 1), blocks * size)
        hashes: list[Any] = [last + 1 for last in tokens[size - 1 :: size]]  # not the names
        event: Event = stored(hashes, None, tokens, size)
        if c.rarely(4):
            event = BlockRemoved(hashes[c.integer(0, blocks - 1) :], MEDIUM_GPU)
        return which, replica, AllBlocksCleared() if c.rarely(10) else event

    @classmethod
    def draw_choose(cls, c: Choices, setting: list[tuple[int, int]]) -> tuple[Any, ...]:
        """The router, the prompt, each replica's waiting tokens and requests, and whether the
        last replica comes first."""
        which = c.pick((0, 0, 0, 1))
        num_replicas, size = setting[which]
        tokens = shared_tokens(c.integer(0, 1), c.integer(1, 4) * size)
        held = c.pick((0, size, 2 * size, 4 * size))
        waiting = [c.pick((0, 0, 1, held, held + 1, 10_000)) for _ in range(num_replicas)]
        loads = [(tokens_there, c.integer(0, 3)) for tokens_there in waiting]
        shared = [] if c.rarely(6) else tokens  # without it: perhaps less than a block
        rest = range(10**6, 10**6 + c.integer(0 if shared else 1, size))
        return which, [*shared, *rest], loads, c.rarely(3)

    def start(self, answer: Any) -> None:
        self.dead: set[tuple[int, int]] = set()
        self.routers = [
            self.see("new", self.stage.do(answer, *given), "a router") for given in self.setting
        ]
        for router in self.routers:
            lacking = [f"`{name}`" for name in ("heard", "choose") if not hasattr(router, name)]
            self.stage.see("methods", " and no ".join(lacking))

    def live(self, which: int) -> list[int]:
        return [i for i in range(self.setting[which][0]) if (which, i) not in self.dead]

    def do_heard(self, which: int, replica: int, event: Event) -> None:
        if replica in self.live(which):
            self.say(f"router {which + 1}: heard({replica}, {event_told(event)})")
            given = copy.deepcopy(event)
            self.see("heard", self.stage.call(self.routers[which], "heard", replica, given))
            self.stage.see("given", "as it was" if given == event else "the event is changed")

    def do_died(self, which: int, replica: int) -> None:
        if self.live(which) != [replica]:  # one is left
            self.say(f"router {which + 1}: replica {replica} dies")
            self.dead.add((which, replica))

    def do_choose(
        self, which: int, tokens: list[int], loads: list[tuple[int, int]], turned: bool
    ) -> None:
        replicas = [ReplicaLoad(i, 0, loads[i][1], loads[i][0]) for i in self.live(which)]
        replicas = replicas[::-1] if turned else replicas
        request = RoutingRequest(0, block_names(tokens, self.setting[which][1]), len(tokens))
        waiting = {r.index: r.waiting_tokens for r in replicas}
        self.say(
            f"router {which + 1}: choose({len(tokens)} tokens from {tokens[0]} on, waiting_tokens "
            f"{waiting})"
        )
        before = copy.deepcopy((request, replicas))
        got = self.stage.call(self.routers[which], "choose", request, replicas)
        pairs = zip(("request", "replicas"), before, (request, replicas), strict=True)
        changed = [name for name, old, new in pairs if old != new]
        self.stage.see("given", f"`{changed[0]}` is changed" if changed else "as it was")
        self.stage.see("choose", got)


def shared_tokens(group: int, length: int) -> list[int]:
    """The beginning that all prompts of a group have."""
    return [100 * group + i for i in range(length)]
