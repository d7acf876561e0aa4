"""Right answers to lab 08, written differently, and wrong engines; wrong answers that are edits are
in `lab_08.yaml`."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace

import numpy as np
import torch

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_08 import answers
from utils.checks.lab_08.given_parts import Difference, EngineBase, Latencies, Parts
from utils.checks.lab_08.stories import RIGHT
from utils.engine.llm_engine import LLMEngine
from utils.engine.request import RequestStatus

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right


@right("check_sampling_params")
def rule_by_rule(params):
    def broken(p):
        if not (type(p.n) is int and p.n >= 1) or (p.n != 1 and p.temperature == 0):
            yield "n"
        for name, least, most in (("temperature", 0, 2), ("top_p", 1e-99, 1), ("min_p", 0, 1)):
            value = getattr(p, name)
            if value != value or value < least or value > most:
                yield name
        if type(p.top_k) is not int or p.top_k < -1:
            yield "top_k"
        if p.max_tokens is not None and (type(p.max_tokens) is not int or p.max_tokens < 1):
            yield "max_tokens"
        elif type(p.min_tokens) is not int or not 0 <= p.min_tokens <= (p.max_tokens or np.inf):
            yield "min_tokens"
        stop = p.stop if type(p.stop) is list else [] if p.stop is None else [p.stop]
        if any(type(s) is not str or not s for s in stop):
            yield "stop"

    for name in broken(params):
        raise ValueError(f"bad {name}: {getattr(params, name)!r}")


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
    return ids, tuple(positions), rows


@right("update_request")
def with_returns(request, num_scheduled_tokens, token_id):
    request.num_computed_tokens = request.num_computed_tokens + num_scheduled_tokens
    if token_id is None:
        return
    request.output_token_ids = [*request.output_token_ids, token_id]
    request.all_token_ids += [token_id]
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


@right("detokenizer")
def by_a_generator(decode, prompt_token_ids):
    def texts(ids):
        known, gained = len(ids), ""
        while True:
            ids = [*ids, (yield gained)]
            before, text = decode(ids[:known]), decode(ids)
            gained = "" if text.endswith("\ufffd") else text[len(before) :]
            if gained:
                ids = ids[known:]
                known = len(ids)

    count = 6
    while count < len(prompt_token_ids) and decode(prompt_token_ids[-count:])[:1] == "\ufffd":
        count += 6
    made = texts(prompt_token_ids[-count:])
    next(made)
    return type("Made", (), {"append": staticmethod(made.send)})()


@right("text_to_show")
def exact_hold(text, num_gained, stop):
    """Holds back only what is the beginning of a stop string, character by character."""
    for end in range(len(text) - num_gained + 1, len(text) + 1):
        for string in stop:
            if text[:end].endswith(string):
                return end - len(string), string
    held = [n for string in stop for n in range(1, len(string)) if text.endswith(string[:n])]
    return len(text) - max(held, default=0), None


@right("latencies")
def with_numpy(arrival_time, scheduled_ts, token_ts):
    gaps = np.diff(token_ts)
    tpot = float(gaps.mean()) if len(gaps) else None
    first, last = token_ts[0] - arrival_time, token_ts[-1] - arrival_time
    return Latencies(scheduled_ts - arrival_time, first, tpot, gaps.tolist(), last)


@right("latencies")
def pair_by_pair(arrival_time, scheduled_ts, token_ts):
    gaps = [b - a for a, b in itertools.pairwise(token_ts)]
    mean = statistics.fmean(gaps) if gaps else None
    since = [ts - arrival_time for ts in (scheduled_ts, token_ts[0], token_ts[-1])]
    return Latencies(since[0], since[1], mean, gaps, since[2])


@right("serving_report")
def by_hand(requests, duration, ttft_slo, tpot_slo):
    def percentile(values, q):
        values = sorted(values)
        low = int(place := (len(values) - 1) * q)
        high = min(low + 1, len(values) - 1)
        return values[low] + (place - low) * (values[high] - values[low])

    gaps = list(itertools.chain.from_iterable(r.itl for r in requests))
    return {
        "median_ttft": np.median([r.ttft for r in requests]),
        "p99_ttft": percentile([r.ttft for r in requests], 0.99),
        "p99_itl": percentile(gaps, 0.99),
        "output_throughput": sum(len(r.itl) + 1 for r in requests) / duration,
        "request_goodput": sum(r.ttft <= ttft_slo and (r.tpot or 0) <= tpot_slo for r in requests)
        / duration,
        "requests": len(requests),  # more than asked for
    }


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


# The last exercise's answers make an engine.

PARTS = Parts(rule_by_rule, token_by_token, with_returns, TwoOffsets, exact_hold)


def engine_of(loop, parts=RIGHT):
    def make_engine(llm, **changes):
        return loop(llm, parts, **changes)

    make_engine.__name__ = loop.__name__
    return make_engine


zoo.wrong_answers = [
    replace(one, answer=engine_of(one.answer)) if one.exercise == "engine" else one
    for one in zoo.wrong_answers
]


class Loop(EngineBase):
    """A right loop in another order: all updates, then all outputs, then all that is over."""

    def step(self):
        done = False
        try:
            plan = self.scheduler.schedule()
            outputs = self.process(plan) if plan.num_scheduled_tokens else []
            done = True
            return outputs
        finally:
            if not done:
                self.abort_requests(list(self.requests))
                self.forget_contents()

    def process(self, plan):
        sampled = self.execute_model(plan)
        planned = [r for name, r in self.requests.items() if name in plan.num_scheduled_tokens]
        for request in planned:
            count = plan.num_scheduled_tokens[request.request_id]
            self.update(request, count, sampled.get(request.request_id))
        outputs = [self.output(r) for r in planned if r.request_id in sampled]
        for request in [r for r in planned if r.is_finished]:
            self.finish(request)
        return outputs

    def finish(self, request):
        self.free(request)
        self.requests = {n: r for n, r in self.requests.items() if r is not request}

    def abort_requests(self, request_ids):
        for request_id in set(request_ids) & set(self.requests):
            self.requests[request_id].status = RequestStatus.FINISHED_ABORTED
            self.finish(self.requests[request_id])


right("engine")(engine_of(Loop, PARTS))


@wrong("engine", "engine's own loop")
def the_engines_loop(llm, **changes):
    step = {"step": lambda self: [request.output() for request in LLMEngine.advance(self)]}
    return type("TheEnginesLoop", (answers.MyLLMEngine,), step)(llm, RIGHT, **changes)


@wrong("engine", "method `step` of its own")
def the_engines_step(llm, **changes):
    return type("TheEnginesStep", (Loop,), {"step": EngineBase.step})(llm, RIGHT, **changes)


@wrong("engine", "must return an object of your class")
def forgot_to_return(llm, **changes):
    Loop(llm, PARTS, **changes)


wrong("engine", "Pass `my_engine`")(answers.MyLLMEngine)


def samples_everywhere(requests, scheduled):
    ids, positions, _ = token_by_token(requests, scheduled)
    return ids, positions, list(range(len(ids)))


for number, part in {
    1: {"check_sampling_params": lambda params: None},
    2: {"prepare_inputs": samples_everywhere},
    3: {"update_request": lambda request, count, token_id: None},
    4: {"detokenizer_class": lambda decode, ids: None},
    5: {"text_to_show": lambda text, num_gained, stop: (len(text), None)},
}.items():
    make_engine = engine_of(Loop, PARTS._replace(**part))
    make_engine.__name__ = f"wrong_part_{number}"
    wrong("engine", f"Exercise {number} is not right yet. ")(make_engine)


@right("async_scheduler")
class ByDifference:
    """Counts in its own numbers, and writes them down."""

    def num_uncomputed(self, request):
        coming = request.num_output_placeholders
        left = request.num_tokens - request.num_computed_tokens + coming
        return left if request.num_tokens + coming < request.max_num_tokens else 0

    def update_after_schedule(self, request, num_scheduled_tokens):
        left = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
        request.num_computed_tokens = request.num_computed_tokens + num_scheduled_tokens
        request.num_output_placeholders += int(num_scheduled_tokens >= left)

    def update_with_output(self, request):
        request.num_output_placeholders = max(0, request.num_output_placeholders - 1)


@right("async_scheduler")
class WithItsOwnBooks:
    """Remembers for each request what is on its way, and needs no placeholders to know it."""

    def __init__(self):
        self.coming = {}

    def num_uncomputed(self, request):
        total = request.num_tokens + self.coming.get(request.request_id, 0)
        return np.int64(total - request.num_computed_tokens) * (total != request.max_num_tokens)

    def update_after_schedule(self, request, num_scheduled_tokens):
        coming = self.coming.setdefault(request.request_id, 0)
        request.num_computed_tokens += num_scheduled_tokens
        if request.num_computed_tokens >= request.num_tokens + coming:
            self.coming[request.request_id] += 1
        request.num_output_placeholders = self.coming[request.request_id]

    def update_with_output(self, request):
        self.coming[request.request_id] -= 1
        request.num_output_placeholders = self.coming[request.request_id]
