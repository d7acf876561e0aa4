"""The last check of lab 08: its stories, whose fault it is, and half-written answers."""

from __future__ import annotations

import pytest

from tests.checks.mutants import mutants
from tests.labs.bug_zoo import lab_08 as zoo
from tests.scale import sized
from utils.checks import lab_08
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.kit.lab.edits import edited
from utils.checks.kit.runner import Mismatch, NotWritten
from utils.checks.lab_08 import answers, learners_engine, stories
from utils.engine.llm_engine import LLMEngine
from utils.engine.sampling_params import SamplingParams

restarts = edited(answers.prepare_inputs, ["range(start, end) => range(end - start)"])
short = edited(answers.prepare_inputs, ["range(start, end) => [p % 48 for p in range(start, end)]"])


def unwritten(*_):
    raise NotImplementedError


@pytest.mark.parametrize("missing", ["prepare_inputs", "update_request", "text_to_show"])
def test_the_last_exercise_names_a_part_that_is_not_written(missing):
    half = zoo.engine_of(zoo.Loop, zoo.PARTS._replace(**{missing: unwritten}))
    assert lab_08.engine(half).status == "not written yet"


@pytest.mark.parametrize("missing", ["step", "abort_requests"])
def test_the_last_exercise_names_a_method_that_is_not_written(missing):
    half = type("Half", (zoo.Loop,), {missing: unwritten})
    with pytest.raises(NotWritten, match="unwritten"):
        learners_engine.judge_loop(zoo.engine_of(half), lab_08.LOOP)


def test_a_part_that_fails_only_in_the_engine_is_named():
    with pytest.raises(Mismatch) as wrong:
        learners_engine.judge_loop(
            zoo.engine_of(zoo.Loop, zoo.PARTS._replace(prepare_inputs=restarts)), lab_08.LOOP
        )
    assert "Your part of exercise 2 passes its own check" in wrong.value.headline


class NoTextOfSpaces(answers.Detokenizer):
    def append(self, token_id):
        return super().append(token_id).strip()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("differs from Hugging Face", {"prepare_inputs": short}),
        ("its text isn't", {"detokenizer_class": NoTextOfSpaces}),
        ("stop string doesn't end", {"text_to_show": lambda text, n, stop: (len(text), None)}),
    ],
)
def test_the_real_model_sees_what_small_stories_do_not(words, part):
    with pytest.raises(Mismatch, match=words):
        learners_engine.on_the_real_model(zoo.engine_of(zoo.Loop, zoo.PARTS._replace(**part)))


def courses_engine(llm, **changes):
    return llm.new_engine(changes=changes)


def test_the_right_loop_does_what_the_courses_engine_does():
    """In the same stories, which see preemption, chunks, hits, stops and steps that fail."""
    seen, failed = set(), set()
    advance = LLMEngine.advance

    def watched(engine):
        engine.step_trace = []
        updated = advance(engine)
        for record in engine.step_trace:
            seen.update(["preemption"] * len(record.preempted_req_ids))
            seen.update("chunk" for t in record.tokens.values() if not t.num_sampled)
        seen.update(state.finish_reason for state in updated)
        seen.update("hit" for r in updated if r.num_cached_tokens)
        seen.update("stop string" for r in updated if isinstance(r.stop_reason, str))
        return updated

    judge = lab_08.LOOP.judge
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LLMEngine, "advance", watched)
        for story in sample(stories.EngineStory.draw, 60):
            wheres = {arguments[0] for kind, arguments in story.steps if kind == "fails"}
            failed |= wheres
            if wheres <= {"execute_model", "schedule"}:  # the others are the lab's own methods
                assert judge.fault(courses_engine, story, judge.expect(story)) is None
    assert seen >= {"preemption", "chunk", "hit", "stop string", "stop", "length"}
    assert failed == set(stories.WHERE)


def test_each_mutant_of_the_loop_is_refused_in_the_stories():
    """The check itself wants a function that makes an engine."""
    some = [both for n, both in enumerate(mutants(answers.MyLLMEngine)) if n % 4 < sized(1, 4)]
    for told, mutant in some:
        with pytest.raises(Mismatch):
            lab_08.LOOP.check(mutant)
            pytest.fail(told)


def test_the_labs_engine_gives_one_answer_per_prompt():
    engine = stories.right_engine(stories.tiny_llm())
    with pytest.raises(ValueError, match="n must be 1"):
        engine.add_request("A", [9], SamplingParams(n=2))
    assert not engine.has_unfinished_requests()
