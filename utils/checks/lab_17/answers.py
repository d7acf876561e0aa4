"""Right answers to lab 17, as in its solution. Known mistakes are edits of these."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from utils.kv_events.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from utils.routing.policies import Replica, RoutingRequest
from utils.routing.router.block_names import block_name


def find_matches(
    holders: dict[Any, set[int]], block_names: Sequence[Any], num_replicas: int
) -> list[int]:
    matches = [0] * num_replicas
    for replica in range(num_replicas):
        for name in block_names:
            if replica not in holders.get(name, set()):
                break
            matches[replica] += 1
    return matches


def ring_owner(
    key: str,
    loads: dict[int, int],
    place_of: Callable[[str], int],
    num_points: int,
    bound: float | None = None,
) -> int:
    if not loads:
        raise ValueError("No replica is alive.")
    ring = sorted((place_of(f"{r}/{k}"), r) for r in loads for k in range(num_points))
    start = bisect_left(ring, (place_of(key),))
    mean = (sum(loads.values()) + 1) / len(loads)
    order = (replica for _, replica in ring[start:] + ring[:start])
    return next(r for r in order if bound is None or loads[r] < bound * mean)


class RoutingHistory:
    def __init__(self, num_replicas: int, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.blocks: list[OrderedDict[Any, None]] = [OrderedDict() for _ in range(num_replicas)]

    def sent(self, replica: int, block_names: Sequence[Any]) -> None:
        blocks = self.blocks[replica]
        for name in reversed(block_names):  # the first block becomes the youngest
            blocks[name] = None
            blocks.move_to_end(name)
        while len(blocks) > self.max_blocks:
            blocks.popitem(last=False)

    def matches(self, block_names: Sequence[Any]) -> list[int]:
        matches = []
        for blocks in self.blocks:
            depth = 0
            while depth < len(block_names) and block_names[depth] in blocks:
                depth += 1
            matches.append(depth)
        return matches

    def lost(self, replica: int) -> None:
        self.blocks[replica].clear()


def choose_replica(
    num_tokens: int, block_size: int, matches: Sequence[int], waiting_tokens: dict[int, int]
) -> int:
    if not waiting_tokens:
        raise ValueError("No replica is alive.")
    reusable = (num_tokens - 1) // block_size

    def rank(replica: int) -> tuple[int, int, int]:
        cached = block_size * min(matches[replica], reusable)
        waiting = waiting_tokens[replica]
        return waiting + num_tokens - cached, waiting, replica

    return min(waiting_tokens, key=rank)


def seconds_until_room(
    tokens_ahead: Sequence[float], tokens_per_second: float, ttft_limit: float
) -> float:
    if not tokens_ahead:
        raise ValueError("No replica is alive.")
    return max(0.0, min(tokens_ahead) / tokens_per_second - ttft_limit)


def name_blocks(event: BlockStored, names: dict[Any, int]) -> dict[Any, int]:
    parent, size = event.parent_block_hash, event.block_size
    name = 0 if parent is None else names.get(parent)
    if name is None:
        return {}
    found = {}
    for i, block_hash in enumerate(event.block_hashes):
        name = block_name(name, event.token_ids[i * size : (i + 1) * size])
        found[block_hash] = name
    return found


class KVIndex:
    def __init__(self, num_replicas: int) -> None:
        self.names: list[dict[Any, int]] = [{} for _ in range(num_replicas)]  # of an engine's hash
        self.copies: list[Counter[Any]] = [Counter() for _ in range(num_replicas)]

    def apply(self, replica: int, event: Event) -> None:
        names, copies = self.names[replica], self.copies[replica]
        if isinstance(event, AllBlocksCleared):
            names.clear()
            copies.clear()
        elif isinstance(event, BlockRemoved):
            for block_hash in event.block_hashes:
                if copies[block_hash] > 1:
                    copies[block_hash] -= 1
                else:
                    names.pop(block_hash, None)
                    copies.pop(block_hash, None)
        else:
            for block_hash, name in name_blocks(event, names).items():
                names[block_hash] = name
                copies[block_hash] += 1

    def matches(self, block_names: Sequence[Any]) -> list[int]:
        matches = []
        for names in self.names:
            held, depth = set(names.values()), 0
            while depth < len(block_names) and block_names[depth] in held:
                depth += 1
            matches.append(depth)
        return matches


class MyRouter:
    def __init__(self, num_replicas: int, block_size: int) -> None:
        self.index, self.block_size = KVIndex(num_replicas), block_size

    def heard(self, replica: int, event: Event) -> None:
        self.index.apply(replica, event)

    def choose(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
        matches = self.index.matches(request.block_hashes)
        waiting_tokens = {replica.index: replica.waiting_tokens for replica in replicas}
        return choose_replica(request.num_tokens, self.block_size, matches, waiting_tokens)
