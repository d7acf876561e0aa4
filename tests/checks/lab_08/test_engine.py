"""The last check of lab 08: its stories, whose fault it is, and half-written answers."""

from __future__ import annotations

import pytest

from tests.labs.bug_zoo import lab_08 as zoo
from utils.checks import lab_08
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.kit.runner import Mismatch, NotWritten
from utils.checks.lab_08.growing_text import EnginesDetokenizer
from utils.checks.lab_08.loop import parts, play, real_model, stories
from utils.engine.llm_engine import LLMEngine
from utils.engine.sampling_params import SamplingParams

right_engine = zoo.engine_of(zoo.Loop)


def unwritten(*_):
    raise NotImplementedError


@pytest.mark.parametrize(
    "name",
    [
        "check_sampling_params",
        "prepare_inputs",
        "update_request",
        "text_to_show",
        "latencies",
        "serving_report",
        "first_difference",
    ],
)
def test_an_unwritten_function_is_told_so(name):
    assert getattr(lab_08, name)(unwritten).status == "not written yet"


@pytest.mark.parametrize("missing", ["__init__", "append"])
def test_an_unwritten_detokenizer_is_told_so(missing):
    half = type("Half", (EnginesDetokenizer,), {missing: unwritten})
    assert lab_08.detokenizer(half).status == "not written yet"


@pytest.mark.parametrize("missing", ["prepare_inputs", "update_request", "text_to_show"])
def test_the_last_exercise_names_a_part_that_is_not_written(missing):
    half = zoo.engine_of(zoo.Loop, zoo.PARTS._replace(**{missing: unwritten}))
    assert lab_08.engine(half).status == "not written yet"


@pytest.mark.parametrize("missing", ["step", "abort_requests"])
def test_the_last_exercise_names_a_method_that_is_not_written(missing):
    half = type("Half", (zoo.Loop,), {missing: unwritten})
    with pytest.raises(NotWritten, match="unwritten"):
        parts.judge_loop(zoo.engine_of(half))


def test_the_right_parts_make_a_right_engine():
    parts.judge_parts(parts.RIGHT)
    parts.judge_loop(zoo.engine_of(zoo.Loop, parts.RIGHT))


@pytest.mark.parametrize(
    ("number", "part"),
    [(2, {"prepare_inputs": zoo.positions_restart}), (3, {"update_request": zoo.one_token_early})],
)
def test_a_part_that_fails_only_in_the_engine_is_named(number, part):
    with pytest.raises(Mismatch) as wrong:
        parts.judge_loop(zoo.engine_of(zoo.Loop, zoo.PARTS._replace(**part)))
    assert f"Your part of exercise {number} passes its own check" in wrong.value.headline


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("another answer than Hugging Face", {"prepare_inputs": zoo.table_of_48}),
        ("another text, for the same tokens,", {"detokenizer_class": zoo.NoTextOfSpaces}),
        ("stop string does not end", {"text_to_show": lambda text, n, stop: (len(text), None)}),
    ],
)
def test_the_real_model_sees_what_small_stories_do_not(words, part):
    with pytest.raises(Mismatch, match=words):
        real_model.run(zoo.engine_of(zoo.Loop, zoo.PARTS._replace(**part)))


def test_stories_see_preemption_chunks_hits_stops_aborts_and_broken_steps():
    """Else they would prove little."""
    seen = set()
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

    cases = sample(play.draw, 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LLMEngine, "advance", watched)
        for story in cases:
            play.LOOP.judge.expect(story)
    assert seen >= {"preemption", "chunk", "hit", "stop string", "stop", "length"}
    events = [event for story in cases for event in story.events]
    breaks = {(e.breaks, e.error) for e in events if isinstance(e, stories.Step) and e.breaks}
    assert len(breaks) == 6
    assert {len(e.names) for e in events if isinstance(e, stories.Abort)} == {0, 1, 2, 3}


def test_the_labs_engine_gives_one_answer_per_prompt():
    engine = right_engine(play.tiny_llm())
    with pytest.raises(ValueError, match="n must be 1"):
        engine.add_request("A", [9], SamplingParams(n=2))
    assert not engine.has_unfinished_requests()
