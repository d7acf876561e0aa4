"""Perplexity, against transformers' own loss, and the check that refuses a broken model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from utils.pipeline.stages.perplexity import (
    TEXTS,
    BrokenModelError,
    check_perplexity,
    load_text,
    perplexity,
    token_windows,
)


def test_equals_transformers_loss(hf_model: Any, tokenizer: Any, model_path: Path) -> None:
    text = load_text()[:1500]
    token_ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = math.exp(hf_model(token_ids, labels=token_ids).loss)
    measured = perplexity(hf_model, [text], tokenizer=tokenizer, use_tqdm=False)
    assert measured == pytest.approx(expected, rel=1e-4)


def test_windows_are_weighted_by_their_tokens(hf_model: Any, tokenizer: Any) -> None:
    """The mean over tokens, not the mean over windows: the last one is short."""
    text = load_text()[:800]
    token_ids = tokenizer(text)["input_ids"]
    total, count = 0.0, 0
    for start in range(0, len(token_ids), 96):
        window = torch.tensor([token_ids[start : start + 96]])
        with torch.no_grad():
            loss = hf_model(window, labels=window).loss.item()
        total, count = total + loss * (window.shape[1] - 1), count + window.shape[1] - 1
    measured = perplexity(hf_model, [text], tokenizer=tokenizer, context=96, use_tqdm=False)
    assert len(token_ids) % 96 > 1
    assert measured == pytest.approx(math.exp(total / count), rel=1e-4)


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity(tokenizer: Any) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    model = LlamaForCausalLM(config).eval()
    torch.nn.init.zeros_(model.lm_head.weight)
    measured = perplexity(model, max_tokens=64, tokenizer=tokenizer, use_tqdm=False)
    assert measured == pytest.approx(len(tokenizer), rel=1e-4)


def test_windows(tokenizer: Any) -> None:
    texts = [load_text()[:2000], load_text("emma")[:2000]]
    windows = token_windows(tokenizer, texts, max_tokens=10_000, context=100)
    expected = [token_id for text in texts for token_id in tokenizer(text)["input_ids"]]
    assert [token_id for window in windows for token_id in window] == expected
    short = token_windows(tokenizer, texts, max_tokens=150, context=100)
    assert [len(window) for window in short] == [100, 50]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": [""]}, "fewer than two tokens"),
        ({"texts": []}, "fewer than two tokens"),
        ({"max_tokens": 1}, "at least 2"),
        ({"context": 0}, "at least 2"),
    ],
)
def test_wrong_arguments(
    arguments: dict[str, Any], message: str, hf_model: Any, tokenizer: Any
) -> None:
    with pytest.raises(ValueError, match=message):
        perplexity(hf_model, tokenizer=tokenizer, **arguments)


def test_texts_ship_with_their_origin() -> None:
    readme = (TEXTS / "README.md").read_text()
    for file in TEXTS.glob("*.txt"):
        assert file.name in readme
        assert file.stat().st_size < 120_000
        assert load_text(file.stem).isascii()
    assert "public domain" in readme
    with pytest.raises(ValueError, match=r"emma.*mansfield_park"):
        load_text("persuasion")


def test_evaluation_and_calibration_do_not_overlap() -> None:
    paragraphs = set(load_text("emma").split("\n\n")) & set(load_text().split("\n\n"))
    assert all(len(paragraph) < 60 for paragraph in paragraphs)  # chapter headings, "Indeed!"


@pytest.mark.parametrize(("before", "after"), [(37.0, 41.5), (37.0, 37.0), (37.0, 30.0)])
def test_sound_models_pass(before: float, after: float) -> None:
    check_perplexity("gptq", before, after, max_ratio=1.5)


@pytest.mark.parametrize(
    ("after", "cause"),
    [(77_929.0, "garbage"), (60.0, "calibration"), (math.nan, "NaN"), (math.inf, "overflow")],
)
def test_broken_models_are_refused_with_a_cause(after: float, cause: str) -> None:
    with pytest.raises(BrokenModelError, match=cause) as error:
        check_perplexity("awq by autoawq", 37.3, after, max_ratio=1.5)
    assert "awq by autoawq" in str(error.value)
    assert "37.3" in str(error.value)
