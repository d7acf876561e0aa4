"""The checks of lab 08: what is drawn, and what is right.

Oracles: brute force, numpy, exact counting, and Hugging Face. For the classes the one right answer
in lockstep; `tests/` holds its loop against the course's own engine in the same stories.
"""

from __future__ import annotations

import copy
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given, InLockstep, Raised, Returns, Stage
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.runner import Passed
from utils.checks.lab_08 import (
    ahead,
    answers,
    growing_text,
    learners_engine,
    learners_scheduler,
    picture,
    stories,
)
from utils.checks.lab_08.given_parts import Difference, Latencies
from utils.checks.lab_08.steps import Batch, Books, Part, draw_batch, play_batch, row_by_row

LAB = Lab(__file__)

# Exercise 1: parameters that make no sense

NAN, INF = float("nan"), float("inf")


@dataclass
class RawParams:
    """What a user asked for, not checked yet. Names and defaults are those of `SamplingParams`."""

    n: Any = 1
    temperature: Any = 1.0
    top_p: Any = 1.0
    top_k: Any = 0
    min_p: Any = 0.0
    max_tokens: Any = 16
    min_tokens: Any = 0
    stop: Any = None

    def __str__(self) -> str:
        given = {k: v for k, v in vars(self).items() if repr(v) != repr(getattr(RawParams, k))}
        if "min_tokens" in given:
            given["max_tokens"] = self.max_tokens
        if not given:
            return "the defaults, " + ", ".join(f"{k}={v!r}" for k, v in vars(self).items())
        return ", ".join(f"{name}={value!r}" for name, value in given.items())


class Rule(NamedTuple):
    """Values of an argument that must be refused. `clause`: says why."""

    clause: str
    name: str
    values: tuple[Any, ...]


ALLOWED: dict[str, tuple[Any, ...]] = {
    "n": (1, 2, 64, 10_000),
    "temperature": (1.0, 0.0, 2.0, 0, 2, 1e-6, 0.7, 1.999),
    "top_p": (1.0, 1, 0.5, 1e-9, 0.9999),
    "top_k": (0, -1, 1, 50, 10**6),
    "min_p": (0.0, 1.0, 0, 1, 0.5, 1e-9),
    "max_tokens": (16, None, 1, 10**6),
    "min_tokens": (0, 1, 5, 16),
    "stop": (None, "END", ["END"], ["\n\n", "User:", " "], []),
}
NO_INTEGERS = (1.5, 2.0, "3", NAN, None)
RULES = (
    Rule("no answer", "n", (0, -1)),
    Rule("integer", "n", NO_INTEGERS),
    Rule("negative", "temperature", (-0.1, -1e-9, -INF)),
    Rule("noise", "temperature", (2.5, 2.001, INF)),
    Rule("nan", "temperature", (NAN,)),
    Rule("no token", "top_p", (0.0, 0, -0.5)),
    Rule("probability", "top_p", (1.1, 1.0001, INF)),
    Rule("nan", "top_p", (NAN,)),
    Rule("integer", "top_k", NO_INTEGERS),
    Rule("below -1", "top_k", (-2, -100)),
    Rule("probability", "min_p", (-0.1, -1e-9, 1.1, 1.0001, INF)),
    Rule("nan", "min_p", (NAN,)),
    Rule("waits forever", "max_tokens", (0, -1)),
    Rule("integer", "max_tokens", NO_INTEGERS[:-1]),
    Rule("below 0", "min_tokens", (-1, -7)),
    Rule("integer", "min_tokens", NO_INTEGERS),
    Rule("empty", "stop", ("", ["END", ""], [""], ["", "END"])),
    Rule("strings", "stop", ([5], ["END", None], [["END"]], 5, True, {"END"}, {"END": 1}, b"END")),
)
PAIRS = (  # rules that need two arguments
    Rule("greedy", "n", (2, 3, 64)),
    Rule("both", "min_tokens", (17, 18, 10**7)),
)


def draw_params(c: Choices) -> RawParams:
    """Mostly allowed values; in most of the inputs one argument is broken, now and then two."""
    params = RawParams()
    for name in c.some(lambda: c.pick(list(ALLOWED)), 0, 4):
        setattr(params, name, c.pick(ALLOWED[name]))
    for rule in c.some(lambda: c.pick(RULES + PAIRS), 0, 1 + c.rarely(5)):
        setattr(params, rule.name, copy.deepcopy(c.pick(rule.values)))
        if rule == PAIRS[0]:
            params.temperature = c.pick((0.0, 0))
        elif rule == PAIRS[1]:
            params.max_tokens = c.pick((16, 1))
    return params


def broken(params: RawParams) -> Iterator[Rule]:
    """The rules that these arguments break."""
    for rule in RULES:
        if repr(getattr(params, rule.name)) in map(repr, rule.values):
            yield rule
    if type(params.n) is int and params.n > 1 and params.temperature == 0:
        yield PAIRS[0]
    if type(params.max_tokens) is type(params.min_tokens) is int and (
        params.min_tokens > params.max_tokens
    ):
        yield PAIRS[1]


def play_params(stage: Stage, function: Callable[..., Any], case: RawParams) -> None:
    """One call: whether it refuses, which argument it names, and with which value."""

    def verdict(params: RawParams) -> tuple[str | None, Any]:
        try:
            return None, function(params)
        except ValueError as error:
            return str(error), None

    params, rules = copy.deepcopy(case), list(broken(case))
    got = stage.do(verdict, params)
    if repr(case) != repr(params):
        stage.blame("looks only", repr(case), repr(params))
    if isinstance(got, Raised):
        if not rules:
            stage.blame("raises", "no error", got)
        expected = f"a ValueError about `{rules[0].name}`"
        if got.error is AssertionError:
            stage.blame("assert", expected, "an AssertionError")
        stage.blame("other error", expected, got)
    message, returned = got
    if returned is not None:
        stage.blame("verdict", "nothing", returned)
    if not rules:
        if message is not None:
            stage.blame("allowed", "no error", f"ValueError: {message}")
        return
    if message is None:
        stage.blame(rules[0].clause, f"a ValueError about `{rules[0].name}`", f"`{case}`")
    named = [rule for rule in rules if re.search(rf"\b{rule.name}\b", message)]
    if not named:
        names = " or ".join(dict.fromkeys(f"`{rule.name}`" for rule in rules))
        stage.blame("name", names, f"ValueError: {message}")
    values = [getattr(case, rule.name) for rule in named]
    if not any(_says(message, value) for value in values):
        stage.blame("value", f"the value `{values[0]!r}`", f"ValueError: {message}")


def _says(message: str, value: Any) -> bool:
    """Whether a message holds a value; of a list, one item that is at fault will do."""
    faulty = [v for v in value if v == "" or type(v) is not str] if type(value) is list else []
    return str(value) in message or any(repr(v) in message for v in (value, *faulty))


check_sampling_params = LAB.check(
    answers.check_sampling_params,
    draw_params,
    InLockstep(play_params, answers.check_sampling_params),
    examples=400,
)

# Exercises 2 to 4


def praise_batch(answer: Callable[..., Any]) -> Passed:
    shares = ((8, 0, 3), (6, 5, 1), (4, 0, 4), (9, 4, 4))
    parts = [
        Part("ABCD"[i], tuple(range(10 * i + 11, 10 * i + 11 + n)), n, computed, scheduled)
        for i, (n, computed, scheduled) in enumerate(shares)
    ]
    batch = Batch(tuple(parts))
    input_ids, positions, rows = ([int(n) for n in of] for of in answer(*batch.arguments()))
    return Passed(
        "Right for whole prompts, chunks, cached prefixes and answers, alone and together. Here is "
        "a step of four requests, as your function lays them out.",
        picture.flat_batch(batch.owners, (input_ids, positions, rows)),
        "A step of four requests: each row's token and position, and where tokens are sampled.",
    )


prepare_inputs = LAB.check(
    answers.prepare_inputs, draw_batch, InLockstep(play_batch, row_by_row), passed=praise_batch
)
update_request = LAB.check(
    answers.update_request, Books.draw, Books.judge(answers.update_request), examples=300
)
detokenizer = LAB.check(
    answers.Detokenizer,
    growing_text.draw,
    InLockstep(growing_text.play, answers.Detokenizer),
    examples=250,
)

# Exercise 5: stop strings, and text that may be shown

Verdict = tuple[int, str | None]
ALPHABETS = ("ab", "aab.", "END \n", "ß🎉a", ".*a")


def draw_text(c: Choices) -> Given:
    """Almost-matches, several matches, overlaps; short and long strings; old text and new."""
    alphabet = c.pick(ALPHABETS)

    def word(low: int, high: int) -> str:
        size = c.size(low, high)
        if size > 8:  # a long one, not letter by letter
            return ("".join(c.pick(alphabet) for _ in range(3)) * high)[:size]
        return "".join(c.pick(alphabet) for _ in range(size))

    stop = c.some(lambda: word(1, 70), 0, 4)
    if stop and c.rarely(4):  # one is the end, the beginning or the whole of another
        longer = c.pick(stop)
        stop.insert(c.integer(0, len(stop)), c.pick((longer[1:], longer[:-1], longer)) or longer)

    def piece() -> str:
        if not stop or c.rarely(2):
            return word(1, 70)
        string = c.pick(stop)
        return string[: c.pick((len(string), c.integer(0, len(string))))]

    text = "".join(c.some(piece, 0, 8))
    return Given(text, c.integer(0, len(text)), stop)


def found_first(text: str, num_gained: int, stop: Sequence[str]) -> Verdict | None:
    """Brute force: walk to the right; the stop string that is complete first ends the text."""
    for end in range(len(text) - num_gained + 1, len(text) + 1):
        for string in stop:
            if text[:end].endswith(string):
                return end - len(string), string
    return None


def held_back(text: str, stop: Sequence[str]) -> int:
    """Brute force: how many characters at the end may be the beginning of a stop string."""
    return max(
        (n for string in stop for n in range(1, len(string)) if text.endswith(string[:n])),
        default=0,
    )


def shown_so_far(text: str, num_gained: int, stop: list[str]) -> Verdict:
    """The oracle, which holds back no more than what a stop string really begins with."""
    return found_first(text, num_gained, stop) or (len(text) - held_back(text, stop), None)


def wrong_text(expected: Verdict, got: Any, given: Given) -> Fault | None:
    text, num_gained, stop = given.args
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Fault("form", "", "a pair", got)
    number, string = got
    is_number = hasattr(number, "__index__") and not isinstance(number, bool)
    if not is_number or not 0 <= operator.index(number) <= len(text):
        return Fault("number", "", f"a number of characters from 0 to {len(text)}", number)
    count, best = operator.index(number), expected[1]
    if best is not None:
        clause = _of_found((count, string), (expected[0], best), text, num_gained, stop)
        want, came = (f"show {text[:n]!r}; found {s!r}" for n, s in (expected, (count, string)))
        return Fault(clause, "", expected, got, words=(want, came)) if clause else None
    if string is not None:
        old = isinstance(string, str) and string in stop and string in text
        return Fault("old" if old else "invented", "", "None", repr(string))
    if count > expected[0]:
        return Fault("taken back", "", f"at most {expected[0]} characters shown", f"{count}")
    least = max(0, len(text) - max(map(len, stop), default=1) + 1)
    if count < least:
        clause = "more held" if stop else "held"
        return Fault(clause, "", f"at least {least} characters shown", f"{count}")
    return None


def _of_found(
    got: Verdict, right: tuple[int, str], text: str, num_gained: int, stop: Sequence[str]
) -> str:
    """Which clause is broken where a stop string is there; "" for none."""
    if got[1] is None:
        return "missed"
    if got[1] not in stop:
        return "invented"
    if got[1] != right[1]:
        other = found_first(text, num_gained, [got[1]])
        if other is None:
            return "old"
        if other[0] + len(got[1]) == right[0] + len(right[1]):
            return "tie"
        return "begins first" if other[0] < right[0] else "complete first"
    if got[0] == right[0]:
        return ""
    if got[0] == right[0] + len(right[1]):
        return "shown"
    return "later" if got[0] > right[0] else "place"


def tell_text(given: Given) -> str:
    text, num_gained, stop = given.args
    return f"text {text!r}, num_gained {num_gained}, stop {stop}"


text_to_show = LAB.check(
    answers.text_to_show,
    draw_text,
    Returns(shown_so_far, wrong=wrong_text),
    tell=tell_text,
    examples=600,
)

# Exercise 6: what a user feels


def draw_times(c: Choices) -> Given:
    """Clocks that begin anywhere; gaps of 0, of microseconds and of minutes; one token or many."""
    clock = float(c.pick((0, 10, 2**20)))
    tick = c.pick((2.0**-3, 2.0**-20, 2.0**6))

    def wait() -> float:
        return c.integer(0, 9) * tick

    arrival = clock + wait()
    scheduled = arrival + wait()
    first = scheduled + wait()
    gaps = c.some(wait, 0, 8)
    if c.rarely(6):
        gaps *= c.integer(1, 60)
    return Given(arrival, scheduled, list(itertools.accumulate([first, *gaps])))


def along_the_clock(arrival_time: float, scheduled_ts: float, token_ts: list[float]) -> Latencies:
    """From event to event."""
    ttft = token_ts[0] - arrival_time
    gaps: list[float] = []
    clock = token_ts[0]
    for ts in token_ts[1:]:
        gaps.append(ts - clock)
        clock = ts
    tpot = math.fsum(gaps) / len(gaps) if gaps else None
    return Latencies(scheduled_ts - arrival_time, ttft, tpot, gaps, ttft + math.fsum(gaps))


def wrong_latencies(expected: Latencies, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, Latencies):
        return Fault("form", "", "Latencies(queue_time, ttft, tpot, itl, e2e_latency)", got)
    for name, want, came in zip(Latencies._fields, expected, got, strict=True):
        if difference(want, came, rtol=1e-6):
            clause = name if want is not None or name != "tpot" else "one token"
            few = len(given.args[2]) <= 9
            drawn = (lambda: _timeline(*given.args)) if few else None
            return Fault(clause, "", want, came, words=(repr(want), repr(came)), picture=drawn)
    return None


def _timeline(arrival: float, scheduled: float, stamps: list[float]) -> tuple[Any, str]:
    figure = picture.timeline(
        arrival, scheduled, stamps, "What lies between the events of this request"
    )
    return figure, "A line of time: arrival, first scheduled, tokens, and the spans between."


def tell_times(given: Given) -> str:
    arrival, scheduled, stamps = given.args
    shown = stamps if len(stamps) <= 9 else f"{len(stamps)} times from {stamps[0]} to {stamps[-1]}"
    return f"arrival {arrival} s, first scheduled {scheduled} s, tokens at {shown} s"


latencies = LAB.check(
    answers.latencies, draw_times, Returns(along_the_clock, wrong=wrong_latencies), tell=tell_times
)

# Exercise 7: the report of a run

Report = dict[str, float]


def request_of(ttft: float, itl: Sequence[float]) -> Latencies:
    tpot = sum(itl) / len(itl) if itl else None
    return Latencies(ttft / 2, ttft, tpot, list(itl), ttft + sum(itl))


def draw_run(c: Choices) -> Given:
    """Few requests or hundreds; milliseconds or hours; limits that some just keep."""
    unit = c.pick((0.125, 2.0**-20, 1024.0))

    def request() -> Latencies:
        gaps = c.some(lambda: c.integer(0, 16) * unit, 0, 6)
        return request_of(c.integer(0, 40) * unit, gaps)

    requests = c.some(request, 0, 12)
    if c.rarely(5):  # so many that the 99th of a hundred is another one than the last
        first = c.integer(0, 40)
        requests += [
            request_of((first + 7 * i % 41) * unit, [3 * i % 17 * unit])
            for i in range(c.integer(0, 300))
        ]
    requests.insert(c.integer(0, len(requests)), request_of(c.integer(1, 8) * unit, [unit]))
    ttft_slo = c.pick((16 * unit, c.pick(requests).ttft))
    tpot_slo = c.pick((8 * unit, c.pick(requests).tpot or unit))
    return Given(requests, c.pick((1.0, 4, 0.5, 3600.0)), ttft_slo, tpot_slo)


def counted(requests: list[Latencies], duration: float, ttft_slo: float, tpot_slo: float) -> Report:
    """numpy's percentiles, and counting."""
    ttfts = [request.ttft for request in requests]
    gaps = [gap for request in requests for gap in request.itl]
    good = 0
    for request in requests:
        in_time = request.ttft <= ttft_slo
        steady = request.tpot is None or request.tpot <= tpot_slo
        good += in_time and steady
    return {
        "median_ttft": float(np.percentile(ttfts, 50)),
        "p99_ttft": float(np.percentile(ttfts, 99)),
        "p99_itl": float(np.percentile(gaps, 99)),
        "output_throughput": (len(requests) + len(gaps)) / duration,
        "request_goodput": good / duration,
    }


def wrong_report(expected: Report, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, dict) or not set(expected) <= set(got):
        return Fault("form", "", ", ".join(expected), got)
    for name, want in expected.items():
        if says := difference(want, got[name], rtol=1e-6):
            words = f"{want:.6g}", f"{got[name]:.6g}" if isinstance(got[name], float) else str(got)
            return Fault(name, "", want, got[name], says, words=words)
    return None


def tell_run(given: Given) -> str:
    requests, duration, ttft_slo, tpot_slo = given.args
    shown = "; ".join(f"TTFT {r.ttft:g}, gaps {r.itl}" for r in requests[:4])
    more = "; ..." if len(requests) > 4 else ""
    return (
        f"{len(requests)} requests in {duration:g} s ({shown}{more}); limits: TTFT "
        f"{ttft_slo:g} s, TPOT {tpot_slo:g} s"
    )


serving_report = LAB.check(
    answers.serving_report, draw_run, Returns(counted, wrong=wrong_report), tell=tell_run
)

# Exercise 8: where two engines part

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)


def draw_pair(c: Choices) -> Given:
    """Near ties and sure choices; tiny, large and negative logits; answers of unlike length."""
    vocab = c.pick((4, c.integer(2, 9), 300, 70_000 if c.rarely(8) else 5))
    unit, low, dtype = c.pick((0.125, 2.0**-20, 64.0)), c.pick((0, -90)), c.pick(DTYPES)
    finer = c.rarely(3)  # digits of which 16 bits can't hold the difference
    tokens_a, tokens_b, rows = [], [], []
    length = c.size(0, 40, small=4) if vocab < 1000 else 2
    parts = c.pick((1, 4, 12))  # one in so many places is another token
    for _ in range(length):
        other = torch.Generator().manual_seed(c.integer(0, 999))
        row = low + torch.randint(0, 24, (vocab,), generator=other).float()
        best = vocab - 1 - c.integer(0, vocab - 1)
        row[best] = low + 24 + c.integer(0, 6)
        token = vocab - 1 - c.integer(0, vocab - 1) if c.integer(1, parts) == 1 else best
        if c.rarely(3):
            row[token] = row[best] - c.integer(0, 4)
        if token != best and c.rarely(3):  # a near tie, but with a third token
            row[(token + 1) % vocab] = row[best]
        if finer:
            row += torch.randint(0, 1024, (vocab,), generator=other) / 4096
            row[best] += 0.25
        rows.append(row * unit)
        tokens_a.append(best)
        tokens_b.append(token)
    both = tokens_a[: c.integer(0, len(tokens_a))] if c.rarely(5) else tokens_b
    more = c.some(lambda: c.integer(0, vocab - 1), 0, 2) if len(both) == length else []
    logits = torch.stack(rows) if rows else torch.zeros(0, vocab)
    logits = laid_out(logits.to(dtype), c.pick(LAYOUTS))
    noise = c.pick((1, 0, 2, 0.5, 1.5, 8)) * unit
    found = walked(tokens_a, both + more, logits, 0)
    if found is not None and found.gap and found.gap > 0 and c.rarely(4):
        noise = found.gap / 2  # it can just be turned around to a tie
    return Given(tokens_a, both + more, logits, noise)


def walked(
    tokens_a: list[int], tokens_b: list[int], logits: Tensor, noise: float
) -> Difference | None:
    """Until the tokens differ. Both logits may be off by the noise."""
    if tokens_a == tokens_b:
        return None
    index = 0
    while tokens_a[: index + 1] == tokens_b[: index + 1]:
        index += 1
    if index == min(len(tokens_a), len(tokens_b)):
        return Difference(index, None, False)
    own, other = logits[index, [tokens_a[index], tokens_b[index]]].tolist()
    return Difference(index, own - other, own - noise <= other + noise)


def wrong_difference(expected: Difference | None, got: Any, given: Given) -> Fault | None:
    came = got
    try:
        if got is not None:
            gap = None if got.gap is None else float(got.gap)
            came = Difference(operator.index(got.index), gap, bool(got.explained))
    except (AttributeError, TypeError, ValueError):
        return Fault("form", "", "None, or `Difference(index, gap, explained)`", got)
    clause = "equal" if expected is None else "differ"
    if expected is not None and came is not None:
        names = ("index", "gap", "explained")
        differing = (n for n in names if difference(getattr(expected, n), getattr(came, n)))
        clause = next(differing, "")
    elif expected is came:
        clause = ""
    return Fault(clause, "", _values(expected), _values(came)) if clause else None


def _values(answer: Difference | None) -> tuple[Any, ...] | None:
    return None if answer is None else (answer.index, answer.gap, answer.explained)


def tell_pair(given: Given) -> str:
    tokens_a, tokens_b, logits, noise = given.args
    rows = f"logits {logits.tolist()}" if logits.numel() <= 20 else f"{len(logits)} rows of logits"
    kind = "" if logits.dtype == torch.float32 else f" ({str(logits.dtype)[6:]})"
    return f"A {tokens_a}, B {tokens_b}, {rows}{kind}, noise {noise:g}"


first_difference = LAB.check(
    answers.first_difference,
    draw_pair,
    Returns(walked, wrong=wrong_difference),
    tell=tell_pair,
    examples=250,
)

# Exercise 9: the loop, first in random stories, then with the real model

LOOP = LAB.check(
    answers.MyLLMEngine,
    stories.EngineStory.draw,
    stories.EngineStory.judge(stories.right_engine),
    examples=60,
    seconds=6.0,
).contract
PARTS = (check_sampling_params, prepare_inputs, update_request, detokenizer, text_to_show)


@LAB.exercise
def engine(make_engine: Callable[..., Any]) -> Passed:
    """Check `make_engine(llm, **changes)`: its parts, its loop in small stories, the real model."""
    return learners_engine.judge(make_engine, LOOP, PARTS)


# Exercise 10: the books of a scheduler that doesn't wait

AHEAD = LAB.check(
    answers.MyAsyncScheduler,
    ahead.AheadStory.draw,
    ahead.AheadStory.judge(answers.MyAsyncScheduler),
    examples=250,
).contract


@LAB.exercise
def async_scheduler(books_class: Callable[..., Any]) -> str:
    """Check the three methods in small stories, and then in the engine on the real model."""
    AHEAD.check(books_class)
    return learners_scheduler.on_the_real_model(books_class)
