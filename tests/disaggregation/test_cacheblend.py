"""Reuse that is no prefix: against Hugging Face, by the mathematics of RoPE, and what was found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from utils.disaggregation.cacheblend import Study, at_random, first_of_each, run_study
from utils.disaggregation.reuse_prompts import Prompt
from utils.disaggregation.reuse_prompts import prompts as all_prompts
from utils.engine.config.model import ModelConfig
from utils.engine.models.weights import load_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@pytest.fixture(scope="module")
def study(model_path: Path) -> Study:
    return Study(load_model(model_path, ModelConfig.from_pretrained(model_path)))


@pytest.fixture(scope="module")
def prompt(tokenizer: PreTrainedTokenizerBase) -> Prompt:
    return next(all_prompts(tokenizer))


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_the_whole_prompt_is_hugging_faces(
    study: Study, prompt: Prompt, hf_model: PreTrainedModel
) -> None:
    memory, logits = study.whole(prompt)
    out = hf_model(prompt.ids[None], use_cache=True)
    torch.testing.assert_close(logits, out.logits[0, -1], rtol=1e-3, atol=1e-3)
    for layer in (0, 29):
        key = out.past_key_values.layers[layer].keys[0].transpose(0, 1)
        torch.testing.assert_close(memory.keys[layer], key, rtol=1e-3, atol=1e-3)


def test_a_note_alone_is_hugging_faces_note_turned_to_its_place(
    study: Study, prompt: Prompt, hf_model: PreTrainedModel
) -> None:
    pieces = study.pieces(prompt, behind="nothing", rotate=True)
    start, note = prompt.starts[1], prompt.notes[1]
    # RoPE is relative: the same tokens with positions from `start` on, seeing only each other.
    places = torch.arange(start, start + len(note))[None]
    out = hf_model(note[None], position_ids=places, use_cache=True)
    for layer in (0, 15, 29):
        cache = out.past_key_values.layers[layer]
        for ours, theirs in ((pieces.keys, cache.keys), (pieces.values, cache.values)):
            got, want = ours[layer][start : start + len(note)], theirs[0].transpose(0, 1)
            torch.testing.assert_close(got, want, rtol=1e-3, atol=2e-3)


def test_the_first_layer_has_nothing_to_turn_but_keys(study: Study, prompt: Prompt) -> None:
    right, _ = study.whole(prompt)
    plain = study.pieces(prompt, behind="nothing", rotate=False)
    turned = study.pieces(prompt, behind="nothing", rotate=True)
    n = prompt.num_reused
    torch.testing.assert_close(turned.keys[0], right.keys[0][:n], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(plain.values[0], right.values[0][:n], rtol=1e-4, atol=1e-4)
    assert (plain.keys[0] - right.keys[0][:n]).abs().max() > 1
    assert (turned.keys[5] - right.keys[5][:n]).abs().max() > 0.1  # deeper layers saw other notes


def test_all_notes_again_is_the_whole_prompt(study: Study, prompt: Prompt) -> None:
    right, want = study.whole(prompt)
    pieces = study.pieces(prompt, behind="nothing", rotate=True)
    again = torch.arange(prompt.starts[0], prompt.num_reused)
    got = study.blend(prompt, pieces, right, again)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_choices_keep_to_the_notes(study: Study, prompt: Prompt) -> None:
    right, _ = study.whole(prompt)
    pieces = study.pieces(prompt, behind="nothing", rotate=True)
    starts = first_of_each(prompt, pieces, right, 9)
    assert starts.tolist() == [s + i for s in prompt.starts for i in range(3)]
    some = at_random(prompt, pieces, right, 20)
    assert len(set(some.tolist())) == 20 and some.min() >= prompt.starts[0]


def test_what_was_found(model_path: Path) -> None:
    rows = {row.name: row for row in run_study(model_path)}
    kl = {name: row.kl for name, row in rows.items()}
    assert kl["all three notes again"] < 1e-4 and rows["all three notes again"].same_token == 6
    assert kl["put together as they are"] > kl["re-rotated"]
    # On this small model CacheBlend's rule is no better than chance, and beginnings are.
    chance = kl["some again, at random"]
    assert kl["some again, by deviation (CacheBlend)"] == pytest.approx(chance, rel=0.2)
    assert kl["some again, the beginnings (EPIC)"] < 0.4 * chance
    assert kl["computed behind the whole prefix"] < kl["computed behind the system prompt"]
    assert kl["computed behind the system prompt"] < 0.5 * kl["re-rotated"]
