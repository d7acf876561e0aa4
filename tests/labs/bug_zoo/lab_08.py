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
    if not isinstance(p.min_tokens, int) or p.min_tokens < 0:
        yield "min_tokens"
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        yield "min_tokens"
    if not all(isinstance(s, str) and len(s) > 0 for s in stop):
        yield "stop"


def checked_but(skip=None, unless=lambda params: False):
    """A right answer, except that one argument is not looked at."""

    def check(params):
        for name in broken_rules(params):
            if name != skip and not unless(params):
                refuse(name, params)

    return check


@right("check_sampling_params")
def rule_by_rule(params):
    checked_but()(params)


@wrong("check_sampling_params", "`n=0` is let through")
def checks_nothing(params):
    pass


@wrong("check_sampling_params", "You use `assert`")
def with_assert(params):
    assert not list(broken_rules(params)), "bad arguments"


@wrong("check_sampling_params", "Nobody looks at that")
def returns_a_verdict(params):
    return not list(broken_rules(params))


@wrong("check_sampling_params", "`n=2, temperature=0.0` is let through")
def many_greedy_answers(params):
    checked_but(unless=lambda p: p.n == 2 and p.temperature == 0)(params)


@wrong("check_sampling_params", "A comparison with NaN is always False")
def nan_passes(params):
    if params.temperature < 0 or params.temperature > 2:
        refuse("temperature", params)
    checked_but("temperature")(params)


@wrong("check_sampling_params", "`temperature=2.0` is refused")
def at_most_one(params):
    if params.temperature > 1:
        refuse("temperature", params)
    checked_but()(params)


@wrong("check_sampling_params", "`temperature=0.0` is refused")
def greedy_is_refused(params):
    if params.temperature == 0 and params.n == 1:
        refuse("temperature", params)
    checked_but()(params)


@wrong("check_sampling_params", "`top_p=0.0` is let through", "No token would be left")
def top_p_of_zero(params):
    checked_but(unless=lambda p: p.top_p == 0)(params)


@wrong("check_sampling_params", "`top_k=-1` is refused")
def top_k_from_zero(params):
    if params.top_k < 0:
        refuse("top_k", params)
    checked_but()(params)


@wrong("check_sampling_params", "not supported between")
def none_compared(params):
    if params.max_tokens < 1:
        refuse("max_tokens", params)
    checked_but()(params)


@wrong("check_sampling_params", "`min_tokens=17, max_tokens=16` is let through")
def minimum_alone(params):
    checked_but(unless=lambda p: p.min_tokens == 17)(params)


@wrong("check_sampling_params", "`stop=''` is let through", "found in every text")
def empty_stop(params):
    checked_but("stop")(params)


@wrong("check_sampling_params", "does not say that `n` is wrong")
def no_name(params):
    for name in broken_rules(params):
        raise ValueError(f"invalid value {getattr(params, name)!r}")


@wrong("check_sampling_params", "does not say which value")
def no_value(params):
    for name in broken_rules(params):
        raise ValueError(f"{name} is out of range")


# 2 prepare_inputs


def laid_out(requests, scheduled, *, ids=None, positions=None, row=None, samples=None):
    """A right answer with replaceable rules; each gets (request, start, end)."""
    all_ids, all_positions, rows = [], [], []
    for request in requests:
        start = request.num_computed_tokens
        end = start + scheduled[request.request_id]
        at = (request, start, end)
        before = len(all_ids)
        all_ids += ids(*at) if ids else request.all_token_ids[start:end]
        all_positions += positions(*at, before) if positions else range(start, end)
        if samples(*at) if samples else end == request.num_tokens:
            rows.append(row(*at, before) if row else len(all_ids) - 1)
    return all_ids, all_positions, rows


@right("prepare_inputs")
def as_tensors(requests, num_scheduled_tokens):
    counts = torch.tensor([num_scheduled_tokens[r.request_id] for r in requests])
    starts = torch.tensor([r.num_computed_tokens for r in requests])
    ends = counts.cumsum(0)
    owner = torch.repeat_interleave(torch.arange(len(requests)), counts)
    positions = torch.arange(len(owner)) - (ends - counts)[owner] + starts[owner]
    ids = [requests[i].all_token_ids[p] for i, p in zip(owner, positions, strict=True)]
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


@wrong("prepare_inputs", "Positions restart at 0")
def positions_restart(requests, num_scheduled_tokens):
    return laid_out(requests, num_scheduled_tokens, positions=lambda r, s, e, b: range(e - s))


@wrong("prepare_inputs", "Every chunk starts at the request's first token")
def always_from_the_start(requests, num_scheduled_tokens):
    return laid_out(
        requests, num_scheduled_tokens, ids=lambda r, s, e: r.all_token_ids[: e - s],
        positions=lambda r, s, e, b: range(e - s),
    )  # fmt: skip


@wrong("prepare_inputs", "The positions are right, but the tokens")
def tokens_from_the_start(requests, num_scheduled_tokens):
    return laid_out(requests, num_scheduled_tokens, ids=lambda r, s, e: r.all_token_ids[: e - s])


@wrong("prepare_inputs", "Positions count the rows of the batch")
def one_long_text(requests, num_scheduled_tokens):
    return laid_out(
        requests, num_scheduled_tokens, positions=lambda r, s, e, b: range(b, b + e - s)
    )


@wrong("prepare_inputs", "one too large")
def positions_from_one(requests, num_scheduled_tokens):
    return laid_out(
        requests, num_scheduled_tokens, positions=lambda r, s, e, b: range(s + 1, e + 1)
    )


@wrong("prepare_inputs", "the newest tokens")
def newest_tokens(requests, num_scheduled_tokens):
    return laid_out(requests, num_scheduled_tokens, ids=lambda r, s, e: r.all_token_ids[s - e :])


@wrong("prepare_inputs", "a chunk that is not the end of its prompt")
def samples_from_each_chunk(requests, num_scheduled_tokens):
    return laid_out(requests, num_scheduled_tokens, samples=lambda r, s, e: True)


@wrong("prepare_inputs", "one row too far")
def row_of_the_next_request(requests, num_scheduled_tokens):
    return laid_out(requests, num_scheduled_tokens, row=lambda r, s, e, b: b + e - s)


@wrong("prepare_inputs", "counts from each request's own first row")
def own_row(requests, num_scheduled_tokens):
    return laid_out(requests, num_scheduled_tokens, row=lambda r, s, e, b: e - s - 1)


@wrong("prepare_inputs", "each request's first row")
def first_row(requests, num_scheduled_tokens):
    return laid_out(requests, num_scheduled_tokens, row=lambda r, s, e, b: b)


@wrong("prepare_inputs", "You sample from every row")
def every_row(requests, num_scheduled_tokens):
    ids, positions, _ = laid_out(requests, num_scheduled_tokens)
    return ids, positions, list(range(len(ids)))


@wrong("prepare_inputs", "Only decode steps are sampled")
def only_decode(requests, num_scheduled_tokens):
    return laid_out(requests, num_scheduled_tokens, samples=lambda r, s, e: e - s == 1)


@wrong("prepare_inputs", "Prompts in chunks never get a first token")
def whole_prompts_only(requests, num_scheduled_tokens):
    return laid_out(
        requests, num_scheduled_tokens,
        samples=lambda r, s, e: (s == 0 or e - s == 1) and e == r.num_tokens,
    )  # fmt: skip


@wrong("prepare_inputs", "not a flat list of ints")
def list_of_lists(requests, num_scheduled_tokens):
    ids, positions, rows = [], [], []
    for request in requests:
        start = request.num_computed_tokens
        end = start + num_scheduled_tokens[request.request_id]
        ids.append(request.all_token_ids[start:end])
        positions.append(range(start, end))
        if end == request.num_tokens:
            rows.append(len(ids) - 1)
    return ids, positions, rows


@wrong("prepare_inputs", "changes a request")
def counts_at_once(requests, num_scheduled_tokens):
    inputs = laid_out(requests, num_scheduled_tokens)
    for request in requests:
        request.num_computed_tokens += num_scheduled_tokens[request.request_id]
    return inputs


@wrong("prepare_inputs", "not the flat batch of the step")
def in_the_order_of_the_dict(requests, num_scheduled_tokens):
    """The right lists, of the requests in another order."""
    by_name = {request.request_id: request for request in requests}
    return laid_out([by_name[name] for name in num_scheduled_tokens], num_scheduled_tokens)


# 3 update_request


def book(
    request, num_scheduled, token_id, *, eos=None, may_stop=None, limit=0, reason=lambda e, t: t
):
    """A right answer with replaceable rules."""
    request.num_computed_tokens += num_scheduled
    if token_id is None:
        return
    params = request.sampling_params
    may = len(request.output_token_ids) >= params.min_tokens
    if may_stop:
        may = may_stop(request, token_id, may)
    request.output_token_ids.append(token_id)
    request.all_token_ids.append(token_id)
    is_eos = token_id in request.eos_token_ids and not params.ignore_eos
    if eos:
        is_eos = eos(request, token_id)
    if may and (is_eos or token_id in params.stop_token_ids):
        request.status = RequestStatus.FINISHED_STOPPED
        if (chosen := reason(is_eos, None if is_eos else token_id)) is not None:
            request.stop_reason = chosen
    elif len(request.all_token_ids) >= request.max_num_tokens + limit:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED


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


@wrong("update_request", "does not move")
def computed_forgotten(request, num_scheduled_tokens, token_id):
    book(request, 0, token_id)


@wrong("update_request", "A chunk without a new token is not counted")
def returns_too_early(request, num_scheduled_tokens, token_id):
    if token_id is not None:
        book(request, num_scheduled_tokens, token_id)


@wrong("update_request", "newest token is counted as computed")
def newest_is_computed(request, num_scheduled_tokens, token_id):
    book(request, num_scheduled_tokens, token_id)
    request.num_computed_tokens += token_id is not None


@wrong("update_request", "grows by 1 in each step")
def one_per_step(request, num_scheduled_tokens, token_id):
    book(request, 1, token_id)


@wrong("update_request", "not in `all_token_ids`")
def only_the_answer(request, num_scheduled_tokens, token_id):
    tokens = request.all_token_ids
    kept = list(tokens)
    book(request, num_scheduled_tokens, token_id)
    tokens[:] = kept


@wrong("update_request", "not in `output_token_ids`")
def only_all_tokens(request, num_scheduled_tokens, token_id):
    kept = list(request.output_token_ids)
    book(request, num_scheduled_tokens, token_id)
    request.output_token_ids[:] = kept


@wrong("update_request", "`ignore_eos` is ignored")
def eos_always_ends(request, num_scheduled_tokens, token_id):
    book(request, num_scheduled_tokens, token_id, eos=lambda r, t: t in r.eos_token_ids)


@wrong("update_request", "switches off the stop tokens")
def ignores_all(request, num_scheduled_tokens, token_id):
    book(
        request, num_scheduled_tokens, token_id,
        may_stop=lambda r, t, may: may and not r.sampling_params.ignore_eos,
    )  # fmt: skip


@wrong("update_request", "goes on after EOS")
def no_eos(request, num_scheduled_tokens, token_id):
    book(
        request, num_scheduled_tokens, token_id, eos=lambda r, t: False,
    )  # fmt: skip


@wrong("update_request", "Only the first EOS token")
def first_eos_only(request, num_scheduled_tokens, token_id):
    ignores = request.sampling_params.ignore_eos
    book(
        request, num_scheduled_tokens, token_id,
        eos=lambda r, t: t == r.eos_token_ids[0] and not ignores,
    )  # fmt: skip


@wrong("update_request", "goes on after a stop token")
def no_stop_tokens(request, num_scheduled_tokens, token_id):
    counts = not request.sampling_params.ignore_eos
    book(
        request, num_scheduled_tokens, token_id,
        may_stop=lambda r, t, may: may and counts and t in r.eos_token_ids,
    )  # fmt: skip


@wrong("update_request", "cannot tell which stop token")
def no_reason(request, num_scheduled_tokens, token_id):
    book(request, num_scheduled_tokens, token_id, reason=lambda eos, t: None)


@wrong("update_request", "`stop_reason` is set for EOS")
def reason_for_eos(request, num_scheduled_tokens, token_id):
    book(request, num_scheduled_tokens, token_id, reason=lambda eos, t: token_id)


@wrong("update_request", "one token early")
def one_token_early(request, num_scheduled_tokens, token_id):
    book(request, num_scheduled_tokens, token_id, limit=-1)


@wrong("update_request", "length limit never ends")
def one_token_late(request, num_scheduled_tokens, token_id):
    book(request, num_scheduled_tokens, token_id, limit=1)


@wrong("update_request", "Only `max_tokens` ends the answer")
def only_max_tokens(request, num_scheduled_tokens, token_id):
    book(request, num_scheduled_tokens, token_id, limit=10**6)
    at_limit = len(request.output_token_ids) == request.sampling_params.max_tokens
    if token_id is not None and at_limit and request.status == RequestStatus.RUNNING:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED


@wrong("update_request", "it was stopped, not cut off")
def length_first(request, num_scheduled_tokens, token_id):
    book(request, num_scheduled_tokens, token_id)
    if token_id is not None and request.num_tokens >= request.max_num_tokens:
        request.status, request.stop_reason = RequestStatus.FINISHED_LENGTH_CAPPED, None


@wrong("update_request", "`min_tokens` is ignored: ")
def no_minimum(request, num_scheduled_tokens, token_id):
    book(request, num_scheduled_tokens, token_id, may_stop=lambda r, t, may: True)


@wrong("update_request", "`min_tokens` is ignored for stop tokens")
def minimum_for_eos_only(request, num_scheduled_tokens, token_id):
    book(
        request, num_scheduled_tokens, token_id,
        may_stop=lambda r, t, may: may or t not in r.eos_token_ids,
    )  # fmt: skip


@wrong("update_request", "the last of the first `min_tokens` tokens")
def minimum_one_less(request, num_scheduled_tokens, token_id):
    book(
        request, num_scheduled_tokens, token_id,
        may_stop=lambda r, t, may: len(r.output_token_ids) + 1 >= r.sampling_params.min_tokens,
    )  # fmt: skip


@wrong("update_request", "lifts the length limit")
def minimum_over_length(request, num_scheduled_tokens, token_id):
    early = len(request.output_token_ids) < request.sampling_params.min_tokens
    book(request, num_scheduled_tokens, token_id)
    if early:
        request.status = RequestStatus.RUNNING


# 4 Detokenizer


class Windowed:
    """A right answer; the mutants replace a part of it."""

    context = 6

    def __init__(self, decode, prompt_token_ids):
        self.decode = decode
        self.ids = list(prompt_token_ids[-self.context :])
        self.known = len(self.ids)

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
        self.read_offset = len(self.ids)

    def append(self, token_id):
        self.ids += [token_id]
        known = self.decode(self.ids[self.prefix_offset : self.read_offset])
        text = self.decode(self.ids[self.prefix_offset :])
        if len(text) <= len(known) or text[-1] == "\ufffd":
            return ""
        self.prefix_offset, self.read_offset = self.read_offset, len(self.ids)
        return text[len(known) :]


@wrong("detokenizer", "Half a character is shown")
class OneByOne:
    def __init__(self, decode, prompt_token_ids):
        self.decode = decode

    def append(self, token_id):
        return self.decode([token_id])


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


def hold(text, stop, less=1):
    return max(0, len(text) - max(map(len, stop), default=1) + less)


def complete_first(text, num_gained, stop, *, search=searched, key=None):
    found = [(search(text, num_gained, s), s) for s in stop]
    found = [(begin, s) for begin, s in found if begin >= 0]
    return min(found, key=key or (lambda f: f[0] + len(f[1]))) if found else None


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


@right("text_to_show")
def with_a_loop(text, num_gained, stop):
    best = None
    for string in stop:
        begin = searched(text, num_gained, string)
        if begin != -1 and (best is None or begin + len(string) < best[0] + len(best[1])):
            best = (begin, string)
    return best or (hold(text, stop), None)


@wrong("text_to_show", "A stop string is missed")
def only_new_text(text, num_gained, stop):
    found = complete_first(
        text, num_gained, stop, search=lambda t, n, s: t.find(s, max(0, len(t) - n))
    )
    return found or (hold(text, stop), None)


@wrong("text_to_show", "A stop string is missed")
def only_at_the_end(text, num_gained, stop):
    for string in stop:
        if text.endswith(string):
            return len(text) - len(string), string
    return hold(text, stop), None


@wrong("text_to_show", "A stop string is missed")
def counts_from_the_end(text, num_gained, stop):
    """A negative start counts from the end."""
    found = complete_first(
        text, num_gained, stop, search=lambda t, n, s: t.find(s, len(t) - n - len(s) + 1)
    )
    return found or (hold(text, stop), None)


@wrong("text_to_show", "among the first `min_tokens` tokens")
def everywhere(text, num_gained, stop):
    found = complete_first(text, num_gained, stop, search=lambda t, n, s: t.find(s))
    return found or (hold(text, stop), None)


@wrong("text_to_show", "The stop string is shown")
def shows_the_stop_string(text, num_gained, stop):
    found = complete_first(text, num_gained, stop)
    return (found[0] + len(found[1]), found[1]) if found else (hold(text, stop), None)


@wrong("text_to_show", "not take the one that is complete first")
def first_in_the_list(text, num_gained, stop):
    for string in stop:
        if (begin := searched(text, num_gained, string)) >= 0:
            return begin, string
    return hold(text, stop), None


@wrong("text_to_show", "the one that *begins* first")
def begins_first(text, num_gained, stop):
    found = complete_first(text, num_gained, stop, key=lambda f: f[0])
    return found or (hold(text, stop), None)


@wrong("text_to_show", "complete at the same character")
def longest_of_a_tie(text, num_gained, stop):
    found = complete_first(
        text, num_gained, stop, key=lambda f: (f[0] + len(f[1]), -len(f[1]))
    )  # fmt: skip
    return found or (hold(text, stop), None)


@wrong("text_to_show", "has to be taken back")
def shows_everything(text, num_gained, stop):
    return complete_first(text, num_gained, stop) or (len(text), None)


@wrong("text_to_show", "has to be taken back")
def holds_for_the_shortest(text, num_gained, stop):
    held = min(map(len, stop), default=1) - 1
    return complete_first(text, num_gained, stop) or (max(0, len(text) - held), None)


@wrong("text_to_show", "More is held back than needed")
def holds_one_too_many(text, num_gained, stop):
    return complete_first(text, num_gained, stop) or (hold(text, stop, 0 if stop else 1), None)


@wrong("text_to_show", "everything may be shown at once")
def shows_nothing_before_the_end(text, num_gained, stop):
    return complete_first(text, num_gained, stop) or (0, None)


@wrong("text_to_show", "number of characters from 0")
def negative_count(text, num_gained, stop):
    held = max(map(len, stop), default=1) - 1
    return complete_first(text, num_gained, stop) or (len(text) - held, None)


@wrong("text_to_show", "cut at a later place")
def the_last_match(text, num_gained, stop):
    found = complete_first(text, num_gained, stop)
    return (text.rfind(found[1]), found[1]) if found else (hold(text, stop), None)


@wrong("text_to_show", "at the wrong place")
def place_in_the_searched_part(text, num_gained, stop):
    for string in sorted(stop, key=len):
        start = max(0, len(text) - num_gained - len(string) + 1)
        if (begin := text[start:].find(string)) >= 0:
            return begin, string
    return hold(text, stop), None


# 6 latencies


def felt(arrival, scheduled, stamps, **changes):
    gaps = [b - a for a, b in itertools.pairwise(stamps)]
    values = Latencies(
        scheduled - arrival, stamps[0] - arrival, statistics.fmean(gaps) if gaps else None, gaps,
        stamps[-1] - arrival,
    )  # fmt: skip
    return values._replace(**changes)


@right("latencies")
def spread_over_gaps(arrival_time, scheduled_ts, token_ts):
    n = len(token_ts)
    tpot = None if n == 1 else (token_ts[-1] - token_ts[0]) / (n - 1)
    return felt(arrival_time, scheduled_ts, token_ts, tpot=tpot)


@right("latencies")
def with_numpy(arrival_time, scheduled_ts, token_ts):
    gaps = np.diff(token_ts)
    return felt(
        arrival_time, scheduled_ts, token_ts, itl=gaps.tolist(),
        tpot=float(gaps.mean()) if len(gaps) else None,
    )  # fmt: skip


@wrong("latencies", "leaves out the time in the queue")
def ttft_without_queue(arrival_time, scheduled_ts, token_ts):
    return felt(arrival_time, scheduled_ts, token_ts, ttft=token_ts[0] - scheduled_ts)


@wrong("latencies", "divides by the number of tokens")
def tpot_over_n(arrival_time, scheduled_ts, token_ts):
    tpot = (token_ts[-1] - token_ts[0]) / len(token_ts)
    return felt(arrival_time, scheduled_ts, token_ts, tpot=tpot)


@wrong("latencies", "TPOT holds the prompt's time")
def tpot_with_prompt(arrival_time, scheduled_ts, token_ts):
    tpot = (token_ts[-1] - arrival_time) / len(token_ts)
    return felt(arrival_time, scheduled_ts, token_ts, tpot=tpot)


@wrong("latencies", "division by zero")
def one_token(arrival_time, scheduled_ts, token_ts):
    tpot = (token_ts[-1] - token_ts[0]) / (len(token_ts) - 1)
    return felt(arrival_time, scheduled_ts, token_ts, tpot=tpot)


@wrong("latencies", "TPOT is None, not 0")
def tpot_of_zero(arrival_time, scheduled_ts, token_ts):
    tpot = (token_ts[-1] - token_ts[0]) / max(1, len(token_ts) - 1)
    return felt(arrival_time, scheduled_ts, token_ts, tpot=tpot)


@wrong("latencies", "The first gap is TTFT")
def ttft_is_a_gap(arrival_time, scheduled_ts, token_ts):
    gaps = [b - a for a, b in itertools.pairwise([arrival_time, *token_ts])]
    return felt(arrival_time, scheduled_ts, token_ts, itl=gaps)


@wrong("latencies", "Gaps of 0 are left out")
def unique_times(arrival_time, scheduled_ts, token_ts):
    gaps = [b - a for a, b in itertools.pairwise(token_ts) if b > a]
    return felt(arrival_time, scheduled_ts, token_ts, itl=gaps)


@wrong("latencies", "queue time ends when")
def queue_until_the_first_token(arrival_time, scheduled_ts, token_ts):
    return felt(arrival_time, scheduled_ts, token_ts, queue_time=token_ts[0] - arrival_time)


@wrong("latencies", "starts with the arrival")
def e2e_from_the_first_token(arrival_time, scheduled_ts, token_ts):
    return felt(arrival_time, scheduled_ts, token_ts, e2e_latency=token_ts[-1] - token_ts[0])


# 7 serving_report


def report_with(requests, duration, ttft_slo, tpot_slo, good=None, **changes):
    ttfts = [r.ttft for r in requests]
    gaps = [g for r in requests for g in r.itl]
    good = good or (
        lambda r: r.ttft <= ttft_slo and (r.tpot is None or r.tpot <= tpot_slo)
    )  # fmt: skip
    return {
        "median_ttft": np.median(ttfts),
        "p99_ttft": np.quantile(ttfts, 0.99),
        "p99_itl": np.quantile(gaps, 0.99),
        "output_throughput": sum(len(r.itl) + 1 for r in requests) / duration,
        "request_goodput": sum(map(good, requests)) / duration,
    } | changes


@right("serving_report")
def with_quantiles(requests, duration, ttft_slo, tpot_slo):
    return report_with(requests, duration, ttft_slo, tpot_slo)


@right("serving_report")
def by_hand(requests, duration, ttft_slo, tpot_slo):
    def percentile(values, q):
        values = sorted(values)
        place = (len(values) - 1) * q / 100
        low = int(place)
        high = min(low + 1, len(values) - 1)
        return values[low] + (place - low) * (values[high] - values[low])

    ttfts, gaps = [r.ttft for r in requests], [g for r in requests for g in r.itl]
    return report_with(
        requests, duration, ttft_slo, tpot_slo, median_ttft=percentile(ttfts, 50),
        p99_ttft=percentile(ttfts, 99), p99_itl=percentile(gaps, 99),
    )  # fmt: skip


@wrong("serving_report", "`median_ttft` is the mean")
def mean_for_median(requests, duration, ttft_slo, tpot_slo):
    mean = sum(r.ttft for r in requests) / len(requests)
    return report_with(requests, duration, ttft_slo, tpot_slo, median_ttft=mean)


@wrong("serving_report", "pick one of the values")
def nearest_rank(requests, duration, ttft_slo, tpot_slo):
    def percentile(values, q):
        return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]

    ttfts, gaps = [r.ttft for r in requests], [g for r in requests for g in r.itl]
    return report_with(
        requests, duration, ttft_slo, tpot_slo, median_ttft=percentile(ttfts, 0.5),
        p99_ttft=percentile(ttfts, 0.99), p99_itl=percentile(gaps, 0.99),
    )  # fmt: skip


@wrong("serving_report", "`p99_ttft` is the maximum")
def worst(requests, duration, ttft_slo, tpot_slo):
    return report_with(
        requests, duration, ttft_slo, tpot_slo, p99_ttft=max(r.ttft for r in requests)
    )


@wrong("serving_report", "requests' means (TPOT)")
def itl_from_tpot(requests, duration, ttft_slo, tpot_slo):
    means = [r.tpot for r in requests if r.tpot is not None]
    return report_with(requests, duration, ttft_slo, tpot_slo, p99_itl=np.percentile(means, 99))


@wrong("serving_report", "a mean of percentiles")
def mean_of_percentiles(requests, duration, ttft_slo, tpot_slo):
    each = [np.percentile(r.itl, 99) for r in requests if r.itl]
    return report_with(requests, duration, ttft_slo, tpot_slo, p99_itl=np.mean(each))


@wrong("serving_report", "first token is missing")
def gaps_for_tokens(requests, duration, ttft_slo, tpot_slo):
    tokens = sum(len(r.itl) for r in requests)
    return report_with(requests, duration, ttft_slo, tpot_slo, output_throughput=tokens / duration)


@wrong("serving_report", "divides by the requests' own times")
def sum_of_latencies(requests, duration, ttft_slo, tpot_slo):
    tokens = sum(len(r.itl) + 1 for r in requests)
    busy = sum(r.e2e_latency for r in requests)
    return report_with(requests, duration, ttft_slo, tpot_slo, output_throughput=tokens / busy)


@wrong("serving_report", "is a count")
def good_count(requests, duration, ttft_slo, tpot_slo):
    report = report_with(requests, duration, ttft_slo, tpot_slo)
    return report | {"request_goodput": report["request_goodput"] * duration}


@wrong("serving_report", "is the part of the requests")
def good_part(requests, duration, ttft_slo, tpot_slo):
    report = report_with(requests, duration, ttft_slo, tpot_slo)
    part = report["request_goodput"] * duration / len(requests)
    return report | {"request_goodput": part}


@wrong("serving_report", "looks at TTFT only")
def only_ttft(requests, duration, ttft_slo, tpot_slo):
    return report_with(requests, duration, ttft_slo, tpot_slo, lambda r: r.ttft <= ttft_slo)


@wrong("serving_report", "keeps only one of the two limits")
def one_of_two(requests, duration, ttft_slo, tpot_slo):
    return report_with(
        requests, duration, ttft_slo, tpot_slo,
        lambda r: r.ttft <= ttft_slo or r.tpot is None or r.tpot <= tpot_slo,
    )  # fmt: skip


@wrong("serving_report", "Answers of one token are never good")
def none_is_bad(requests, duration, ttft_slo, tpot_slo):
    return report_with(
        requests, duration, ttft_slo, tpot_slo,
        lambda r: r.ttft <= ttft_slo and r.tpot is not None and r.tpot <= tpot_slo,
    )  # fmt: skip


@wrong("serving_report", "just meets its limit")
def strictly_below(requests, duration, ttft_slo, tpot_slo):
    return report_with(
        requests, duration, ttft_slo, tpot_slo,
        lambda r: r.ttft < ttft_slo and (r.tpot is None or r.tpot < tpot_slo),
    )  # fmt: skip


@wrong("serving_report", "One long gap makes a request bad")
def every_gap(requests, duration, ttft_slo, tpot_slo):
    return report_with(
        requests, duration, ttft_slo, tpot_slo,
        lambda r: r.ttft <= ttft_slo and all(g <= tpot_slo for g in r.itl),
    )  # fmt: skip


@wrong("serving_report", "dict with the keys")
def other_names(requests, duration, ttft_slo, tpot_slo):
    report = report_with(requests, duration, ttft_slo, tpot_slo)
    return {"goodput": report.pop("request_goodput"), **report}


# 8 first_difference


def at_first(tokens_a, tokens_b, judge, ended=False):
    for i, (a, b) in enumerate(zip(tokens_a, tokens_b, strict=False)):
        if a != b:
            return Difference(i, *judge(i, a, b))
    if len(tokens_a) == len(tokens_b):
        return None
    return Difference(min(len(tokens_a), len(tokens_b)), None, ended)


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


@wrong("first_difference", "Answers of different length count as equal")
def zip_only(tokens_a, tokens_b, logits, noise):
    for i, (a, b) in enumerate(zip(tokens_a, tokens_b, strict=False)):
        if a != b:
            gap = float(logits[i][a] - logits[i][b])
            return Difference(i, gap, gap <= 2 * noise)
    return None


@wrong("first_difference", "between the two best tokens")
def top_two(tokens_a, tokens_b, logits, noise):
    def judge(i, a, b):
        first, second = logits[i].topk(2).values.tolist()
        return first - second, first - second <= 2 * noise

    return at_first(tokens_a, tokens_b, judge)


@wrong("first_difference", "the last difference")
def last_difference(tokens_a, tokens_b, logits, noise):
    found = at_first(tokens_a, tokens_b, lambda i, a, b: (None, False))
    for i, (a, b) in enumerate(zip(tokens_a, tokens_b, strict=False)):
        if a != b:
            gap = float(logits[i][a] - logits[i][b])
            found = Difference(i, gap, gap <= 2 * noise)
    return found


@wrong("first_difference", "noise of one logit")
def noise_once(tokens_a, tokens_b, logits, noise):
    def judge(i, a, b):
        gap = float(logits[i][a] - logits[i][b])
        return gap, gap <= noise

    return at_first(tokens_a, tokens_b, judge)


@wrong("first_difference", "wrong sign")
def turned_around(tokens_a, tokens_b, logits, noise):
    def judge(i, a, b):
        gap = float(logits[i][b] - logits[i][a])
        return gap, gap <= 2 * noise

    return at_first(tokens_a, tokens_b, judge)


@wrong("first_difference", "Nothing counts as explained")
def must_be_equal(tokens_a, tokens_b, logits, noise):
    return at_first(tokens_a, tokens_b, lambda i, a, b: (float(logits[i][a] - logits[i][b]), False))


@wrong("first_difference", "Everything counts as explained")
def all_is_noise(tokens_a, tokens_b, logits, noise):
    return at_first(tokens_a, tokens_b, lambda i, a, b: (float(logits[i][a] - logits[i][b]), True))


@wrong("first_difference", "One answer simply ends")
def an_end_is_explained(tokens_a, tokens_b, logits, noise):
    def judge(i, a, b):
        gap = float(logits[i][a] - logits[i][b])
        return gap, gap <= 2 * noise

    return at_first(tokens_a, tokens_b, judge, ended=True)


@wrong("first_difference", "exactly twice the noise")
def strictly_less(tokens_a, tokens_b, logits, noise):
    def judge(i, a, b):
        gap = float(logits[i][a] - logits[i][b])
        return gap, gap < 2 * noise

    return at_first(tokens_a, tokens_b, judge)


@wrong("first_difference", "one too large")
def counts_from_one(tokens_a, tokens_b, logits, noise):
    found = with_longest_common(tokens_a, tokens_b, logits, noise)
    return found and Difference(found.index + 1, found.gap, found.explained)


# 9 engine: right parts, and one thing wrong


class Loop(EngineBase):
    """A right loop; the mutants replace a part of it."""

    def step(self):
        try:
            plan = self.scheduler.schedule()
            if not plan.scheduled_requests:
                return []
            return self.process(plan, self.execute_model(plan))
        except BaseException:
            self.after_failure()
            raise

    def process(self, plan, sampled):
        updated = []
        for request in plan.scheduled_requests:
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


PARTS = Parts(rule_by_rule, token_by_token, with_returns, TwoOffsets, with_a_loop)


def engine_of(loop, parts=PARTS):
    def make_engine(llm, **changes):
        return loop(llm, parts, **changes)

    make_engine.__name__ = loop.__name__
    return make_engine


def loop_with(*says):
    """A wrong engine: all parts right, this loop wrong."""

    def register(loop):
        wrong("engine", *says)(engine_of(loop))
        return loop

    return register


def parts_with(*says, **parts):
    """A wrong engine: the loop right, these parts wrong."""
    make_engine = engine_of(Loop, PARTS._replace(**parts))
    make_engine.__name__ = "_".join(part.__name__ for part in parts.values())
    wrong("engine", *says)(make_engine)


right("engine")(engine_of(Loop))


@loop_with("course's engine", "another answer")
class OutputsBeforeTheUpdate(Loop):
    def process(self, plan, sampled):
        outputs = [
            self.output(r) for r in plan.scheduled_requests if r.request_id in sampled
        ]  # fmt: skip
        super().process(plan, sampled)
        return outputs


@loop_with("still in `self.requests`")
class FinishedStay(Loop):
    def finish(self, request):
        self.free(request)


@loop_with("the scheduler still has it")
class FinishedRunOn(Loop):
    def finish(self, request):
        self.requests.pop(request.request_id)


@loop_with("Blocks are still held")
class LeaksBlocks(Loop):
    def finish(self, request):
        self.requests.pop(request.request_id)
        self.scheduler.running = [r for r in self.scheduler.running if r is not request]
        self.scheduler.waiting = type(self.scheduler.waiting)(
            r for r in self.scheduler.waiting if r is not request
        )


@loop_with("is not returned", "while the answer grows")
class OnlyFinished(Loop):
    def process(self, plan, sampled):
        return [output for output in super().process(plan, sampled) if output.finished]


@loop_with("finished, and its last output is not returned")
class FinishedNotReturned(Loop):
    def process(self, plan, sampled):
        return [output for output in super().process(plan, sampled) if not output.finished]


@loop_with("it got no new token in this step")
class EverybodyIsReturned(Loop):
    def process(self, plan, sampled):
        outputs = super().process(plan, sampled)
        quiet = [r for r in plan.scheduled_requests if r.request_id not in sampled]
        return outputs + [self.output(request) for request in quiet]


@loop_with("it got no new token in this step")
class WaitingOnesReturned(Loop):
    def process(self, plan, sampled):
        outputs = super().process(plan, sampled)
        return outputs + [self.output(request) for request in self.scheduler.waiting]


@loop_with("KeyError")
class EveryoneHasAToken(Loop):
    def process(self, plan, sampled):
        for request in plan.scheduled_requests:
            sampled[request.request_id]
        return super().process(plan, sampled)


@loop_with("`num_computed_tokens` of request")
class ChunksNotBooked(Loop):
    def process(self, plan, sampled):
        outputs = []
        for request in list(plan.scheduled_requests):
            if (token_id := sampled.get(request.request_id)) is not None:
                self.update(request, plan.num_scheduled_tokens[request.request_id], token_id)
                outputs.append(self.output(request))
                if request.is_finished:
                    self.finish(request)
        return outputs


@loop_with("expected a list of RequestOutput")
class NoneForNothing(Loop):
    def step(self):
        return super().step() or None


@loop_with("Your code raised")
class ExecutesNothing(Loop):
    def step(self):
        plan = self.scheduler.schedule()
        return self.process(plan, self.execute_model(plan))


@loop_with("KeyError")
class UnknownIdsFail(Loop):
    def abort_requests(self, request_ids):
        for request_id in request_ids:
            request = self.requests[request_id]
            request.status = RequestStatus.FINISHED_ABORTED
            self.finish(request)


@loop_with("An aborted request does not know it")
class AbortWithoutStatus(Loop):
    def abort_requests(self, request_ids):
        for request_id in request_ids:
            if request_id in self.requests:
                self.finish(self.requests[request_id])


@loop_with("the scheduler still has it")
class AbortOnlyForgets(Loop):
    def abort_requests(self, request_ids):
        for request_id in request_ids:
            if request := self.requests.pop(request_id, None):
                request.status = RequestStatus.FINISHED_ABORTED


@loop_with("the scheduler still has it among those waiting")
class AbortOfRunningOnly(Loop):
    def abort_requests(self, request_ids):
        for request_id in request_ids:
            if request := self.requests.pop(request_id, None):
                running = request.status == RequestStatus.RUNNING
                request.status = RequestStatus.FINISHED_ABORTED
                if running:
                    self.free(request)


@loop_with("Blocks are still held")
class AbortLeaksBlocks(LeaksBlocks):
    def process(self, plan, sampled):
        outputs = super().process(plan, sampled)
        for request in plan.scheduled_requests:
            if request.is_finished:
                self.free(request)
        return outputs


@loop_with("its requests are still there")
class FailureIgnored(Loop):
    def after_failure(self):
        pass


@loop_with("an interrupt is a BaseException")
class OnlyExceptions(Loop):
    def step(self):
        try:
            plan = self.scheduler.schedule()
            if not plan.scheduled_requests:
                return []
            return self.process(plan, self.execute_model(plan))
        except Exception:
            self.after_failure()
            raise


@loop_with("swallows the RuntimeError")
class Swallows(Loop):
    def step(self):
        try:
            return super().step()
        except RuntimeError:
            return []


@loop_with("never computed", "prefix cache")
class CacheKeepsPromises(Loop):
    def after_failure(self):
        self.abort_requests(list(self.requests))


@loop_with("dictionary changed size")
class ChangesWhatItWalks(Loop):
    def after_failure(self):
        for request_id in self.requests:
            self.abort_requests([request_id])
        self.forget_contents()


@loop_with("method `step` of its own")
class TheEnginesStep(Loop):
    def step(self):
        return EngineBase.step(self)


@loop_with("engine's own loop")
class TheEnginesLoop(Loop):
    def step(self):
        return [request.output() for request in LLMEngine.advance(self)]


@wrong("engine", "must return an object of your class")
def forgot_to_return(llm, **changes):
    Loop(llm, PARTS, **changes)


def no_rules(params):
    pass


parts_with("gets into the engine", check_sampling_params=no_rules)
parts_with("another answer", prepare_inputs=positions_restart)
parts_with("lists of other lengths", prepare_inputs=samples_from_each_chunk)
parts_with("ends otherwise", update_request=one_token_early)
parts_with("`num_computed_tokens` of request", update_request=newest_is_computed)


def table_of_64(requests, num_scheduled_tokens):
    """Right for the small model, whose texts are short."""
    ids, positions, rows = token_by_token(requests, num_scheduled_tokens)
    return ids, [position % 48 for position in positions], rows


parts_with("than Hugging Face's `generate`", prepare_inputs=table_of_64)


class NoTextOfSpaces(Windowed):
    def append(self, token_id):
        return super().append(token_id).strip()


parts_with("its text is not", detokenizer_class=NoTextOfSpaces)


def stop_never(text, num_gained, stop):
    return len(text), None


parts_with("belongs to a stop string", text_to_show=stop_never)
