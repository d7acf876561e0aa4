"""What users see does not depend on how many tokens a step brings, nor on where the core runs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.tiny_engines import tiny_speaker
from utils.engine import (
    LLM,
    EngineCoreOutput,
    OutputProcessor,
    RequestOutput,
    RequestState,
    SamplingParams,
)
from utils.engine.distributed.data_parallel import Passing

TEXTS = ("One, two, three, four.", "naïve 🎉🎉 \n\nnew", "aaaaaaaaab aab", "今日は天気がいい")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> LLM:
    folder = tiny_speaker(tmp_path_factory.mktemp("speaker"), model_path)
    return LLM(folder, max_model_len=64, num_gpu_blocks_override=64, block_size=4)


def states_of(llm: LLM, params: SamplingParams) -> tuple[OutputProcessor, RequestState]:
    [state] = llm.llm_engine.inputs.from_prompts(["Say it:"], params)
    processor = OutputProcessor()
    processor.add_request(state)
    return processor, state


def in_steps(llm: LLM, token_ids: list[int], sizes: list[int], stop: list[str], end: str | None):
    """The answer, when the core's tokens come in steps of these sizes; and who was to be aborted.

    Args:
        end: why the core ended it, with the last token.
    """
    params = SamplingParams(stop=stop, max_tokens=50, logprobs=0)
    processor, state = states_of(llm, params)
    aborted: list[str] = []
    begin = 0
    while begin < len(token_ids) and not state.is_finished:
        size = sizes.pop() if sizes else 1
        new = token_ids[begin : begin + size]
        begin += size
        is_last = begin >= len(token_ids)
        output = EngineCoreOutput(state.request_id, new, end if is_last else None)
        output.new_logprobs = [{token: -float(token)} for token in new]  # type: ignore[dict-item]
        updated, to_abort = processor.process_outputs([output])
        assert updated == [state]
        aborted += to_abort
    assert state.is_finished == (state.request_id not in processor.request_states)
    assert len(state.logprobs) == len(state.output_token_ids) == len(state.metrics.token_ts)
    assert [list(at) for at in state.logprobs] == [[token] for token in state.output_token_ids]
    answer = (state.text, state.output_token_ids, state.finish_reason, state.stop_reason)
    return answer, aborted == [state.request_id]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.sampled_from(TEXTS),
    sizes=st.lists(st.integers(1, 6), max_size=20),
    stop=st.lists(st.sampled_from(["two", ", t", "🎉", "aab", "ab", "天気", "\n"]), max_size=3),
    end=st.sampled_from([None, "length", "stop"]),
)
def test_steps_of_any_size_give_one_answer(
    llm: LLM, text: str, sizes: list[int], stop: list[str], end: str | None
) -> None:
    token_ids = llm.get_tokenizer().encode(text, add_special_tokens=False)
    one_by_one, _ = in_steps(llm, token_ids, [], stop, end)
    answer, aborted = in_steps(llm, token_ids, [*sizes], stop, end)
    assert answer == one_by_one
    # By brute force: the text ends before the stop string that is complete first.
    shown = llm.get_tokenizer().decode(token_ids[: -1 if end == "stop" else None])
    ends = {s: shown.find(s) + len(s) for s in stop if s in shown}
    if ends:
        first = min(ends, key=lambda s: ends[s])
        assert answer[0] == shown[: ends[first] - len(first)] and answer[2:] == ("stop", first)
    else:
        assert answer[2:] == (end, None) and not aborted
        assert answer[1] == token_ids
        assert shown.startswith(answer[0])  # half a character is not shown


def test_the_core_is_told_of_what_it_cannot_know(llm: LLM) -> None:
    """A stop string ends the request in the core, too, in the same step."""
    engine = llm.llm_engine = llm.new_engine()
    free = llm.generate(["Say it:"], SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)
    text = free[0].outputs[0].text
    engine.add_request("a", "Say it:", SamplingParams(temperature=0, max_tokens=12, stop=text[4:7]))
    outputs: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].outputs[0].finish_reason == "stop"
    assert outputs[-1].outputs[0].text == text[: text.find(text[4:7])]
    assert not engine.requests and not engine.output_processor.request_states
    assert engine.kv_cache_manager.usage == 0


def test_a_core_elsewhere_makes_no_text(llm: LLM) -> None:
    """What a replica's engine gives can be sent, and nothing is detokenized there."""
    engine = llm.new_engine()
    engine.output_processor = passing = Passing()
    [state] = engine.inputs.from_prompts(["Say it:"], SamplingParams(temperature=0, max_tokens=5))
    engine.add(state)
    here, mine = states_of(llm, SamplingParams(temperature=0, max_tokens=5))
    while engine.has_unfinished_requests():
        assert engine.advance() == []
        for output in pickle.loads(pickle.dumps(passing.take())):
            output.request_id = mine.request_id
            here.process_outputs([output])
    assert "detokenizer" not in vars(state) and state.text == ""
    [expected] = llm.generate(["Say it:"], SamplingParams(temperature=0, max_tokens=5), False)
    assert mine.output().outputs[0].text == expected.outputs[0].text
    assert mine.finish_reason == "length" and not engine.requests


def test_who_is_aborted_is_told_once(llm: LLM) -> None:
    processor, state = states_of(llm, SamplingParams(n=3, temperature=1.0))
    names = [member.request_id for member in state.family]
    processor.process_outputs([EngineCoreOutput(names[1], [5], "length")])
    assert processor.abort_requests([state.request_id, "nobody"]) == [names[0], names[2]]
    assert [member.finish_reason for member in state.family] == ["abort", "length", "abort"]
    assert processor.abort_requests([state.request_id]) == []
    assert processor.process_outputs([EngineCoreOutput(names[0], [6])]) == ([], [])
