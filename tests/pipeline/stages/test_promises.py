"""Promises about accuracy: luck does not break them, a broken model does."""

from __future__ import annotations

import math

import pytest
import torch

from utils.pipeline.stages.promises import (
    MAX_BASE_EXACT_MATCH,
    MAX_LOSS_BY_4_BITS,
    MIN_EXACT_MATCH,
    check_promises,
)
from utils.profiles import PROFILES

MESSAGES, RUNS = 120, 500
SERVER = {"is_valid_answer": True, "has_metrics": True}


def kept(right: int, lost: int, won: int) -> tuple[bool, bool]:
    """Are the promises about fine-tuning and about GPTQ kept, given counts of 120 messages?"""
    after = (right - lost + won) / MESSAGES
    shares = {"base": 0.0, "merge": right / MESSAGES, "gptq": after, "awq": after}
    rows = [
        {
            "name": name,
            "label": name,
            "exact_match": share,
            "num_examples": MESSAGES,
            "lost": lost,
            "won": won,
            "ttft_hit_seconds": 0.1,
            "ttft_miss_seconds": 0.2,
        }
        for name, share in shares.items()
    ]
    promises = check_promises(rows, SERVER)
    assert promises[2][1] == promises[3][1]  # the same for both methods
    return promises[1][1], promises[2][1]


def base_fails(right: int, messages: int) -> bool:
    """Is the promise kept that the base model fails the task?"""
    row = {
        "label": "x",
        "exact_match": 0.9,
        "num_examples": MESSAGES,
        "lost": 0,
        "won": 0,
        "ttft_hit_seconds": 0.1,
        "ttft_miss_seconds": 0.2,
    }
    rows = [row | {"name": name} for name in ("base", "merge", "gptq", "awq")]
    rows[0] |= {"exact_match": right / messages, "num_examples": messages}
    return check_promises(rows, SERVER)[0][1]


def runs(correct: float, loss: float, noise: float = 0.03) -> tuple[float, float]:
    """In which share of runs the two promises are kept, for a model of known quality.

    `noise` is the share of messages that 4 bits get right by luck, and as many more wrongly.
    """
    generator = torch.Generator().manual_seed(1)
    # Both right, lost, won, both wrong.
    chances = torch.tensor([correct - loss - noise, loss + noise, noise, 1 - correct - noise])
    draws = torch.multinomial(chances, RUNS * MESSAGES, replacement=True, generator=generator)
    results = []
    for sample in draws.view(RUNS, MESSAGES):
        both, lost, won, _ = torch.bincount(sample, minlength=4).tolist()
        results.append(kept(both + lost, lost, won))
    fine_tuned, four_bits = zip(*results, strict=True)
    return sum(fine_tuned) / RUNS, sum(four_bits) / RUNS


def test_a_model_exactly_as_good_as_promised_passes_nearly_always() -> None:
    fine_tuned, four_bits = runs(MIN_EXACT_MATCH, MAX_LOSS_BY_4_BITS)
    assert fine_tuned > 0.95 and four_bits > 0.95


def test_a_better_model_always_passes() -> None:
    assert runs(MIN_EXACT_MATCH + 0.05, MAX_LOSS_BY_4_BITS - 0.05) == (1, 1)


def test_a_broken_checkpoint_always_fails() -> None:
    fine_tuned, four_bits = runs(0.90, MAX_LOSS_BY_4_BITS + 0.25)
    assert fine_tuned > 0.99 and four_bits == 0


def test_a_model_that_did_not_learn_always_fails() -> None:
    fine_tuned, _ = runs(MIN_EXACT_MATCH - 0.25, 0.05)
    assert fine_tuned == 0


@pytest.mark.parametrize(("lost", "won", "expected"), [(0, 0, True), (120, 0, False)])
def test_the_extremes(lost: int, won: int, expected: bool) -> None:
    assert kept(120, lost, won) == (True, expected)


def test_fewer_messages_prove_that_the_base_model_fails() -> None:
    """A base that is right as often as is allowed, or more, passes at most once in 40 runs."""
    n, p = PROFILES["cpu"].base_messages, MAX_BASE_EXACT_MATCH
    kept = [right for right in range(n + 1) if base_fails(right, n)]
    assert kept == list(range(len(kept)))
    passes = sum(math.comb(n, right) * p**right * (1 - p) ** (n - right) for right in kept)
    assert passes < 0.025
    assert {0, 1} <= set(kept)  # and one answer that is right by luck does not break it
    assert not base_fails(0, 20)  # too few to say


def test_a_run_that_trained_too_little_is_not_judged_by_its_answers() -> None:
    row = {
        "label": "x",
        "exact_match": 0.0,
        "num_examples": 8,
        "lost": 8,
        "won": 0,
        "ttft_hit_seconds": 0.1,
        "ttft_miss_seconds": 0.2,
    }
    rows = [row | {"name": name} for name in ("base", "merge", "gptq", "awq")]
    server = {"is_valid_answer": False, "has_metrics": True}
    promises = check_promises(rows, server, judges_accuracy=False)
    assert len(promises) == 5 and all(kept for _, kept in promises)
    # What is left is judged.
    assert not check_promises(rows, server | {"has_metrics": False}, False)[-1][1]
    rows[2]["ttft_hit_seconds"] = 0.3
    kept = [kept for _, kept in check_promises(rows, server, judges_accuracy=False)]
    assert kept == [True, True, False, True, True]
