"""Wrong and right answers to lab 08, each as a learner might write it."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_08.given_parts import EngineBase, Parts
from utils.checks.lab_08.request_times import Latencies
from utils.checks.lab_08.two_engines import Difference
from utils.engine.llm_engine import LLMEngine
from utils.engine.request import RequestStatus

zoo = Zoo()
wrong, right = zoo.wrong, zoo.right


def table(exercise, **answers):
    """Wrong answers: a name, words that the feedback must contain, the answer."""
    for name, (*says, answer) in answers.items():
        answer.__name__ = name
        wrong(exercise, *says)(answer)


# 1 check_sampling_params


def refuse(name, params):
    raise ValueError(f"bad {name}: {getattr(params, name)!r}")


def broken_rules(params):
    """The names of the arguments that break their rules, one of them at a time."""
    p = params
    stop = [p.stop] if isinstance(p.stop, str) else p.stop or []
    if not (isinstance(p.n, int) and p.n >= 1):
        yield "n"
    if not (math.isfinite(p.temperature) and 0 <= p.temperature <= 2):
        yield "temperature"
    if p.n != 1 and p.temperature == 0:
        yield "n"
    if not (0 < p.top_p <= 1):
        yield "top_p"
    if type(p.top_k) is not int or p.top_k < -1:
        yield "top_k"
    if not (0 <= p.min_p <= 1):
        yield "min_p"
    if p.max_tokens is not None and not (isinstance(p.max_tokens, int) and p.max_tokens >= 1):
        yield "max_tokens"
    elif (
        not isinstance(p.min_tokens, int)
        or p.min_tokens < 0
        or (p.max_tokens is not None and p.min_tokens > p.max_tokens)
    ):
        yield "min_tokens"
    if not all(isinstance(s, str) and len(s) > 0 for s in stop):
        yield "stop"


def checked_but(skip=None, unless=lambda params: False, first=lambda params: None):
    """A right answer, except that one argument is not looked at, or something is asked first."""

    def check(params):
        if name := first(params):
            refuse(name, params)
        for name in broken_rules(params):
            if name != skip and not unless(params):
                refuse(name, params)

    return check


right("check_sampling_params")(rule_by_rule := checked_but())
rule_by_rule.__name__ = "rule_by_rule"


def with_assert(params):
    assert not list(broken_rules(params)), "bad arguments"


def no_name(params):
    for name in broken_rules(params):
        raise ValueError(f"invalid value {getattr(params, name)!r}")


def no_value(params):
    for name in broken_rules(params):
        raise ValueError(f"{name} is out of range")


def lists_stop(params):
    rule_by_rule(params)
    params.stop = [params.stop] if isinstance(params.stop, str) else params.stop


table(
    "check_sampling_params",
    checks_nothing=("`n=0` is let through", lambda params: None),
    with_assert=("You use `assert`", with_assert),
    returns_a_verdict=("Nobody looks at that", lambda params: not list(broken_rules(params))),
    many_greedy_answers=(
        "`n=2, temperature=0.0` is let through",
        checked_but(unless=lambda p: p.n in (2, 3, 64) and p.temperature == 0),
    ),
    nan_passes=(
        "A comparison with NaN is always False",
        checked_but(
            "temperature",
            first=lambda p: "temperature" if p.temperature < 0 or p.temperature > 2 else None,
        ),
    ),
    at_most_one=(
        "`temperature=2.0` is refused",
        checked_but(first=lambda p: "temperature" if p.temperature > 1 else None),
    ),
    greedy_is_refused=(
        "`temperature=0.0` is refused",
        checked_but(first=lambda p: "temperature" if p.temperature == 0 and p.n == 1 else None),
    ),
    top_p_of_zero=(
        "`top_p=0.0` is let through",
        "No token would be left",
        checked_but(unless=lambda p: p.top_p == 0),
    ),
    top_k_from_zero=(
        "`top_k=-1` is refused",
        checked_but(first=lambda p: "top_k" if isinstance(p.top_k, int) and p.top_k < 0 else None),
    ),
    minimum_alone=(
        "`min_tokens=17, max_tokens=16` is let through",
        checked_but(unless=lambda p: p.min_tokens in (17, 18, 10**7)),
    ),
    empty_stop=("`stop=''` is let through", "found in every text", checked_but("stop")),
    no_name=("does not say that `n` is wrong", no_name),
    no_value=("does not say which value", no_value),
    lists_stop=("changes the parameters", lists_stop),
)

# 2 prepare_inputs


def laid_out(ids=None, positions=None, row=None, samples=None):
    """A right answer with replaceable rules; each gets (request, start, end, rows before)."""

    def prepare_inputs(requests, scheduled):
        all_ids, all_positions, rows = [], [], []
        for request in requests:
            start = request.num_computed_tokens
            end = start + scheduled[request.request_id]
            at = (request, start, end, len(all_ids))
            all_ids += ids(*at) if ids else request.all_token_ids[start:end]
            all_positions += positions(*at) if positions else range(start, end)
            if samples(*at) if samples else end == request.num_tokens:
                rows.append(row(*at) if row else len(all_ids) - 1)
        return all_ids, all_positions, rows

    return prepare_inputs


@right("prepare_inputs")
def as_tensors(requests, num_scheduled_tokens):
    counts = torch.tensor([num_scheduled_tokens[r.request_id] for r in requests])
    starts = torch.tensor([r.num_computed_tokens for r in requests])
    ends = counts.cumsum(0)
    owner = torch.repeat_interleave(torch.arange(len(requests)), counts)
    positions = torch.arange(len(owner)) - (ends - counts)[owner] + starts[owner]
    places = zip(owner.tolist(), positions.tolist(), strict=True)
    ids = [requests[i].all_token_ids[p] for i, p in places]
    done = starts + counts == torch.tensor([r.num_tokens for r in requests])
    return torch.tensor(ids), positions, (ends - 1)[done]


@right("prepare_inputs")
def token_by_token(requests, num_scheduled_tokens):
    ids, positions, rows = [], [], []
    for request in requests:
        place = request.num_computed_tokens
        for _ in range(num_scheduled_tokens[request.request_id]):
            if place == len(request.all_token_ids) - 1:
                rows.append(len(ids))
            ids.append(request.all_token_ids[place])
            positions.append(place)
            place += 1
    return ids, positions, rows


def every_row(requests, num_scheduled_tokens):
    ids, positions, _ = token_by_token(requests, num_scheduled_tokens)
    return ids, positions, list(range(len(ids)))


def list_of_lists(requests, num_scheduled_tokens):
    ids, positions, rows = token_by_token(requests, num_scheduled_tokens)
    return [ids], positions, rows


def counts_at_once(requests, num_scheduled_tokens):
    inputs = token_by_token(requests, num_scheduled_tokens)
    for request in requests:
        request.num_computed_tokens += num_scheduled_tokens[request.request_id]
    return inputs


def in_the_order_of_the_dict(requests, num_scheduled_tokens):
    by_name = {request.request_id: request for request in requests}
    return token_by_token([by_name[name] for name in num_scheduled_tokens], num_scheduled_tokens)


def table_of_48(requests, num_scheduled_tokens):
    """Right for the small model, whose texts are short."""
    ids, positions, rows = token_by_token(requests, num_scheduled_tokens)
    return ids, [position % 48 for position in positions], rows


positions_restart = laid_out(positions=lambda r, s, e, b: range(e - s))
samples_from_each_chunk = laid_out(samples=lambda r, s, e, b: True)
table(
    "prepare_inputs",
    positions_restart=("Positions restart at 0", positions_restart),
    positions_from_one=(
        "not the positions",
        laid_out(positions=lambda r, s, e, b: range(s + 1, e + 1)),
    ),
    samples_from_each_chunk=("a chunk that is not the end of its prompt", samples_from_each_chunk),
    first_row=("not the rows to sample from", laid_out(row=lambda r, s, e, b: b)),
    every_row=("You sample from every row", every_row),
    list_of_lists=("Not a flat list of ints", list_of_lists),
    counts_at_once=("changes a request", counts_at_once),
    in_the_order_of_the_dict=("not the tokens of the step", in_the_order_of_the_dict),
    table_of_48=("not the positions", table_of_48),
)

# 3 update_request


def booked(
    eos=lambda r, t: t in r.eos_token_ids and not r.sampling_params.ignore_eos,
    stops=lambda r, t: t in r.sampling_params.stop_token_ids,
    may_stop=lambda r, t, may: may,
    limit=0,
    reason=lambda e, t: None if e else t,
    count=lambda n, t: n,
    after=lambda r, t, early: None,
):
    """A right answer with replaceable rules."""

    def update_request(request, num_scheduled_tokens, token_id):
        request.num_computed_tokens += count(num_scheduled_tokens, token_id)
        if token_id is None:
            return
        may = len(request.output_token_ids) >= request.sampling_params.min_tokens
        may_end = may_stop(request, token_id, may)
        request.output_token_ids.append(token_id)
        request.all_token_ids.append(token_id)
        is_eos = eos(request, token_id)
        if may_end and (is_eos or stops(request, token_id)):
            request.status = RequestStatus.FINISHED_STOPPED
            request.stop_reason = reason(is_eos, token_id)
        elif len(request.all_token_ids) >= request.max_num_tokens + limit:
            request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        after(request, token_id, not may)

    return update_request


@right("update_request")
def with_returns(request, num_scheduled_tokens, token_id):
    request.num_computed_tokens = request.num_computed_tokens + num_scheduled_tokens
    if token_id is None:
        return
    for tokens in (request.output_token_ids, request.all_token_ids):
        tokens.append(token_id)
    params = request.sampling_params
    if len(request.output_token_ids) > params.min_tokens:
        if not params.ignore_eos and token_id in request.eos_token_ids:
            request.status = RequestStatus.FINISHED_STOPPED
            return
        if token_id in params.stop_token_ids:
            request.status = RequestStatus.FINISHED_STOPPED
            request.stop_reason = token_id
            return
    if request.num_tokens == request.max_num_tokens:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED


def token_or_nothing(request, num_scheduled_tokens, token_id):
    """Token 0 is no token."""
    booked()(request, num_scheduled_tokens, token_id or None)


one_token_early = booked(limit=-1)
newest_is_computed = booked(count=lambda n, t: n + (t is not None))
table(
    "update_request",
    computed_forgotten=("`num_computed_tokens` is 0", booked(count=lambda n, t: 0)),
    newest_is_computed=("newest token is counted as computed", newest_is_computed),
    one_per_step=("`num_computed_tokens` is 1", booked(count=lambda n, t: 1)),
    only_the_answer=(
        "`all_token_ids` is wrong",
        booked(after=lambda r, t, early: r.all_token_ids.pop()),
    ),
    only_all_tokens=(
        "`output_token_ids` is wrong",
        booked(after=lambda r, t, early: r.output_token_ids.pop()),
    ),
    first_eos_only=(
        "The status is RUNNING",
        booked(lambda r, t: t in r.eos_token_ids[:1] and not r.sampling_params.ignore_eos),
    ),
    no_reason=("`stop_reason` is None", booked(reason=lambda eos, t: None)),
    one_token_early=("The status is FINISHED_LENGTH_CAPPED", one_token_early),
    minimum_for_eos_only=(
        "The status is FINISHED_STOPPED",
        booked(may_stop=lambda r, t, may: may or t not in r.eos_token_ids),
    ),
    token_or_nothing=("`output_token_ids` is wrong", token_or_nothing),
)

# 4 Detokenizer


class Windowed:
    """A right answer; the mutants replace a part of it."""

    def __init__(self, decode, prompt_token_ids):
        self.decode = decode
        self.ids = self.context(prompt_token_ids)
        self.known = len(self.ids)

    def context(self, prompt_token_ids):
        count = 6
        while count < len(prompt_token_ids):
            if not self.decode(prompt_token_ids[-count:]).startswith("\ufffd"):
                break
            count += 6
        return list(prompt_token_ids[-count:])

    def waits(self, known, text):
        return text.endswith("\ufffd") or len(text) == len(known)

    def append(self, token_id):
        self.ids.append(token_id)
        known, text = self.decode(self.ids[: self.known]), self.decode(self.ids)
        if self.waits(known, text):
            return ""
        del self.ids[: self.known]
        self.known = len(self.ids)
        return text[len(known) :]


right("detokenizer")(Windowed)


@right("detokenizer")
class TwoOffsets:
    """As vLLM's slower way: where the context begins, and where the unread tokens begin."""

    def __init__(self, decode, prompt_token_ids):
        self.decode, self.ids = decode, [*prompt_token_ids]
        self.prefix_offset = max(0, len(self.ids) - 6)
        while self.prefix_offset and decode(self.ids[self.prefix_offset :])[:1] == "\ufffd":
            self.prefix_offset -= 1
        self.read_offset = len(self.ids)

    def append(self, token_id):
        self.ids += [token_id]
        known = self.decode(self.ids[self.prefix_offset : self.read_offset])
        text = self.decode(self.ids[self.prefix_offset :])
        if len(text) <= len(known) or text[-1] == "\ufffd":
            return ""
        self.prefix_offset, self.read_offset = self.read_offset, len(self.ids)
        return text[len(known) :]


@wrong("detokenizer", "Spaces get lost")
class OneByOne:
    def __init__(self, decode, prompt_token_ids):
        self.decode = decode

    def append(self, token_id):
        return self.decode([token_id])


@wrong("detokenizer", "begin inside a character")
class SixTokens(Windowed):
    def context(self, prompt_token_ids):
        return list(prompt_token_ids[-6:])


@wrong("detokenizer", "Half a character is shown")
class NeverWaits(Windowed):
    def waits(self, known, text):
        return len(text) == len(known)


@wrong("detokenizer", "Spaces get lost")
class CollectsWithoutContext:
    """Waits for whole characters, but decodes them without what comes before."""

    def __init__(self, decode, prompt_token_ids):
        self.decode, self.ids = decode, []

    def append(self, token_id):
        self.ids.append(token_id)
        text = self.decode(self.ids)
        if text.endswith("\ufffd"):
            return ""
        self.ids = []
        return text


@wrong("detokenizer", "Spaces get lost")
class ForgetsTheContext(Windowed):
    """A token without text takes the place of the context."""

    def waits(self, known, text):
        return text.endswith("\ufffd")


@wrong("detokenizer", "prompt's text is shown again")
class WithThePrompt(Windowed):
    def __init__(self, decode, prompt_token_ids):
        super().__init__(decode, prompt_token_ids)
        self.known = 0


@wrong("detokenizer", "Text is shown twice")
class AllOfItEachTime:
    def __init__(self, decode, prompt_token_ids):
        self.decode, self.ids, self.prompt = decode, list(prompt_token_ids), len(prompt_token_ids)

    def append(self, token_id):
        self.ids.append(token_id)
        text = self.decode(self.ids)[len(self.decode(self.ids[: self.prompt])) :]
        return "" if text.endswith("\ufffd") else text


@wrong("detokenizer", "Text is missing")
class DropsWhatItWaitedFor(Windowed):
    def append(self, token_id):
        text = self.decode([*self.ids, token_id])
        known = self.decode(self.ids)
        if text.endswith("\ufffd"):
            return ""
        self.ids = [*self.ids, token_id][-6:]
        return text[len(known) :]


@wrong("detokenizer", "Text is missing")
class OneTokenBehind(Windowed):
    """Waits until the next token shows that the character is complete."""

    def __init__(self, decode, prompt_token_ids):
        super().__init__(decode, prompt_token_ids)
        self.late = ""

    def append(self, token_id):
        late, self.late = self.late, super().append(token_id)
        return late


@wrong("detokenizer", "each token costs more than the one before")
class DecodesEverything:
    def __init__(self, decode, prompt_token_ids):
        self.decode, self.ids = decode, list(prompt_token_ids)
        self.text = decode(self.ids)

    def append(self, token_id):
        self.ids.append(token_id)
        text = self.decode(self.ids)
        if text.endswith("\ufffd"):
            return ""
        gained, self.text = text[len(self.text) :], text
        return gained


@wrong("detokenizer", "whole prompt is decoded")
class DecodesTheWholePrompt(Windowed):
    def __init__(self, decode, prompt_token_ids):
        decode(list(prompt_token_ids))
        super().__init__(decode, prompt_token_ids)


@wrong("detokenizer", "changes the list of the prompt's tokens")
class UsesThePromptsList(Windowed):
    def __init__(self, decode, prompt_token_ids):
        super().__init__(decode, prompt_token_ids)
        self.ids, self.known = prompt_token_ids, len(prompt_token_ids)


@wrong("detokenizer", "expected a string")
class ForgetsToReturn(Windowed):
    def append(self, token_id):
        super().append(token_id)


# 5 text_to_show


def searched(text, num_gained, string):
    return text.find(string, max(0, len(text) - num_gained - len(string) + 1))


def text_shown(search=searched, key=lambda f: f[0] + len(f[1]), less=1, longest=max, change=None):
    """A right answer with other ways to search, to choose, to hold back, to `change` the find."""

    def text_to_show(text, num_gained, stop):
        found = [(search(text, num_gained, s), s) for s in stop]
        found = [(begin, s) for begin, s in found if begin >= 0]
        if found:
            first = min(found, key=key) if key else found[0]
            return change(text, first) if change else first
        return max(0, len(text) - longest(map(len, stop), default=1) + (less if stop else 1)), None

    return text_to_show


right("text_to_show")(text_shown())


@right("text_to_show")
def exact_hold(text, num_gained, stop):
    """Holds back only what is the beginning of a stop string, character by character."""
    for end in range(len(text) - num_gained + 1, len(text) + 1):
        for string in stop:
            if text[:end].endswith(string):
                return end - len(string), string
    held = 0
    for string in stop:
        for n in range(1, len(string)):
            if text.endswith(string[:n]):
                held = max(held, n)
    return len(text) - held, None


def negative_count(text, num_gained, stop):
    count, string = text_shown()(text, num_gained, stop)
    return (count, string) if string else (len(text) - max(map(len, stop), default=1) + 1, None)


def place_in_the_searched_part(text, num_gained, stop):
    for string in sorted(stop, key=len):
        start = max(0, len(text) - num_gained - len(string) + 1)
        if (begin := text[start:].find(string)) >= 0:
            return begin, string
    return text_shown()(text, num_gained, stop)


table(
    "text_to_show",
    only_new_text=(
        "A stop string is missed",
        text_shown(lambda t, n, s: t.find(s, max(0, len(t) - n))),
    ),
    counts_from_the_end=(
        "A stop string is missed",
        text_shown(lambda t, n, s: t.find(s, len(t) - n - len(s) + 1)),
    ),
    shows_the_stop_string=(
        "The stop string is shown",
        text_shown(change=lambda text, first: (first[0] + len(first[1]), first[1])),
    ),
    longest_of_a_tie=(
        "complete at the same character",
        text_shown(key=lambda f: (f[0] + len(f[1]), -len(f[1]))),
    ),
    shows_everything=("has to be taken back", text_shown(longest=lambda *a, **k: 1)),
    holds_for_the_shortest=("has to be taken back", text_shown(longest=min)),
    holds_one_too_many=("More is held back than needed", text_shown(less=0)),
    negative_count=("number of characters from 0", negative_count),
    the_last_match=(
        "cut at a later place",
        text_shown(change=lambda text, first: (text.rfind(first[1]), first[1])),
    ),
    place_in_the_searched_part=("at the wrong place", place_in_the_searched_part),
    shows_nothing_before_the_end=(
        "everything may be shown at once",
        lambda text, n, stop: (
            text_shown()(text, n, stop) if text_shown()(text, n, stop)[1] else (0, None)
        ),
    ),
)

# 6 latencies


def felt(**changes):
    """A right answer; each change is a rule (arrival, scheduled, stamps) for one field."""

    def latencies(arrival_time, scheduled_ts, token_ts):
        gaps = [b - a for a, b in itertools.pairwise(token_ts)]
        values = Latencies(
            scheduled_ts - arrival_time,
            token_ts[0] - arrival_time,
            statistics.fmean(gaps) if gaps else None,
            gaps,
            token_ts[-1] - arrival_time,
        )
        at = (arrival_time, scheduled_ts, token_ts)
        return values._replace(**{name: rule(*at) for name, rule in changes.items()})

    return latencies


@right("latencies")
def spread_over_gaps(arrival_time, scheduled_ts, token_ts):
    n = len(token_ts)
    tpot = None if n == 1 else (token_ts[-1] - token_ts[0]) / (n - 1)
    return felt(tpot=lambda *_: tpot)(arrival_time, scheduled_ts, token_ts)


@right("latencies")
def with_numpy(arrival_time, scheduled_ts, token_ts):
    gaps = np.diff(token_ts)
    tpot = float(gaps.mean()) if len(gaps) else None
    return felt(itl=lambda *_: gaps.tolist(), tpot=lambda *_: tpot)(
        arrival_time, scheduled_ts, token_ts
    )


table(
    "latencies",
    one_token=("division by zero", felt(tpot=lambda a, s, ts: (ts[-1] - ts[0]) / (len(ts) - 1))),
    milliseconds=(
        "inter-token latencies are wrong",
        felt(itl=lambda a, s, ts: [round(y - x, 3) for x, y in itertools.pairwise(ts)]),
    ),
)

# 7 serving_report


def report(
    good=lambda r, ttft_slo, tpot_slo: (
        r.ttft <= ttft_slo and (r.tpot is None or r.tpot <= tpot_slo)
    ),
    **changes,
):
    """A right answer; changes are rules (requests, duration, number of good ones) for fields."""

    def serving_report(requests, duration, ttft_slo, tpot_slo):
        ttfts, gaps = [r.ttft for r in requests], [g for r in requests for g in r.itl]
        num_good = sum(good(r, ttft_slo, tpot_slo) for r in requests)
        return {
            "median_ttft": np.median(ttfts),
            "p99_ttft": np.quantile(ttfts, 0.99),
            "p99_itl": np.quantile(gaps, 0.99),
            "output_throughput": sum(len(r.itl) + 1 for r in requests) / duration,
            "request_goodput": num_good / duration,
        } | {name: rule(requests, duration, num_good) for name, rule in changes.items()}

    return serving_report


right("serving_report")(report())


def percentile_between(values, q):
    values = sorted(values)
    place = (len(values) - 1) * q
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def by(percentile):
    return report(
        median_ttft=lambda rs, d, n: percentile([r.ttft for r in rs], 0.5),
        p99_ttft=lambda rs, d, n: percentile([r.ttft for r in rs], 0.99),
        p99_itl=lambda rs, d, n: percentile([g for r in rs for g in r.itl], 0.99),
    )


by_hand = by(percentile_between)
by_hand.__name__ = "by_hand"
right("serving_report")(by_hand)


def other_names(*arguments):
    values = report()(*arguments)
    return {"goodput": values.pop("request_goodput"), **values}


def sorts_in_place(requests, *arguments):
    requests.sort(key=lambda request: request.ttft)
    return report()(requests, *arguments)


table(
    "serving_report",
    other_names=("dict with the keys", other_names),
    sorts_in_place=("changes in place", sorts_in_place),
)

# 8 first_difference


def judged(
    rule=lambda row, a, b, noise: (float(row[a] - row[b]), row[a] - row[b] <= 2 * noise),
    ended=False,
    one=0,
):
    """A right answer with another rule for the gap and the verdict."""

    def first_difference(tokens_a, tokens_b, logits, noise):
        for i, (a, b) in enumerate(zip(tokens_a, tokens_b, strict=False)):
            if a != b:
                return Difference(i + one, *rule(logits[i].float(), a, b, noise))
        if len(tokens_a) == len(tokens_b):
            return None
        return Difference(min(len(tokens_a), len(tokens_b)) + one, None, ended)

    return first_difference


@right("first_difference")
def with_longest_common(tokens_a, tokens_b, logits, noise):
    if tokens_a == tokens_b:
        return None
    n = 0
    while n < min(len(tokens_a), len(tokens_b)) and tokens_a[n] == tokens_b[n]:
        n += 1
    if n in (len(tokens_a), len(tokens_b)):
        return Difference(n, None, False)
    own, other = logits[n][[tokens_a[n], tokens_b[n]]].tolist()
    return Difference(n, own - other, own - noise <= other + noise)


def zip_only(tokens_a, tokens_b, logits, noise):
    length = min(len(tokens_a), len(tokens_b))
    return judged()(tokens_a[:length], tokens_b[:length], logits, noise)


def last_difference(tokens_a, tokens_b, logits, noise):
    found = judged()(tokens_a, tokens_b, logits, noise)
    for i, (a, b) in enumerate(zip(tokens_a, tokens_b, strict=False)):
        if a != b:
            gap = float(logits[i][a] - logits[i][b])
            found = Difference(i, gap, gap <= 2 * noise)
    return found


def top_two(row, a, b, noise):
    first, second = row.topk(2).values.tolist()
    return first - second, first - second <= 2 * noise


table(
    "first_difference",
    zip_only=("Answers of different length count as equal", zip_only),
    top_two=("between the two best tokens", judged(top_two)),
    last_difference=("the last difference", last_difference),
    counts_from_one=("The first place where the answers differ is another one", judged(one=1)),
)

# 9 engine: right parts, and one thing wrong


class Loop(EngineBase):
    """A right loop; the mutants replace a part of it."""

    def step(self):
        try:
            plan = self.scheduler.schedule()
            if not plan.num_scheduled_tokens:
                return []
            return self.process(plan, self.execute_model(plan))
        except BaseException:
            self.after_failure()
            raise

    def planned(self, plan):
        return [self.requests[name] for name in plan.num_scheduled_tokens if name in self.requests]

    def process(self, plan, sampled):
        updated = []
        for request in self.planned(plan):
            token_id = sampled.get(request.request_id)
            self.update(request, plan.num_scheduled_tokens[request.request_id], token_id)
            if token_id is not None:
                updated.append(request)
        outputs = [self.output(request) for request in updated]
        for request in updated:
            if request.is_finished:
                self.finish(request)
        return outputs

    def finish(self, request):
        self.free(request)
        self.requests.pop(request.request_id)

    def after_failure(self):
        self.abort_requests(list(self.requests))
        self.forget_contents()

    def abort_requests(self, request_ids):
        for request_id in set(request_ids) & set(self.requests):
            request = self.requests[request_id]
            request.status = RequestStatus.FINISHED_ABORTED
            self.finish(request)


def with_a_loop(text, num_gained, stop):
    return text_shown()(text, num_gained, stop)


PARTS = Parts(rule_by_rule, token_by_token, with_returns, TwoOffsets, with_a_loop)


def engine_of(loop, parts=PARTS):
    def make_engine(llm, **changes):
        return loop(llm, parts, **changes)

    make_engine.__name__ = loop.__name__
    return make_engine


right("engine")(engine_of(Loop))


def loops(**methods):
    """Wrong engines: all parts right, one method of the loop wrong; the last value is the name."""
    for name, (*says, bases, own) in methods.items():
        loop = type(name, bases, own)
        wrong("engine", *says)(engine_of(loop))


def process_before_update(self, plan, sampled):
    outputs = [self.output(r) for r in self.planned(plan) if r.request_id in sampled]
    Loop.process(self, plan, sampled)
    return outputs


def leak(self, request):
    self.requests.pop(request.request_id)
    lists = self.scheduler
    lists.running = [r for r in lists.running if r is not request]
    lists.waiting = type(lists.waiting)(r for r in lists.waiting if r is not request)


def everybody(self, plan, sampled):
    quiet = [r for r in self.planned(plan) if r.request_id not in sampled]
    outputs = Loop.process(self, plan, sampled)
    return outputs + [self.output(request) for request in quiet]


def each_has_a_token(self, plan, sampled):
    for request in self.planned(plan):
        sampled[request.request_id]
    return Loop.process(self, plan, sampled)


def only_with_tokens(self, plan, sampled):
    outputs = []
    for request in self.planned(plan):
        if (token_id := sampled.get(request.request_id)) is not None:
            self.update(request, plan.num_scheduled_tokens[request.request_id], token_id)
            outputs.append(self.output(request))
            if request.is_finished:
                self.finish(request)
    return outputs


def executes_nothing(self):
    plan = self.scheduler.schedule()
    return self.process(plan, self.execute_model(plan))


def unknown_ids_fail(self, request_ids):
    for request_id in request_ids:
        request = self.requests[request_id]
        request.status = RequestStatus.FINISHED_ABORTED
        self.finish(request)


def abort_without_status(self, request_ids):
    for request_id in request_ids:
        if request_id in self.requests:
            self.finish(self.requests[request_id])


def abort_of(free):
    def abort_requests(self, request_ids):
        for request_id in request_ids:
            if request := self.requests.pop(request_id, None):
                running = request.status == RequestStatus.RUNNING
                request.status = RequestStatus.FINISHED_ABORTED
                if free(running):
                    self.free(request)

    return abort_requests


def free_as_well(self, plan, sampled):
    outputs = Loop.process(self, plan, sampled)
    for request in self.planned(plan):
        if request.is_finished:
            self.free(request)
    return outputs


def only_exceptions(self):
    try:
        plan = self.scheduler.schedule()
        return self.process(plan, self.execute_model(plan)) if plan.num_scheduled_tokens else []
    except Exception:
        self.after_failure()
        raise


def schedule_outside(self):
    plan = self.scheduler.schedule()
    try:
        return self.process(plan, self.execute_model(plan)) if plan.num_scheduled_tokens else []
    except BaseException:
        self.after_failure()
        raise


def swallows(self):
    try:
        return Loop.step(self)
    except RuntimeError:
        return []


def one_by_one(self):
    for request_id in self.requests:
        self.abort_requests([request_id])
    self.forget_contents()


def forgets_always(self, plan, sampled):
    self.forget_contents()
    return Loop.process(self, plan, sampled)


def never_ends(self):
    while self.has_unfinished_requests():
        pass
    return Loop.step(self)


loops(
    OutputsBeforeTheUpdate=(
        "other tokens than in the course's engine",
        (Loop,),
        {"process": process_before_update},
    ),
    FinishedStay=("`self.requests` holds R0", (Loop,), {"finish": Loop.free}),
    FinishedRunOn=(
        "list `running` holds R0",
        (Loop,),
        {"finish": lambda self, request: self.requests.pop(request.request_id)},
    ),
    LeaksBlocks=("1 blocks are held", (Loop,), {"finish": leak}),
    OnlyFinished=(
        "`step` returns outputs of nobody",
        (Loop,),
        {
            "process": lambda self, *a: [
                output for output in Loop.process(self, *a) if output.finished
            ]
        },
    ),
    FinishedNotReturned=(
        "`step` returns outputs of nobody",
        (Loop,),
        {"process": lambda self, *a: [o for o in Loop.process(self, *a) if not o.finished]},
    ),
    EverybodyIsReturned=("a new token came for", (Loop,), {"process": everybody}),
    WaitingOnesReturned=(
        "a new token came for",
        (Loop,),
        {
            "process": lambda self, *a: (
                Loop.process(self, *a)
                + [self.output(request) for request in self.scheduler.waiting]
            )
        },
    ),
    EveryoneHasAToken=("KeyError", (Loop,), {"process": each_has_a_token}),
    ChunksNotBooked=("`num_computed_tokens` is wrong", (Loop,), {"process": only_with_tokens}),
    NoneForNothing=(
        "expected a list of RequestOutput",
        (Loop,),
        {"step": lambda self: Loop.step(self) or None},
    ),
    ExecutesNothing=("Your code raised", (Loop,), {"step": executes_nothing}),
    UnknownIdsFail=("KeyError", (Loop,), {"abort_requests": unknown_ids_fail}),
    AbortWithoutStatus=("status is wrong", (Loop,), {"abort_requests": abort_without_status}),
    AbortOnlyForgets=(
        "list `running` holds R0",
        (Loop,),
        {"abort_requests": abort_of(lambda running: False)},
    ),
    AbortOfRunningOnly=(
        "A request's status is wrong",
        (Loop,),
        {"abort_requests": abort_of(lambda running: running)},
    ),
    AbortLeaksBlocks=("1 blocks are held", (Loop,), {"finish": leak, "process": free_as_well}),
    FailureIgnored=("its requests are still there", (Loop,), {"after_failure": lambda self: None}),
    OnlyExceptions=(
        "An interrupt is a BaseException",
        "After the step broke off",
        (Loop,),
        {"step": only_exceptions},
    ),
    ScheduleOutside=("After the step broke off", (Loop,), {"step": schedule_outside}),
    Swallows=("A step broke off with an error", (Loop,), {"step": swallows}),
    CacheKeepsPromises=(
        "never computed",
        "prefix cache",
        (Loop,),
        {"after_failure": lambda self: self.abort_requests(list(self.requests))},
    ),
    ForgetsAlways=("prefix cache", (Loop,), {"process": forgets_always}),
    ChangesWhatItWalks=("dictionary changed size", (Loop,), {"after_failure": one_by_one}),
    TheEnginesStep=("method `step` of its own", (Loop,), {"step": EngineBase.step}),
    TheEnginesLoop=(
        "engine's own loop",
        (Loop,),
        {"step": lambda self: [request.output() for request in LLMEngine.advance(self)]},
    ),
    NeverEnds=("does not come to an end", (Loop,), {"step": never_ends}),
)


@wrong("engine", "must return an object of your class")
def forgot_to_return(llm, **changes):
    Loop(llm, PARTS, **changes)


class NoTextOfSpaces(Windowed):
    def append(self, token_id):
        return super().append(token_id).strip()


for number, part in {
    1: {"check_sampling_params": lambda params: None},
    2: {"prepare_inputs": samples_from_each_chunk},
    3: {"update_request": one_token_early},
    4: {"detokenizer_class": NoTextOfSpaces},
    5: {"text_to_show": lambda text, num_gained, stop: (len(text), None)},
}.items():
    make_engine = engine_of(Loop, PARTS._replace(**part))
    make_engine.__name__ = f"wrong_part_{number}"
    wrong("engine", f"Exercise {number} is not right yet. ")(make_engine)
