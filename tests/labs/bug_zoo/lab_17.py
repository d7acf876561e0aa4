"""Right answers to lab 17, written differently; wrong ones are in `lab_17.yaml`."""

from __future__ import annotations

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_17 import answers
from utils.kv_events.kv_events import KVEventBatch
from utils.routing.prefix_index import KVIndex as EngineIndex
from utils.routing.prefix_index import RoutingHistory as EngineHistory
from utils.routing.router.block_names import EventNames, block_name, block_names

zoo = Zoo(answers)
right = zoo.right


@right("find_matches")
def one_pass_for_all(holders, block_names, num_replicas):
    left, found = set(range(num_replicas)), {}
    for depth, name in enumerate(block_names):
        for replica in left - holders.get(name, set()):
            found[replica] = depth
        left &= holders.get(name, set())
    return [found.get(i, len(block_names)) for i in range(num_replicas)]


@right("ring_owner")
def rotated(key, loads, place_of, num_points, bound=None):
    ring = sorted((place_of(f"{r}/{k}"), r) for r in loads for k in range(num_points))
    if not ring:
        raise ValueError("empty")
    begin, total = place_of(key), sum(loads.values()) + 1
    turned = [p for p in ring if p[0] >= begin] + [p for p in ring if p[0] < begin]
    return next(r for _, r in turned if bound is None or loads[r] * len(loads) < bound * total)


@right("routing_history")
class FromTheCourse(EngineHistory):
    def sent(self, replica, block_names):
        super().sent(replica, list(block_names))  # it keeps its list

    def lost(self, replica):
        self.cleared(replica)


@right("choose_replica")
def in_a_loop(num_tokens, block_size, matches, waiting_tokens):
    best = None
    for replica in sorted(waiting_tokens):
        cached = min(matches[replica] * block_size, (num_tokens - 1) // block_size * block_size)
        rank = (waiting_tokens[replica] - cached, waiting_tokens[replica])
        if best is None or rank < best[0]:
            best = rank, replica
    if best is None:
        raise ValueError("nobody")
    return best[1]


@right("seconds_until_room")
def each_by_itself(tokens_ahead, tokens_per_second, ttft_limit):
    return min(max(tokens / tokens_per_second - ttft_limit, 0) for tokens in tokens_ahead)


@right("name_blocks")
def as_a_whole_prompt(event, names):
    """Right: cuts the tokens of a prompt's beginning by itself, and others one after the other."""
    if event.parent_block_hash is None:
        all_names = block_names(event.token_ids, event.block_size)
        return dict(zip(event.block_hashes, all_names, strict=True))
    found, rest = {}, list(event.token_ids)
    parent = names.get(event.parent_block_hash)
    while parent is not None and rest:
        parent = block_name(parent, rest[: event.block_size])
        found[event.block_hashes[len(found)]] = parent
        rest = rest[event.block_size :]
    return found


@right("kv_index")
class WithTheCoursesParts:
    def __init__(self, num_replicas):
        self.index = EngineIndex(num_replicas)
        self.names = [EventNames(self.index, i) for i in range(num_replicas)]

    def apply(self, replica, event):
        self.names[replica].apply(KVEventBatch(0.0, [event]))

    def matches(self, block_names):
        return self.index.matches(block_names)


@right("engine")
class WholeRouter:
    def __init__(self, num_replicas, block_size):
        self.index, self.block_size = WithTheCoursesParts(num_replicas), block_size

    def heard(self, replica, event):
        self.index.apply(replica, event)

    def choose(self, request, replicas):
        waiting = {replica.index: replica.waiting_tokens for replica in replicas}
        matches = self.index.matches(request.block_hashes)
        return in_a_loop(request.num_tokens, self.block_size, matches, waiting)
