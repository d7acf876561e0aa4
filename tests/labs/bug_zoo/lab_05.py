"""Wrong and right answers to lab 05, each as a learner might write it."""

from __future__ import annotations

import pickle
from collections import OrderedDict, deque
from itertools import takewhile

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_05.learners_engine import PluggedKVCacheManager
from utils.engine.core import kv_cache_utils
from utils.engine.core.block_pool import BlockPool
from utils.engine.llm_engine import make_kv_cache_manager

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right
NONE_HASH = bytes(32)

# 1 hash_block_tokens


@right("hash_block_tokens")
def pickled(hash_function, parent, tokens, extra_keys=None):
    return hash_function(pickle.dumps((parent or NONE_HASH, tuple(tokens), extra_keys)))


@right("hash_block_tokens")
def as_text(hash_function, parent, tokens, extra_keys=None):
    text = " ".join(map(str, tokens))
    return hash_function(f"{parent}|{text}|{extra_keys!r}".encode())


@right("hash_block_tokens")
def hash_of_hashes(hash_function, parent, tokens, extra_keys=None):
    inner = hash_function(",".join(map(str, tokens)).encode())
    return hash_function((parent or NONE_HASH) + inner + repr(extra_keys).encode())


@wrong("hash_block_tokens", "ignores what came before")
def no_parent(hash_function, parent, tokens, extra_keys=None):
    return hash_function(repr((tuple(tokens), extra_keys)).encode())


@wrong("hash_block_tokens", "ignores what came before")
def parent_only_as_a_flag(hash_function, parent, tokens, extra_keys=None):
    return hash_function(repr((parent is None, tuple(tokens), extra_keys)).encode())


@wrong("hash_block_tokens", "never called")
def pythons_own_hash(hash_function, parent, tokens, extra_keys=None):
    return hash((parent, tuple(tokens), extra_keys)).to_bytes(8, "little", signed=True)


@wrong("hash_block_tokens", "expected bytes")
def returns_an_int(hash_function, parent, tokens, extra_keys=None):
    return hash((parent, tuple(tokens), extra_keys))


@wrong("hash_block_tokens", "order of the tokens")
def sum_of_tokens(hash_function, parent, tokens, extra_keys=None):
    return hash_function(repr((parent, sum(tokens), extra_keys)).encode())


@wrong("hash_block_tokens", "order of the tokens")
def sorted_tokens(hash_function, parent, tokens, extra_keys=None):
    return hash_function(repr((parent, sorted(tokens), extra_keys)).encode())


@wrong("hash_block_tokens", "differ in their last token")
def all_but_the_last(hash_function, parent, tokens, extra_keys=None):
    return hash_function(repr((parent, tuple(tokens)[:-1], extra_keys)).encode())


@wrong("hash_block_tokens", "both are 123")
def digits_joined(hash_function, parent, tokens, extra_keys=None):
    text = "".join(map(str, tokens))
    return hash_function((parent or NONE_HASH) + text.encode() + repr(extra_keys).encode())


@wrong("hash_block_tokens", "must be in range(0, 256)")
def tokens_as_bytes(hash_function, parent, tokens, extra_keys=None):
    return hash_function((parent or NONE_HASH) + bytes(tokens) + repr(extra_keys).encode())


@wrong("hash_block_tokens", "only one byte")
def low_byte(hash_function, parent, tokens, extra_keys=None):
    data = bytes(token % 256 for token in tokens)
    return hash_function((parent or NONE_HASH) + data + repr(extra_keys).encode())


@wrong("hash_block_tokens", "only two bytes")
def low_two_bytes(hash_function, parent, tokens, extra_keys=None):
    data = b"".join((token % 65536).to_bytes(2, "little") for token in tokens)
    return hash_function((parent or NONE_HASH) + data + repr(extra_keys).encode())


@wrong("hash_block_tokens", "`extra_keys` is ignored: two tenants")
def no_extra_keys(hash_function, parent, tokens, extra_keys=None):
    return hash_function(repr((parent, tuple(tokens))).encode())


@wrong("hash_block_tokens", "what is in it is ignored")
def extra_keys_as_a_flag(hash_function, parent, tokens, extra_keys=None):
    return hash_function(repr((parent, tuple(tokens), bool(extra_keys))).encode())


@wrong("hash_block_tokens", "both are 'abc'")
def extra_keys_joined(hash_function, parent, tokens, extra_keys=None):
    joined = "".join(extra_keys or ())
    return hash_function(repr((parent, tuple(tokens), joined)).encode())


@wrong("hash_block_tokens", "where there is a parent")
def extra_keys_instead_of_a_parent(hash_function, parent, tokens, extra_keys=None):
    return hash_function(repr((parent or extra_keys, tuple(tokens))).encode())


@wrong("hash_block_tokens", "opposite order")
def xor_of_hashes(hash_function, parent, tokens, extra_keys=None):
    own = hash_function(repr((tuple(tokens), extra_keys)).encode())
    return bytes(a ^ b for a, b in zip(parent or NONE_HASH, own, strict=True))


@wrong("hash_block_tokens", "not what `hash_function` returned")
def hash_appended(hash_function, parent, tokens, extra_keys=None):
    return (parent or b"") + hash_function(repr((tuple(tokens), extra_keys)).encode())


@wrong("hash_block_tokens", "returned `None`")
def forgot_to_return(hash_function, parent, tokens, extra_keys=None):
    hash_function(repr((parent, tuple(tokens), extra_keys)).encode())


# 2 request_block_hasher


def salt_of(request, first):
    return (request.cache_salt,) if first and request.cache_salt else None


def hashes(request, size, hash_block, begin, end):
    """Blocks begin to end - 1, as they should be."""
    new, parent = [], request.block_hashes[-1] if begin and request.block_hashes else None
    for i in range(begin, end):
        tokens = request.all_token_ids[i * size : (i + 1) * size]
        parent = hash_block(parent, tokens, salt_of(request, i == 0))
        new.append(parent)
    return new


@right("request_block_hasher")
def by_offsets(request, block_size, hash_block):
    known = request.block_hashes
    chain = list(known[-1:])
    begin = len(known) * block_size
    while begin + block_size <= request.num_tokens:
        tokens = tuple(request.all_token_ids[begin : begin + block_size])
        parent = chain[-1] if chain else None
        chain.append(hash_block(parent, tokens, salt_of(request, begin == 0)))
        begin += block_size
    return chain[1:] if known else chain


@right("request_block_hasher")
def salt_in_every_block(request, block_size, hash_block):
    """Right: more than needed, but nobody shares too much or too little."""
    new = []
    for i in range(len(request.block_hashes), request.num_tokens // block_size):
        parent = ([*request.block_hashes, *new] or [None])[-1]
        tokens = request.all_token_ids[i * block_size :][:block_size]
        new.append(hash_block(parent, tokens, (request.cache_salt,)))
    return new


@wrong("request_block_hasher", "partial block")
def hashes_the_partial_block(request, block_size, hash_block):
    end = -(-request.num_tokens // block_size)
    return hashes(request, block_size, hash_block, len(request.block_hashes), end)


@wrong("request_block_hasher", "last full block is missing")
def misses_the_last_block(request, block_size, hash_block):
    begin = len(request.block_hashes)
    return hashes(request, block_size, hash_block, begin, (request.num_tokens - 1) // block_size)


@wrong("request_block_hasher", "hashed again")
def hashes_all_again(request, block_size, hash_block):
    return hashes(request, block_size, hash_block, 0, request.num_tokens // block_size)


@wrong("request_block_hasher", "blocks are hashed for")
def hashes_all_and_returns_the_new(request, block_size, hash_block):
    every = hashes(request, block_size, hash_block, 0, request.num_tokens // block_size)
    return every[len(request.block_hashes) :]


@wrong("request_block_hasher", "no parent: the chain is broken")
def no_chain(request, block_size, hash_block):
    new = []
    for i in range(len(request.block_hashes), request.num_tokens // block_size):
        tokens = request.all_token_ids[i * block_size : (i + 1) * block_size]
        new.append(hash_block(None, tokens, salt_of(request, i == 0)))
    return new


@wrong("request_block_hasher", "no parent: the chain is broken")
def chain_begins_again(request, block_size, hash_block):
    new, parent = [], None
    for i in range(len(request.block_hashes), request.num_tokens // block_size):
        tokens = request.all_token_ids[i * block_size : (i + 1) * block_size]
        parent = hash_block(parent, tokens, salt_of(request, i == 0))
        new.append(parent)
    return new


@wrong("request_block_hasher", "wrong parent")
def all_hang_on_the_first(request, block_size, hash_block):
    known = list(request.block_hashes)
    for i in range(len(known), request.num_tokens // block_size):
        tokens = request.all_token_ids[i * block_size : (i + 1) * block_size]
        known.append(hash_block(known[0] if known else None, tokens, salt_of(request, i == 0)))
    return known[len(request.block_hashes) :]


@wrong("request_block_hasher", "n² work")
def whole_prefix(request, block_size, hash_block):
    ends = range(len(request.block_hashes) + 1, request.num_tokens // block_size + 1)
    salt = salt_of(request, True)
    return [hash_block(None, request.all_token_ids[: e * block_size], salt) for e in ends]


@wrong("request_block_hasher", "wrong tokens")
def offset_of_the_old_blocks(request, block_size, hash_block):
    parent = request.block_hashes[-1] if request.block_hashes else None
    new = []
    for i in range(request.num_tokens // block_size - len(request.block_hashes)):
        tokens = request.all_token_ids[i * block_size : (i + 1) * block_size]
        parent = hash_block(parent, tokens, salt_of(request, not request.block_hashes and i == 0))
        new.append(parent)
    return new


@wrong("request_block_hasher", "changes `request.block_hashes`")
def appends_itself(request, block_size, hash_block):
    new = hashes(
        request, block_size, hash_block, len(request.block_hashes), request.num_tokens // block_size
    )
    request.block_hashes += new
    return new


@wrong("request_block_hasher", "salt is ignored")
def no_salt(request, block_size, hash_block):
    new, parent = [], request.block_hashes[-1] if request.block_hashes else None
    for i in range(len(request.block_hashes), request.num_tokens // block_size):
        parent = hash_block(
            parent, request.all_token_ids[i * block_size : (i + 1) * block_size], None
        )
        new.append(parent)
    return new


def salted_where(place_is_salted):
    def hasher(request, block_size, hash_block):
        new, parent = [], request.block_hashes[-1] if request.block_hashes else None
        for i in range(len(request.block_hashes), request.num_tokens // block_size):
            tokens = request.all_token_ids[i * block_size : (i + 1) * block_size]
            salted = place_is_salted(i, len(new))
            parent = hash_block(parent, tokens, salt_of(request, salted))
            new.append(parent)
        return new

    return hasher


@wrong("request_block_hasher", "salt comes too late")
def salt_from_the_second_block_on(request, block_size, hash_block):
    return salted_where(lambda i, new: i > 0)(request, block_size, hash_block)


@wrong("request_block_hasher", "gets other hashes")
def salt_in_the_first_new_block(request, block_size, hash_block):
    return salted_where(lambda i, new: new == 0)(request, block_size, hash_block)


# 3 get_computed_blocks


@right("get_computed_blocks")
def with_takewhile(request, block_size, block_pool):
    found = map(block_pool.get_cached_block, request.block_hashes)
    blocks = list(takewhile(lambda block: block is not None, found))
    while len(blocks) * block_size >= request.num_tokens:
        blocks.pop()
    return blocks, len(blocks) * block_size


@right("get_computed_blocks")
def step_by_step(request, block_size, block_pool):
    blocks = []
    while (len(blocks) + 1) * block_size <= request.num_tokens - 1:
        block = block_pool.get_cached_block(request.block_hashes[len(blocks)])
        if not block:
            return blocks, block_size * len(blocks)
        blocks += [block]
    return blocks, block_size * len(blocks)


def run_of(request, block_pool):
    blocks = []
    for block_hash in request.block_hashes:
        block = block_pool.get_cached_block(block_hash)
        if block is None:
            break
        blocks.append(block)
    return blocks


@wrong("get_computed_blocks", "no token is left to compute")
def nothing_left(request, block_size, block_pool):
    blocks = run_of(request, block_pool)
    return blocks, len(blocks) * block_size


@wrong("get_computed_blocks", "goes on after the first miss")
def over_the_gap(request, block_size, block_pool):
    most = (request.num_tokens - 1) // block_size
    found = [block_pool.get_cached_block(h) for h in request.block_hashes[:most]]
    blocks = [block for block in found if block is not None]
    return blocks, len(blocks) * block_size


@wrong("get_computed_blocks", "search from the end")
def from_the_end(request, block_size, block_pool):
    most = (request.num_tokens - 1) // block_size
    found = [block_pool.get_cached_block(h) for h in request.block_hashes[:most]]
    while found and found[-1] is None:
        found.pop()
    return found, len(found) * block_size


@wrong("get_computed_blocks", "last found block is always thrown away")
def always_one_less(request, block_size, block_pool):
    blocks = run_of(request, block_pool)[:-1]
    return blocks, len(blocks) * block_size


@wrong("get_computed_blocks", "last full block is never used")
def never_the_last_full_block(request, block_size, block_pool):
    blocks = run_of(request, block_pool)[: max(0, len(request.block_hashes) - 1)]
    return blocks, len(blocks) * block_size


@wrong("get_computed_blocks", "not that of the blocks")
def one_token_less(request, block_size, block_pool):
    run = run_of(request, block_pool)
    num_tokens = min(len(run) * block_size, request.num_tokens - 1)
    return run[: (request.num_tokens - 1) // block_size], num_tokens


@wrong("get_computed_blocks", "writes into a block")
def keeps_the_last_block(request, block_size, block_pool):
    run = run_of(request, block_pool)
    return run, min(len(run) * block_size, request.num_tokens - 1)


@wrong("get_computed_blocks", "counts blocks")
def counts_blocks(request, block_size, block_pool):
    blocks = run_of(request, block_pool)[: (request.num_tokens - 1) // block_size]
    return blocks, len(blocks)


@wrong("get_computed_blocks", "positions would restart at zero")
def reports_nothing(request, block_size, block_pool):
    return run_of(request, block_pool)[: (request.num_tokens - 1) // block_size], 0


@wrong("get_computed_blocks", "must not touch")
def touches_at_lookup(request, block_size, block_pool):
    blocks = run_of(request, block_pool)[: (request.num_tokens - 1) // block_size]
    block_pool.touch(blocks)
    return blocks, len(blocks) * block_size


@wrong("get_computed_blocks", "expected a pair")
def blocks_only(request, block_size, block_pool):
    return run_of(request, block_pool)[: (request.num_tokens - 1) // block_size]


# 4 CachingBlockPool. Each mutant changes one thing of a class that is right.


class Base(BlockPool):
    def get_cached_block(self, block_hash):
        same = self.cached_block_hash_to_block.get(block_hash)
        return next(iter(same.values())) if same else None

    def get_new_blocks(self, num_blocks):
        if num_blocks > self.get_num_free_blocks():
            raise ValueError("too few")
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            self.evict(block)
            block.ref_cnt = 1
        return blocks

    def evict(self, block):
        if block.block_hash is not None:
            self.forget(block)
            block.block_hash = None

    def forget(self, block):
        same = self.cached_block_hash_to_block[block.block_hash]
        del same[block.block_id]
        if not same:
            del self.cached_block_hash_to_block[block.block_hash]

    def touch(self, blocks):
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks):
        blocks = list(ordered_blocks)
        for block in blocks:
            block.ref_cnt -= 1
        free = [block for block in blocks if block.ref_cnt == 0]
        self.free_block_queue.append_n([block for block in free if block.block_hash is not None])
        self.free_block_queue.prepend_n([block for block in free if block.block_hash is None])

    def cache_full_blocks(self, blocks, block_hashes, num_cached_blocks, num_full_blocks):
        for block, block_hash in list(zip(blocks, block_hashes, strict=False))[
            num_cached_blocks:num_full_blocks
        ]:
            self.cache(block, block_hash)

    def cache(self, block, block_hash):
        block.block_hash = block_hash
        self.cached_block_hash_to_block.setdefault(block_hash, {})[block.block_id] = block


@right("block_pool")
class Straight(Base):
    """Right: as the base of the mutants."""


@right("block_pool")
class SearchesItsBlocks(Base):
    """Right, but slow: no dictionary at all."""

    def get_cached_block(self, block_hash):
        for block in self.blocks:
            if block.block_hash is not None and block.block_hash == block_hash:
                return block
        return None

    def forget(self, block):
        pass

    def cache(self, block, block_hash):
        block.block_hash = block_hash


@right("block_pool")
class QueueOfItsOwn(Base):
    """Right: two lists in place of the engine's queue, and lists of twins."""

    def __init__(self, num_gpu_blocks):
        super().__init__(num_gpu_blocks)
        self.empty = deque(self.blocks)
        self.full = OrderedDict()
        self.twins = {}

    def get_num_free_blocks(self):
        return len(self.empty) + len(self.full)

    def get_cached_block(self, block_hash):
        return (self.twins.get(block_hash) or [None])[-1]

    def get_new_blocks(self, num_blocks):
        if num_blocks > len(self.empty) + len(self.full):
            raise ValueError("too few")
        blocks = []
        for _ in range(num_blocks):
            if self.empty:
                block = self.empty.pop()
            else:
                _, block = self.full.popitem(last=False)
                self.twins[block.block_hash].remove(block)
                block.block_hash = None
            block.ref_cnt = 1
            blocks.append(block)
        return blocks

    def touch(self, blocks):
        for block in blocks:
            self.full.pop(block.block_id, None)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt:
                continue
            if block.block_hash is None:
                self.empty.append(block)
            else:
                self.full[block.block_id] = block

    def cache(self, block, block_hash):
        block.block_hash = block_hash
        self.twins.setdefault(block_hash, []).append(block)


@wrong("block_pool", "engine's own method")
class JustTheEngines(BlockPool):
    pass


@wrong("block_pool", "engine's own method")
class LetsTheEngineEvict(Base):
    def get_new_blocks(self, num_blocks):
        return super(Base, self).get_new_blocks(num_blocks)


@wrong("block_pool", "Expected a class")
class NoPool:
    pass


@wrong("block_pool", "is still found by its hash")
class EvictedIsStillFound(Base):
    def forget(self, block):
        pass


@wrong("block_pool", "is still found by its hash")
class NeverEvicts(Base):
    def evict(self, block):
        pass


@wrong("block_pool", "keeps its old hash")
class StaleHash(Base):
    def evict(self, block):
        if block.block_hash is not None and block.block_hash in self.cached_block_hash_to_block:
            self.cached_block_hash_to_block[block.block_hash].pop(block.block_id, None)


@wrong("block_pool", "must raise the reference count")
class HitWithoutReference(Base):
    def touch(self, blocks):
        for block in blocks:
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)


@wrong("block_pool", "still in the free queue")
class TouchedStaysInTheQueue(Base):
    def touch(self, blocks):
        for block in blocks:
            block.ref_cnt += 1


@wrong("block_pool", "not in the free queue")
class TouchRemovesAlways(Base):
    def touch(self, blocks):
        for block in blocks:
            self.free_block_queue.remove(block)
            block.ref_cnt += 1


@wrong("block_pool", "still in the free queue")
class TouchLooksTooLate(Base):
    def touch(self, blocks):
        for block in blocks:
            block.ref_cnt += 1
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)


@wrong("block_pool", "cannot be found any more after its block was freed")
class ForgetsWhenFreed(Base):
    def free_blocks(self, ordered_blocks):
        blocks = list(ordered_blocks)
        for block in blocks:
            if block.ref_cnt == 1 and block.block_hash is not None:
                self.forget(block)
        super().free_blocks(blocks)


@wrong("block_pool", "after `free_blocks")
class ForgetsTheHashWhenFreed(Base):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.evict(block)
                self.free_block_queue.append_n([block])


@wrong("block_pool", "most recently freed")
class MostRecentFirst(Base):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.prepend_n([block])


@wrong("block_pool", "one `free_blocks` are reused in the wrong order")
class ReversesTheGivenOrder(Base):
    """Freed head-first: the caller has put the tail in front already."""

    def free_blocks(self, ordered_blocks):
        super().free_blocks(list(ordered_blocks)[::-1])


@wrong("block_pool", "is evicted although")
class EmptyOnesToTheBack(Base):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self.free_block_queue.append_n([block])


@wrong("block_pool", "another request still holds")
class FreesWhatOthersHold(Base):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.block_hash is None:
                self.free_block_queue.prepend_n([block])
            elif block.prev_free_block is None:
                self.free_block_queue.append_n([block])


@wrong("block_pool", "is missing from the free queue")
class ForgetsToFree(Base):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt -= 1


@wrong("block_pool", "lower the reference count by one")
class FreeSetsZero(Base):
    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            block.ref_cnt = 0
            if block.prev_free_block is None:
                queue = self.free_block_queue
                (queue.prepend_n if block.block_hash is None else queue.append_n)([block])


@wrong("block_pool", "has one reference")
class NewBlocksWithoutReference(Base):
    def get_new_blocks(self, num_blocks):
        blocks = super().get_new_blocks(num_blocks)
        for block in blocks:
            block.ref_cnt = 0
        return blocks


@wrong("block_pool", "more blocks than are free")
class TakesWhatThereIs(Base):
    def get_new_blocks(self, num_blocks):
        return super().get_new_blocks(min(num_blocks, self.get_num_free_blocks()))


@wrong("block_pool", "passes silently")
class DoesNotCount(Base):
    def get_new_blocks(self, num_blocks):
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            self.evict(block)
            block.ref_cnt = 1
        return blocks


@wrong("block_pool", "not computed in full")
class CachesPartialBlocks(Base):
    """All blocks that have a hash, also those that are not computed yet."""

    def cache_full_blocks(self, blocks, block_hashes, num_cached_blocks, num_full_blocks):
        super().cache_full_blocks(blocks, block_hashes, num_cached_blocks, len(block_hashes))


@wrong("block_pool", "but its `block_hash` is")
class HashesOutOfStep(Base):
    def cache_full_blocks(self, blocks, block_hashes, num_cached_blocks, num_full_blocks):
        new = blocks[num_cached_blocks:num_full_blocks]
        for block, block_hash in zip(new, block_hashes, strict=False):
            self.cache(block, block_hash)


@wrong("block_pool", "cannot be found, though block")
class OnlyMarksTheBlock(Base):
    def cache(self, block, block_hash):
        block.block_hash = block_hash

    def forget(self, block):
        pass


@wrong("block_pool", "its `block_hash` is None")
class OnlyFillsTheTable(Base):
    def cache(self, block, block_hash):
        self.cached_block_hash_to_block.setdefault(block_hash, {})[block.block_id] = block


@wrong("block_pool", "Another block with the same hash was evicted")
class OneBlockPerHash(Base):
    def get_cached_block(self, block_hash):
        return self.cached_block_hash_to_block.get(block_hash)

    def cache(self, block, block_hash):
        block.block_hash = block_hash
        self.cached_block_hash_to_block[block_hash] = block

    def forget(self, block):
        self.cached_block_hash_to_block.pop(block.block_hash, None)


@wrong("block_pool", "KeyError")
class LookupRaises(Base):
    def get_cached_block(self, block_hash):
        return next(iter(self.cached_block_hash_to_block[block_hash].values()))


# 5 free_request


@right("free_request")
def by_slice(block_pool, block_table):
    block_pool.free_blocks(block_table[::-1])


@right("free_request")
def one_by_one(block_pool, block_table):
    while block_table:
        block_pool.free_blocks([block_table.pop()])


@wrong("free_request", "head of the prefix")
def head_first(block_pool, block_table):
    block_pool.free_blocks(block_table)


@wrong("free_request", "wrong blocks are evicted first")
def by_block_id(block_pool, block_table):
    middle = len(block_table) // 2
    block_pool.free_blocks(block_table[middle:] + block_table[:middle])


@wrong("free_request", "blocks are free after the request ended")
def only_the_tail(block_pool, block_table):
    block_pool.free_blocks(block_table[-1:])


@wrong("free_request", "Another request's blocks are taken away, or this request's are kept")
def keeps_shared_ones(block_pool, block_table):
    block_pool.free_blocks([b for b in reversed(block_table) if b.ref_cnt == 1])


# 6 BlockHash


class Key:
    def __init__(self, digest, parent, token_ids, extra_keys=None):
        self.digest, self.parent = digest, parent
        self.token_ids, self.extra_keys = token_ids, extra_keys

    def __hash__(self):
        return hash(self.digest)

    def own(self):
        return self.digest, self.token_ids, self.extra_keys

    def path(self):
        here, links = self, []
        while here is not None:
            links.append(here)
            here = here.parent
        return links


@right("block_hash")
class ComparesPaths(Key):
    """Right: two lists, compared at once."""

    __hash__ = Key.__hash__

    def __eq__(self, other):
        if not isinstance(other, ComparesPaths):
            return NotImplemented
        return [link.own() for link in self.path()] == [link.own() for link in other.path()]


@right("block_hash")
class KeepsThePrefix(Key):
    """Right: carries all tokens from the start, so it needs no parents."""

    def __init__(self, digest, parent, token_ids, extra_keys=None):
        super().__init__(digest, parent, token_ids, extra_keys)
        self.prefix = [*(parent.prefix if parent else []), (token_ids, extra_keys)]

    __hash__ = Key.__hash__

    def __eq__(self, other):
        return type(self) is type(other) and (self.digest, self.prefix) == (
            other.digest,
            other.prefix,
        )


@right("block_hash")
class EnginesOwn(kv_cache_utils.BlockHash):
    """Right: the engine's own, which also lets equal chains share their past."""


@wrong("block_hash", "digest alone decides")
class TrustsTheDigest(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        return isinstance(other, Key) and self.digest == other.digest


@wrong("block_hash", "Only the block's own tokens")
class ComparesOwnTokens(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        return isinstance(other, Key) and self.own() == other.own()


@wrong("block_hash", "stops at the parent")
class ComparesParentsTokens(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        if not isinstance(other, Key) or self.own() != other.own():
            return False
        if self.parent is None or other.parent is None:
            return self.parent is other.parent
        return self.parent.own() == other.parent.own()


@wrong("block_hash", "salts are not compared")
class ForgetsTheSalt(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        if not isinstance(other, Key):
            return False
        mine, theirs = self.path(), other.path()
        return [(k.digest, k.token_ids) for k in mine] == [(k.digest, k.token_ids) for k in theirs]


@wrong("block_hash", "first block equals a later one")
class StopsAtTheShorterChain(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        if not isinstance(other, Key):
            return False
        pairs = zip(self.path(), other.path(), strict=False)
        return all(one.own() == two.own() for one, two in pairs)


@wrong("block_hash", "first block equals a later one")
class StopsWhereTheOtherBegins(Key):
    """Asked the other way round, it is right."""

    __hash__ = Key.__hash__

    def __eq__(self, other):
        here = self
        while isinstance(other, Key):
            if here is None or here.own() != other.own():
                return False
            here, other = here.parent, other.parent
        return other is None and here is not self


@wrong("block_hash", "salt of the first block is not compared")
class SaltOfThisBlockOnly(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        if not isinstance(other, Key) or self.extra_keys != other.extra_keys:
            return False
        mine, theirs = self.path(), other.path()
        return [k.token_ids for k in mine] == [k.token_ids for k in theirs] and (
            self.digest == other.digest
        )


@wrong("block_hash", "RecursionError")
class Recursive(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        if not isinstance(other, Key):
            return False
        return self.own() == other.own() and self.parent == other.parent


@wrong("block_hash", "nothing would ever be found")
class SameObjectOnly(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        return self is other


@wrong("block_hash", "nothing would ever be found")
class SameParentObject(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        return isinstance(other, Key) and self.own() == other.own() and self.parent is other.parent


@wrong("block_hash", "different `hash(...)`")
class HashOfTheObject(ComparesPaths):
    __eq__ = ComparesPaths.__eq__

    def __hash__(self):
        return id(self)


@wrong("block_hash", "unhashable type")
class NoHash(Key):
    def __eq__(self, other):
        return isinstance(other, Key) and [k.own() for k in self.path()] == [
            k.own() for k in other.path()
        ]


@wrong("block_hash", "NoneType")
class FailsOnNone(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        return [k.own() for k in self.path()] == [k.own() for k in other.path()]


@wrong("block_hash", "Different digests count as equal")
class IgnoresTheDigest(Key):
    __hash__ = Key.__hash__

    def __eq__(self, other):
        if not isinstance(other, Key):
            return False
        return [(k.token_ids, k.extra_keys) for k in self.path()] == [
            (k.token_ids, k.extra_keys) for k in other.path()
        ]


# 7 predict_num_cached_tokens


def common(one, other):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@right("predict_num_cached_tokens")
def longest_common_prefix(prompts, block_size):
    found = []
    for i, prompt in enumerate(prompts):
        best = max((common(prompt, earlier) for earlier in prompts[:i]), default=0)
        found.append(min(best, len(prompt) - 1) // block_size * block_size)
    return found


@right("predict_num_cached_tokens")
def with_a_tree(prompts, block_size):
    root, found = {}, []
    for prompt in prompts:
        node, count, hit = root, 0, True
        for end in range(block_size, len(prompt) + 1, block_size):
            block = tuple(prompt[end - block_size : end])
            hit = hit and block in node
            node = node.setdefault(block, {})
            count += hit and end < len(prompt)
        found.append(block_size * count)
    return found


def best_of(prompts, i, searched=slice(None)):
    earlier = prompts[:i][searched]
    return max((common(prompts[i], e) for e in earlier), default=0)


@wrong("predict_num_cached_tokens", "leaves no token to compute")
def everything_found(prompts, block_size):
    return [best_of(prompts, i) // block_size * block_size for i in range(len(prompts))]


@wrong("predict_num_cached_tokens", "rounding comes too early")
def one_token_off(prompts, block_size):
    return [
        min(best_of(prompts, i) // block_size * block_size, len(p) - 1)
        for i, p in enumerate(prompts)
    ]


@wrong("predict_num_cached_tokens", "count single tokens")
def single_tokens(prompts, block_size):
    return [min(best_of(prompts, i), len(p) - 1) for i, p in enumerate(prompts)]


@wrong("predict_num_cached_tokens", "round up")
def rounds_up(prompts, block_size):
    return [
        min(-(-best_of(prompts, i) // block_size), (len(p) - 1) // block_size) * block_size
        for i, p in enumerate(prompts)
    ]


@wrong("predict_num_cached_tokens", "just before")
def last_prompt_only(prompts, block_size):
    return [
        min(best_of(prompts, i, slice(-1, None)), len(p) - 1) // block_size * block_size
        for i, p in enumerate(prompts)
    ]


@wrong("predict_num_cached_tokens", "very first prompt")
def first_prompt_only(prompts, block_size):
    return [
        min(best_of(prompts, i, slice(1)), len(p) - 1) // block_size * block_size
        for i, p in enumerate(prompts)
    ]


@wrong("predict_num_cached_tokens", "without what comes before")
def blocks_without_prefix(prompts, block_size):
    seen, found = set(), []
    for prompt in prompts:
        blocks = [
            tuple(prompt[i : i + block_size])
            for i in range(0, len(prompt) - block_size + 1, block_size)
        ]
        most = (len(prompt) - 1) // block_size
        found.append(block_size * len(list(takewhile(seen.__contains__, blocks[:most]))))
        seen.update(blocks)
    return found


@wrong("predict_num_cached_tokens", "count blocks")
def blocks_not_tokens(prompts, block_size):
    return [tokens // block_size for tokens in longest_common_prefix(prompts, block_size)]


@wrong("predict_num_cached_tokens", "always left out")
def one_block_less(prompts, block_size):
    return [
        max(0, best_of(prompts, i) // block_size * block_size - block_size)
        for i in range(len(prompts))
    ]


@wrong("predict_num_cached_tokens", "finds itself")
def finds_itself(prompts, block_size):
    seen, found = set(), []
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        seen.update(tuple(prompt[:end]) for end in ends)
        found.append(
            max((e for e in ends if e < len(prompt) and tuple(prompt[:e]) in seen), default=0)
        )
    return found


# 8 engine: right parts, plugged together, and one of them wrong


def plugged(
    config, hash_function, *, hash_tokens=hash_of_hashes, hasher=by_offsets, pool=Straight,
    lookup=step_by_step, free=by_slice, key=ComparesPaths,
):  # fmt: skip
    def hash_block(parent, token_ids, extra_keys):
        digest = hash_tokens(hash_function, parent and parent.digest, token_ids, extra_keys)
        return key(digest, parent, tuple(token_ids), extra_keys)

    return PluggedKVCacheManager(
        config,
        pool(config.num_gpu_blocks),
        lambda request: hasher(request, config.block_size, hash_block),
        lookup,
        free,
    )


@right("engine")
def all_right(config, hash_function):
    return plugged(config, hash_function)


@right("engine")
def all_written_otherwise(config, hash_function):
    return plugged(
        config, hash_function, hash_tokens=as_text, hasher=salt_in_every_block,
        pool=QueueOfItsOwn, lookup=with_takewhile, free=one_by_one, key=KeepsThePrefix,
    )  # fmt: skip


@wrong("engine", "engine's own parts")
def the_engines_own(config, hash_function):
    return make_kv_cache_manager(config)


@wrong("engine", "engine's own parts")
def the_engines_own_pool(config, hash_function):
    return plugged(config, hash_function, pool=BlockPool)


@wrong("engine", "must return a KVCacheManager")
def forgot_to_return_the_manager(config, hash_function):
    plugged(config, hash_function)


@wrong("engine", "another prompt's keys and values")
def collisions_trusted(config, hash_function):
    return plugged(config, hash_function, key=TrustsTheDigest)


@wrong("engine", "another prompt's keys and values")
def digest_as_the_key(config, hash_function):
    """The hashes are compared in the right way, but the pool never sees them."""

    class ByDigest(Straight):
        def get_cached_block(self, block_hash):
            return super().get_cached_block(block_hash.digest)

        def cache(self, block, block_hash):
            super().cache(block, block_hash.digest)

    return plugged(config, hash_function, pool=ByDigest)


@wrong("engine", "other blocks than the engine's own")
def no_lookup(config, hash_function):
    return plugged(config, hash_function, lookup=lambda request, size, pool: ([], 0))


@wrong("engine", "other blocks than the engine's own")
def frees_head_first(config, hash_function):
    return plugged(config, hash_function, free=head_first)


@wrong("engine", "other blocks than the engine's own")
def shares_between_tenants(config, hash_function):
    return plugged(config, hash_function, hasher=no_salt)


@wrong("engine", "other blocks than the engine's own")
def evicts_the_newest(config, hash_function):
    return plugged(config, hash_function, pool=MostRecentFirst)


@wrong("engine", "something else than without a cache")
def one_block_again_and_again(config, hash_function):
    """Right in blocks of 4, in which the random requests come. Only the text shows it."""

    def lookup(request, block_size, block_pool):
        blocks, num_tokens = step_by_step(request, block_size, block_pool)
        if block_size > 4:
            blocks = blocks[:1] * len(blocks)
        return blocks, num_tokens

    return plugged(config, hash_function, lookup=lookup)


@wrong("engine", "must be in range(0, 256)")
def real_tokens_are_larger(config, hash_function):
    return plugged(config, hash_function, hash_tokens=tokens_as_bytes)


@wrong("engine", "finds other tokens than predicted")
def block_size_of_the_check(config, hash_function):
    def lookup(request, block_size, block_pool):
        blocks, _ = with_takewhile(request, 4, block_pool)
        return blocks[:4], 4 * len(blocks[:4])

    return plugged(config, hash_function, lookup=lookup)
