"""The checks of lab 17: what is drawn, and what is right.

Oracles: other ways to the same number (a walk without a ring, exact fractions); for the classes the
one right answer in lockstep, which `tests/` holds against the course's own indexes and policies. At
last, two real servers and their own counters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

from utils.checks.kit.contracts import Choices, Fault, Given, Returns
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.runner import Passed
from utils.checks.lab_17 import answers, real_servers, stories
from utils.kv_events.kv_events import BlockStored
from utils.routing.router.block_names import block_name

LAB = Lab(__file__)
LONG_ONE, NAMES_OF = stories.LONG_ONE, stories.NAMES_OF

# Exercise 1: the leading blocks that each replica holds


def draw_holders(c: Choices) -> Given:
    num_replicas = c.size(1, 6)
    names = list(dict.fromkeys(c.some(lambda: c.integer(0, 9), 0, 8)))
    holders = {}
    for name in dict.fromkeys([*names, *c.some(lambda: c.integer(0, 9), 0, 3)]):
        here = {i for i in range(num_replicas) if not c.rarely(3)}
        if here or c.rarely(2):  # a block that nobody holds may be there as an empty set
            holders[name] = here
    if c.rarely(25):  # a prompt of thousands of blocks
        more = range(10, 4_000)
        names += more
        holders |= {name: set(range(num_replicas)) for name in more}
    return Given(holders, c.pick((list, list, tuple))(names), num_replicas)


def leading_blocks(
    holders: dict[Any, set[int]], block_names: Sequence[Any], num_replicas: int
) -> list[int]:
    """For each replica by itself: the first place whose block it lacks."""
    places = list(enumerate(block_names))
    lacking = [
        [place for place, name in places if replica not in holders.get(name, set())]
        for replica in range(num_replicas)
    ]
    return [min([*missing, len(places)]) for missing in lacking]


find_matches = LAB.check(answers.find_matches, draw_holders, Returns(leading_blocks))

# Exercise 2: consistent hashing with bounded loads
# Karger et al., STOC 1997; Mirrokni, Thorup, Zadimoghaddam, arXiv 1608.01350.

POINTS_TOLD = 12


@dataclass(frozen=True)
class PlaceOf:
    """A hash function: a text's place on a ring of `size` places. Small rings show every wrap.

    Places from `first` on: large ones that are close together differ in their lowest bits only.
    """

    size: int
    salt: int = 0
    first: int = 0

    def __call__(self, text: str) -> int:
        digest = hashlib.blake2b(f"{self.salt} {text}".encode(), digest_size=8).digest()
        return self.first + int.from_bytes(digest, "big") % self.size

    def __repr__(self) -> str:
        return f"a hash function with places {self.first} to {self.first + self.size - 1}"


def draw_ring(c: Choices) -> Given:
    size, salt = c.pick((4, 8, 16, 100, 2**32, 2**64)), c.integer(0, 9)
    first = c.pick((0, 0, 2**60, 2**63 - 50)) if size <= 100 else 0
    lowest = c.pick((0, 0, 7, 97))  # as texts, "10" comes before "8"
    key = f"session {c.integer(0, 9)}"
    if c.rarely(100):  # more than a thousand full points in a row; the last two have room
        loads = dict.fromkeys(range(lowest, lowest + 60), 9)
        loads |= {lowest + 58: 1, lowest + 59: 0}
        return Given(key, loads, PlaceOf(4, salt, first), 80, 1.01)
    replicas = [lowest + i for i in range(c.size(1, 5)) if not c.rarely(4)]
    if c.rarely(4):
        replicas.reverse()
    some = c.pick(((0, 1, 2, 3, 0, 10), (0, 4, 4, 4)))  # also several that are full
    loads = {i: c.pick(some) for i in replicas}
    bound = (c.pick((1.5, 1.25, 2.0, 1.01, None)),) if c.integer(0, 2) else ()
    return Given(key, loads, PlaceOf(size, salt, first), c.size(1, 6), *bound)


def walk(
    key: str,
    loads: dict[int, int],
    place_of: Callable[[str], int],
    num_points: int,
    bound: float | None = None,
) -> int:
    """How far each replica's points are ahead of the key, without building a ring."""
    if not loads:
        raise ValueError("no replica is alive")
    begin = place_of(key)

    def distance(place: int) -> tuple[bool, int]:
        return place < begin, place  # points behind the key come after the ring's end

    nearest = [
        (min(distance(place_of(f"{replica}/{k}")) for k in range(num_points)), replica)
        for replica in loads
        if bound is None or loads[replica] < limit_of(loads, bound)
    ]
    return min(nearest)[1]


def limit_of(loads: dict[int, int], bound: float) -> float:
    """The load that a replica must be below to take one more request."""
    return bound * (sum(loads.values()) + 1) / len(loads)


def wrong_owner(expected: int, got: Any, given: Given) -> Fault | None:
    """Which rule is broken: where a key belongs, or who may take it."""
    key, loads, place_of, num_points, *rest = given.args
    if got == expected:
        return None
    if not is_alive(got, loads):
        words = (f"replica `{expected}`", f"`{got!r}`")
        return Fault("none" if got is None else "nobody", "", expected, got, words=words)
    bound = rest[0] if rest else None
    clause = "returns"
    if bound is not None:
        belongs = walk(key, loads, place_of, num_points)
        clause = "room" if belongs == expected else "next"
        clause = "full" if loads[got] >= limit_of(loads, bound) else clause
    return Fault(clause, "", expected, got)


def is_alive(replica: Any, live: dict[int, Any]) -> bool:
    return isinstance(replica, Hashable) and replica in live


def tell_ring(given: Given) -> str:
    """The ring's points in order, where there are few."""
    key, loads, place_of, num_points, *bound = given.args
    points = sorted((place_of(f"{r}/{k}"), r) for r in loads for k in range(num_points))
    ring = ", ".join(f"{place} (replica {r})" for place, r in points[:POINTS_TOLD])
    if len(points) > POINTS_TOLD:
        ring += f", and {len(points) - POINTS_TOLD} more points"
    limit = f"bound {bound[0]}" if bound else "bound not given"
    return (
        f"key {key!r} at place {place_of(key)}; num_points {num_points}, points at places "
        f"{ring or 'none'}; loads {loads}, {limit}"
    )


ring_owner = LAB.check(
    answers.ring_owner, draw_ring, Returns(walk, wrong=wrong_owner), tell=tell_ring, examples=600
)

# Exercise 3: what a router remembers of its own choices

routing_history = LAB.check(
    answers.RoutingHistory,
    stories.HistoryStory.draw,
    stories.HistoryStory.judge(answers.RoutingHistory),
    examples=200,
)

# Exercise 4: the replica where the first token comes soonest


def draw_choice(c: Choices) -> Given:
    block_size = c.pick((1, 2, 4, 16, 10**9, 10**9))  # no constant that weighs is large enough
    blocks = c.size(0, 12)
    num_tokens = max(1, blocks * block_size + c.integer(0, block_size - 1))
    num_replicas = c.size(1, 12)
    matches = [c.integer(0, num_tokens // block_size) for _ in range(num_replicas)]
    alive = [i for i in range(num_replicas) if not c.rarely(5)]
    waits = (0, 0, block_size, 2 * block_size, 1, 100)
    waiting = {i: c.pick(waits) for i in alive}
    if c.rarely(2):  # what is held and what waits are as much, or nearly
        waiting = {i: block_size * matches[i] + c.integer(0, 2) for i in alive}
    if c.rarely(12):  # all are equal, and as texts "10" comes before "9"
        num_replicas, lowest = 12, c.integer(0, 9)
        matches, waiting = [0] * num_replicas, dict.fromkeys(range(lowest, num_replicas), 0)
    if c.rarely(3):
        waiting = dict(reversed(waiting.items()))
    return Given(num_tokens, block_size, c.pick((list, list, tuple))(matches), waiting)


def tokens_first(
    num_tokens: int, block_size: int, matches: Sequence[int], waiting_tokens: dict[int, int]
) -> dict[int, int]:
    """Of each live replica, the tokens that it computes before the first new one."""
    cost = {}
    for replica, waiting in waiting_tokens.items():
        cost[replica] = waiting + num_tokens
        for block in range(matches[replica]):
            if (block + 1) * block_size < num_tokens:  # the last token is always computed
                cost[replica] -= block_size
    return cost


def soonest(
    num_tokens: int, block_size: int, matches: Sequence[int], waiting_tokens: dict[int, int]
) -> int:
    """The least work ahead of the first token; then the shortest queue, then the lowest number."""
    if not waiting_tokens:
        raise ValueError("no replica is alive")
    cost = tokens_first(num_tokens, block_size, matches, waiting_tokens)
    least = [replica for replica in cost if cost[replica] == min(cost.values())]
    shortest = min(waiting_tokens[replica] for replica in least)
    return min(replica for replica in least if waiting_tokens[replica] == shortest)


def wrong_choice(expected: int, got: Any, given: Given) -> Fault | None:
    """Which rule is broken: who is alive, who is soonest, or which of equal ones."""
    waiting = given.args[3]
    if got == expected:
        return None
    if not is_alive(got, waiting):
        return Fault("nobody", "", expected, got, words=(f"replica `{expected}`", f"`{got!r}`"))
    cost = tokens_first(*given.args)
    expected_words, got_words = (
        f"replica {i}: {cost[i]} tokens before the first new one, of which {waiting[i]} wait"
        for i in (expected, got)
    )
    clause = "returns" if cost[got] > cost[expected] else "tie"
    return Fault(clause, "", expected, got, words=(expected_words, got_words))


choose_replica = LAB.check(
    answers.choose_replica, draw_choice, Returns(soonest, wrong=wrong_choice), examples=300
)

# Exercise 5: how long a client should wait


def draw_queues(c: Choices) -> Given:
    rate, limit = c.pick((2.0, 100.0, 2_500.0)), c.pick((0.5, 1.25, 2.0))

    def tokens() -> float:
        if c.rarely(4):  # just enough, or a little more
            return int(rate * limit) + c.integer(0, 3)
        return c.size(0, 20_000) + c.pick((0, 0.5)) if c.integer(0, 2) else 0

    return Given(c.pick((list, list, tuple))(c.some(tokens, 0, 5)), rate, limit)


def seconds_left(
    tokens_ahead: Sequence[float], tokens_per_second: float, ttft_limit: float
) -> float:
    """In exact fractions, over all replicas."""
    if not tokens_ahead:
        raise ValueError("no replica is alive")
    rate, limit = Fraction(tokens_per_second), Fraction(ttft_limit)
    return float(min(max(Fraction(0), Fraction(n) / rate - limit) for n in tokens_ahead))


def praise_wait(answer: Callable[..., float]) -> str:
    return (
        "Right. With 6,000 and 9,000 tokens ahead, 2,500 tokens a second and a limit of 2 s, your "
        f"router would say `Retry-After: {answer([6000, 9000], 2500.0, 2.0):.1f}`."
    )


seconds_until_room = LAB.check(
    answers.seconds_until_room, draw_queues, Returns(seconds_left), passed=praise_wait
)

# Exercise 6: the router's names of the blocks in an event


def draw_event(c: Choices) -> Given:
    """A part of a prompt, whose other blocks are known or not; rarely a thousand blocks."""
    prompt = LONG_ONE if c.rarely(60) else c.integer(0, LONG_ONE - 1)
    tokens, size = stories.CUT_PROMPTS[prompt]
    kind, replica = c.pick((stories.KINDS[0], *stories.KINDS)), c.integer(0, 1)
    hashes = [stories.external(replica, name, 0)[kind] for name in NAMES_OF[prompt]]
    last = len(hashes) - 1
    first = 0 if prompt == LONG_ONE else c.integer(0, last)
    end = last if prompt == LONG_ONE else c.integer(first, last)
    known = {
        block_hash: name
        for number, (block_hash, name) in enumerate(zip(hashes, NAMES_OF[prompt], strict=True))
        if prompt != LONG_ONE and c.rarely(3) != (number < first)  # mostly those before it
    }
    parent = hashes[first - 1] if first else None
    here = tokens[first * size : (end + 1) * size]
    return Given(stories.stored(hashes[first : end + 1], parent, here, size), known)


def chained(event: BlockStored, names: dict[Any, int]) -> dict[Any, int]:
    """Each name from the one before, as sums are accumulated."""
    parent, size = event.parent_block_hash, event.block_size
    if parent is not None and parent not in names:
        return {}
    pieces = (event.token_ids[i : i + size] for i in range(0, len(event.token_ids), size))
    _, *found = accumulate(pieces, block_name, initial=0 if parent is None else names[parent])
    return dict(zip(event.block_hashes, found, strict=True))


def wrong_names(expected: dict[Any, int], got: Any, given: Given) -> Fault | None:
    """Which part of the chain is wrong, or which blocks are there."""
    if not isinstance(got, Mapping):
        return Fault("kind", "", expected, got)
    if got.keys() != expected.keys():
        if not expected:
            return Fault("unknown", "", expected, got)
        return Fault("hashes", "", [*expected], [*got])
    for number, (block_hash, name) in enumerate(expected.items()):
        if got[block_hash] != name:
            where = f"block {number} of the event"
            return Fault("later" if number else "first", where, name, got[block_hash])
    return None


def tell_event(given: Given) -> str:
    event, names = given.args
    return f"{stories.event_told(event)}; `names` has the hashes {stories.listed([*names])}"


name_blocks = LAB.check(
    answers.name_blocks,
    draw_event,
    Returns(chained, wrong=wrong_names),
    tell=tell_event,
    examples=200,
)

# Exercise 7: an index that the engines' KV events keep true

kv_index = LAB.check(
    answers.KVIndex,
    stories.IndexStory.draw,
    stories.IndexStory.judge(answers.KVIndex),
    examples=180,
)

# Exercise 8: the learner's router, first in random stories, then in front of two servers

REHEARSAL = LAB.check(
    answers.MyRouter,
    stories.RouterStory.draw,
    stories.RouterStory.judge(answers.MyRouter),
    examples=200,
).contract


@LAB.exercise
def engine(make_router: Callable[[int, int], Any]) -> Passed:
    """Check `make_router(num_replicas, block_size)`: rehearsed before anything is started."""
    REHEARSAL.check(make_router)
    return real_servers.against_two_others(make_router)
