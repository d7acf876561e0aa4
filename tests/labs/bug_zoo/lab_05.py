"""Right answers to lab 05, written differently, and wrong ones that are no edits of the right."""

from __future__ import annotations

import pickle
from collections import OrderedDict, deque
from itertools import product, takewhile

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.kit.lab.edits import edited
from utils.checks.lab_05 import answers
from utils.checks.lab_05.learners_engine import PluggedKVCacheManager
from utils.engine.config.parts import make_kv_cache_manager
from utils.engine.core.block_pool import BlockPool

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right
NONE_HASH = bytes(32)


# 1 predict_num_cached_tokens


def common(one, other):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@right("predict_num_cached_tokens")
def longest_common_prefix(prompts, block_size):
    found = []
    for i, prompt in enumerate(prompts):
        best = max((common(prompt, earlier) for earlier in prompts[:i]), default=0)
        found.append(min(best, len(prompt) - 1) // block_size * block_size)
    return found


# 2 hash_block_tokens


@right("hash_block_tokens")
def pickled(hash_function, parent, tokens, extra_keys=None):
    return hash_function(pickle.dumps((parent or NONE_HASH, tuple(tokens), extra_keys)))


@right("hash_block_tokens")
def as_text(hash_function, parent, token_ids, extra_keys=None):
    text = " ".join(map(str, token_ids))
    return hash_function(f"{parent}|{text}|{extra_keys!r}".encode())


@right("hash_block_tokens")
def hash_of_hashes(hash_function, parent, tokens, extra_keys=None):
    inner = hash_function(",".join(map(str, tokens)).encode())
    return hash_function((parent or NONE_HASH) + inner + repr(extra_keys).encode())


@right("hash_block_tokens")
def three_bytes_each(hash_function, parent, tokens, extra_keys=None):
    data = bytearray(parent or NONE_HASH)
    for token in tokens:
        data.extend(token.to_bytes(3, "big"))
    for key in extra_keys or ():
        data += b"\xff" + len(key.encode()).to_bytes(4, "big") + key.encode()
    return hash_function(bytes(data))


# 3 request_block_hasher


def salt_of(request, first):
    return (request.cache_salt,) if first and request.cache_salt else None


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


@wrong("request_block_hasher", "RecursionError")
def recursive(request, block_size, hash_block):
    def after(parent, number):
        tokens = request.all_token_ids[number * block_size :][:block_size]
        if len(tokens) < block_size:
            return []
        new = hash_block(parent=parent, token_ids=tokens, extra_keys=salt_of(request, not number))
        return [new, *after(new, number + 1)]

    known = request.block_hashes
    return after(known[-1] if known else None, len(known))


SEEN = {}


@wrong("request_block_hasher", "Expected a list")
def remembers_by_id(request, block_size, hash_block):
    """Another request of the same name gets its hashes."""
    known = SEEN.setdefault(request.request_id, [])
    known += by_offsets(request, block_size, hash_block)
    return known[len(request.block_hashes) :]


# 4 get_computed_blocks


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


# 5 CachingBlockPool


@right("block_pool")
class QueueOfItsOwn(BlockPool):
    """Two lists in place of the engine's queue, and lists of twins."""

    def __init__(self, num_gpu_blocks):
        super().__init__(num_gpu_blocks)
        self.empty, self.full, self.twins = deque(self.blocks), OrderedDict(), {}

    def get_num_free_blocks(self):
        return len(self.empty) + len(self.full)

    def get_cached_block(self, block_hash):
        return (self.twins.get(block_hash) or [None])[-1]

    def get_new_blocks(self, num_blocks):
        if num_blocks > self.get_num_free_blocks():
            raise ValueError("too few")
        return [self.take() for _ in range(num_blocks)]

    def take(self):
        if self.empty:
            block = self.empty.popleft()
        else:
            _, block = self.full.popitem(last=False)
            self.twins[block.block_hash].remove(block)
        block.block_hash, block.ref_cnt = None, 1
        return block

    def touch(self, blocks):
        for block in list(blocks):
            block.ref_cnt += 1
            if block.ref_cnt == 1 and self.full.pop(block.block_id, None) is None:
                self.empty.remove(block)

    def free_blocks(self, ordered_blocks):
        blocks = [*ordered_blocks]
        for block in blocks:
            block.ref_cnt -= 1
        free = [block for block in blocks if block.ref_cnt == 0]
        self.empty.extendleft(block for block in reversed(free) if block.block_hash is None)
        self.full |= {block.block_id: block for block in free if block.block_hash is not None}

    def cache_full_blocks(self, blocks, block_hashes, num_cached_blocks, num_full_blocks):
        pairs = zip(blocks, block_hashes, strict=False)
        for block, block_hash in [*pairs][num_cached_blocks:num_full_blocks]:
            block.block_hash = block_hash
            self.twins.setdefault(block_hash, []).append(block)


@wrong("block_pool", "engine's own method")
class JustTheEngines(BlockPool):
    pass


@wrong("block_pool", "Expected a class")
class NoPool:
    pass


# 6 free_request


@right("free_request")
def by_slice(block_pool, block_table):
    block_pool.free_blocks(block_table[::-1])


@right("free_request")
def one_by_one(block_pool, block_table):
    left = list(block_table)
    while left:
        block_pool.free_blocks([left.pop()])


# 7 steal_blocks


@right("steal_blocks")
def with_product(hash_block, wanted, block_size, vocab_size):
    """As the solution, but each block from the end of the vocabulary on."""
    prompt = []
    for i, digest in enumerate(wanted):
        parent = wanted[i - 1] if i else None
        tokens = next(
            tokens
            for tokens in product(reversed(range(vocab_size)), repeat=block_size)
            if hash_block(parent, tokens) == digest
        )
        prompt += tokens
    return [*prompt, prompt[0] if prompt else 0]


@right("steal_blocks")
def with_a_question_behind(hash_block, wanted, block_size, vocab_size):
    """What comes behind the stolen blocks is the thief's own affair."""
    stolen = with_product(hash_block, wanted, block_size, vocab_size)
    return stolen + [True, False, 1] * block_size


# 8 engine: right parts, plugged together, and one of them wrong


def plugged(
    config,
    hash_function,
    *,
    hash_tokens=three_bytes_each,
    hasher=by_offsets,
    pool=answers.CachingBlockPool,
    lookup=step_by_step,
    free=by_slice,
):
    return PluggedKVCacheManager(
        config, hash_function, pool(config.num_gpu_blocks), hash_tokens, hasher, lookup, free
    )


@right("engine")
def all_written_otherwise(config, hash_function):
    return plugged(
        config,
        hash_function,
        hash_tokens=as_text,
        pool=QueueOfItsOwn,
        lookup=with_takewhile,
        free=one_by_one,
    )


def with_one_wrong(says, **part):
    @wrong("engine", says)
    def manager(config, hash_function):
        return plugged(config, hash_function, **part)

    zoo.wrong_answers[-1].answer.__name__ = "_".join(["another", *part])


with_one_wrong("Exercise 2 is not right", hash_tokens=lambda f, p, t, e=None: f(bytes(t)))
with_one_wrong(
    "Exercise 3 is not right yet. Your function returned", hasher=lambda r, size, h: None
)
with_one_wrong("Exercise 4 is not right yet", lookup=lambda request, size, pool: ([], 0))
with_one_wrong("Exercise 5 is not right yet. The engine's own method", pool=JustTheEngines)
with_one_wrong(
    "Exercise 6 is not right yet. The head",
    free=edited(answers.free_request, ["reversed(block_table) => block_table"]),
)


@wrong("engine", "engine's own parts")
def the_engines_own(config, hash_function):
    return make_kv_cache_manager(config)


@wrong("engine", "engine's own parts")
def the_engines_blocks(config, hash_function):
    return plugged(config, hash_function, pool=BlockPool)


@wrong("engine", "must return a KVCacheManager")
def forgot_to_return_the_manager(config, hash_function):
    plugged(config, hash_function)


def lookup_where(change):
    """A lookup that is right in the small pools of the checks, and changes its blocks elsewhere."""

    def lookup(request, block_size, block_pool):
        blocks, _ = step_by_step(request, block_size, block_pool)
        if (block_size, block_pool.num_gpu_blocks) == (16, 64):
            blocks = change(blocks)
        return blocks, len(blocks) * block_size

    return lookup


@wrong("engine", "something else than without a cache")
def one_block_again_and_again(config, hash_function):
    lookup = lookup_where(lambda blocks: blocks[:1] * len(blocks))
    return plugged(config, hash_function, lookup=lookup)


@wrong("engine", "finds other tokens than predicted")
def few_blocks_in_a_large_pool(config, hash_function):
    return plugged(config, hash_function, lookup=lookup_where(lambda blocks: blocks[:2]))
