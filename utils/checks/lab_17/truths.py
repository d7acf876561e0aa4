"""An index that is kept true by the engines' KV events: exercise 6."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.lab_17.histories import Kept
from utils.kv_events.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    ExternalBlockHash,
)
from utils.routing.router.block_names import block_name, block_names

# Prompts, and the size of their blocks. Each event has its own.
PROMPTS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1, 2, 3, 4), 2),
    ((1, 2, 3, 4, 5, 6), 2),
    ((1, 2, 7, 8), 2),
    ((5, 6), 2),
    ((5, 6, 3, 4), 2),
    ((9, 9, 9, 9, 9, 9), 2),
    ((1, 2, 3, 4, 5, 6), 3),
)
NAMES_OF = [block_names(*prompt) for prompt in PROMPTS]
ASKED = [NAMES_OF[i] for i in (1, 2, 4, 5, 6)]  # the others are beginnings of these
NAMES = list(dict.fromkeys(name for names in NAMES_OF for name in names))
Step = tuple[Any, ...]


@dataclass(frozen=True)
class Story:
    """What some engines say, each step to the first index or the second: (index, "stored",
    replica, prompt, first block, last), (index, "removed", replica, prompt, blocks), (index,
    "cleared", replica). `hashes`: what kind, see `external`."""

    num_replicas: int
    hashes: str
    steps: tuple[Step, ...]
    asked: list[list[int]] = field(default_factory=lambda: ASKED)

    def __str__(self) -> str:
        return f"two indexes of {self.num_replicas} replicas with {self.hashes} hashes"


def draw_story(c: Choices) -> Story:
    num_replicas = c.size(1, 3)
    narrow = c.rarely(2)  # all of it is about one engine and one prompt, of two or three blocks
    only = c.pick((0, 0, 1))

    def step() -> Step:
        # Mostly the first engine, and the first prompts: only there so much happens that a block is
        # removed twice, stored three times, or stored again behind a parent that was cleared.
        which, replica = c.pick((0, 0, 0, 1)), c.pick((0, *range(num_replicas)))
        prompt = c.pick((0, 0, *range(len(PROMPTS))))
        if narrow:
            which, replica, prompt = 0, 0, only
        blocks = len(NAMES_OF[prompt])
        if c.rarely(10):
            return which, "cleared", replica
        if c.integer(0, 8) >= (4 if narrow else 5):  # blocks are gone, now and then
            gone = tuple(c.some(lambda: c.integer(0, blocks - 1), 1, 1 if narrow else 3))
            return which, "removed", replica, prompt, gone
        first = c.integer(0, blocks - 1) if narrow or c.integer(0, 2) else 0
        return which, "stored", replica, prompt, first, c.integer(first, blocks - 1)

    hashes = c.pick(("the same",) * 4 + KINDS)  # with these, what engines have is mixed up first
    if narrow:
        return Story(num_replicas, hashes, tuple(c.some(step, 0, 60)), ASKED[:1])
    return Story(num_replicas, hashes, tuple(c.some(step, 0, 30)))


KINDS = (
    "the same",
    "different",
    "small",
    "bytes as",
    "bytes, all alike at both ends, as",
    "zeros in bytes as",
    "neighbouring large",
    "far apart",
)


@functools.cache
def external(hashes: str, replica: int, name: int, cleared: int) -> ExternalBlockHash:
    """An engine's own hash of a block. It is not the router's name of it.

    Most kinds are counted by each engine, in another order; cleared, it begins anew.
    """
    count = (NAMES.index(name) - replica - cleared) % len(NAMES)
    of_name = name * 0x9E3779B97F4A7C15 + 1
    kinds: tuple[ExternalBlockHash, ...] = (
        of_name % 2**64,
        (of_name + replica) % 2**64,
        count,
        hashlib.blake2b(f"{name} {replica}".encode(), digest_size=32).digest(),
        b"all begin" + bytes([count]) + b"and end so",
        bytes(1 + count),
        2**63 + count,  # as floats they are equal
        count << 56,  # their lower bits are equal
    )
    return kinds[KINDS.index(hashes)]


def event_of(story: Story, step: Step, cleared: int = 0) -> Event:
    """What the engine says. `cleared`: so often all its blocks were cleared before."""
    _, kind, replica, *rest = step
    if kind == "cleared":
        return AllBlocksCleared()
    (prompt, size), names = PROMPTS[rest[0]], NAMES_OF[rest[0]]
    hashes = [external(story.hashes, replica, name, cleared) for name in names]
    if kind == "removed":
        return BlockRemoved([hashes[i] for i in rest[1]], MEDIUM_GPU)
    first, last = rest[1], rest[2]
    return BlockStored(
        hashes[first : last + 1],
        hashes[first - 1] if first else None,
        list(prompt[first * size : (last + 1) * size]),
        size,
        None,
        MEDIUM_GPU,
        None,
    )


def play(stage: Stage, index_class: Any, story: Story) -> None:
    indexes = [stage.do(index_class, story.num_replicas) for _ in range(2)]
    for index in indexes:
        stage.see("new", index if isinstance(index, Raised) else "an index")
    cleared: Counter[tuple[int, int]] = Counter()
    for step in story.steps:
        which, kind, replica = step[:3]
        made = functools.partial(event_of, story, step, cleared[which, replica])
        event, kept = made(), Kept()
        stage.step(f"index {which + 1}: apply({replica}, {told(event)})")
        stage.see("apply", stage.call(indexes[which], "apply", replica, event))
        stage.see("event", "as it was" if event == made() else "changed")
        cleared[which, replica] += kind == "cleared"
        kept.ask(stage, "matches", indexes, which, story.asked)
        kept.compare(stage)


def told(event: Event) -> str:
    """An event in short."""
    if isinstance(event, AllBlocksCleared):
        return "AllBlocksCleared()"
    hashes = ", ".join(map(_short, event.block_hashes))
    if isinstance(event, BlockRemoved):
        return f"BlockRemoved([{hashes}])"
    behind = "None" if event.parent_block_hash is None else _short(event.parent_block_hash)
    size = f", block_size {event.block_size}" if event.block_size != 2 else ""
    return f"BlockStored([{hashes}], parent {behind}, tokens {event.token_ids}{size})"


def _short(block_hash: ExternalBlockHash) -> str:
    if isinstance(block_hash, bytes):
        return f"bytes ...{block_hash.hex()[-4:]}" if len(block_hash) > 25 else str(block_hash)
    return f"...{block_hash % 1000:03d}"


class PlainIndex:
    """Slow and plain: for each replica a bag of (engine's hash), and what each hash is called."""

    def __init__(self, num_replicas: int) -> None:
        self.names: list[dict[Any, int]] = [{} for _ in range(num_replicas)]
        self.bags: list[Counter[Any]] = [Counter() for _ in range(num_replicas)]

    def apply(self, replica: int, event: Event) -> None:
        names, bag = self.names[replica], self.bags[replica]
        if isinstance(event, AllBlocksCleared):
            names.clear()
            bag.clear()
        elif isinstance(event, BlockRemoved):
            for block_hash in event.block_hashes:
                self.remove(names, bag, block_hash)
        else:
            self.store(names, bag, event)

    def store(self, names: dict[Any, int], bag: Counter[Any], event: BlockStored) -> None:
        parent: Any = event.parent_block_hash
        before = 0 if parent is None else names.get(parent)
        size = event.block_size
        for i, block_hash in enumerate(event.block_hashes):
            if before is None:
                return  # nobody has told what is before it
            before = block_name(before, event.token_ids[i * size : (i + 1) * size])
            names[block_hash] = before
            bag[block_hash] += 1

    def remove(self, names: dict[Any, int], bag: Counter[Any], block_hash: Any) -> None:
        if bag[block_hash] > 0:
            bag[block_hash] -= 1
            if not bag[block_hash]:
                del names[block_hash]

    def matches(self, names: list[int]) -> list[int]:
        found = []
        for known in self.names:
            run = 0
            while run < len(names) and names[run] in known.values():
                run += 1
            found.append(run)
        return found


class _OneCopy(PlainIndex):
    def remove(self, names: Any, bag: Any, block_hash: Any) -> None:
        names.pop(block_hash, None)


class _CountStays(PlainIndex):
    def remove(self, names: Any, bag: Any, block_hash: Any) -> None:
        if bag[block_hash] > 1:
            bag[block_hash] -= 1
        else:
            names.pop(block_hash, None)


class _LessThanNone(PlainIndex):
    def remove(self, names: Any, bag: Any, block_hash: Any) -> None:
        bag[block_hash] -= 1
        if bag[block_hash] <= 0:
            names.pop(block_hash, None)


class _TwoAtMost(PlainIndex):
    def store(self, names: Any, bag: Any, event: Any) -> None:
        super().store(names, bag, event)
        for block_hash in bag:
            bag[block_hash] = min(bag[block_hash], 2)


class _OneBook(PlainIndex):
    def __init__(self, num_replicas: int) -> None:
        super().__init__(num_replicas)
        self.names = [self.names[0]] * num_replicas
        self.bags = [self.bags[0]] * num_replicas


class _NoParent(PlainIndex):
    def store(self, names: Any, bag: Any, event: Any) -> None:
        parent = event.parent_block_hash
        if parent is None or parent in names:
            super().store(
                names,
                bag,
                BlockStored(
                    event.block_hashes, None, event.token_ids, event.block_size, None, None, None
                ),
            )


class _FirstBlockOnly(PlainIndex):
    def store(self, names: Any, bag: Any, event: Any) -> None:
        size = event.block_size
        super().store(
            names,
            bag,
            BlockStored(
                event.block_hashes[:1],
                event.parent_block_hash,
                event.token_ids[:size],
                size,
                None,
                None,
                None,
            ),
        )


class _OrphansAtTheStart(PlainIndex):
    def store(self, names: Any, bag: Any, event: Any) -> None:
        parent = event.parent_block_hash
        if parent is not None and parent not in names:
            parent = None
        super().store(
            names,
            bag,
            BlockStored(
                event.block_hashes, parent, event.token_ids, event.block_size, None, None, None
            ),
        )


class _NeverRemoves(PlainIndex):
    def remove(self, names: Any, bag: Any, block_hash: Any) -> None:
        return


class _ClearsAll(PlainIndex):
    def apply(self, replica: int, event: Event) -> None:
        if isinstance(event, AllBlocksCleared):
            for names, bag in zip(self.names, self.bags, strict=True):
                names.clear()
                bag.clear()
        else:
            super().apply(replica, event)


class _Uncleared(PlainIndex):
    def apply(self, replica: int, event: Event) -> None:
        if not isinstance(event, AllBlocksCleared):
            super().apply(replica, event)


CHAIN = "`name = block_name(name, tokens)`, beginning with the parent's name, or 0."

KV_INDEX = Contract(
    inputs=draw_story,
    judge=InLockstep(play, PlainIndex),
    passed="Right in random stories of several engines. What this index says is true: the engines "
    "have said it.",
    clauses={
        "new": Clause("`KVIndex(num_replicas)` gives no index."),
        "apply": Clause(
            "`apply(replica, event)` returns nothing, and raises nothing, also for a "
            "block that the index does not know.",
            "`dict.get`, `dict.pop(x, None)`.",
        ),
        "event": Clause(
            "`apply` changes the event. Others are told of it, too.",
            "Slices, such as `event.token_ids[i * size : (i + 1) * size]`.",
        ),
        "matches": Clause("`matches` returns {got}; expected {expected} leading blocks.", CHAIN),
        "earlier": Clause(
            "What `matches` has returned is changed by later calls: it is {got}, and "
            "was {expected}.",
            "Make a new list in each call.",
        ),
    },
    mistakes=(
        mistake(
            "A block is gone though a copy is left. Several requests can compute the same "
            "block at the same time; each copy is stored, and removed, by itself.",
            "Count the copies: `Counter`.",
            _OneCopy,
            _TwoAtMost,
        ),
        mistake(
            "A block that was forgotten and comes back seems to have two copies: its old count "
            "has stayed.",
            "`copies.pop(block_hash, None)`, as for `names`.",
            _CountStays,
        ),
        mistake(
            "A removed hash that is not known counts as less than no copy. When it is stored "
            "later, a copy is missing.",
            "Count down only what is more than 1.",
            _LessThanNone,
        ),
        mistake(
            "All engines share one book. An engine's hash means nothing elsewhere.",
            "A dictionary for each replica.",
            _OneBook,
        ),
        mistake("A block's name ignores its parent.", CHAIN, _NoParent),
        mistake(
            "Only the first block of an event is stored.",
            "Go through `event.block_hashes`; block i has the tokens from `i * block_size` on.",
            _FirstBlockOnly,
        ),
        mistake(
            "A block whose parent is unknown is taken for the beginning of a prompt.",
            "What is before it? Nobody knows, so leave it out.",
            _OrphansAtTheStart,
        ),
        mistake(
            "Removed blocks stay.",
            "`BlockRemoved` holds the engine's hashes: look up the names that you gave them.",
            _NeverRemoves,
        ),
        mistake(
            "`AllBlocksCleared` is about one engine.",
            "Clear the books of this replica.",
            _ClearsAll,
        ),
        mistake("`AllBlocksCleared` is ignored.", "Clear the books of this replica.", _Uncleared),
    ),
    examples=220,
)
