"""Consistent hashing with bounded loads: exercise 2.

Karger et al., STOC 1997; Mirrokni, Thorup, Zadimoghaddam, arXiv 1608.01350.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake


@dataclass(frozen=True)
class PlaceOf:
    """A hash function: a text's place on a ring of `size` places. Small rings show every wrap.

    Places from `first` on: large ones that lie close together differ in their lowest bits only.
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
    place_of = PlaceOf(size, salt, first)
    lowest = c.pick((0, 0, 7, 97))  # as texts, "10" comes before "8"
    replicas = [lowest + i for i in range(c.size(1, 5)) if not c.rarely(4)]
    if c.rarely(4):
        replicas.reverse()
    some = c.pick(((0, 1, 2, 3, 0, 10), (0, 4, 4, 4)))  # also several that are full
    loads = {i: c.pick(some) for i in replicas}
    key = f"session {c.integer(0, 9)}"
    bound = (c.pick((1.5, 1.25, 2.0, 1.01, None)),) if c.integer(0, 2) else ()
    return Given(key, loads, place_of, c.size(1, 6), *bound)


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
    limit = float("inf") if bound is None else bound * (sum(loads.values()) + 1) / len(loads)

    def distance(place: int) -> tuple[bool, int]:
        return place < begin, place  # points behind the key come after the ring's end

    nearest = [
        (min(distance(place_of(f"{replica}/{k}")) for k in range(num_points)), replica)
        for replica in loads
        if loads[replica] < limit
    ]
    return min(nearest)[1]


def _ring(change: str = "") -> Callable[..., int]:
    """A right answer, but for one thing."""

    def owner(key: str, loads: Any, place_of: Any, num_points: int, bound: Any = None) -> int:
        if not loads:
            raise ValueError("nobody")
        count = 1 if change == "one point" else num_points
        ring = sorted((place_of(f"{r}/{k}"), r) for r in loads for k in range(count))
        begin = place_of(key)
        if change == "texts":
            ring.sort(key=lambda point: (point[0], str(point[1])))
        if change == "floats":
            ring, begin = sorted((float(place), r) for place, r in ring), float(begin)
        after = [
            r
            for place, r in ring
            if place > begin or (place == begin and change != "strictly after")
        ]
        order = after + [r for _, r in ring]
        if change == "before":
            order = [r for place, r in reversed(ring) if place <= begin] + order[::-1]
        if change == "no wrap" and not after:
            return max(loads)
        if bound is None or change == "no bound":
            return order[0]
        total = sum(loads.values()) + (change != "without this request")
        limit = bound * total / (1 if change == "no mean" else len(loads))
        if change == "least" and loads[order[0]] >= limit:
            return min(loads, key=lambda r: (loads[r], r))
        fits = [
            r for r in order if loads[r] < limit or (change == "or equal" and loads[r] == limit)
        ]
        return fits[0] if fits else order[0]

    return owner


def _modulo(key: str, loads: Any, place_of: Any, num_points: int, bound: Any = None) -> int:
    if not loads:
        raise ValueError("nobody")
    return sorted(loads)[place_of(key) % len(loads)]


RING_OWNER = Contract(
    inputs=draw_ring,
    judge=Returns(walk),
    passed="Right. When a replica goes, only its own keys move; and none gets far more than its "
    "share.",
    clauses={
        "returns": Clause(
            "The key belongs to another replica. {says}",
            "Sort all points as pairs (place, replica). The first at or after the key's place is "
            "its own; behind the last point, the first one follows.",
        ),
        "refuses": Clause(
            "Without a live replica the ring is empty: a ValueError.",
            "`if not loads: raise ValueError(...)`.",
        ),
        "raises": Clause(
            "`ring_owner` raises an error.",
            "Is there a point after the key's place? If not, the ring begins anew.",
        ),
    },
    mistakes=(
        mistake(
            "That is `hash % N`: when a replica goes, nearly all keys move.",
            "Put points on a ring.",
            _modulo,
        ),
        mistake(
            "The ring ends: a key behind the last point belongs to the first one.",
            "`ring[place % len(ring)]`.",
            _ring("no wrap"),
        ),
        mistake(
            "A point at the key's own place is passed over.",
            "`>=`, or `bisect_left`.",
            _ring("strictly after"),
        ),
        mistake(
            'Two replicas stand at one place, and their numbers are compared as texts: "10" '
            'comes before "8" then.',
            "Sort pairs `(place, replica)` of whole numbers.",
            _ring("texts"),
        ),
        mistake(
            "Places are numbers of 64 bits. As floats, neighbouring ones become equal.",
            "Keep the whole numbers that `place_of` returns.",
            _ring("floats"),
        ),
        mistake(
            "The point *before* the key is taken.",
            "Go on in the direction of larger places.",
            _ring("before"),
        ),
        mistake(
            "Each replica has one point only, so that shares are very unequal.",
            'Places `place_of(f"{replica}/{k}")` for `k in range(num_points)`.',
            _ring("one point"),
        ),
        mistake(
            "The bound is ignored, or it is of the sum and not of the mean.",
            "Pass over who has `bound` times the mean already.",
            _ring("no bound"),
            _ring("no mean"),
        ),
        mistake(
            "Whoever is at the limit already gets one more.",
            "`loads[r] < limit`.",
            _ring("or equal"),
        ),
        mistake(
            "The new request is missing in the mean: in an idle cluster nobody would be below "
            "the limit.",
            "`bound * (sum(loads.values()) + 1) / len(loads)`.",
            _ring("without this request"),
        ),
        mistake(
            "When the owner is full, the request must go on along the ring, not to the least "
            "loaded: the next time it should find its prefix there.",
            "Try the points one after the other.",
            _ring("least"),
        ),
    ),
    examples=1000,
)
