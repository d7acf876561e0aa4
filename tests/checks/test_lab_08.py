"""The checks of lab 08 beyond the bug zoo: their oracles, half-written answers, the pictures."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from utils.checks import lab_08
from utils.checks.kit.runner import Mismatch, NotWritten
from utils.checks.kit.tiny_model import one_thread
from utils.checks.lab_08 import (
    bookkeeping,
    flat_batch,
    growing_text,
    learners_engine,
    params,
    pictures,
    request_times,
    stops,
    two_engines,
)
from utils.checks.lab_08.flat_batch import Part, Step
from utils.checks.lab_08.given_parts import EngineBase, Parts
from utils.checks.lab_08.smallest_case import Fault, judge
from utils.engine.detokenizer import IncrementalDetokenizer
from utils.engine.llm_engine import LLMEngine
from utils.engine.outputs import RequestMetrics
from utils.engine.request import Request, RequestStatus
from utils.engine.sampling_params import SamplingParams

# --- the oracles, against the engine and against vLLM ---------------------------------------------


def verdict(cls, arguments, errors):
    try:
        cls(**arguments)
    except errors as error:
        return str(error)
    return None


@pytest.mark.parametrize("rule", params.RULES, ids=lambda rule: str(rule.arguments))
def test_the_rules_for_parameters_are_the_engines(rule):
    refused = verdict(SamplingParams, rule.arguments, ValueError)
    assert (refused is None) == (rule.culprit is None)
    assert rule.culprit is None or refused.startswith(rule.culprit)


def test_the_rules_for_parameters_are_vllms():
    theirs = pytest.importorskip("vllm.sampling_params").SamplingParams
    for rule in params.RULES:
        if any(
            isinstance(value, float)
            for name, value in rule.arguments.items()
            if name in ("n", "max_tokens")
        ) or rule.arguments.get("stop") == [5]:
            continue  # of wrong types vLLM complains later
        refused = verdict(theirs, rule.arguments, Exception)
        assert (refused is None) == (rule.culprit is None), rule


def test_the_state_after_a_step_is_the_engines():
    for case in bookkeeping.CASES:
        early = case.num_output + 1 <= case.min_tokens
        if case.token_id is None or (early and case.token_id != bookkeeping.WORD):
            continue  # the engine's sampler does not let such tokens come
        bare = case.request()
        request = Request(
            "0", None, list(bare.prompt_token_ids), bare.sampling_params, bare.max_num_tokens,
            bare.eos_token_ids, torch.Generator(), Silent(),
        )  # fmt: skip
        request.status = RequestStatus.RUNNING
        request.output_token_ids += bare.output_token_ids
        request.all_token_ids += bare.output_token_ids
        request.append_token(case.token_id)
        right = bookkeeping.right_state(case)
        assert right[1:] == (
            request.output_token_ids, request.all_token_ids, request.status, request.stop_reason,
        )  # fmt: skip


class Silent:
    def append(self, token_id):
        return ""


def test_the_first_stop_string_is_vllms():
    check_stop_strings = pytest.importorskip("vllm.v1.engine.detokenizer").check_stop_strings
    found = 0
    for story in stops.random_stories():
        text = "".join(story.pieces)
        for num_gained in range(len(text) + 1):
            theirs = check_stop_strings(text, num_gained, story.stop, False)
            mine = stops.found_first(text, num_gained, story.stop)
            assert mine == (theirs and (theirs[1], theirs[0]))
            found += mine is not None
    assert found > 100


def test_the_engines_detokenizer_passes():
    class Engines(IncrementalDetokenizer):
        def __init__(self, decode, prompt_token_ids):
            self._decode = decode
            super().__init__(None, prompt_token_ids)

        def _decode(self, token_ids):
            raise AssertionError("replaced")

    assert lab_08.detokenizer(Engines).passed


def test_the_latencies_are_the_engines():
    for times in request_times._latency_cases():
        metrics = RequestMetrics(times.arrival_time, times.scheduled_ts, times.token_ts)
        right = request_times.right_latencies(times)
        assert right.queue_time == metrics.queue_time
        assert right.ttft == pytest.approx(metrics.ttft)
        assert right.tpot == pytest.approx(metrics.tpot)
        assert right.itl == pytest.approx(metrics.inter_token_latencies)
        assert right.e2e_latency == pytest.approx(metrics.e2e_latency)


def test_a_difference_in_rounding_is_always_explained():
    """Any two engines whose logits are within the noise of each other."""
    generator = torch.Generator().manual_seed(0)
    parted = 0
    for _ in range(300):
        logits = torch.randn(4, 6, generator=generator)
        other = logits + 0.2 * (2 * torch.rand(4, 6, generator=generator) - 1)
        pair = two_engines.Pair(logits.argmax(-1).tolist(), other.argmax(-1).tolist(), logits, 0.2)
        answer = two_engines.right_difference(pair)
        assert answer is None or answer[2]
        parted += answer is not None
    assert parted > 20


# --- how answers are judged -----------------------------------------------------------------------


def judged(function, faults=()):
    judge([1, 2, 3], function, lambda x: x * x, str, faults, ("not the square", ""))


def test_a_fault_is_named_only_if_it_explains_all_answers():
    twice = Fault(lambda x: 2 * x, "doubled", "")
    with pytest.raises(Mismatch, match="doubled"):
        judged(lambda x: 2 * x, [twice])
    with pytest.raises(Mismatch, match="not the square"):
        judged(lambda x: 2 * x if x < 3 else 7, [twice])
    judged(lambda x: x * x, [twice])


@pytest.mark.parametrize(("added", "words"), [(1, "not the square"), (0, "an error")])
def test_a_wrong_small_case_is_told_before_an_error_in_a_larger_one(added, words):
    def fails_late(x):
        if x == 3:
            raise Mismatch("an error")
        return x * x + added

    with pytest.raises(Mismatch, match=words):
        judged(fails_late)


# --- half-written answers -------------------------------------------------------------------------


def unwritten(*_):
    raise NotImplementedError


@pytest.mark.parametrize(
    "name",
    ["check_sampling_params", "prepare_inputs", "update_request", "text_to_show", "latencies",
     "serving_report", "first_difference"],
)  # fmt: skip
def test_an_unwritten_function_is_told_so(name):
    assert getattr(lab_08, name)(unwritten).status == "not written yet"


def test_an_unwritten_detokenizer_is_told_so():
    class Half:
        def __init__(self, decode, prompt_token_ids):
            pass

        append = unwritten

    assert lab_08.detokenizer(Half).status == "not written yet"
    assert lab_08.detokenizer(type("None_", (), {"__init__": unwritten})).status == (
        "not written yet"
    )


class RightLoop(EngineBase):
    def step(self):
        try:
            plan = self.scheduler.schedule()
            sampled = self.execute_model(plan) if plan.scheduled_requests else {}
            for request in plan.scheduled_requests:
                name = request.request_id
                self.update(request, plan.num_scheduled_tokens[name], sampled.get(name))
        except BaseException:
            self.abort_requests(list(self.requests))
            self.forget_contents()
            raise
        outputs = [self.output(self.requests[name]) for name in sampled]
        for request in [self.requests[name] for name in sampled]:
            if request.is_finished:
                self.free(self.requests.pop(request.request_id))
        return outputs

    def abort_requests(self, request_ids):
        for name in request_ids:
            if request := self.requests.pop(name, None):
                request.status = RequestStatus.FINISHED_ABORTED
                self.free(request)


class EnginesText(IncrementalDetokenizer):
    def __init__(self, decode, prompt_token_ids):
        self._decode = decode
        super().__init__(None, prompt_token_ids)


def right_prepare_inputs(requests, scheduled):
    parts = [Part(r.num_tokens, r.num_computed_tokens, scheduled[r.request_id]) for r in requests]
    places = [
        (r, p) for r, part in zip(requests, parts, strict=True)
        for p in range(part.num_computed, part.num_computed + part.num_scheduled)
    ]  # fmt: skip
    return (
        [r.all_token_ids[p] for r, p in places], [p for _, p in places],
        flat_batch.right_inputs(Step(tuple(parts)))[2],
    )  # fmt: skip


def right_update(request, num_scheduled_tokens, token_id):
    request.num_computed_tokens += num_scheduled_tokens
    if token_id is None:
        return
    params, place = request.sampling_params, len(request.output_token_ids)
    request.output_token_ids.append(token_id)
    request.all_token_ids.append(token_id)
    is_eos = token_id in request.eos_token_ids and not params.ignore_eos
    if place >= params.min_tokens and (is_eos or token_id in params.stop_token_ids):
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = None if is_eos else token_id
    elif request.num_tokens == request.max_num_tokens:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED


RIGHT = Parts(
    lambda params: None, right_prepare_inputs, right_update, EnginesText,
    lambda text, num_gained, stop: (len(text), None),
)  # fmt: skip


def right_engine(llm, **changes):
    return RightLoop(llm, RIGHT, **changes)


@pytest.mark.parametrize("missing", ["prepare_inputs", "update_request", "text_to_show"])
def test_the_last_exercise_names_a_part_that_is_not_written(missing):
    with pytest.raises(NotWritten, match="unwritten"):
        learners_engine.rehearse(
            lambda llm, **changes: RightLoop(llm, RIGHT._replace(**{missing: unwritten}), **changes)
        )


@pytest.mark.parametrize("missing", ["step", "abort_requests"])
def test_the_last_exercise_names_a_method_that_is_not_written(missing):
    half = type("Half", (RightLoop,), {missing: unwritten})
    with pytest.raises(NotWritten, match="unwritten"):
        for story in learners_engine.STORIES:
            story(lambda llm, **changes: half(llm, RIGHT, **changes))


def test_the_course_engine_and_a_right_loop_agree_in_random_stories():
    assert learners_engine.random_stories(right_engine, count=3) == 60


def test_random_stories_see_preemption_chunks_hits_stops_and_aborts():
    """Else they would prove little."""
    seen = set()
    advance, make = LLMEngine.advance, learners_engine.Duel.__init__

    def watched(engine):
        updated = advance(engine)
        record = engine.step_trace[-1] if engine.step_trace else None
        if record:
            seen.update(["preemption"] * len(record.preempted_req_ids))
            seen.update("chunk" for t in record.tokens.values() if not t.num_sampled)
        seen.update(str(r.status.name) for r in updated)
        seen.update("hit" for r in updated if r.num_cached_tokens)
        return updated

    def traced(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.reference.step_trace = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LLMEngine, "advance", watched)
        patch.setattr(learners_engine.Duel, "__init__", traced)
        learners_engine.random_stories(right_engine)
    assert seen >= {"preemption", "chunk", "hit", "FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"}


def test_the_labs_engine_gives_one_answer_per_prompt():
    engine = right_engine(learners_engine.tiny_llm())
    with pytest.raises(ValueError, match="n must be 1"):
        engine.add_request("A", [9], SamplingParams(n=2))
    assert not engine.has_unfinished_requests()


# --- text -----------------------------------------------------------------------------------------


def test_real_tokens_hold_half_characters():
    """Else the texts of the check would be too easy."""
    halves = [
        text for story in growing_text.real_stories() for text in growing_text.true_texts(story)
        if text.endswith(growing_text.INCOMPLETE)
    ]  # fmt: skip
    assert len(halves) > 20


def test_what_is_held_back_is_the_longest_beginning_of_a_stop_string():
    dice = random.Random(0)
    for _ in range(200):
        text = "".join(dice.choice("ab") for _ in range(6))
        stop = ["".join(dice.choice("ab") for _ in range(dice.randint(1, 4))) for _ in range(2)]
        held = stops.held_back(text, stop)
        safe = len(text) - held
        # Whatever follows, no new stop string begins before `safe`; and one may begin there.
        futures = ["".join(more) for n in range(4) for more in itertools.product("ab", repeat=n)]
        begins = [
            begin
            for future in futures
            for s in stop
            for begin in range(len(text))
            if (text + future)[begin:].startswith(s) and begin + len(s) > len(text)
        ]
        assert min(begins, default=len(text)) == safe


# --- pictures -------------------------------------------------------------------------------------


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_the_pictures_show_what_is_wrong():
    figure = pictures.flat_batch(
        ["A", "A", "B"], ([1, 2, 3], [0, 1, 0], [1, 2]), ([1, 2, 3], [0, 1, 2], [1])
    )
    assert texts(figure) == [*"123", *"010", "", "yes", "yes", *"123", *"012", "", "yes", "no"]
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "not as expected" in words and "request B" in words

    figure = pictures.timeline(0.0, 1.0, [2.0, 3.0, 5.0], "")
    assert "TPOT = this / 2" in texts(figure)

    figure = pictures.rivals([1.0, 3.0], 1, 0, "title")
    assert len(figure.axes[0].patches) == 2


def test_one_thread_puts_the_number_back():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
