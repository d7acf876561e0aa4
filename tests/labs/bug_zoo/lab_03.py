"""Right answers to lab 03, written differently, and wrong ones that are no edits of the right."""

from __future__ import annotations

import itertools
import math
from collections import Counter

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_03 import Parts, answers
from utils.checks.lab_03.kinds import Running
from utils.checks.lab_03.room import carried_out, holes_between, slide_all
from utils.sim.allocators import BuddyAllocator, FirstFitAllocator

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right
STATES = ("used", "reserved", "internal", "external", "free")

# 1 count_states


@right("count_states")
def by_borders(running, holes, need, now):
    count = Counter(dict.fromkeys(STATES, 0))
    for r in running:
        borders = (
            0,
            r.request.prompt_len + now - r.first_step,
            r.request.prompt_len + r.request.output_len - 1,
            r.request.asked,
            r.size,
        )
        for state, (low, high) in zip(STATES[:4], itertools.pairwise(borders), strict=True):
            count[state] += high - low
    for hole in holes:
        count["free" if hole[1] >= (need or 0) else "external"] += hole[1]
    return count


@wrong("count_states", "counted wrongly")
def a_step_has_no_token(running, holes, need, now):
    running = [r._replace(first_step=max(0, r.first_step)) for r in running]
    count = by_borders([r for r in running if r.first_step < now], holes, need, now)
    for r in running:
        if r.first_step == now:
            count["reserved"] += r.size
    return count


@wrong("count_states", "counted wrongly")
def walks_twice(running, holes, need, now):
    count = dict.fromkeys(STATES, 0)
    count["used"] = sum(r.request.prompt_len + now - r.first_step for r in running)
    final = sum(r.request.prompt_len + r.request.output_len - 1 for r in running)
    count["reserved"] = final - count["used"]
    count["internal"] = sum(r.request.asked for r in running) - final
    count["external"] = sum(r.size - r.request.asked for r in running)
    for _, size in holes:
        count["free" if need is None or size >= need else "external"] += size
    return count


KEPT: Counter[str] = Counter()


@wrong("count_states", "is changed by later calls")
def one_dictionary_for_all(running, holes, need, now):
    count = by_borders(running, holes, need, now)
    KEPT.clear()
    KEPT.update(count)
    return KEPT


# 2 FirstFit


class WithABitmap:
    def __init__(self, num_slots):
        if num_slots < 1:
            raise ValueError("too small")
        self.row, self.sizes = bytearray(num_slots), {}

    def chunk_size(self, num_tokens):
        if num_tokens < 1:
            raise ValueError("too small")
        return num_tokens

    def place(self, num_tokens):
        start = self.row.find(bytes(self.chunk_size(num_tokens)))
        if start < 0:
            return None
        self.row[start : start + num_tokens] = b"x" * num_tokens
        self.sizes[start] = num_tokens
        return start

    def free(self, start):
        if start not in self.sizes:
            raise ValueError("nothing there")
        size = self.sizes.pop(start)
        self.row[start : start + size] = bytes(size)

    def holes(self):
        found, at = [], 0
        for used, run in itertools.groupby(self.row):
            length = len(list(run))
            if not used:
                found.append((at, length))
            at += length
        return found


right("first_fit_memory")(WithABitmap)


@right("first_fit_memory")
class FromTheCourse(FirstFitAllocator):
    def place(self, num_tokens):
        return self.allocate(num_tokens)


class OwnHoles(WithABitmap):
    """Keeps a list of holes; subclasses go wrong in one thing."""

    def __init__(self, num_slots):
        super().__init__(num_slots)
        self.kept = [(0, num_slots)]

    def place(self, num_tokens):
        self.chunk_size(num_tokens)
        for i, (start, size) in enumerate(self.kept):
            if size >= num_tokens:
                self.kept[i] = (start + num_tokens, size - num_tokens)
                self.sizes[start] = num_tokens
                self.tidy()
                return start
        return None

    def free(self, start):
        if start not in self.sizes:
            raise ValueError("nothing there")
        self.kept.append((start, self.sizes.pop(start)))
        self.merge()

    def tidy(self):
        self.kept = [hole for hole in self.kept if hole[1]]

    def merge(self):
        merged = []
        for start, size in sorted(self.kept):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self.kept = merged

    def holes(self):
        return list(self.kept)


right("first_fit_memory")(OwnHoles)


@wrong("first_fit_memory", "The holes are")
class EmptyHolesStay(OwnHoles):
    def tidy(self):
        pass


@wrong("first_fit_memory", "gives the same list twice")
class GivesItsOwnListAway(OwnHoles):
    def holes(self):
        return self.kept


@wrong("first_fit_memory", "must raise a ValueError")
class FreesFromInside(WithABitmap):
    def free(self, start):
        for first, size in self.sizes.items():
            if first <= start < first + size:
                return super().free(first)
        return super().free(start)


@wrong("first_fit_memory", "`chunk_size` gives")
class PlacesNothing(WithABitmap):
    def chunk_size(self, num_tokens):
        return num_tokens


@wrong("first_fit_memory", "A new memory")
class BelowZero(WithABitmap):
    def __init__(self, num_slots):
        super().__init__(abs(num_slots))


@wrong("first_fit_memory", "must raise a ValueError")
class CountsFromTheEnd(WithABitmap):
    def free(self, start):
        super().free(start % len(self.row))


@wrong("first_fit_memory", "gives the same list twice")
class OneListOfHoles(WithABitmap):
    def __init__(self, num_slots):
        super().__init__(num_slots)
        self.found = []

    def holes(self):
        self.found[:] = super().holes()
        return self.found


# 3 Buddy


class FreeLists:
    def __init__(self, num_slots):
        if num_slots < 1:
            raise ValueError("too small")
        self.lists, self.taken, at = {}, {}, 0
        for k in range(num_slots.bit_length() - 1, -1, -1):
            if num_slots & 2**k:
                self.lists[2**k] = [at]
                at += 2**k

    def chunk_size(self, num_tokens):
        if num_tokens < 1:
            raise ValueError("too small")
        size = 1
        while size < num_tokens:
            size += size
        return size

    def place(self, num_tokens):
        wanted = self.chunk_size(num_tokens)
        sizes = sorted(size for size, starts in self.lists.items() if starts and size >= wanted)
        if not sizes:
            return None
        start = self.choose(sizes[0])
        return self.split(start, sizes[0], wanted)

    def choose(self, size):
        start = min(self.lists[size])
        self.lists[size].remove(start)
        return start

    def split(self, start, size, wanted):
        if size == wanted:
            self.taken[start] = size
            return start
        self.lists.setdefault(size // 2, []).append(start + size // 2)
        return self.split(start, size // 2, wanted)

    def free(self, start):
        if start not in self.taken:
            raise ValueError("nothing there")
        self.back(start, self.taken.pop(start))

    def back(self, start, size):
        buddy = start + size if start // size % 2 == 0 else start - size
        if buddy in self.lists.get(size, []):
            self.lists[size].remove(buddy)
            self.back(min(start, buddy), 2 * size)
        else:
            self.lists.setdefault(size, []).append(start)

    def holes(self):
        return sorted((start, size) for size, starts in self.lists.items() for start in starts)


right("buddy_memory")(FreeLists)


@right("buddy_memory")
class BuddyFromTheCourse(BuddyAllocator):
    place = BuddyAllocator.allocate


@wrong("buddy_memory", "`place` gives")
class LastIn(FreeLists):
    def choose(self, size):
        return self.lists[size].pop()


@wrong("buddy_memory", "What fails must leave the memory as it was")
class FailsHalfway(FreeLists):
    def place(self, num_tokens):
        start = super().place(num_tokens)
        if start is None and (pieces := self.holes()):
            self.lists[pieces[0][1]].remove(pieces[0][0])
        return start


@wrong("buddy_memory", "`chunk_size` gives")
class WithFloats(FreeLists):
    def chunk_size(self, num_tokens):
        super().chunk_size(num_tokens)
        return 2 ** round(math.log2(num_tokens) + 0.4)


@wrong("buddy_memory", "Numbers of slots are ints")
class InHalves(FreeLists):
    def holes(self):
        return [(start, size / 1) for start, size in super().holes()]


@wrong("buddy_memory", "must raise a ValueError")
class RemembersWhatWasFreed(FreeLists):
    def __init__(self, num_slots):
        super().__init__(num_slots)
        self.ever = {}

    def free(self, start):
        self.ever |= self.taken
        if start in self.taken or start not in self.ever:
            super().free(start)


# 4 BlockMemory


class WithBlockIds:
    def __init__(self, num_slots, block_size):
        if min(num_slots, block_size) < 1:
            raise ValueError("too small")
        self.rest, self.block_size = num_slots % block_size, block_size
        self.pool, self.tables, self.tokens = list(range(num_slots // block_size)), {}, {}

    def hold(self, request, num_tokens):
        if num_tokens < 1:
            raise ValueError("no tokens")
        table = self.tables.get(request, [])
        missing = max(0, math.ceil(num_tokens / self.block_size) - len(table))
        if missing > len(self.pool):
            return False
        self.tables[request] = table + [self.pool.pop() for _ in range(missing)]
        self.tokens[request] = num_tokens
        return True

    def free(self, request):
        if request not in self.tables:
            raise ValueError("unknown")
        self.pool.extend(self.tables.pop(request))
        self.tokens.pop(request)

    def get_num_free_blocks(self):
        return len(self.pool)

    def count_states(self, final_lens):
        count = dict.fromkeys(STATES, 0)
        for request, table in self.tables.items():
            slots, tokens = len(table) * self.block_size, self.tokens[request]
            count["used"] += tokens
            count["reserved"] += min(slots, final_lens[request]) - tokens
            count["internal"] += max(0, slots - final_lens[request])
        count["external"] = self.rest
        count["free"] = len(self.pool) * self.block_size
        return count


right("block_memory")(WithBlockIds)


@wrong("block_memory", "has taken blocks all the same")
class KeepsWhatItGot(WithBlockIds):
    def hold(self, request, num_tokens):
        if num_tokens < 1:
            raise ValueError("no tokens")
        table = self.tables.setdefault(request, [])
        self.tokens.setdefault(request, 0)
        while len(table) * self.block_size < num_tokens:
            if not self.pool:
                return False
            table.append(self.pool.pop())
        self.tokens[request] = num_tokens
        return True


@wrong("block_memory", "raised MemoryError")
class RaisesWhenFull(WithBlockIds):
    def hold(self, request, num_tokens):
        if not super().hold(request, num_tokens):
            raise MemoryError("full")
        return True


@wrong("block_memory", "What fails must leave", "KeyError")
class FailedOnesAreKnown(WithBlockIds):
    def hold(self, request, num_tokens):
        done = super().hold(request, num_tokens)
        if not done and request not in self.tables:
            self.tables[request], self.tokens[request] = [], 0
        return done


@wrong("block_memory", "states are")
class TokensOnlyGrow(WithBlockIds):
    def hold(self, request, num_tokens):
        before = self.tokens.get(request, 0)
        done = super().hold(request, num_tokens)
        if done:
            self.tokens[request] = max(before, num_tokens)
        return done


@wrong("block_memory", "states are")
class OnlyTheLastBlock(WithBlockIds):
    def count_states(self, final_lens):
        count = super().count_states(final_lens)
        empty = count["reserved"] + count["internal"]
        ends = [r for r in self.tables if final_lens[r] <= len(self.tables[r]) * self.block_size]
        count["internal"] = empty if ends else 0
        count["reserved"] = 0 if ends else empty
        return count


@wrong("block_memory", "blocks are free")
class GivesBackWhatItNeedsNow(WithBlockIds):
    def free(self, request):
        if request in self.tables:
            kept = -(-self.tokens[request] // self.block_size)
            self.tables[request] = self.tables[request][:kept]
        super().free(request)


@wrong("block_memory", "states are")
class ByPosition(WithBlockIds):
    def count_states(self, final_lens):
        return super().count_states(dict(zip(self.tables, final_lens.values(), strict=False)))


@wrong("block_memory", "`hold` gives")
class ByText(WithBlockIds):
    def hold(self, request, num_tokens):
        return super().hold(str(request), num_tokens)

    def free(self, request):
        super().free(str(request))

    def count_states(self, final_lens):
        return super().count_states({str(r): n for r, n in final_lens.items()})


# 5 make_room


@right("make_room")
def out_of_a_window(chunks, num_slots, need):
    """Carry what lies in a window into the smallest holes that are large enough."""
    best = slide_all(chunks, num_slots, need)
    if not best:
        return best
    lowest = carried_out(chunks, num_slots, best)[1]
    edges = {0, num_slots - need, *(x for c in chunks for x in (c.start + c.size, c.start - need))}
    for low in sorted(edge for edge in edges if 0 <= edge <= num_slots - need):
        inside = [c for c in chunks if c.start < low + need and c.start + c.size > low]
        holes, at = [], 0
        for start, size, _ in sorted([*chunks, (low, need, 0)]):
            if start > at:
                holes.append((start - at, at))
            at = max(at, start + size)
        if at < num_slots:
            holes.append((num_slots - at, at))
        moves = []
        for chunk in sorted(inside, key=lambda c: -c.size):
            fitting = [hole for hole in holes if hole[0] >= chunk.size]
            if not fitting:
                break
            room, start = min(fitting)
            holes.remove((room, start))
            holes.append((room - chunk.size, start + chunk.size))
            moves.append((chunk.start, start))
        else:
            if sum(c.num_tokens for c in inside) < lowest:
                best, lowest = moves, sum(c.num_tokens for c in inside)
    return best


def stretch(chunks, num_slots, need):
    """The cheapest stretch, upwards this time: the highest of its chunks goes first."""
    if not (plain := slide_all(chunks, num_slots, need)):
        return plain
    best = None
    for first in range(len(chunks)):
        for last in range(first, len(chunks)):
            low = chunks[first - 1].start + chunks[first - 1].size if first else 0
            high = chunks[last + 1].start if last + 1 < len(chunks) else num_slots
            inside = chunks[first : last + 1]
            if high - low - sum(c.size for c in inside) >= need:
                cost = sum(c.num_tokens for c in inside)
                if best is None or cost < best[0]:
                    best = cost, inside, high
    _, inside, end = best
    moves = []
    for chunk in reversed(inside):
        end -= chunk.size
        moves.append([chunk.start, end])
    return moves


right("make_room")(stretch)


@right("make_room")
def the_cheaper_one(chunks, num_slots, need):
    plans = [plan(chunks, num_slots, need) for plan in (out_of_a_window, stretch)]
    return plans[0] and min(plans, key=lambda moves: carried_out(chunks, num_slots, moves)[1])


@wrong("make_room", "of the tokens that sliding all chunks copies")
def slides_all(chunks, num_slots, need):
    return slide_all(chunks, num_slots, need)


@wrong("make_room", "of the tokens that sliding all chunks copies")
def stops_when_it_is_enough(chunks, num_slots, need):
    plain = slide_all(chunks, num_slots, need)
    for count in range(len(plain or [])):
        after, _ = carried_out(chunks, num_slots, plain[:count])
        if max(size for _, size in holes_between(after, num_slots)) >= need:
            return plain[:count]
    return plain


@wrong("make_room", "your code needs too long")
def looks_at_all_sets(chunks, num_slots, need):
    """Right, and quick with the nine chunks of small memories: 2 ** n sets of n chunks."""
    cheapest = sum(chunk.num_tokens for chunk in chunks)
    for taken in itertools.product((False, True), repeat=len(chunks)):
        tokens = sum(c.num_tokens for c, is_taken in zip(chunks, taken, strict=True) if is_taken)
        cheapest = min(cheapest, tokens)
    return stretch(chunks, num_slots, need)


@wrong("make_room", "Never copy more")
def slides_all_up(chunks, num_slots, need):
    if not (plain := slide_all(chunks, num_slots, need)):
        return plain
    moves, end = [], num_slots
    for chunk in reversed(chunks):
        end -= chunk.size
        if chunk.start != end:
            moves.append((chunk.start, end))
    return moves


@wrong("make_room", "can't be carried out")
def in_the_wrong_order(chunks, num_slots, need):
    moves = stretch(chunks, num_slots, need)
    return moves and moves[::-1]


@wrong("make_room", "still no room")
def smallest_stretch_of_one(chunks, num_slots, need):
    if not (plain := slide_all(chunks, num_slots, need)):
        return plain
    cheapest = min(chunks, key=lambda c: c.num_tokens)
    low = max((c.start + c.size for c in chunks if c.start < cheapest.start), default=0)
    return [(cheapest.start, low)]


@wrong("make_room", "changes in place")
def empties_its_list(chunks, num_slots, need):
    moves = stretch(list(chunks), num_slots, need)
    while chunks:
        chunks.pop()
    return moves


@wrong("make_room", "Never copy more")
def always_out_of_a_window(chunks, num_slots, need):
    plain = slide_all(chunks, num_slots, need)
    if plain and len(chunks) > 1:
        first, second = chunks[:2]
        end = chunks[-1].start + chunks[-1].size
        if first.start == 0 and first.size <= num_slots - end and second.start >= need:
            return [(0, end)]
    return stretch(chunks, num_slots, need)


# 6 engine


def advance(memory, running, waiting, now):
    staying = []
    for r in running:
        if r.first_step + r.request.output_len > now:
            staying.append(r)
        else:
            memory.free(r.start)
    running[:] = staying
    while waiting and (start := memory.place(waiting[0].asked)) is not None:
        size = memory.chunk_size(waiting[0].asked)
        running.append(Running(waiting.popleft(), now, start, size))


def parts(**other):
    chosen = {
        "count_states": by_borders,
        "first_fit": WithABitmap,
        "buddy": FreeLists,
        "block_memory": WithBlockIds,
        "make_room": out_of_a_window,
        "advance": advance,
    }
    return Parts(**(chosen | other))


@right("engine")
def all_parts():
    return parts()


right("advance")(advance)


@wrong("engine", "Exercise 3", "must merge")
def buddies_that_never_merge():
    class Crumbling(FreeLists):
        def back(self, start, size):
            self.lists.setdefault(size, []).append(start)

    return parts(buddy=Crumbling)


@wrong("engine", "Exercise 2")
def a_table_that_ends():
    class UpTo4096(WithABitmap):
        def place(self, num_tokens):
            start = super().place(num_tokens)
            if start is not None and start + num_tokens > 4096:
                self.free(start)
                return None
            return start

    return parts(first_fit=UpTo4096)
