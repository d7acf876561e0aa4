"""The message generator: variety, honesty of the split, and answers that the messages support."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.pipeline.task import data, messages
from utils.pipeline.task.data import FIELDS, DataError, Example, read_jsonl, write_jsonl
from utils.pipeline.task.messages import generate
from utils.pipeline.task.phrases import HELD_OUT, TRAIN, Phrases

TRAINING = generate("train", 600)
HELD = generate("held_out", 300)


def flat(phrases: Phrases, name: str) -> set[str]:
    value = getattr(phrases, name)
    texts = sum(value.values(), ()) if isinstance(value, dict) else value
    return {text for text in texts if text}


def test_the_same_seed_gives_the_same_messages() -> None:
    assert generate("train", 50) == TRAINING[:50]
    assert generate("train", 50, seed=1) != TRAINING[:50]


def test_messages_are_varied() -> None:
    assert len({example.message for example in TRAINING}) == len(TRAINING)
    # Without their values, most messages still differ: many templates, not one.
    shapes = {re.sub(r"[\d.,'/ ]+", " ", example.message) for example in TRAINING}
    assert len(shapes) > 0.9 * len(TRAINING)
    for field in FIELDS:
        values = Counter(str(example.answer[field]) for example in TRAINING)
        assert len(values) >= 3, field
        assert values.most_common(1)[0][1] < 0.7 * len(TRAINING), field
    for field in ("customer", "order_id", "amount", "currency"):
        missing = sum(example.answer[field] is None for example in TRAINING)
        assert 0.03 < missing / len(TRAINING) < 0.7, field


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Phrases)])
def test_held_out_phrases_are_not_in_training(name: str) -> None:
    assert not flat(TRAIN, name) & flat(HELD_OUT, name)


def test_held_out_values_are_not_in_training() -> None:
    for field in ("customer", "order_id", "product", "amount", "date"):
        seen = {example.answer[field] for example in TRAINING} - {None}
        new = {example.answer[field] for example in HELD} - {None}
        assert not seen & new, field
    names = {
        word for e in TRAINING if e.answer["customer"] for word in e.answer["customer"].split()
    }
    assert not any(
        word in names for e in HELD if e.answer["customer"] for word in e.answer["customer"].split()
    )


def test_other_dates_and_orders_of_held_out_messages_are_new_too() -> None:
    iso = re.compile(r"\d{4}-\d\d-\d\d")
    seen = {text for example in TRAINING for text in iso.findall(example.message)}
    assert not seen & {text for example in HELD for text in iso.findall(example.message)}


def test_the_answers_follow_from_the_messages() -> None:
    for example in TRAINING + HELD:
        check_answer(example)


def check_answer(example: Example) -> None:
    answer, message = example.answer, example.message
    assert tuple(answer) == FIELDS
    for field in ("customer", "order_id", "product"):
        assert answer[field] is None or answer[field] in message
    if answer["amount"] is None:
        assert answer["currency"] is None
    else:
        # An independent reading: the amount's digits, in order, stand somewhere in the message.
        digits = re.sub(r"\D", "", message)
        cents = round(answer["amount"] * 100)
        assert str(cents) in digits
        assert answer["currency"] in messages._MONEY
    if answer["date"] is not None:
        year, _, day = answer["date"].split("-")
        assert year in message and day in message
    assert "{" not in message and "}" not in message


def test_answers_are_json_that_reads_back() -> None:
    for example in TRAINING[:100]:
        assert json.loads(example.answer_text()) == example.answer


@pytest.mark.parametrize(
    ("cents", "expected"), [(129900, "1.299,00"), (50, "0,50"), (123456789, "1.234.567,89")]
)
def test_number_formats(cents: int, expected: str) -> None:
    assert messages._german(cents) == expected


@given(st.integers(1, 10**9))
def test_every_money_format_keeps_the_digits(cents: int) -> None:
    for currency, styles in messages._MONEY.items():
        for style in styles:
            assert int(re.sub(r"\D", "", style(cents))) == cents, currency


def test_the_system_prompt_spans_several_cache_blocks(tokenizer) -> None:
    tokens = len(tokenizer(data.SYSTEM_PROMPT)["input_ids"])
    assert tokens >= 160
    assert tokens // 32 >= 4  # full blocks of 32, which is what can be reused


def test_the_system_prompt_names_every_field_and_value() -> None:
    for word in (*FIELDS, *data.ISSUES, *data.REQUESTS, *messages._MONEY):
        assert word in data.SYSTEM_PROMPT


def test_data_sets_survive_the_disk(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", TRAINING[:20])
    assert read_jsonl(tmp_path / "x.jsonl") == TRAINING[:20]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "does not exist"),
        ("", "holds no examples"),
        ("\n\n", "holds no examples"),
        ("{", "line 1: not valid JSON"),
        ("[1]", "line 1: expected"),
        ('{"message": 3, "answer": {}}', "line 1: expected"),
        ('{"message": "x", "answer": {"customer": "A"}}', "exactly the keys customer"),
    ],
)
def test_bad_data_sets_are_named(tmp_path: Path, text: str | None, expected: str) -> None:
    path = tmp_path / "x.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=expected):
        read_jsonl(path)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="held_out"):
        generate("test", 1)
    with pytest.raises(ValueError, match="negative"):
        generate("train", -1)
