"""Right answers to lab 17, written differently, and a wrong one that is no edit of the right."""

from __future__ import annotations

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_17 import answers
from utils.kv_events.kv_events import BlockRemoved, BlockStored, KVEventBatch
from utils.routing.prefix_index import KVIndex as EngineIndex
from utils.routing.prefix_index import RoutingHistory as EngineHistory
from utils.routing.router.block_names import EventNames, block_name

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right


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


@right("routing_history")
class Sorted:
    """By the time of its last use; of one prompt, the first block has the latest."""

    def __init__(self, num_replicas, max_blocks):
        self.max_blocks, self.clock = max_blocks, 0
        self.used = {replica: {} for replica in range(num_replicas)}

    def sent(self, replica, block_names):
        used = self.used[replica]
        self.clock += len(block_names)
        used.update({name: self.clock - depth for depth, name in enumerate(block_names)})
        kept = sorted(used, key=used.get, reverse=True)[: self.max_blocks]
        self.used[replica] = {name: used[name] for name in kept}

    def lost(self, replica):
        self.used[replica] = {}

    def matches(self, block_names):
        known = [[name in used for name in block_names] for used in self.used.values()]
        return [[*held, False].index(False) for held in known]


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


@right("kv_index")
class WithTheCoursesParts:
    def __init__(self, num_replicas):
        self.index = EngineIndex(num_replicas)
        self.names = [EventNames(self.index, i) for i in range(num_replicas)]

    def apply(self, replica, event):
        self.names[replica].apply(KVEventBatch(0.0, [event]))

    def matches(self, block_names):
        return self.index.matches(block_names)


@right("kv_index")
class IndexOfDicts:
    def __init__(self, num_replicas):
        self.books = [{} for _ in range(num_replicas)]  # engine's hash -> [name, copies]

    def apply(self, replica, event):
        book = self.books[replica]
        if isinstance(event, BlockStored):
            self.store(book, event)
        elif isinstance(event, BlockRemoved):
            for block_hash in event.block_hashes:
                if block_hash in book:
                    book[block_hash][1] -= 1
                    if book[block_hash][1] == 0:
                        del book[block_hash]
        else:
            book.clear()

    def store(self, book, event):
        parent = event.parent_block_hash
        if parent is not None and parent not in book:
            return
        name = 0 if parent is None else book[parent][0]
        size = event.block_size
        for i, block_hash in enumerate(event.block_hashes):
            name = block_name(name, event.token_ids[i * size : (i + 1) * size])
            copies = book.get(block_hash, (0, 0))[1]
            book[block_hash] = [name, copies + 1]

    def matches(self, block_names):
        found = []
        for book in self.books:
            held = {name for name, _ in book.values()}
            depth = 0
            while depth < len(block_names) and block_names[depth] in held:
                depth += 1
            found.append(depth)
        return found


@wrong("kv_index", "whose parent it doesn't know")
class ParentsOutliveTheClearing(IndexOfDicts):
    def __init__(self, num_replicas):
        super().__init__(num_replicas)
        self.told = [{} for _ in range(num_replicas)]  # an engine's hash -> a name

    def apply(self, replica, event):
        book, told = self.books[replica], self.told[replica]
        parent = getattr(event, "parent_block_hash", None)
        if parent in told and parent not in book:
            book[parent] = [told[parent], 1]
            super().apply(replica, event)
            del book[parent]
        else:
            super().apply(replica, event)
        if isinstance(event, BlockRemoved):
            for block_hash in event.block_hashes:
                if block_hash not in book:
                    told.pop(block_hash, None)
        told.update({block_hash: name for block_hash, (name, _) in book.items()})


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


@wrong("engine", "to replica")
class DeadToo(WholeRouter):
    def choose(self, request, replicas):
        matches = self.index.matches(request.block_hashes)
        return matches.index(max(matches)) if any(matches) else replicas[-1].index
