"""The checks of lab 16: what is drawn, and what is right.

Oracles: SHA-256 over bytes put together in another way, the first hole, the engine's own store, a
right connector in lockstep, bits read number by number, exact fractions, and at last the engine
without a connector. `tests/` holds them against the engine's connector and published numbers.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any

from utils.checks.kit.contracts import Choices, Fault, Given, InLockstep, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.lab.engine import speaks_first
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_16 import answers, blocks
from utils.checks.lab_16.learners_engine import run_engines
from utils.checks.lab_16.learners_parts import BareRequest, Machine, Pair, Parts, Scheduled, Shape
from utils.checks.lab_16.stories import StepStory, StoreStory
from utils.engine.kv_transfer.store import MemoryStore

LAB = Lab(__file__)
MANY = 3_200  # blocks of a long prompt: no recursion goes so deep
SHORT = 24  # tokens that the feedback shows

# Exercise 1: names on which two processes agree


def draw_prompt(c: Choices) -> Given:
    """Any namespace, any number of tokens, small and large ones; some prompts are very long."""
    namespace = c.pick([b"", b"model A, float32", b"model B, bfloat16", bytes(range(32))])
    tokens = c.some(lambda: c.pick([0, 1, 2, 255, 256, 49_151, 2**32 - 1]), 0, SHORT)
    block_size = c.size(1, 8)
    if c.rarely(40):
        block_size = 1
        tokens *= MANY // max(1, len(tokens))
    return Given(namespace, tokens, block_size)


def tell_prompt(given: Given) -> str:
    namespace, tokens, block_size = given.args
    ids = tokens if len(tokens) <= SHORT else f"({len(tokens)} of them, such as {tokens[0]})"
    return f"namespace {namespace}, token_ids {ids}, block_size {block_size}"


def packed_keys(namespace: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """All tokens become bytes at once, and these are cut into blocks."""
    packed = struct.pack(f"<{len(token_ids)}I", *token_ids)
    chain = [namespace]
    for end in range(4 * block_size, len(packed) + 1, 4 * block_size):
        chain.append(hashlib.sha256(chain[-1] + packed[end - 4 * block_size : end]).digest())
    return chain[1:]


def wrong_keys(expected: list[bytes], got: Any, given: Given) -> Fault | None:
    """The first key that is wrong, by its number; in hexadecimal, shortened."""
    if not isinstance(got, list):
        return Fault("form", "", "a list of keys", f"a {type(got).__name__}")
    for key in got:
        if not isinstance(key, bytes):
            return Fault("kind", "", "32 bytes", f"a {type(key).__name__}")
        if len(key) != 32:
            return Fault("kind", "", "32 bytes", f"{len(key)} bytes")
    if len(got) != len(expected):
        return Fault("count", "", len(expected), len(got))
    for number, (want, came) in enumerate(zip(expected, got, strict=True)):
        if want != came:
            words = f"`{want.hex()[:16]}...`", f"`{came.hex()[:16]}...`"
            says = f"Key number {number} isn't the hash that the contract describes."
            return Fault("returns", "", want, came, says, words=words)
    return None


chunk_keys = LAB.check(
    answers.chunk_keys, draw_prompt, Returns(packed_keys, wrong=wrong_keys), tell=tell_prompt
)

# Exercise 2: the longest prefix that is stored


@dataclass(frozen=True)
class Stored:
    """A store as a connector sees it: it can be asked for a key, and lists nothing."""

    held: frozenset[bytes]

    def __contains__(self, key: object) -> bool:
        return key in self.held


def draw_stored(c: Choices) -> Given:
    """A prompt of which the engine has some blocks, and a store that has most, with holes."""
    block_size = c.pick([4, 1, 2, 16])
    num_tokens = c.integer(1, 12 * block_size)
    holes = {c.integer(0, 12) for _ in range(c.pick((0, 1, 2, 0)))}
    if c.rarely(20):
        num_tokens += MANY * block_size
    keys = [b"key %d" % i for i in range(num_tokens // block_size)]
    stored = {key for i, key in enumerate(keys) if i not in holes}
    stored |= {b"another key"} if c.rarely(3) else set()
    most = (num_tokens - 1) // block_size
    computed = block_size * c.integer(0, min(most, 4))
    return Given(keys, Stored(frozenset(stored)), num_tokens, block_size, computed)


def up_to_the_first_hole(
    keys: Sequence[bytes],
    stored: Container[bytes],
    num_tokens: int,
    block_size: int,
    num_computed_tokens: int,
) -> int:
    """Where the first block is missing, or the last token's block begins."""
    starts = range(num_computed_tokens, num_tokens, block_size)
    missing = [s for s in starts[:-1] if keys[s // block_size] not in stored]
    return min([*missing, starts[-1]]) - num_computed_tokens


def tell_stored(given: Given) -> str:
    keys, stored, num_tokens, block_size, computed = given.args
    missing = [number for number, key in enumerate(keys) if key not in stored]
    return (
        f"num_tokens {num_tokens}, block_size {block_size}, num_computed_tokens {computed}, "
        f"{len(keys)} keys; the store has each of them"
        + f" but number {', '.join(map(str, missing))}"
        * bool(missing)
    )


def whole_number(expected: int, got: Any, given: Given) -> Fault | None:
    if says := difference(expected, got):
        return Fault("returns", "", expected, got, says)
    return None if isinstance(got, Integral) else Fault("int", "", expected, got)


matched_tokens = LAB.check(
    answers.matched_tokens,
    draw_stored,
    Returns(up_to_the_first_hole, wrong=whole_number),
    tell=tell_stored,
)

# Exercise 3: a store with a budget

lru_store = LAB.check(
    answers.LRUStore, StoreStory.draw, StoreStory.judge(MemoryStore), examples=300
)

# Exercises 4 and 5: what is saved, and what decides about loads and saves


def draw_scheduled(c: Choices) -> Given:
    """A part of a prompt, all of it, or a token of an answer; blocks for it, or some more."""
    block_size = c.pick((4, 1, 2, 16))
    computed, count = c.integer(0, 5 * block_size), c.integer(1, 4 * block_size)
    if c.rarely(3):
        count = 1
    num_tokens = computed + count + c.pick((0, c.integer(0, 3 * block_size)))
    first, num_blocks = c.pick((20, 0)), -(-(computed + count) // block_size) + c.pick((0, 1, 3))
    ids = c.shuffled(range(first, first + num_blocks))
    keys = [b"key %d" % (7 * i % 97) for i in range(num_tokens // block_size)]  # in no order
    request = BareRequest("r", list(range(num_tokens)), computed)
    return Given(Scheduled(request, ids, computed, count), keys, block_size)


def token_by_token(scheduled: Scheduled, keys: list[bytes], block_size: int) -> list[Pair]:
    """Computes one token after the other, and looks whether it is the last of its block."""
    places = range(scheduled.num_computed_tokens + scheduled.num_scheduled_tokens)
    last = [p for p in places[scheduled.num_computed_tokens :] if (p + 1) % block_size == 0]
    return [(keys[p // block_size], scheduled.block_ids[p // block_size]) for p in last]


def tell_scheduled(given: Given) -> str:
    scheduled, keys, block_size = given.args
    return (
        f"Scheduled(request, block_ids={scheduled.block_ids}, num_computed_tokens="
        f"{scheduled.num_computed_tokens}, num_scheduled_tokens={scheduled.num_scheduled_tokens}), "
        f"keys {keys}, block_size {block_size}"
    )


blocks_to_save = LAB.check(
    answers.blocks_to_save, draw_scheduled, Returns(token_by_token), tell=tell_scheduled
)
scheduler_side = LAB.check(
    answers.SchedulerSide, StepStory.draw, StepStory.judge(answers.SchedulerSide), examples=400
)

# Exercises 6 and 7: a block's bytes, and back

extract_block = LAB.check(
    answers.extract_block, blocks.draw_memory, InLockstep(blocks.play_extract, blocks.right_extract)
)
inject_block = LAB.check(
    answers.inject_block, blocks.draw_payload, InLockstep(blocks.play_inject, blocks.right_inject)
)

# Exercise 8: is it worth it?


def draw_costs(c: Choices) -> Given:
    """From a small model on a laptop to a large one on eight GPUs; also no tokens."""
    d = c.pick([64, 576, 4096, 8192])
    shape = Shape(c.integer(1, 80), d, c.pick([1, 3, 8]), c.pick([2, 4, 1]))
    machine = Machine(
        c.pick([1e9, 1e11, 2.5e15]), c.pick([1e6, 3e8, 1e11]), c.pick([0.0, 1e-3, 0.5])
    )
    return Given(c.size(0, 20_000), shape, machine)


def exact_seconds(num_tokens: int, shape: Shape, machine: Machine) -> tuple[float, float]:
    """With exact fractions, what a token costs taken out of the sums."""
    n, d, layers = Fraction(num_tokens), Fraction(shape.hidden_size), Fraction(shape.num_layers)
    per_token = 2 * d / shape.heads_per_kv_head * shape.bytes_per_number * layers
    bandwidth, speed = Fraction(machine.bytes_per_second), Fraction(machine.flops_per_second)
    fetch = Fraction(machine.round_trip_seconds) + n * per_token / bandwidth
    return float(fetch), float(layers * d * n * (22 * d + 4 * n) / speed)


def two_times(expected: tuple[float, float], got: Any, given: Given) -> Fault | None:
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Fault("form", "", "two numbers of seconds", got)
    for clause, want, came in zip(("fetch", "compute"), expected, got, strict=True):
        if says := difference(want, came, rtol=1e-6):
            return Fault(clause, "", expected, got, says)
    return None


def praise_costs(answer: Callable[..., tuple[float, float]]) -> str:
    """What the answer says of Mooncake's two machines: Llama 3 70B, a prefix of 8,192 tokens."""
    llama = Shape(80, 8192, 8, 2)
    needed = []
    for flops in (8 * 312e12, 8 * 989e12):
        num_bytes, compute = answer(8192, llama, Machine(flops, 1.0, 0.0))
        needed.append(num_bytes / compute / 1e9)
    return (
        f"Right. By your formula eight A800 need {needed[0]:.1f} GB/s, and eight H800 "
        f"{needed[1]:.1f} GB/s, so that fetching 8,192 tokens of Llama 3 70B is faster than "
        "computing them. Mooncake's paper says 6 and 19."
    )


fetch_or_compute = LAB.check(
    answers.fetch_or_compute,
    draw_costs,
    Returns(exact_seconds, wrong=two_times),
    passed=praise_costs,
)

# Exercise 9: all parts together


@LAB.exercise
def engine(make_parts: Callable[[], Parts]) -> Passed:
    """Engines that share what they compute through the learner's parts."""
    parts = call(make_parts)
    if not isinstance(parts, Parts):
        raise Mismatch("`my_parts` must return `Parts`, as the cell above does.")
    speaks_first(chunk_keys, parts.chunk_keys)
    speaks_first(matched_tokens, parts.matched_tokens)
    speaks_first(lru_store, parts.store)
    speaks_first(blocks_to_save, parts.blocks_to_save)
    speaks_first(scheduler_side, parts.scheduler_side)
    speaks_first(extract_block, parts.extract_block)
    speaks_first(inject_block, parts.inject_block)
    return run_engines(parts)
