"""Answers in a form, from the engine: alone, in company, guessed ahead, preempted, cut."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
import regex

from tests.engine.tiny_engines import nothing_is_held
from utils.engine import LLM, SamplingParams, SpeculativeConfig, StructuredOutputsParams

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "year": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "languages": {"type": "array", "items": {"enum": ["C", "Python"]}, "maxItems": 2},
    },
    "required": ["name", "year", "languages"],
    "additionalProperties": False,
}
DATE = r"[0-9]{4}-[01][0-9]-[0-3][0-9]"
PROMPTS = ["Guido van Rossum as JSON:\n", "The first man on the Moon, the date:", "2 + 2 is"]
FREE = "The capital of France is"


@pytest.fixture
def engine_of(llm: LLM) -> Iterator[Callable[..., None]]:
    usual = llm.llm_engine

    def change(**changes: Any) -> None:
        usual_changes = {"max_model_len": 256, "num_gpu_blocks": 128}
        llm.llm_engine = llm.new_engine(changes=usual_changes | changes)

    yield change
    assert nothing_is_held(llm)
    llm.llm_engine = usual


def in_form(max_tokens: int = 48, form: dict[str, Any] | None = None, **params: Any) -> Any:
    forms = StructuredOutputsParams(**(form or {"json": PERSON}))
    params = {"temperature": 0, "max_tokens": max_tokens, **params}
    return SamplingParams(structured_outputs=forms, **params)


def answers(llm: LLM, prompts: list[str], params: Any) -> list[Any]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [one for output in outputs for one in output.outputs]


def test_answers_have_their_forms(llm: LLM, engine_of: Callable[..., None]) -> None:
    """Four requests in one batch, each with a form of its own, and one without."""
    engine_of()
    [alone] = answers(llm, [FREE], SamplingParams(temperature=0, max_tokens=12))
    params = [
        in_form(form={"json": PERSON, "disable_any_whitespace": True}),
        in_form(form={"regex": DATE}),
        in_form(form={"choice": ["three", "four", "five"]}),
        in_form(form={"grammar": 'start: "f(" /[a-z]{1,3}/ ("," /[a-z]{1,3}/)* ")"'}, min_tokens=6),
        SamplingParams(temperature=0, max_tokens=12),
    ]
    found = answers(llm, [*PROMPTS, "A call:", FREE], params)
    person, date, number, call, free = found
    jsonschema.validate(json.loads(person.text), PERSON)
    assert regex.fullmatch(DATE, date.text)
    assert number.text in ("three", "four", "five")
    assert regex.fullmatch(r"f\([a-z]{1,3}(,[a-z]{1,3})*\)?", call.text)
    assert [one.finish_reason for one in found[:3]] == ["stop"] * 3
    assert free.token_ids == alone.token_ids


@pytest.mark.parametrize(
    "changes",
    [
        dict(speculative_config=SpeculativeConfig("ngram", 4, prompt_lookup_min=1)),
        dict(
            block_size=4, num_gpu_blocks=16, max_model_len=64, max_num_seqs=4
        ),  # too few blocks for all of them
        dict(max_num_batched_tokens=7, max_num_seqs=4, enable_prefix_caching=False),
    ],
    ids=["n-grams", "preempted", "in chunks"],
)
def test_how_the_engine_works_changes_no_answer(
    llm: LLM, engine_of: Callable[..., None], changes: dict[str, Any]
) -> None:
    params = in_form(40, {"json": PERSON, "disable_any_whitespace": True})
    engine_of()
    expected = [one.token_ids for one in answers(llm, PROMPTS, params)]
    engine_of(**changes)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    if "num_gpu_blocks" in changes:
        assert sum(output.metrics.num_preemptions for output in outputs) > 0


def test_drawn_answers_have_their_form_too(llm: LLM, engine_of: Callable[..., None]) -> None:
    engine_of(speculative_config=SpeculativeConfig("ngram", 3, prompt_lookup_min=1))
    params = in_form(form={"regex": DATE}, temperature=1.5, n=4, seed=3)
    drawn = answers(llm, PROMPTS[:2], params)
    assert all(regex.fullmatch(DATE, one.text) for one in drawn)
    assert len({one.text for one in drawn}) > 2


def test_a_cut_answer_is_the_beginning_of_one(llm: LLM, engine_of: Callable[..., None]) -> None:
    engine_of()
    [cut] = answers(llm, PROMPTS[1:2], in_form(4, {"regex": DATE}))
    assert cut.finish_reason == "length"
    assert regex.fullmatch(DATE, cut.text, partial=True) and not regex.fullmatch(DATE, cut.text)


def test_logprobs_are_those_of_what_is_allowed(llm: LLM, engine_of: Callable[..., None]) -> None:
    """Of a choice of two, the first token's probabilities sum to 1."""
    engine_of()
    params = in_form(form={"choice": ["Yes", "No"]}, logprobs=8)
    [one] = answers(llm, ["Is the sky blue?"], params)
    first = one.logprobs[0]
    assert one.text in ("Yes", "No")
    assert sum(math.exp(candidate.logprob) for candidate in first.values()) == pytest.approx(1)


def test_a_form_that_cannot_be_followed_harms_nobody(
    llm: LLM, engine_of: Callable[..., None]
) -> None:
    engine_of()
    with pytest.raises(ValueError, match="regex cannot be used"):
        llm.generate([FREE, FREE], [SamplingParams(), in_form(form={"regex": "("})], use_tqdm=False)
    assert nothing_is_held(llm)
    with pytest.raises(ValueError, match="ignore_eos"):
        in_form(ignore_eos=True)
    with pytest.raises(ValueError, match="structured_outputs must be"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]
