"""Texts to calibrate on, to compare: which choice, and how much of it, is what notebook 12 asks."""

from __future__ import annotations

import random
from pathlib import Path

from utils.pipeline.quantizers.calibration import WINDOW, all_windows
from utils.pipeline.stages.chain import calibration_texts

CHOICES = ("customers", "novel", "random tokens", "customers and novel")


def choice_windows(
    choice: str, model_dir: Path, data_dir: Path, num_windows: int, seed: int = 0
) -> list[list[int]]:
    """Windows of 512 token ids of one kind of calibration data.

    The first windows of a large number are good as a small number, so that sizes are nested.

    Args:
        choice: "customers": training conversations, the task itself. "customers and novel": what
            the pipeline takes. "novel": plain English, Jane Austen's Emma. "random tokens": no
            text at all, every token of the vocabulary equally likely.
        model_dir: folder with the tokenizer.
        data_dir: folder of the data stage.
        num_windows: how many.
        seed: picks the windows, or the random tokens.

    Returns:
        Token ids, [num_windows, 512].

    Raises:
        ValueError: an unknown choice, fewer than one window, or more than the texts hold.
    """
    if choice not in CHOICES:
        raise ValueError(f"Unknown choice {choice!r}. Expected one of: {', '.join(CHOICES)}.")
    if num_windows < 1:
        raise ValueError(f"{num_windows=}: expected at least 1.")
    if choice == "random tokens":
        return _random_windows(model_dir, num_windows, seed)
    *chats, novel = calibration_texts(model_dir, data_dir)
    texts = {"customers": chats, "customers and novel": [*chats, novel], "novel": [novel]}[choice]
    windows = all_windows(model_dir, texts)
    if len(windows) < num_windows:
        raise ValueError(
            f"{choice!r} holds {len(windows)} windows of {WINDOW} tokens, not {num_windows}. Ask "
            "for fewer."
        )
    return random.Random(seed).sample(windows, num_windows)


def _random_windows(model_dir: Path, num_windows: int, seed: int) -> list[list[int]]:
    from transformers import AutoTokenizer

    vocabulary = range(len(AutoTokenizer.from_pretrained(model_dir)))
    rng = random.Random(seed)
    return [rng.choices(vocabulary, k=WINDOW) for _ in range(num_windows)]
