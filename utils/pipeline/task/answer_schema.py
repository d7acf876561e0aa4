"""The answer of the extraction task as a JSON schema, for structured output."""

from __future__ import annotations

from typing import Any

from utils.pipeline.task.data import FIELDS, ISSUES, REQUESTS

CURRENCIES = ("EUR", "USD", "GBP", "CHF", "SEK", "PLN")  # as the system prompt lists them


def answer_schema() -> dict[str, Any]:
    """What the system prompt asks for, in the language of https://json-schema.org.

    Texts have a longest length. Without one, a model may write one text until its tokens are used
    up, and the answer never ends.
    """
    fields: dict[str, dict[str, Any]] = {
        "customer": _or_null(type="string", maxLength=40),
        "order_id": _or_null(type="string", maxLength=20),
        "product": {"type": "string", "maxLength": 60},
        "quantity": {"type": "integer", "minimum": 0, "maximum": 1000},
        "amount": _or_null(type="number", minimum=0, maximum=100_000),
        "currency": {"enum": [*CURRENCIES, None]},
        "date": _or_null(type="string", pattern=r"^\d{4}-\d{2}-\d{2}$"),
        "issue": {"enum": list(ISSUES)},
        "request": {"enum": list(REQUESTS)},
    }
    return {
        "type": "object",
        "properties": {name: fields[name] for name in FIELDS},
        "required": list(FIELDS),
        "additionalProperties": False,
    }


def _or_null(**kind: Any) -> dict[str, Any]:
    return {"anyOf": [kind, {"type": "null"}]}
