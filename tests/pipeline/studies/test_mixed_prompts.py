"""The twelve prompts of lessons 08 and 08c: three kinds, five of which begin alike."""

from __future__ import annotations

from utils.hub import load_tokenizer
from utils.pipeline.studies.mixed_prompts import chats, mixed_prompts


def test_twelve_prompts_of_three_kinds() -> None:
    prompts = mixed_prompts(load_tokenizer("bundled"))
    assert len(prompts) == 12 and [len(ids) > 300 for ids in prompts].count(True) == 5
    long = [ids for ids in prompts if len(ids) > 300]
    assert len({tuple(ids[:250]) for ids in long}) == 1


def test_as_many_chats_as_asked_for() -> None:
    assert len(chats(load_tokenizer("bundled"), 6)) == 6
