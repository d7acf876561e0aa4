"""Wrong and right answers to lab 05, each as a learner might write it."""

from __future__ import annotations

import pickle
import random
from collections import OrderedDict, deque
from itertools import islice, product, takewhile

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_05.learners_engine import PluggedKVCacheManager
from utils.engine.config.parts import make_kv_cache_manager
from utils.engine.core.block_pool import BlockPool

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right
NONE_HASH = bytes(32)


def formulas(exercise, parameters, *wrong_ones):
    """Answers of one expression: a name, words that the feedback must contain, the expression."""
    for name, says, expression in wrong_ones:
        answer = eval(f"lambda {parameters}: {expression}", globals())
        answer.__name__ = name
        wrong(exercise, says)(answer)


def classes(exercise, base, *wrong_ones):
    """Classes that change methods of a right one: a name, words, the methods."""
    for name, says, methods in wrong_ones:
        body = {"__module__": __name__, "__hash__": base.__hash__, **methods}
        wrong(exercise, says)(type(name, (base,), body))


# 1 hash_block_tokens


def encoded(text):
    return repr(text).encode()


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
    return hash_function((parent or NONE_HASH) + inner + encoded(extra_keys))


@right("hash_block_tokens")
def three_bytes_each(hash_function, parent, tokens, extra_keys=None):
    data = bytearray(parent or NONE_HASH)
    for token in tokens:
        data.extend(token.to_bytes(3, "big"))
    for key in extra_keys or ():
        data += b"\xff" + len(key.encode()).to_bytes(4, "big") + key.encode()
    return hash_function(bytes(data))


formulas(
    "hash_block_tokens",
    "f, parent, tokens, extra=None",
    ("no_parent", "ignores what came before", "f(encoded((tokens, extra)))"),
    (
        "parent_only_as_a_flag",
        "ignores what came before",
        "f(encoded((parent is None, tokens, extra)))",
    ),
    ("beginning_of_the_parent", "or a part of it", "f(encoded(((parent or b'')[:4], tokens)))"),
    (
        "pythons_own_hash",
        "never called",
        "hash((parent, tuple(tokens), extra)).to_bytes(8, 'little', signed=True)",
    ),
    ("returns_an_int", "expected bytes", "hash((parent, tuple(tokens), extra))"),
    ("returns_hex", "expected bytes", "f(encoded((parent, tokens, extra))).hex()"),
    (
        "set_of_tokens",
        "different tokens have the same hash",
        "f(encoded((parent, sorted(set(tokens)), extra)))",
    ),
    (
        "first_sixteen",
        "one token more have the same hash",
        "f(encoded((parent, tuple(tokens)[:16], extra)))",
    ),
    (
        "digits_joined",
        "both are 123",
        "f((parent or NONE_HASH) + ''.join(map(str, tokens)).encode() + encoded(extra))",
    ),
    (
        "tokens_as_bytes",
        "must be in range(0, 256)",
        "f((parent or NONE_HASH) + bytes(tokens) + encoded(extra))",
    ),
    (
        "two_bytes_each",
        "int too big",
        "f((parent or NONE_HASH) + b''.join("
        "t.to_bytes(2, 'little') for t in tokens) + encoded(extra))",
    ),
    (
        "first_extra_key_only",
        "`extra_keys` is ignored, or what is in it",
        "f(encoded((parent, tokens, extra and extra[0])))",
    ),
    (
        "extra_keys_joined",
        "`extra_keys` is ignored, or what is in it",
        "f(encoded((parent, tokens, ''.join(extra or ()))))",
    ),
    (
        "extra_keys_with_commas",
        "joined, both are the same text",
        "f(encoded((parent, tokens, extra and ','.join(extra))))",
    ),
    (
        "extra_keys_as_plain_bytes",
        "`extra_keys` is ignored, or what is in it",
        "f((parent or NONE_HASH) + b''.join(t.to_bytes(4, 'little') for t in tokens) "
        "+ ''.join(extra or ()).encode())",
    ),
    (
        "xor_of_hashes",
        "not what `hash_function` returned",
        "bytes(a ^ b for a, b in zip("
        "parent or NONE_HASH, f(encoded((tokens, extra))), strict=False))",
    ),
    (
        "hash_appended",
        "not what `hash_function` returned",
        "(parent or b'') + f(encoded((tokens, extra)))",
    ),
    ("forgot_to_return", "returned `None`", "[f(encoded((parent, tokens, extra)))] and None"),
)

# 2 request_block_hasher


def salt_of(request, first):
    return (request.cache_salt,) if first and request.cache_salt else None


def hashes(request, size, hash_block, begin=None, end=None, salt=salt_of, parent=0):
    """Blocks begin to end - 1, as they should be, if nothing else is said."""
    begin = len(request.block_hashes) if begin is None else begin
    end = request.num_tokens // size if end is None else end
    new = []
    if parent == 0:
        parent = request.block_hashes[-1] if begin and request.block_hashes else None
    for i in range(begin, end):
        tokens = request.all_token_ids[i * size : (i + 1) * size]
        parent = hash_block(parent, tokens, salt(request, i == 0))
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
def recursive(request, block_size, hash_block):
    def after(parent, number):
        tokens = request.all_token_ids[number * block_size :][:block_size]
        if len(tokens) < block_size:
            return []
        new = hash_block(parent=parent, token_ids=tokens, extra_keys=salt_of(request, not number))
        return [new, *after(new, number + 1)]

    known = request.block_hashes
    return after(known[-1] if known else None, len(known))


@wrong("request_block_hasher", "has no parent: the chain is broken")
def no_chain(request, block_size, hash_block):
    new = []
    for i in range(len(request.block_hashes), request.num_tokens // block_size):
        tokens = request.all_token_ids[i * block_size : (i + 1) * block_size]
        new.append(hash_block(None, tokens, salt_of(request, i == 0)))
    return new


@wrong("request_block_hasher", "wrong parent")
def all_hang_on_the_first(request, block_size, hash_block):
    known = list(request.block_hashes)
    for i in range(len(known), request.num_tokens // block_size):
        tokens = request.all_token_ids[i * block_size : (i + 1) * block_size]
        known.append(hash_block(known[0] if known else None, tokens, salt_of(request, i == 0)))
    return known[len(request.block_hashes) :]


@wrong("request_block_hasher", "wrong tokens")
def offset_of_the_old_blocks(request, block_size, hash_block):
    parent = request.block_hashes[-1] if request.block_hashes else None
    new = []
    for i in range(request.num_tokens // block_size - len(request.block_hashes)):
        tokens = request.all_token_ids[i * block_size : (i + 1) * block_size]
        parent = hash_block(parent, tokens, salt_of(request, not request.block_hashes and i == 0))
        new.append(parent)
    return new


@wrong("request_block_hasher", "changes the request")
def appends_itself(request, block_size, hash_block):
    new = hashes(request, block_size, hash_block)
    request.block_hashes += new
    return new


@wrong("request_block_hasher", "later block has a salt")
def salt_in_every_block(request, block_size, hash_block):
    """Nobody shares too much or too little, but the contract says: the first block."""
    return hashes(request, block_size, hash_block, salt=lambda r, first: salt_of(r, True))


@wrong("request_block_hasher", "`extra_keys` are wrong")
def salt_from_the_second_block_on(request, block_size, hash_block):
    return hashes(request, block_size, hash_block, salt=lambda r, first: salt_of(r, not first))


@wrong("request_block_hasher", "expected a list")
def lazily(request, block_size, hash_block):
    yield from hashes(request, block_size, hash_block)


SEEN = {}


@wrong("request_block_hasher", "expected a list")
def remembers_by_id(request, block_size, hash_block):
    """Another request of the same name gets its hashes."""
    known = SEEN.setdefault(request.request_id, [])
    begin = max(len(known), len(request.block_hashes))
    known += hashes(request, block_size, hash_block, begin)
    return known[len(request.block_hashes) :]


formulas(
    "request_block_hasher",
    "r, size, h",
    (
        "misses_the_last_block",
        "last full block is missing",
        "hashes(r, size, h, end=(r.num_tokens - 1) // size)",
    ),
    ("no_salt", "salt is ignored", "hashes(r, size, h, salt=lambda r, first: None)"),
    (
        "salt_without_a_tuple",
        "`extra_keys` are wrong",
        "hashes(r, size, h, salt=lambda r, first: first and r.cache_salt or None)",
    ),
)

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


def run_of(request, pool):
    found = map(pool.get_cached_block, request.block_hashes)
    return list(takewhile(lambda block: block is not None, found))


def most(request, size):
    return (request.num_tokens - 1) // size


def usable(request, size, pool):
    return run_of(request, pool)[: most(request, size)]


def counted(blocks, size):
    return blocks, len(blocks) * size


formulas(
    "get_computed_blocks",
    "r, size, pool",
    ("nothing_left", "no token is left to compute", "counted(run_of(r, pool), size)"),
    (
        "one_token_less",
        "not its tokens",
        "(usable(r, size, pool), min(len(run_of(r, pool)) * size, r.num_tokens - 1))",
    ),
    (
        "touches_at_lookup",
        "must not touch",
        "(pool.touch(usable(r, size, pool)), counted(usable(r, size, pool), size))[1]",
    ),
    ("blocks_only", "expected a pair", "usable(r, size, pool)"),
    ("as_a_tuple", "expected a pair", "counted(tuple(usable(r, size, pool)), size)"),
    ("at_most_64", "not the blocks of the longest", "counted(usable(r, size, pool)[:64], size)"),
    (
        "only_those_in_use",
        "not the blocks of the longest",
        "counted(list(takewhile(lambda b: b.ref_cnt, usable(r, size, pool))), size)",
    ),
)

# 4 CachingBlockPool. Each mutant changes one thing of a class that is right.


class Base(BlockPool):
    def get_cached_block(self, block_hash):
        same = self.cached_block_hash_to_block.get(block_hash)
        return next(iter(same.values())) if same else None

    def get_new_blocks(self, num_blocks):
        if num_blocks > self.get_num_free_blocks():
            raise ValueError("too few")
        return self.take(num_blocks)

    def take(self, num_blocks):
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
        self.enqueue([block for block in blocks if block.ref_cnt == 0])

    def enqueue(self, free):
        self.free_block_queue.append_n([block for block in free if block.block_hash is not None])
        self.free_block_queue.prepend_n([block for block in free if block.block_hash is None])

    def cache_full_blocks(self, blocks, block_hashes, num_cached_blocks, num_full_blocks):
        pairs = list(zip(blocks, block_hashes, strict=False))
        for block, block_hash in pairs[num_cached_blocks:num_full_blocks]:
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

    def take(self, num_blocks):
        blocks = []
        for _ in range(num_blocks):
            if self.empty:
                block = self.empty.popleft()
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

    def enqueue(self, free):
        self.empty.extendleft(block for block in reversed(free) if block.block_hash is None)
        self.full |= {block.block_id: block for block in free if block.block_hash is not None}

    def cache(self, block, block_hash):
        block.block_hash = block_hash
        self.twins.setdefault(block_hash, []).append(block)


@wrong("block_pool", "engine's own method")
class JustTheEngines(BlockPool):
    pass


@wrong("block_pool", "Expected a class")
class NoPool:
    pass


def each(action):
    """A method that does the same with each block of a list."""

    def method(self, blocks):
        for block in blocks:
            action(self, block)

    return method


def count(block, step):
    block.ref_cnt += step


def put(self, block, back):
    (self.free_block_queue.append_n if back else self.free_block_queue.prepend_n)([block])


def frees_what_others_hold(self, block):
    block.ref_cnt -= 1
    if block.block_hash is None or block.prev_free_block is None:
        put(self, block, block.block_hash is not None)


def frees_and_forgets(self, block):
    block.ref_cnt -= 1
    if block.ref_cnt == 0:
        self.evict(block)
        put(self, block, True)


def free_sets_zero(self, block):
    block.ref_cnt = 0
    if block.prev_free_block is None:
        put(self, block, block.block_hash is not None)


def without_references(self, num_blocks):
    blocks = Base.take(self, num_blocks)
    for block in blocks:
        block.ref_cnt = 0
    return blocks


def too_late(self, block):
    block.ref_cnt += 1
    if block.ref_cnt == 0:
        self.free_block_queue.remove(block)


def hidden(self, block_hash):
    found = Base.get_cached_block(self, block_hash)
    return found if found is not None and found.ref_cnt == 0 else None


def freshened(self, block_hash):
    """A lookup counts as a use."""
    found = Base.get_cached_block(self, block_hash)
    if found is not None and found.ref_cnt == 0:
        self.free_block_queue.remove(found)
        self.free_block_queue.append_n([found])
    return found


def twice(self, ordered_blocks):
    for block in ordered_blocks:
        block.ref_cnt -= 1
    self.enqueue([block for block in ordered_blocks if block.ref_cnt == 0])


QUEUE = "Next in the queue is"
FORGETS = "`free_blocks` forgets what a block holds"
classes(
    "block_pool",
    Base,
    (
        "LetsTheEngineEvict",
        "engine's own method",
        {"get_new_blocks": lambda s, n: super(Base, s).get_new_blocks(n)},
    ),
    ("NeverEvicts", "keeps its old hash", {"evict": lambda s, b: None}),
    (
        "StaleHash",
        "keeps its old hash",
        {
            "evict": lambda s, b: s.cached_block_hash_to_block.get(b.block_hash, {}).pop(
                b.block_id, None
            )
        },
    ),
    (
        "HitWithoutReference",
        "must raise the reference count",
        {"touch": each(lambda s, b: b.ref_cnt or s.free_block_queue.remove(b))},
    ),
    (
        "TouchedStaysInTheQueue",
        "still in the free queue",
        {"touch": each(lambda s, b: count(b, 1))},
    ),
    (
        "TouchRemovesAlways",
        "not in the free queue",
        {"touch": each(lambda s, b: (s.free_block_queue.remove(b), count(b, 1)))},
    ),
    ("TouchLooksTooLate", "still in the free queue", {"touch": each(too_late)}),
    (
        "ForgetsWhenFreed",
        FORGETS,
        {
            "enqueue": lambda s, free: (
                [s.forget(b) for b in free if b.block_hash is not None],
                Base.enqueue(s, free),
            )
        },
    ),
    (
        "ForgetsTheHashWhenFreed",
        FORGETS,
        {"enqueue": lambda s, free: ([s.evict(b) for b in free], Base.enqueue(s, free))},
    ),
    ("ForgetsAllWhenFreed", QUEUE, {"free_blocks": each(frees_and_forgets)}),
    (
        "MostRecentFirst",
        QUEUE,
        {"free_blocks": each(lambda s, b: (count(b, -1), b.ref_cnt or put(s, b, False)))},
    ),
    (
        "FreesWhatOthersHold",
        "free block in the queue",
        {"free_blocks": each(frees_what_others_hold)},
    ),
    (
        "ForgetsToFree",
        "0 free blocks in the queue",
        {"free_blocks": each(lambda s, b: count(b, -1))},
    ),
    ("FreeSetsZero", "lower the reference count by one", {"free_blocks": each(free_sets_zero)}),
    ("WalksTwice", "in the queue", {"free_blocks": twice}),
    ("NewBlocksWithoutReference", "has one reference", {"take": without_references}),
    ("DoesNotCount", "raise a ValueError if fewer are free", {"get_new_blocks": Base.take}),
    (
        "RefusesAnExactFit",
        "raised ValueError",
        {"get_new_blocks": lambda s, n: Base.get_new_blocks(s, n + (n == s.get_num_free_blocks()))},
    ),
    (
        "OnlyMarksTheBlock",
        "nothing is found",
        {"cache": lambda s, b, h: setattr(b, "block_hash", h), "forget": lambda s, b: None},
    ),
    (
        "OnlyFillsTheTable",
        "a `block_hash` is wrong",
        {
            "cache": lambda s, b, h: s.cached_block_hash_to_block.setdefault(h, {}).update(
                {b.block_id: b}
            )
        },
    ),
    (
        "LookupRaises",
        "KeyError",
        {"get_cached_block": lambda s, h: next(iter(s.cached_block_hash_to_block[h].values()))},
    ),
    ("FindsOnlyFreeOnes", "nothing is found", {"get_cached_block": hidden}),
    ("LookupIsAUse", QUEUE, {"get_cached_block": freshened}),
)

# 5 free_request


@right("free_request")
def by_slice(block_pool, block_table):
    block_pool.free_blocks(block_table[::-1])


@right("free_request")
def one_by_one(block_pool, block_table):
    left = list(block_table)
    while left:
        block_pool.free_blocks([left.pop()])


OTHERS = "Another request's blocks are taken away, or this request's are kept"
formulas(
    "free_request",
    "pool, table",
    ("head_first", "head of the prefix", "pool.free_blocks(table)"),
    (
        "by_halves",
        "wrong blocks are evicted first",
        "pool.free_blocks(table[len(table) // 2 :] + table[: len(table) // 2])",
    ),
    ("only_the_tail", OTHERS, "pool.free_blocks(table[-1:])"),
    (
        "turned_in_place",
        "changes `block_table` in place",
        "table.reverse() or pool.free_blocks(table)",
    ),
    (
        "emptied",
        "changes `block_table` in place",
        "[pool.free_blocks([table.pop()]) for _ in range(len(table))]",
    ),
)

# 6 steal_blocks


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
def by_chance(hash_block, wanted, block_size, vocab_size):
    rng, chain, prompt = random.Random(0), [None], []
    for digest in wanted:
        tokens = []
        while not tokens or hash_block(chain[-1], tokens) != digest:
            tokens = [rng.randrange(vocab_size) for _ in range(block_size)]
        chain.append(digest)
        prompt.extend(tokens)
    return prompt + [rng.randrange(vocab_size)] * 1


@right("steal_blocks")
def all_at_once(hash_block, wanted, block_size, vocab_size):
    """A table of what has been tried behind each parent."""
    prompt = []
    for parent, digest in zip([None, *wanted], wanted, strict=False):
        tried = {}
        every = product(range(vocab_size), repeat=block_size)
        while digest not in tried:
            tokens = next(every)
            tried[bytes(hash_block(parent, list(tokens)))] = tokens
        prompt += tried[digest]
    return [*prompt, 1]


@right("steal_blocks")
def with_a_question_behind(hash_block, wanted, block_size, vocab_size):
    """What comes behind the stolen blocks is the thief's own affair."""
    stolen = with_product(hash_block, wanted, block_size, vocab_size)
    return stolen + [True, False, 1] * block_size


KNOWN = {}


@wrong("steal_blocks", "of the victim's")
def remembers_from_call_to_call(hash_block, wanted, block_size, vocab_size):
    """By hash and parent. Another tenant's salt makes another hash of the same tokens."""
    prompt, parent = [], None
    for digest in wanted:
        key = parent, digest, block_size, vocab_size
        if key not in KNOWN:
            every = product(range(vocab_size), repeat=block_size)
            KNOWN[key] = next(t for t in every if hash_block(parent, t) == digest)
        prompt += KNOWN[key]
        parent = digest
    return [*prompt, 0]


def first_tries(low, high, size, count):
    return [*islice(product(range(low, high), repeat=size), count)]


def searched(hash_block, wanted, block_size, vocab_size, parents=None, tries=None, more=(0,)):
    """The solution, with other parents, other tokens to try, or another end."""
    prompt = []
    for parent, digest in zip(parents or [None, *wanted], wanted, strict=False):
        every = tries or product(range(vocab_size), repeat=block_size)
        prompt += next((t for t in every if hash_block(parent, t) == digest), (0,) * block_size)
    return [*prompt, *more]


formulas(
    "steal_blocks",
    "h, w, size, vocab",
    ("no_token_left", "The last block isn't handed out", "searched(h, w, size, vocab, more=())"),
    (
        "no_parents",
        "Only the first block is stolen",
        "searched(h, w, size, vocab, [None] * len(w))",
    ),
    ("itself_as_its_parent", "of the victim's", "searched(h, w, size, vocab, list(w))"),
    (
        "one_token_repeated",
        "of the victim's",
        "searched(h, w, size, vocab, tries=[(t,) * size for t in range(vocab)])",
    ),
    (
        "first_token_only",
        "of the victim's",
        "searched(h, w, size, vocab, tries=[(t, *[0] * (size - 1)) for t in range(vocab)])",
    ),
    (
        "gives_up_early",
        "of the victim's",
        "searched(h, w, size, vocab, tries=first_tries(0, vocab, size, 100))",
    ),
    (
        "last_block_only",
        "of the victim's",
        "searched(h, w[-1:], size, vocab, [w[-2] if len(w) > 1 else None])",
    ),
    ("first_block_only", "Only the first block is stolen", "searched(h, w[:1], size, vocab)"),
    ("backwards", "of the victim's", "searched(h, w[::-1], size, vocab)"),
    (
        "larger_tokens",
        "token ids of the vocabulary",
        "searched(h, w, size, vocab, tries=first_tries(vocab, vocab + 30_000, size, 3_000))",
    ),
    ("a_list_for_each_block", "expected a list of token ids", "[searched(h, w, size, vocab)]"),
    ("tuple_of_tokens", "a list of token ids", "tuple(searched(h, w, size, vocab))"),
    ("wants_the_digests_back", "a list of token ids", "w"),
    ("eats_the_list", "changes", "[searched(h, w, size, vocab), w.clear()][0]"),
)

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


formulas(
    "predict_num_cached_tokens",
    "prompts, size",
    (
        "up_to_64",
        "prediction is wrong",
        "[min(n, 64 // size * size) for n in longest_common_prefix(prompts, size)]",
    ),
    (
        "sorted_in_place",
        "changes in place",
        "[longest_common_prefix(prompts, size), [p.clear() for p in prompts]][0]",
    ),
    ("a_generator", "Expected a list", "(n for n in longest_common_prefix(prompts, size))"),
)

# 8 engine: right parts, plugged together, and one of them wrong


def plugged(
    config,
    hash_function,
    *,
    hash_tokens=hash_of_hashes,
    hasher=by_offsets,
    pool=Straight,
    lookup=step_by_step,
    free=by_slice,
):
    return PluggedKVCacheManager(
        config, hash_function, pool(config.num_gpu_blocks), hash_tokens, hasher, lookup, free
    )


@right("engine")
def all_right(config, hash_function):
    return plugged(config, hash_function)


@right("engine")
def all_written_otherwise(config, hash_function):
    return plugged(
        config,
        hash_function,
        hash_tokens=as_text,
        hasher=recursive,
        pool=QueueOfItsOwn,
        lookup=with_takewhile,
        free=one_by_one,
    )


def named(exercise, name):
    """A wrong answer of this zoo."""
    return next(
        s.answer for s in zoo.wrong_answers if (s.exercise, s.answer.__name__) == (exercise, name)
    )


def one_wrong(*wrong_ones):
    """Managers in which one part is wrong: a name, words, the part and its exercise."""
    for name, says, part, exercise, answer in wrong_ones:
        parts = {part: named(exercise, answer)}
        manager = lambda c, h, parts=parts: plugged(c, h, **parts)  # noqa: E731
        manager.__name__ = name
        wrong("engine", says)(manager)


one_wrong(
    (
        "real_tokens_are_larger",
        "Exercise 1 is not right yet. Your code raised ValueError",
        "hash_tokens",
        "hash_block_tokens",
        "tokens_as_bytes",
    ),
    ("parents_ignored", "Exercise 1 is not right", "hash_tokens", "hash_block_tokens", "no_parent"),
    (
        "shares_between_tenants",
        "Exercise 2 is not right yet. The salt is ignored",
        "hasher",
        "request_block_hasher",
        "no_salt",
    ),
    ("chain_is_broken", "Exercise 2 is not right", "hasher", "request_block_hasher", "no_chain"),
    (
        "blocks_are_missing",
        "Exercise 2 is not right yet. The last full block",
        "hasher",
        "request_block_hasher",
        "misses_the_last_block",
    ),
    ("takes_all", "Exercise 3 is not right", "lookup", "get_computed_blocks", "nothing_left"),
    ("evicts_the_newest", "Exercise 4 is not right", "pool", "block_pool", "MostRecentFirst"),
    (
        "the_engines_own_pool",
        "Exercise 4 is not right yet. The engine's own method",
        "pool",
        "block_pool",
        "JustTheEngines",
    ),
    (
        "frees_head_first",
        "Exercise 5 is not right yet. The head",
        "free",
        "free_request",
        "head_first",
    ),
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


@wrong("engine", "Exercise 3 is not right yet")
def no_lookup(config, hash_function):
    return plugged(config, hash_function, lookup=lambda request, size, pool: ([], 0))


def lookup_where(change):
    """A lookup whose blocks are changed: (blocks, block_size, pool)."""

    def lookup(request, block_size, block_pool):
        blocks, _ = step_by_step(request, block_size, block_pool)
        return counted(change(blocks, block_size, block_pool), block_size)

    return lookup


@wrong("engine", "Exercise 3 is not right yet")
def block_size_of_the_check(config, hash_function):
    lookup = lookup_where(lambda blocks, size, pool: blocks[: 4 if size != 4 else None])
    return plugged(config, hash_function, lookup=lookup)


@wrong("engine", "something else than without a cache")
def one_block_again_and_again(config, hash_function):
    """Right in the small pools of the checks. Only the text shows it."""
    lookup = lookup_where(
        lambda blocks, size, pool: (
            blocks[:1] * len(blocks) if (size, pool.num_gpu_blocks) == (16, 64) else blocks
        )
    )
    return plugged(config, hash_function, lookup=lookup)


@wrong("engine", "finds other tokens than predicted")
def few_blocks_in_a_large_pool(config, hash_function):
    lookup = lookup_where(
        lambda blocks, size, pool: blocks[:2] if (size, pool.num_gpu_blocks) == (16, 64) else blocks
    )
    return plugged(config, hash_function, lookup=lookup)


@wrong("engine", "finds other blocks than the engine's own")
def forgets_every_third_request(config, hash_function):
    """Each part is right alone; one of them counts requests."""
    asked = []

    def lookup(request, block_size, block_pool):
        asked.append(request.request_id)
        if request.request_id.isdigit() and len(asked) % 3 == 0 and int(request.request_id) > 1:
            return [], 0
        return step_by_step(request, block_size, block_pool)

    return plugged(config, hash_function, lookup=lookup)
