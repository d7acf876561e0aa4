"""Scoring: strict, and right on answers made by hand."""

from __future__ import annotations

import json

import pytest

from utils.pipeline.task.data import FIELDS
from utils.pipeline.task.evaluate import compare, parse_answer, same_value, score, wrong_values
from utils.pipeline.task.messages import generate

RIGHT = {
    "customer": "Zoë O'Brien",
    "order_id": "AB-123",
    "product": "tea kettle",
    "quantity": 2,
    "amount": 19.5,
    "currency": "EUR",
    "date": "2024-02-03",
    "issue": "late",
    "request": None,
}
TEXT = json.dumps(RIGHT, ensure_ascii=False)


def variant(**changes: object) -> str:
    return json.dumps(RIGHT | changes)


def test_the_right_answer_is_right() -> None:
    result = score([TEXT, f"  {TEXT}\n", variant(amount=19.50)], [RIGHT] * 3)
    assert result["valid_json"] == result["exact_match"] == 1
    assert set(result["field_accuracy"].values()) == {1}


@pytest.mark.parametrize(
    "text",
    [
        variant(quantity="2"),
        variant(quantity=True),
        variant(customer="Zoe O'Brien"),
        variant(amount="19.50"),
        variant(request="null"),
        variant(date="2024-2-3"),
        variant(issue="Late"),
        variant(extra=1),
        json.dumps({k: RIGHT[k] for k in FIELDS[1:]}),
    ],
)
def test_valid_json_that_is_not_right(text: str) -> None:
    result = score([text], [RIGHT])
    assert (result["valid_json"], result["exact_match"]) == (1, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        TEXT[:-1],
        TEXT + TEXT,
        f"Here it is: {TEXT}",
        f"```json\n{TEXT}\n```",
        TEXT[:-1] + ', "date": "2024-02-03"}',
    ],
)
def test_what_is_not_one_json_object(text: str) -> None:
    result = score([text], [RIGHT])
    assert (result["valid_json"], result["exact_match"]) == (0, 0)
    assert parse_answer(text) is None


def test_shares_are_counted_per_example_and_field() -> None:
    result = score([TEXT, variant(date=None), "no", variant(issue="damaged")], [RIGHT] * 4)
    assert result["valid_json"] == 0.75
    assert result["exact_match"] == 0.25
    assert result["field_accuracy"]["date"] == 0.5
    assert result["field_accuracy"]["customer"] == 0.75


def test_every_generated_answer_scores_itself_and_no_other() -> None:
    examples = generate("held_out", 60)
    texts = [example.answer_text() for example in examples]
    answers = [example.answer for example in examples]
    assert score(texts, answers)["exact_match"] == 1
    assert score(texts[1:] + texts[:1], answers)["exact_match"] == 0


def test_numbers_compare_by_value_and_kind() -> None:
    assert same_value(2, 2.0) and same_value(None, None)
    assert not same_value(True, 1) and not same_value(None, 0) and not same_value("2", 2)


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="0 texts for 1 answers"):
        score([], [RIGHT])


def test_two_models_are_compared_message_by_message() -> None:
    wrong = variant(date=None)
    before = [TEXT, TEXT, TEXT, wrong, wrong, "no", "no"]
    after = [TEXT, wrong, "no", f" {TEXT}", "no", wrong, "no"]
    assert compare(before, after, [RIGHT] * 7) == {"lost": 2, "won": 1}
    with pytest.raises(ValueError, match="longer"):
        compare(before, after, [RIGHT] * 8)


def test_wrong_values_are_named_with_what_the_model_wrote() -> None:
    texts = {"a": TEXT, "b": variant(date=None, issue="damaged"), "c": "no answer"}
    answers = [{"message": m, "expected": RIGHT, "text": text} for m, text in texts.items()]
    assert wrong_values(answers) == [
        ("b", "date", None, RIGHT["date"]),
        ("b", "issue", "damaged", RIGHT["issue"]),
        *(("c", key, None, RIGHT[key]) for key in FIELDS),
    ]
