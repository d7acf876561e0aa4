"""The task of the pipeline: a customer's message in, strict JSON out.

What an example is, and how a file holds many. A seeded generator writes them (`messages.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.pipeline.task.phrases import TRAIN

FIELDS = (
    "customer",
    "order_id",
    "product",
    "quantity",
    "amount",
    "currency",
    "date",
    "issue",
    "request",
)
ISSUES = tuple(TRAIN.issues)
REQUESTS = tuple(TRAIN.requests)

SYSTEM_PROMPT = """\
You extract data from customer messages. Answer with one JSON object on one line and nothing else. \
It has exactly these keys, in this order:
"customer": full name of the customer, or null
"order_id": the number of the order that the message is about, or null
"product": the product as written
"quantity": how many pieces were ordered, an integer
"amount": the price of the order, a number with two decimals, or null
"currency": one of EUR, USD, GBP, CHF, SEK, PLN, or null
"date": the day of the order as YYYY-MM-DD
"issue": one of late (not here yet), damaged (broken, not working), wrong (something else came), \
incomplete (parts missing), overcharged (billed too much)
"request": one of refund (money back), replacement (a new one), information (wants to know)
Rules: Copy names and order numbers exactly. Dates with dots are day.month.year. kr means SEK. \
Write null for what the message does not say. Ignore other \
orders, other people, other sums and other dates, phone numbers, and quoted or forwarded text."""


class DataError(ValueError):
    """A data set is missing, empty or malformed. The message says where and what was expected."""


@dataclass(frozen=True)
class Example:
    """One message and its answer, a dict with the keys `FIELDS`."""

    message: str
    answer: dict[str, Any]

    def answer_text(self) -> str:
        """The answer as one line of JSON, the text that training teaches."""
        return render_answer(self.answer)

    def messages(self) -> list[dict[str, str]]:
        """The prompt as chat messages: the shared system prompt, then the customer's message."""
        return [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": self.message},
        ]


def render_answer(answer: dict[str, Any]) -> str:
    """Write an answer as JSON on one line, amounts with two decimals."""

    def value(field: str) -> str:
        if field == "amount" and answer[field] is not None:
            return f"{answer[field]:.2f}"
        return json.dumps(answer[field], ensure_ascii=False)

    return "{" + ", ".join(f'"{field}": {value(field)}' for field in FIELDS) + "}"


def write_jsonl(path: Path, examples: list[Example]) -> None:
    """Write one JSON object per line: {"message": ..., "answer": {...}}."""
    lines = (
        json.dumps({"message": example.message, "answer": example.answer}, ensure_ascii=False)
        for example in examples
    )
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_jsonl(path: Path) -> list[Example]:
    """Read what `write_jsonl` wrote.

    Raises:
        DataError: no such file, no examples in it, or a malformed line (the message names it).
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist. Run the data stage first.")
    examples = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not valid JSON ({error}).") from error
        if not isinstance(row, dict) or not isinstance(row.get("message"), str):
            raise DataError(f'{where}: expected {{"message": text, "answer": {{...}}}}.')
        answer = row.get("answer")
        if not isinstance(answer, dict) or set(answer) != set(FIELDS):
            raise DataError(f"{where}: the answer must have exactly the keys {', '.join(FIELDS)}.")
        examples.append(Example(row["message"], {field: answer[field] for field in FIELDS}))
    if not examples:
        raise DataError(f"{path} holds no examples.")
    return examples
