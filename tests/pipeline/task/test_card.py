"""The task's data card: in step with the generator, and read by Hugging Face's own parser."""

from __future__ import annotations

import re

from huggingface_hub import DatasetCard

from utils.pipeline.task.card import CARD, SAMPLE, data_card
from utils.pipeline.task.messages import generate
from utils.profiles import PROFILES


def test_it_is_what_the_program_writes() -> None:
    assert CARD.read_text("utf-8") == data_card(), "run: python -m utils.pipeline.task.card"


def test_programs_can_read_its_header() -> None:
    data = DatasetCard.load(CARD).data
    assert (data.license, data.language) == ("apache-2.0", "en")
    assert data.annotations_creators == "machine-generated"


def test_what_it_says_is_so() -> None:
    text = CARD.read_text("utf-8")
    for name, profile in PROFILES.items():
        assert f"| `{name}` | {profile.train_examples} | {profile.eval_examples} |" in text
    nothing = [
        sum(example.answer["customer"] is None for example in generate(split, SAMPLE))
        for split in ("train", "held_out")
    ]
    assert f"| `customer` is null | {nothing[0] / 10:.0f}% | {nothing[1] / 10:.0f}% |" in text
    # "Training and held-out messages share no template, name or product".
    shared = re.findall(r"^\| [a-z ]+ \| \d+ \| \d+ \| (\d+) \|$", text, re.MULTILINE)
    assert len(shared) == 11 and set(shared) == {"0"}
