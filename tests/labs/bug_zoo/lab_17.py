"""Wrong and right answers to lab 17, each as a learner might write it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict

from tests.labs.bug_zoo.zoo import Zoo
from utils.kv_events.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from utils.routing.prefix_index import KVIndex as EngineIndex
from utils.routing.prefix_index import RoutingHistory as EngineHistory
from utils.routing.router.block_names import EventNames, block_name

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right

# 1 find_matches


@right("find_matches")
def one_pass_for_all(holders, block_names, num_replicas):
    left, found = set(range(num_replicas)), {}
    for depth, name in enumerate(block_names):
        for replica in left - holders.get(name, set()):
            found[replica] = depth
        left &= holders.get(name, set())
    return [found.get(i, len(block_names)) for i in range(num_replicas)]


@wrong("find_matches", "raised KeyError")
def square_brackets(holders, block_names, num_replicas):
    matches = [0] * num_replicas
    for i in range(num_replicas):
        for name in block_names:
            if i not in holders[name]:
                break
            matches[i] += 1
    return matches


@wrong("find_matches", "changes in place")
def default_entries_stay(holders, block_names, num_replicas):
    for name in block_names:
        holders.setdefault(name, set())
    return one_pass_for_all(holders, block_names, num_replicas)


# 2 ring_owner


def ring_of(loads, place_of, num_points):
    points = ((place_of(f"{r}/{k}"), r) for r in loads for k in range(num_points))
    return sorted(points)


@right("ring_owner")
def rotated(key, loads, place_of, num_points, bound=None):
    ring, begin = ring_of(loads, place_of, num_points), place_of(key)
    if not ring:
        raise ValueError("empty")
    turned = [p for p in ring if p[0] >= begin] + [p for p in ring if p[0] < begin]
    mean = (sum(loads.values()) + 1) / len(loads)
    return next(r for _, r in turned if bound is None or loads[r] < bound * mean)


@wrong("ring_owner", "raised IndexError")
def beyond_the_end(key, loads, place_of, num_points, bound=None):
    if not loads:
        raise ValueError("empty")
    ring = ring_of(loads, place_of, num_points)
    place = bisect_left(ring, (place_of(key),))
    while bound is not None and loads[ring[place][1]] >= bound * (sum(loads.values()) + 1) / len(
        loads
    ):
        place += 1
    return ring[place][1]


@wrong("ring_owner", "ValueError")
def nobody_is_none(key, loads, place_of, num_points, bound=None):
    return rotated(key, loads, place_of, num_points, bound) if loads else None


@wrong("ring_owner", "compared as texts")
def points_by_their_texts(key, loads, place_of, num_points, bound=None):
    if not loads:
        raise ValueError("empty")
    texts = [f"{r}/{k}" for r in loads for k in range(num_points)]
    points = sorted((place_of(text), text) for text in texts)
    limit = math.inf if bound is None else bound * (sum(loads.values()) + 1) / len(loads)
    start = bisect_left(points, (place_of(key),))
    turned = (int(p.split("/")[0]) for _, p in points[start:] + points[:start])
    return next(r for r in turned if loads[r] < limit)


# 3 RoutingHistory


@right("routing_history")
class FromTheCourse(EngineHistory):
    def sent(self, replica, block_names):
        super().sent(replica, list(block_names))  # it keeps its list

    def lost(self, replica):
        self.cleared(replica)


class LruHistory:
    def __init__(self, num_replicas, max_blocks):
        self.max_blocks = max_blocks
        self.blocks = [OrderedDict() for _ in range(num_replicas)]

    def sent(self, replica, block_names):
        for name in reversed(block_names):
            self.blocks[replica].pop(name, None)
            self.blocks[replica][name] = True
        while len(self.blocks[replica]) > self.max_blocks:
            self.blocks[replica].popitem(last=False)

    def lost(self, replica):
        self.blocks[replica] = OrderedDict()

    def matches(self, block_names):
        found = []
        for blocks in self.blocks:
            depth = 0
            while depth < len(block_names) and block_names[depth] in blocks:
                depth += 1
            found.append(depth)
        return found


right("routing_history")(LruHistory)


@wrong("routing_history", "remembers something else")
class SharedByAll(LruHistory):
    blocks = defaultdict(OrderedDict)  # noqa: RUF012, that is the mistake

    def __init__(self, num_replicas, max_blocks):
        self.num_replicas, self.max_blocks = num_replicas, max_blocks

    def matches(self, block_names):
        found = []
        for replica in range(self.num_replicas):
            depth = 0
            while depth < len(block_names) and block_names[depth] in self.blocks[replica]:
                depth += 1
            found.append(depth)
        return found


@wrong("routing_history", "remembers something else")
class HundredthsOfAStep(LruHistory):
    """Behind a hundred blocks, a prompt's end counts as older than the prompt before."""

    def __init__(self, num_replicas, max_blocks):
        super().__init__(num_replicas, max_blocks)
        self.clock = 0

    def sent(self, replica, block_names):
        self.clock += 1
        times = self.blocks[replica]
        times.update({name: self.clock - depth / 100 for depth, name in enumerate(block_names)})
        for name in sorted(times, key=times.get)[: max(0, len(times) - self.max_blocks)]:
            del times[name]


@wrong("routing_history", "brings nothing new")
class OnlyNews(LruHistory):
    def sent(self, replica, block_names):
        if not self.blocks[replica].keys() >= set(block_names):
            super().sent(replica, block_names)


@wrong("routing_history", "changed by later calls")
class OneListForAll(LruHistory):
    def matches(self, block_names):
        self.found = getattr(self, "found", [])
        self.found[:] = super().matches(block_names)
        return self.found


# 4 choose_replica


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


@wrong("choose_replica", "live replica")
def nobody_is_minus_one(num_tokens, block_size, matches, waiting_tokens):
    if not waiting_tokens:
        return -1
    return in_a_loop(num_tokens, block_size, matches, waiting_tokens)


# 5 seconds_until_room


@right("seconds_until_room")
def each_by_itself(tokens_ahead, tokens_per_second, ttft_limit):
    return min(max(tokens / tokens_per_second - ttft_limit, 0) for tokens in tokens_ahead)


@wrong("seconds_until_room", "ValueError")
def forever(tokens_ahead, tokens_per_second, ttft_limit):
    return each_by_itself(tokens_ahead, tokens_per_second, ttft_limit) if tokens_ahead else math.inf


# 6 KVIndex


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
            assert isinstance(event, AllBlocksCleared)
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


right("kv_index")(IndexOfDicts)


@right("kv_index")
class WithTheCoursesParts:
    def __init__(self, num_replicas):
        self.index = EngineIndex(num_replicas)
        self.names = [EventNames(self.index, i) for i in range(num_replicas)]

    def apply(self, replica, event):
        from utils.kv_events.kv_events import KVEventBatch

        self.names[replica].apply(KVEventBatch(0.0, [event]))

    def matches(self, block_names):
        return self.index.matches(block_names)


@wrong("kv_index", "raised KeyError")
class NeverHeardOf(IndexOfDicts):
    def apply(self, replica, event):
        if isinstance(event, BlockRemoved):
            for block_hash in event.block_hashes:
                self.books[replica][block_hash]
        super().apply(replica, event)


@wrong("kv_index", "`matches` returns")
class UnderTheEnginesNames(IndexOfDicts):
    def store(self, book, event):
        for block_hash in event.block_hashes:
            book[block_hash] = [block_hash, book.get(block_hash, (0, 0))[1] + 1]


@wrong("kv_index", "`matches` returns")
class AKnownHashBringsTheChainBack(IndexOfDicts):
    def store(self, book, event):
        hashes, size = list(event.block_hashes), event.block_size
        parent = event.parent_block_hash
        lost = parent is not None and parent not in book
        known = next((i for i, block_hash in enumerate(hashes) if block_hash in book), None)
        if not lost or known is None:
            return super().store(book, event)
        rest = event.token_ids[(known + 1) * size :]
        behind = BlockStored(hashes[known + 1 :], hashes[known], rest, size, None, None, None)
        super().store(book, behind)


@wrong("kv_index", "`matches` returns")
class ParentsOutliveTheClearing(IndexOfDicts):
    def __init__(self, num_replicas):
        super().__init__(num_replicas)
        self.told = [{} for _ in range(num_replicas)]

    def apply(self, replica, event):
        book, told = self.books[replica], self.told[replica]
        if isinstance(event, BlockRemoved):
            super().apply(replica, event)
            for block_hash in event.block_hashes:
                if block_hash not in book:
                    told.pop(block_hash, None)
        elif isinstance(event, BlockStored):
            parent = event.parent_block_hash
            if parent is None or parent in book or parent not in told:
                super().apply(replica, event)
            else:
                book[parent] = [told[parent], 1]
                super().apply(replica, event)
                del book[parent]
            told.update({block_hash: name for block_hash, (name, _) in book.items()})
        else:
            book.clear()


@wrong("kv_index", "bytes")
class OnlyNumbers(IndexOfDicts):
    def apply(self, replica, event):
        for block_hash in getattr(event, "block_hashes", ()):
            block_hash & (2**64 - 1)
        super().apply(replica, event)


@wrong("kv_index", "forgotten and comes back")
class TheCountStays(IndexOfDicts):
    def __init__(self, num_replicas):
        super().__init__(num_replicas)
        self.copies = [Counter() for _ in range(num_replicas)]

    def apply(self, replica, event):
        book, copies = self.books[replica], self.copies[replica]
        if isinstance(event, BlockRemoved):
            for block_hash in event.block_hashes:
                if copies[block_hash] > 1:
                    copies[block_hash] -= 1
                else:
                    book.pop(block_hash, None)
            return
        if isinstance(event, AllBlocksCleared):
            copies.clear()
        elif event.parent_block_hash is None or event.parent_block_hash in book:
            copies.update(event.block_hashes)
        super().apply(replica, event)


# 7 engine


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


@wrong("engine", "to the wrong replica")
class Deaf(WholeRouter):
    def heard(self, replica, event):
        pass


@wrong("engine", "to the wrong replica")
class DeadToo(WholeRouter):
    def choose(self, request, replicas):
        matches = self.index.matches(request.block_hashes)
        return matches.index(max(matches)) if any(matches) else replicas[-1].index


@wrong("engine", "to the wrong replica")
class LessThanABlock(WholeRouter):
    def choose(self, request, replicas):
        if not request.block_hashes:
            return replicas[0].index
        return super().choose(request, replicas)


@wrong("engine", "no method `heard`")
class WithoutEars:
    def __init__(self, num_replicas, block_size):
        pass

    def choose(self, request, replicas):
        return 0
