"""The data card of the task, README.md in this folder: counted, not typed.

    python -m utils.pipeline.task.card      write it anew

Its header is in Hugging Face's format (https://huggingface.co/docs/hub/datasets-cards). Gebru et
al., "Datasheets for Datasets", 2021, https://arxiv.org/abs/1803.09010, has the questions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path
from statistics import median

from utils.pipeline.task.data import FIELDS, ISSUES, REQUESTS, Example
from utils.pipeline.task.messages import generate
from utils.pipeline.task.phrases import HELD_OUT, TRAIN
from utils.profiles import PROFILES

CARD = Path(__file__).with_name("README.md")
SAMPLE = 1000  # messages of each split that the card counts


def data_card() -> str:
    """The card: header and text."""
    splits = {name: generate(name, SAMPLE) for name in ("train", "held_out")}
    shown = splits["train"][0]
    sizes = [
        f"| `{name}` | {profile.train_examples} | {profile.eval_examples} |"
        for name, profile in PROFILES.items()
    ]
    return f"""\
{_header()}
# Customer messages with their answers

Short messages to a shop, in English, each with the one line of JSON that a program needs from it:
{", ".join(f"`{field}`" for field in FIELDS)}.
The pipeline of this course fine-tunes and measures its models on them. This card is written by
`python -m utils.pipeline.task.card`, which counts what it says.

## How they are made

A seeded program (`messages.py`) fills templates with values (`phrases.json`), and keeps the
answer beside the message. No person wrote a message, and none is copied: names, orders and
telephone numbers are drawn at random. The same seed gives the same messages on every machine. Some
messages also hold true but useless facts (another order, another date, a quoted mail), so that
copying the first number fails. What a message does not say is `null` in its answer.

An example of the training split:

```text
{shown.message}
```

```json
{shown.answer_text()}
```

## Splits

Training and held-out messages share no template, name or product, and no order number, sum or day
of an order. So a right answer on a held-out message is no memory of one from training.

| words to draw from | train | held-out | in both |
|---|---:|---:|---:|
{_phrases()}

How many messages a run of the pipeline generates:

| profile | train | held-out |
|---|---:|---:|
{chr(10).join(sizes)}

## What is in them

Counted on {SAMPLE:,} messages of each split, seed 0.

| | train | held-out |
|---|---:|---:|
{_counts(splits)}

## Limits and biases

- Templates are few. A model can learn them, and still fail on what people write: with slips of the
  pen, in several languages at once, about two orders in one message.
- English, with amounts and dates as shops in Europe and the USA write them, in six currencies.
  Names come from many countries and equally often; no real shop has such customers.
- Every message has exactly one issue of {len(ISSUES)} and one request of {len(REQUESTS)}, all
  equally likely. There is no "none of these", and nobody is insulting, in danger or lying.
- The order of facts is much the same in all. The answer never needs arithmetic.

## What it must not be used for

Not to show that a model is fit for real customers' messages, and not to compare models in general:
it measures one narrow skill. Not to learn anything about people of some name or country: who
complains about what was drawn at random.

## Licence

Apache-2.0, as all of the course. The prose in `texts/` is by Jane Austen and in the public domain
(`texts/README.md`); it is no part of these data.
"""


def _header() -> str:
    from huggingface_hub import DatasetCardData

    data = DatasetCardData(
        pretty_name="Customer messages with their answers",
        language="en",
        license="apache-2.0",
        annotations_creators="machine-generated",
        language_creators="machine-generated",
        multilinguality="monolingual",
        size_categories="1K<n<10K",
        source_datasets=["original"],
        task_categories=["text-generation"],
        tags=["synthetic", "structured-extraction", "from-kv-cache-to-vllm"],
    )
    return f"---\n{data.to_yaml()}\n---\n"


def _phrases() -> str:
    rows = []
    for place in fields(TRAIN):
        train, held_out = (_texts(getattr(split, place.name)) for split in (TRAIN, HELD_OUT))
        both = len((train & held_out) - {""})
        name = place.name.replace("_", " ")
        rows.append(f"| {name} | {len(train)} | {len(held_out)} | {both} |")
    return "\n".join(rows)


def _texts(phrases: tuple[str, ...] | dict[str, tuple[str, ...]]) -> set[str]:
    if isinstance(phrases, dict):
        return {text for texts in phrases.values() for text in texts}
    return set(phrases)


def _counts(splits: dict[str, list[Example]]) -> str:
    rows: dict[str, list[str]] = {}

    def add(name: str, values: list[str]) -> None:
        rows[name] = values

    lengths = [sorted(len(e.message) for e in examples) for examples in splits.values()]
    add("characters, median", [f"{median(found):.0f}" for found in lengths])
    add("characters, longest", [str(found[-1]) for found in lengths])
    for field in FIELDS:
        shares = [
            sum(e.answer[field] is None for e in examples) / len(examples)
            for examples in splits.values()
        ]
        if any(shares):
            add(f"`{field}` is null", [f"{share:.0%}" for share in shares])
    for field, values in (("issue", ISSUES), ("request", REQUESTS)):
        found = [Counter(e.answer[field] for e in examples) for examples in splits.values()]
        for value in values:
            add(f"{field} `{value}`", [f"{one[value] / one.total():.0%}" for one in found])
    return "\n".join(f"| {name} | {' | '.join(values)} |" for name, values in rows.items())


if __name__ == "__main__":
    CARD.write_text(data_card(), encoding="utf-8")
