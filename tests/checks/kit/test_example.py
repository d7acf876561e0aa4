"""The check of notebook 00 knows right from wrong."""

from __future__ import annotations

import pytest

from utils.checks.kit.example import Ask, answer

LOOP = """
def function(ask, token_ids, eos_token_id, max_tokens):
    token_ids = list(token_ids)
    for _ in range(max_tokens):
        token_ids.append(ask(token_ids).argmax().item())
        if token_ids[-1] == eos_token_id:
            break
    return token_ids
"""


def checked(code: str) -> tuple[bool, str]:
    names: dict[str, object] = {}
    exec(code, names)
    feedback = answer(names["function"])
    return feedback.passed, feedback.message


def test_the_right_answer_passes() -> None:
    assert checked(LOOP)[0]


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("            break", "            pass", "goes on after the answer is over"),
        ("            break", "            return token_ids[:-1]", "aren't the prompt and its"),
        ("token_ids[-1] == eos_token_id", "eos_token_id in token_ids", "aren't the prompt and its"),
        ("argmax", "argmin", "aren't the prompt and its"),
        ("range(max_tokens)", "range(99)", "goes on after the answer is over"),
        ("ask(token_ids)", "(ask(token_ids), ask(token_ids))[0]", "more often than needed"),
        ("    return token_ids\n", "", "aren't the prompt and its"),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(right: str, wrong: str, said: str) -> None:
    assert LOOP.count(right) == 1
    passed, message = checked(LOOP.replace(right, wrong))
    assert not passed and said in message


def test_what_is_not_written_is_said_to_be_so() -> None:
    def unwritten(ask: Ask, token_ids: list[int], eos_token_id: int, max_tokens: int) -> list[int]:
        raise NotImplementedError

    assert "still raises NotImplementedError" in answer(unwritten).message
