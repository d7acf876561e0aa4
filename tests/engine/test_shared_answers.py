"""Hugging Face's answers are computed once in a run, whoever asks, and for as many tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.conftest import EOS, SharedAnswers


def test_each_answer_is_computed_once(tmp_path: Path) -> None:
    asked: list[tuple[list[list[int]], int]] = []

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Each answer counts up from its prompt; the one to [9] ends after two tokens."""
        asked.append((prompts, max_tokens))
        return [
            [9, EOS] if prompt == [9] else [prompt[-1] + i + 10 for i in range(max_tokens)]
            for prompt in prompts
        ]

    file = tmp_path / "answers.json"
    one, other = (SharedAnswers(file, generate) for _ in range(2))  # of two worker processes
    assert one([[1], [9]], 3) == [[11, 12, 13], [9, EOS]]
    assert other([[9], [1], [1, 1]], 2) == [[9, EOS], [11, 12], [11, 12]]
    assert one([[1], [9], [1, 1]], 4) == [[11, 12, 13, 14], [9, EOS], [11, 12, 13, 14]]
    # A shorter answer begins a longer one; one that has ended is never asked for again.
    assert asked == [([[1], [9]], 3), ([[1, 1]], 2), ([[1], [1, 1]], 4)]


def test_what_fails_leaves_what_is_known(tmp_path: Path) -> None:
    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        if prompts == [[5]]:
            raise RuntimeError
        return [[7] * max_tokens for _ in prompts]

    answers = SharedAnswers(tmp_path / "answers.json", generate)
    assert answers([[1]], 2) == [[7, 7]]
    with pytest.raises(RuntimeError):
        answers([[1], [5]], 2)
    assert answers([[1]], 2) == [[7, 7]]
