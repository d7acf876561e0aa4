"""Routing policies that look at load or at a session, and what all policies have in common.

A policy has one method, `choose(request, replicas)`: the `index` of one of those alive. The same
objects route the simulator's requests and real ones.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

_MASK = (1 << 64) - 1


@dataclass(slots=True)
class RoutingRequest:
    """A request as a router sees it.

    Attributes:
        request_id: its number.
        block_hashes: names of the prompt's full blocks, each naming all tokens up to its end too.
        num_tokens: length of the prompt.
        session_id: the conversation or user it belongs to, if the client said so.
    """

    request_id: int
    block_hashes: Sequence[Hashable] = ()
    num_tokens: int = 0
    session_id: Hashable | None = None


class Replica(Protocol):
    """What a router knows of a replica's load.

    Attributes:
        index: its number, which never changes, from 0.
        num_running: requests whose answers are being written.
        num_waiting: requests whose prompts are not computed yet.
        waiting_tokens: prompt tokens of those that have still to be computed.
    """

    index: int
    num_running: int
    num_waiting: int
    waiting_tokens: int


@dataclass(slots=True)
class ReplicaLoad:
    """A `Replica` that is nothing but its load."""

    index: int
    num_running: int = 0
    num_waiting: int = 0
    waiting_tokens: int = 0


class NoLiveReplicaError(RuntimeError):
    """There is nobody to send a request to."""

    def __init__(self) -> None:
        super().__init__(
            "No replica is alive, so the request cannot be sent. Start one, or wait until a health "
            "check finds one again."
        )


class RoutingPolicy:
    """The base of all policies; `choose` checks what they are given, `pick` decides."""

    def choose(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
        """The `index` of the replica that shall serve `request`.

        Args:
            replicas: those that may be chosen, alive, in the order of their index.

        Raises:
            NoLiveReplicaError: `replicas` is empty.
        """
        if not replicas:
            raise NoLiveReplicaError
        return self.pick(request, replicas)

    def pick(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
        raise NotImplementedError

    def lost(self, index: int) -> None:
        """Replica `index` died, and its cache with it."""


class RoundRobin(RoutingPolicy):
    """In turns. Knows nothing."""

    def __init__(self) -> None:
        self.turn = -1

    def pick(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
        self.turn += 1
        return replicas[self.turn % len(replicas)].index


class Random(RoutingPolicy):
    """Any, with equal chances."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed).random

    def pick(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
        return replicas[int(self.random() * len(replicas))].index


class LeastLoaded(RoutingPolicy):
    """The one with the fewest unfinished requests.

    Equal ones take turns: the search starts one place further each time, as in vLLM's own
    `DPLBAsyncMPClient`. Without that, an idle cluster's first replica would get everything.
    """

    def __init__(self) -> None:
        self.start = -1

    def pick(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
        self.start = start = (self.start + 1) % len(replicas)
        best, least = start, float("inf")
        for place in range(start - len(replicas), start):
            replica = replicas[place]
            load = replica.num_running + replica.num_waiting
            if load < least:
                best, least = replica.index, load
        return best


class PowerOfTwo(RoutingPolicy):
    """The less loaded of two that were drawn at random (Mitzenmacher, IEEE TPDS 2001)."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed).random

    def pick(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
        count = len(replicas)
        first = int(self.random() * count)
        if count == 1:
            return replicas[0].index
        second = (first + 1 + int(self.random() * (count - 1))) % count
        one, other = replicas[first], replicas[second]
        return one.index if unfinished(one) <= unfinished(other) else other.index


class Session(RoutingPolicy):
    """A session's requests go to one replica, number hash(session) modulo N.

    A request without a session goes in turns. When N changes, nearly every session moves.
    """

    def __init__(self) -> None:
        self.others = RoundRobin()

    def pick(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
        if request.session_id is None:
            return self.others.pick(request, replicas)
        return replicas[stable_hash(request.session_id) % len(replicas)].index


class ConsistentHash(RoutingPolicy):
    """A key's place on a ring decides; when a replica goes, only its own keys move.

    Each replica stands at many points of the ring. A request goes to the first point at or after
    its key's (Karger et al., STOC 1997). With bounded loads, one that has `bound` times the mean
    load already is passed over (Mirrokni et al., arXiv 1608.01350).

    Args:
        prefix_blocks: the key is the hash of this many leading blocks, and the session is not
            looked at. With 0 it is the session, in turns where there is none.
        bound: None for no bound, or more than 1: times the mean number of unfinished requests.
        num_points: points of each replica.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self, prefix_blocks: int = 0, bound: float | None = None, num_points: int = 100
    ) -> None:
        if prefix_blocks < 0 or num_points < 1:
            raise ValueError(
                f"prefix_blocks must be 0 or more and num_points 1 or more, not {prefix_blocks} "
                f"and {num_points}"
            )
        if bound is not None and not bound > 1:
            raise ValueError(f"bound must be more than 1, or None for no bound; it is {bound}")
        self.prefix_blocks, self.bound, self.num_points = prefix_blocks, bound, num_points
        self.others = RoundRobin()
        self._members: tuple[int, ...] = ()
        self._points: list[int] = []
        self._owners: list[int] = []

    def pick(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
        key = self.key(request)
        if key is None:
            return self.others.pick(request, replicas)
        members = tuple([replica.index for replica in replicas])
        if members != self._members:
            self._build(members)
        loads, limit = {}, None
        if self.bound is not None:
            loads = {replica.index: unfinished(replica) for replica in replicas}
            limit = self.bound * (sum(loads.values()) + 1) / len(loads)
        place = bisect_left(self._points, stable_hash(key))
        for step in range(len(self._points)):
            owner = self._owners[(place + step) % len(self._points)]
            if limit is None or loads[owner] < limit:
                return owner
        raise AssertionError("not all loads can be above their mean")

    def key(self, request: RoutingRequest) -> Hashable | None:
        """What is hashed, or None where the request has no such thing."""
        if not self.prefix_blocks:
            return request.session_id
        hashes = request.block_hashes
        return hashes[min(self.prefix_blocks, len(hashes)) - 1] if hashes else None

    def _build(self, members: tuple[int, ...]) -> None:
        ring = sorted(
            (stable_hash(f"replica {index} point {point}"), index)
            for index in members
            for point in range(self.num_points)
        )
        self._members = members
        self._points = [point for point, _ in ring]
        self._owners = [owner for _, owner in ring]


def unfinished(replica: Replica) -> int:
    """Requests that were sent to it and are not answered in full."""
    return replica.num_running + replica.num_waiting


def stable_hash(key: Hashable) -> int:
    """64 bits that are the same in every process and on every machine, as `hash` is not."""
    if isinstance(key, int):  # the finaliser of splitmix64: fast, and spreads neighbours
        mixed = (key + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)
    data = key if isinstance(key, bytes) else str(key).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
