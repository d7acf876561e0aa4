"""Leading blocks, the replica to choose, and the time until there is room: exercises 1, 4 and 5."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake

# Exercise 1


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
    holders: dict[int, set[int]], block_names: Sequence[int], num_replicas: int
) -> list[int]:
    """For each replica by itself: the first place whose block it lacks."""
    places = list(enumerate(block_names))
    lacking = [
        [place for place, name in places if replica not in holders.get(name, set())]
        for replica in range(num_replicas)
    ]
    return [min([*missing, len(places)]) for missing in lacking]


def _counted(holders: Any, names: Any, n: int) -> list[int]:
    return [sum(i in holders.get(name, ()) for name in names) for i in range(n)]


def _last(holders: Any, names: Any, n: int) -> list[int]:
    held = [[k for k, name in enumerate(names, 1) if i in holders.get(name, ())] for i in range(n)]
    return [max(ks, default=0) for ks in held]


def _only_the_best(holders: Any, names: Any, n: int) -> list[int]:
    found = leading_blocks(holders, names, n)
    return [k if k == max(found) else 0 for k in found]


def _all_replicas(holders: Any, names: Any, n: int) -> list[int]:
    return [min(leading_blocks(holders, names, n))] * n


def _key_error(holders: Any, names: Any, n: int) -> list[int]:
    for name in names:
        holders[name]
    return leading_blocks(holders, names, n)


FIND_MATCHES = Contract(
    inputs=draw_holders,
    judge=Returns(leading_blocks),
    passed="Right. A block can be reused only if all blocks before it are there, too.",
    clauses={
        "returns": Clause(
            "The leading blocks are wrong. {says}",
            "For each replica, go through the prompt's blocks and stop at the first it lacks.",
        ),
        "raises": Clause("It raises an error. {says}", "`holders.get(name, set())`."),
    },
    mistakes=(
        mistake(
            "Blocks behind a gap are counted. They cannot be reused: what they hold depends on "
            "the blocks before them.",
            "Stop at the first block that is missing.",
            _counted,
        ),
        mistake(
            "Blocks behind a gap are counted.", "Stop at the first block that is missing.", _last
        ),
        mistake(
            "Only the best replica's match is reported.",
            "The policy needs all: the best one may be busy.",
            _only_the_best,
        ),
        mistake(
            "All replicas get the same number.", "One may hold more than another.", _all_replicas
        ),
        mistake(
            "A block that nobody holds raises a KeyError.",
            "`holders.get(name, set())`.",
            _key_error,
        ),
    ),
)

# Exercise 4


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
    if c.rarely(3):
        waiting = dict(reversed(waiting.items()))
    return Given(num_tokens, block_size, c.pick((list, list, tuple))(matches), waiting)


def soonest(
    num_tokens: int, block_size: int, matches: Sequence[int], waiting_tokens: dict[int, int]
) -> int:
    """The least work ahead of the first token; then the shortest queue, then the lowest number."""
    if not waiting_tokens:
        raise ValueError("no replica is alive")
    reusable = (num_tokens - 1) // block_size
    ranked = []
    for replica, waiting in waiting_tokens.items():
        computed = 0
        for _ in range(min(matches[replica], reusable)):
            computed += block_size
        ranked.append((waiting + num_tokens - computed, waiting, replica))
    ranked.sort()
    return ranked[0][2]


def _ranked(cost: Any) -> Any:
    def choose(num_tokens: int, size: int, matches: Any, waiting: Any) -> int:
        if not waiting:
            raise ValueError("nobody")
        return min(waiting, key=lambda i: cost(num_tokens, size, matches[i], waiting[i], i))

    return choose


def _dead_too(num_tokens: int, size: int, matches: Any, waiting: Any) -> int:
    if not waiting:
        raise ValueError("nobody")
    rest = (num_tokens - 1) // size
    return min(
        range(len(matches)),
        key=lambda i: (waiting.get(i, 0) - size * min(matches[i], rest), waiting.get(i, 0), i),
    )


CHOOSE_REPLICA = Contract(
    inputs=draw_choice,
    judge=Returns(soonest),
    passed="Right. One rule weighs the cache against the queue, and both are counted in tokens.",
    clauses={
        "returns": Clause(
            "Another replica would compute the first token sooner. {says}",
            "`waiting_tokens[i] + num_tokens - block_size * matches[i]`, as small as possible.",
        ),
        "refuses": Clause(
            "Without a live replica there is nothing to choose: a ValueError.",
            "`if not waiting_tokens: raise ValueError(...)`.",
        ),
        "raises": Clause(
            "`choose_replica` raises an error.",
            "The live replicas are the keys of `waiting_tokens`.",
        ),
    },
    mistakes=(
        mistake(
            "Only the prefix counts, so that everybody stands in one queue.",
            "Add the tokens that wait there.",
            _ranked(lambda n, s, m, w, i: (-min(m, (n - 1) // s), w, i)),
        ),
        mistake(
            "Only the queue counts, and the caches are useless.",
            "Subtract the tokens that need not be computed.",
            _ranked(lambda n, s, m, w, i: (w, i)),
        ),
        mistake(
            "Blocks are weighed against tokens: `matches` counts blocks.",
            "A block is `block_size` tokens.",
            _ranked(lambda n, s, m, w, i: (w - min(m, (n - 1) // s), w, i)),
        ),
        mistake(
            "A prompt that is cached to its last token counts as no work. One token is always "
            "computed, and with it its whole block.",
            "`min(matches[i], (num_tokens - 1) // block_size)`.",
            _ranked(lambda n, s, m, w, i: (w - s * m, w, i)),
        ),
        mistake(
            "A dead replica is chosen.",
            "Live replicas are the keys of `waiting_tokens`.",
            _dead_too,
        ),
        mistake(
            "Of equally good replicas, not the one with the shorter queue is chosen.",
            "Compare pairs: `(cost, waiting_tokens[i], i)`.",
            _ranked(lambda n, s, m, w, i: (w - s * min(m, (n - 1) // s), i)),
        ),
        mistake(
            "The slowest replica is chosen.",
            "The smallest cost wins.",
            _ranked(lambda n, s, m, w, i: (-(w - s * min(m, (n - 1) // s)), w, i)),
        ),
    ),
)

# Exercise 5


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
    waits = [max(Fraction(0), Fraction(tokens) / rate - limit) for tokens in tokens_ahead]
    return float(min(waits))


def _room(rule: Any) -> Any:
    def answer(tokens: Any, rate: float, limit: float) -> float:
        if not tokens:
            raise ValueError("nobody")
        return rule(tokens, rate, limit)

    return answer


SECONDS_UNTIL_ROOM = Contract(
    inputs=draw_queues,
    judge=Returns(seconds_left),
    passed=lambda answer: (
        f"Right. With 6,000 and 9,000 tokens ahead, 2,500 a second and a limit of 2 s, the client "
        f"hears `Retry-After: {answer([6000, 9000], 2500.0, 2.0):.1f}`."
    ),
    clauses={
        "returns": Clause(
            "The time is wrong. {says}", "The replica with the fewest tokens ahead decides."
        ),
        "refuses": Clause(
            "Without a live replica no time can be named: a ValueError.",
            "`if not tokens_ahead: raise ValueError(...)`.",
        ),
    },
    mistakes=(
        mistake(
            "The time is negative where there is room already.",
            "`max(0.0, ...)`.",
            _room(lambda t, r, m: min(t) / r - m),
        ),
        mistake(
            "The fullest replica decides.",
            "One replica with room is enough: `min`.",
            _room(lambda t, r, m: max(0.0, max(t) / r - m)),
        ),
        mistake(
            "All queues are added up.",
            "The request goes to one replica.",
            _room(lambda t, r, m: max(0.0, sum(t) / r - m)),
        ),
        mistake(
            "The mean of the queues decides.",
            "The request goes to the shortest: `min`.",
            _room(lambda t, r, m: max(0.0, sum(t) / len(t) / r - m)),
        ),
        mistake(
            "The limit is not subtracted: the client may come back when the answer would be in "
            "time, not when the queue is empty.",
            "`tokens / tokens_per_second - ttft_limit`.",
            _room(lambda t, r, m: min(t) / r if min(t) / r > m else 0.0),
        ),
        mistake(
            "These are tokens, not seconds.",
            "Divide by `tokens_per_second`.",
            _room(lambda t, r, m: max(0.0, min(t) - m * r)),
        ),
    ),
)
