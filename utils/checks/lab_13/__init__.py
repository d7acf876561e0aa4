"""The checks of lab 13: what is drawn, and what is right.

Oracles: brute force, the engine's own block manager, exact fractions, all sizes one by one.
`tests/` holds them against each other and Prometheus' own parser; the last exercise asks vLLM.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from numbers import Integral
from typing import Any, NamedTuple

from utils.checks.kit.contracts import Choices, Fault, Given, InLockstep, Raised, Returns, Stage
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.lab.engine import speaks_first
from utils.checks.kit.lab.lab import Check, Lab
from utils.checks.kit.pictures.prefixes import prompts as found_blocks
from utils.checks.kit.runner import Mismatch, Passed, call, describe
from utils.checks.lab_13 import answers, real_counters
from utils.checks.lab_13.prompts import common, draw_prompts, told, wrong_counts
from utils.checks.lab_13.scrapes import draw_scrapes, increase_ratio, wrong_rate
from utils.sim.prompt_cache import find_cached_tokens

LAB = Lab(__file__)

# Exercise 1: what is found in a cache with room for everything

Request = tuple[str | None, list[int]]
SALTS: tuple[tuple[str | None, ...], ...] = (
    (None,),
    (None, "x"),
    (None, "None"),
    ("x", "y"),
    (None, "x", "y"),
    ("x", "X"),
    ("1", "11"),
    ("1", "11", None),
    (None, "0", "x", "x "),
    ("a long name, number 1", "a long name, number 2"),
)


def draw_requests(c: Choices) -> Given:
    block_size, salts = c.pick((2, 1, 3, 4, 16, 32)), c.pick(SALTS)
    prompts = [] if c.rarely(30) else draw_prompts(c, block_size, longest=80 * block_size)
    return Given([(c.pick(salts), prompt) for prompt in prompts], block_size)


def found_tokens(requests: list[Request], block_size: int) -> list[int]:
    """Brute force: the longest beginning that each shares with an earlier one of its salt."""
    found = []
    for i, (mine, prompt) in enumerate(requests):
        shared = [common(prompt, earlier) for salt, earlier in requests[:i] if salt == mine]
        usable = min(max(shared, default=0), len(prompt) - 1)
        found.append(usable // block_size * block_size)
    return found


def wrong_requests(expected: Any, got: Any, given: Given) -> Fault | None:
    requests, block_size = given.args
    return wrong_counts(expected, got, [prompt for _, prompt in requests], block_size)


def tell_requests(given: Given) -> str:
    requests, block_size = given.args
    prompts = told([prompt for _, prompt in requests])
    return f"block_size {block_size}, salts {[salt for salt, _ in requests]}, prompts {prompts}"


predict_cached_tokens = LAB.check(
    answers.predict_cached_tokens,
    draw_requests,
    Returns(found_tokens, wrong=wrong_requests),
    examples=300,
    tell=tell_requests,
)


# Exercise 2: the order of a prompt's parts

NAMES = ("rules", "question", "clock", "tenant", "id", "language", "document")
# What a text looks like, by its number. Some are told apart late, or by case or spaces alone.
KINDS: tuple[Callable[[int], str], ...] = (
    lambda n: f"Question {n}?",
    lambda n: "x" * (n + 1),
    lambda n: "Answer in one line of JSON. " * 4 + str(n),
    lambda n: " " * n + "Ada",
    lambda n: "".join(c.upper() if n >> i & 1 else c for i, c in enumerate("clinicandmore")),
    lambda n: str(10 * n),
    lambda n: f"{n % 3}, {n // 3}",
    lambda n: "" if n == 0 else f"{n}",
)


def draw_parts(c: Choices) -> Given:
    """Constants, texts that come back, that stay for a while, that are new each time."""
    requests = 1 + (c.size(0, 300) if c.rarely(4) else c.integer(0, 6))
    parts: dict[str, list[str]] = {}

    def part() -> None:
        text, values = c.pick(KINDS), 1 + c.integer(0, requests - 1)
        order = c.pick(("in turn", "for a while", "mostly one"))
        numbers = {
            "in turn": [i % values for i in range(requests)],
            "for a while": [i * values // requests for i in range(requests)],
            "mostly one": [max(0, i - requests + values) for i in range(requests)],
        }[order]
        free = [name for name in NAMES if name not in parts]
        parts[c.pick(free)] = [text(number) for number in numbers]

    c.some(part, 1, len(NAMES))
    return Given({} if c.rarely(40) else parts)


def distinct_texts(parts: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many different texts each part has: each is looked for among those before it."""
    return {
        name: sum(text not in texts[:i] for i, text in enumerate(texts))
        for name, texts in parts.items()
    }


def wrong_names(expected: dict[str, int], got: Any, given: Given) -> Fault | None:
    best = sorted(expected, key=lambda name: expected[name])
    if not isinstance(got, list) or not all(isinstance(name, str) for name in got):
        return Fault("form", "", best, got)
    if sorted(got) != sorted(expected):
        return Fault("names", "", best, got)
    counts = [expected[name] for name in got]
    if counts == sorted(counts):
        return None

    with_counts = [
        ", ".join(f"{name} ({expected[name]})" for name in names) for names in (best, got)
    ]
    words = f"{with_counts[0]}; in parentheses: different texts", with_counts[1]
    return Fault("order", "", best, got, words=words)


def praise_parts(answer: Callable[[Any], list[str]]) -> str:
    parts = {
        "id": [f"{n * 919 % 1000:03d} is the request. " for n in range(6)],
        "tenant": ["tenant: Keller AG."] * 3 + ["tenant: Brun & Co."] * 3,
        "rules": ["Answer in one line of JSON."] * 6,
    }

    def found(names: Sequence[str]) -> int:
        prompts = [[ord(c) for n in names for c in parts[n][i]] for i in range(6)]
        return sum(find_cached_tokens(prompts, 4))

    worst, yours = min(map(found, itertools.permutations(parts))), found(answer(dict(parts)))
    return (
        "Right on 200 templates. Take six prompts made of "
        f"{', '.join(parts)}, with a token for each letter: the worst order finds {worst} tokens "
        f"in the cache, yours finds {yours}."
    )


order_parts = LAB.check(
    answers.order_parts,
    draw_parts,
    Returns(distinct_texts, wrong=wrong_names),
    passed=praise_parts,
    examples=200,
    tell=lambda given: "\n".join(f"{n}: {v}" for n, v in given.args[0].items()) or "no parts",
)

# Exercise 3: what is found in a cache that evicts


def draw_bounded(c: Choices) -> Given:
    """Prompts in a cache that holds the longest of them, and a little more, or much more."""
    block_size = c.pick((2, 3, 4, 16, 32))
    prompts = [] if c.rarely(30) else draw_prompts(c, block_size, inside=True, longest=100)
    if prompts and len(prompts) < 20:  # some come back
        prompts += c.some(lambda: c.pick(prompts), 0, 16)
    needed = max((len(prompt) // block_size + 1 for prompt in prompts), default=1)
    return Given(prompts, block_size, needed + c.pick((0, 1, 2, 3, 0, 1, 2, c.size(0, 2000))))


def found_by_manager(prompts: list[list[int]], block_size: int, num_blocks: int) -> list[int]:
    """What the block manager of the course's engine finds."""
    return find_cached_tokens(prompts, block_size, num_blocks)


def praise_evictions(answer: Callable[..., list[int]]) -> Passed:
    a, b, c = ([n] * 4 for n in (1, 2, 3))
    prompts = [[*a, 5], [*b, 6], a + c + [7], [*a, 8], [*b, 9]]
    want = found_by_manager(prompts, 4, 3)
    return Passed(
        "Right on 300 lists of prompts: the engine's own block manager decides the same. The "
        "picture shows five prompts in a cache of 3 blocks with 4 tokens each.",
        found_blocks(prompts, 4, want),
        "Prompts in blocks, and which of the blocks were found.",
    )


predict_with_eviction = LAB.check(
    answers.predict_with_eviction,
    draw_bounded,
    Returns(
        found_by_manager, wrong=lambda want, got, given: wrong_counts(want, got, *given.args[:2])
    ),
    examples=300,
    tell=lambda given: (
        f"block_size {given.args[1]}, num_blocks {given.args[2]}, prompts {told(given.args[0])}"
    ),
    passed=praise_evictions,
)

# Exercise 4: the order of prompts


def draw_batch(c: Choices) -> Given:
    return Given(draw_prompts(c, c.pick((1, 2, 4, 16))))


def wrong_places(expected: int, got: Any, given: Given) -> Fault | None:
    """Does each prompt share as much with the one just before it as with any before that?

    A prompt's last token is computed in any case, so it need not be shared.
    """
    (prompts,) = given.args
    each = f"0 to {expected - 1}, each once"
    if isinstance(got, list) and any(isinstance(item, list) for item in got):
        return Fault("prompts", "", each, got)
    if not isinstance(got, list) or not all(isinstance(place, Integral) for place in got):
        return Fault("form", "", each, got)
    if sorted(got) != list(range(expected)):
        return Fault("places", "", each, got)
    for sent in range(1, len(got)):
        place, before = got[sent], got[sent - 1]
        most = len(prompts[place]) - 1
        shared = [min(common(prompts[place], prompts[other]), most) for other in got[:sent]]
        if shared[-1] < max(shared):
            best = got[shared.index(max(shared))]
            order = f"the order {[int(n) for n in got]}: prompt {place} comes"
            words = (
                f"prompt {place} right after prompt {best} (shared tokens: {max(shared)})",
                f"{order} right after prompt {before} (shared tokens: {shared[-1]})",
            )
            return Fault("order", "", None, got, words=words)
    return None


def praise_batch(answer: Callable[[Any], list[int]]) -> str:
    prompts = [[tenant] * 40 + [100 + n] * 5 for n in range(3) for tenant in range(6)]
    came, sent = (
        sum(find_cached_tokens([prompts[i] for i in order], 4, 14))
        for order in (range(18), answer([list(prompt) for prompt in prompts]))
    )
    return (
        "Right on 200 batches. Take 18 prompts of six tenants, and a cache with room for little "
        f"more than one prompt: it finds {came} tokens in the order in which they came, and {sent} "
        "in yours."
    )


order_requests = LAB.check(
    answers.order_requests,
    draw_batch,
    Returns(lambda prompts: len(prompts), wrong=wrong_places),
    passed=praise_batch,
    examples=200,
    tell=lambda given: f"prompts {told(given.args[0])}",
)

# Exercise 5: the smallest cache that finds enough


class Day(NamedTuple):
    """A day of requests: from each of these sizes on, so many more tokens are found."""

    most: int
    target: int
    gains: dict[int, int]

    def hits_with(self, num_blocks: int) -> int:
        return sum(gain for size, gain in self.gains.items() if size <= num_blocks)

    @property
    def steps(self) -> list[int]:
        """All sizes at which something changes."""
        return sorted({1, *(size for size in self.gains if size <= self.most)})

    @property
    def answer(self) -> int | None:
        return next((size for size in self.steps if self.hits_with(size) >= self.target), None)

    @property
    def allowed(self) -> int:
        return self.most.bit_length() + 2

    def __str__(self) -> str:
        found = ", ".join(f"{self.hits_with(size)} from size {size} on" for size in self.steps[:8])
        more = " ..." if len(self.steps) > 8 else ""
        return f"target {self.target}, most {self.most}; tokens found: {found}{more}"


def draw_day(c: Choices) -> Day:
    most = c.size(1, 100_000)
    gains: dict[int, int] = {}

    def gain() -> None:
        size = most - c.integer(0, most) if c.rarely(2) else 1 + c.size(0, most - 1)
        gains[max(1, size)] = c.pick((1, 2, 100, 5000)) * c.integer(1, 9)

    c.some(gain, 0, 8)
    if c.rarely(4):  # each block finds something
        gains |= {size: c.integer(1, 3) for size in range(1, min(most, 60) + 1)}
    total, sizes = sum(gains.values()), sorted(gains)
    at = sizes[c.integer(0, len(sizes) - 1)] if sizes else 1
    reached = sum(gains[size] for size in sizes if size <= at)
    between = max(0, reached - c.integer(0, 3))
    return Day(most, c.pick((total, reached, between, 0, 10 * total + 7, total + 1)), gains)


def draw_days(c: Choices) -> list[Day]:
    return [draw_day(c)] + ([draw_day(c)] if c.rarely(4) else [])


def play_days(stage: Stage, answer: Any, days: list[Day]) -> None:
    """Mostly one day; a second one finds what was kept from the first."""
    for number, day in enumerate(days):
        if number:
            stage.now("the second day")
        replay(stage, answer, day, "again" if number else "")


def replay(stage: Stage, answer: Any, day: Day, again: str) -> None:
    asked: list[int] = []

    def hits_with(num_blocks: Any) -> int:
        number = isinstance(num_blocks, Integral) and not isinstance(num_blocks, bool)
        if not number or not 1 <= num_blocks <= day.most:
            stage.blame("asks", f"sizes from 1 to {day.most}", f"`hits_with({num_blocks!r})`")
        asked.append(num_blocks)
        if len(asked) > 3 * day.most + 100:
            stage.blame("ends", f"at most {day.allowed} questions", f"more than {len(asked) - 1}")
        return day.hits_with(int(num_blocks))

    def questions(few: bool) -> str:
        return f"at most {day.allowed}" if few else f"{len(asked)}"

    got, want = stage.do(answer, hits_with, day.target, day.most), day.answer
    if isinstance(got, Raised):
        stage.blame("raises", want, got)
    if got is not None and (not isinstance(got, Integral) or isinstance(got, bool)):
        stage.blame("kind", want, got)
    clause = "none" if want is None else "missing"
    if want is not None and got is not None:
        clause = "too small" if got < want else "too large"
    stage.expect(again or clause, want, got)
    stage.expect("calls", True, len(asked) <= day.allowed, questions)


smallest_cache = LAB.check(
    answers.smallest_cache,
    draw_days,
    InLockstep(play_days, answers.smallest_cache),
    examples=300,
    tell=lambda days: "\nthen ".join(map(str, days)),
)

# Exercise 6: seconds to the first token


def draw_times(c: Choices) -> Given:
    """Measurements in any order; what is left lies below, between and above them."""
    fixed = c.pick((0.02, 0.5, 3.7e-6, 40.0)) * c.integer(1, 9)
    per_token = c.pick((0.001, 2.3e-7, 0.3)) * c.integer(1, 9)
    short = c.size(1, 20_000)
    long = short + c.size(1, 20_000)
    pair = [(n, fixed + n * per_token) for n in (short, long)]
    left, cached = c.size(1, 20_000), c.size(0, 20_000)
    return Given(tuple(pair[::-1] if c.rarely(2) else pair), left + cached, cached)


def on_the_line(
    measurements: tuple[tuple[int, float], tuple[int, float]],
    num_tokens: int,
    num_cached_tokens: int,
) -> float:
    """Two measurements weighed, in exact fractions."""
    (n, at_n), (m, at_m) = measurements
    share = Fraction(num_tokens - num_cached_tokens - n, m - n)
    return float((1 - share) * Fraction(at_n) + share * Fraction(at_m))


def wrong_time(expected: float, got: Any, given: Given) -> Fault | None:
    says = difference(expected, got, rtol=1e-6, atol=1e-10)
    if not says:
        return None
    clause = "returns"
    if isinstance(got, float) and any(got == round(expected, n) for n in range(1, 7)):
        clause = "rounded"
    elif not difference(1e3 * expected, got):
        clause = "milliseconds"
    return Fault(clause, "", expected, got, says)


predict_ttft = LAB.check(answers.predict_ttft, draw_times, Returns(on_the_line, wrong=wrong_time))

# Exercise 7: the hit rate between two scrapes

hit_rate = LAB.check(
    answers.hit_rate,
    draw_scrapes,
    Returns(increase_ratio, wrong=wrong_rate),
    examples=400,
    tell=lambda given: "before\n{}\nafter\n{}".format(*(text or "(empty)" for text in given.args)),
)

# Exercise 8


@LAB.exercise
def engine(make_parts: Callable[[], real_counters.Parts]) -> Passed:
    """The learner's four functions against our engine's counters, then against vLLM's."""
    parts = call(make_parts)
    if not isinstance(parts, real_counters.Parts):
        raise Mismatch("`my_parts` must return `Parts`, as the given cell does.")
    requests, prompts = real_counters.salted_requests(), real_counters.tenant_prompts()
    size, room = real_counters.BLOCK_SIZE, real_counters.NUM_BLOCKS
    for check, answer, given in (
        (predict_cached_tokens, parts.predict_cached_tokens, Given(requests, size)),
        (order_requests, parts.order_requests, Given(prompts)),
        (predict_with_eviction, parts.predict_with_eviction, Given(prompts, size, room)),
    ):
        speaks_first(check, answer)
        right_on_real_prompts(check, answer, given)
    speaks_first(hit_rate, parts.hit_rate)
    real_counters.against_our_engine(parts)
    return real_counters.against_vllm(parts)


def right_on_real_prompts(check: Check, answer: Any, given: Given) -> None:
    """What is drawn may lack something that these prompts have."""
    judge = check.contract.judge
    with held_output():
        fault = judge.fault(answer, given, judge.expect(given))
    if fault is not None:
        raise Mismatch(
            f"{check.title} passes its own check, but is wrong on this exercise's prompts. "
            + fault.says,
            expected=describe(fault.expected),
            got=describe(fault.got),
            look="Does your function use its arguments, and nothing else?",
        )
