"""Text grows token by token to what decoding everything at once gives."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from utils.engine.detokenizer import IncrementalDetokenizer


def steps(
    tokenizer: PreTrainedTokenizerBase, ids: list[int], prompt: list[int]
) -> tuple[list[str], str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    return [detokenizer.append(token) for token in ids], detokenizer.text


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(min_size=1, max_size=40))
def test_any_text_comes_back_whole(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer(text).input_ids
    assume(tokenizer.decode(ids) == text)  # a few bytes are missing in the vocabulary
    parts, whole = steps(tokenizer, ids, tokenizer("The prompt:").input_ids)
    assert "".join(parts) == whole == text


@pytest.mark.parametrize("text", ["🎉🎉", "👩‍👩‍👧‍👦!", "今日は天気", "naïve", "a\u0301b"])
def test_no_half_characters(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer(text).input_ids
    for end in range(1, len(ids) + 1):
        _, so_far = steps(tokenizer, ids[:end], [1])
        assert text.startswith(so_far)
    assert so_far == text


def test_some_tokens_hold_half_a_character(tokenizer: PreTrainedTokenizerBase) -> None:
    """Else the test above would prove nothing."""
    assert any(tokenizer.decode([token]) == "\ufffd" for token in tokenizer("🎉").input_ids)


def test_bytes_that_never_become_a_character(tokenizer: PreTrainedTokenizerBase) -> None:
    """They show as the replacement character as soon as something readable follows."""
    half = tokenizer("🎉").input_ids[:-1]
    ids = half + tokenizer("ok").input_ids
    assert steps(tokenizer, ids, [1])[1] == tokenizer.decode(ids)


def test_special_tokens_are_skipped(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer("Hi<|im_end|> there").input_ids
    assert tokenizer.eos_token_id in ids
    assert steps(tokenizer, ids, [1])[1] == "Hi there"


def test_prompt_that_ends_in_half_a_character(tokenizer: PreTrainedTokenizerBase) -> None:
    first, *rest = tokenizer("🎉 party").input_ids
    assert steps(tokenizer, rest, [first])[1].endswith(" party")
