"""Measures of the extraction task: is it JSON, and is it right?

Strict on purpose. An answer counts only if another program could use it as it is: one JSON object,
nothing around it, exactly the expected keys, every value equal.
"""

from __future__ import annotations

import json
from typing import Any

from utils.pipeline.task.data import FIELDS


def parse_answer(text: str) -> dict[str, Any] | None:
    """Return the answer as a dict, or None when it is not one JSON object with the right keys."""
    try:
        # A key that occurs twice would otherwise silently keep its last value.
        answer = json.loads(text.strip(), object_pairs_hook=_unique_keys)
    except ValueError:
        return None
    if not isinstance(answer, dict) or set(answer) != set(FIELDS):
        return None
    return answer


def same_value(value: Any, expected: Any) -> bool:
    """Equal in value and in kind: 2 equals 2.0, but neither "2" nor true equals 1 or 2."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    return value == expected


def is_right(text: str, expected: dict[str, Any]) -> bool:
    """Is the text exactly the expected answer: the right keys, all values right?"""
    answer = parse_answer(text)
    return answer is not None and all(same_value(answer[key], expected[key]) for key in FIELDS)


def wrong_values(answers: list[dict[str, Any]]) -> list[tuple[str, str, Any, Any]]:
    """Which values are wrong in the answers that the stage `evaluate` saved.

    Args:
        answers: what is in `evaluate/merge.json`, for example. Each has `message`, `expected` and
            `text`.

    Returns:
        (message, field, the model's value, the right value). In a text that is no answer, every
        field is wrong, and the model's value is None.
    """
    wrong = []
    for one in answers:
        found = parse_answer(one["text"])
        for key, expected in one["expected"].items():
            value = found[key] if found else None
            if found is None or not same_value(value, expected):
                wrong.append((one["message"], key, value, expected))
    return wrong


def compare(before: list[str], after: list[str], expected: list[dict[str, Any]]) -> dict[str, int]:
    """Count on which messages two models differ, one of them right and the other wrong.

    Returns:
        `lost`: right before and wrong after. `won`: the other way round.

    Raises:
        ValueError: different numbers of texts and answers.
    """
    right = [
        (is_right(first, truth), is_right(second, truth))
        for first, second, truth in zip(before, after, expected, strict=True)
    ]
    return {"lost": right.count((True, False)), "won": right.count((False, True))}


def score(texts: list[str], expected: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare the model's texts with the expected answers.

    Returns:
        `valid_json`: share of texts that are one JSON object (any keys).
        `exact_match`: share of answers with exactly the right keys and all values right.
        `field_accuracy`: share of right values, for each field.
        `num_examples`.

    Raises:
        ValueError: different numbers of texts and answers, or none.
    """
    if len(texts) != len(expected) or not texts:
        raise ValueError(f"{len(texts)} texts for {len(expected)} answers; need equally many, > 0.")
    answers = [parse_answer(text) for text in texts]
    right = {
        field: sum(
            answer is not None and same_value(answer[field], truth[field])
            for answer, truth in zip(answers, expected, strict=True)
        )
        for field in FIELDS
    }
    exact = sum(map(is_right, texts, expected))
    return {
        "valid_json": sum(map(is_json_object, texts)) / len(texts),
        "exact_match": exact / len(texts),
        "field_accuracy": {field: count / len(texts) for field, count in right.items()},
        "num_examples": len(texts),
    }


def is_json_object(text: str) -> bool:
    """Is the text one JSON object, whatever its keys?"""
    try:
        return isinstance(json.loads(text.strip(), object_pairs_hook=_unique_keys), dict)
    except ValueError:
        return False


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)
