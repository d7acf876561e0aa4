"""Texts to calibrate on, to compare: which choice, and how much of it, is what notebook 12 asks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.pipeline.quantizers.calibration import WINDOW, all_windows
from utils.pipeline.stages.functions import calibration_texts

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


@torch.inference_mode()
def layer_inputs(
    model: Any, number: int, names: Sequence[str], windows: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """What linear layers of one decoder block are given when the model reads these windows.

    Args:
        model: a causal language model of transformers. The blocks after this one are not run.
        number: of the block, from 0.
        names: of its linear layers, such as "mlp.down_proj".
        windows: token ids of each.

    Returns:
        The inputs of each layer, one row per token: name -> float32 [tokens, in], on the CPU.
    """
    blocks = model.model.layers
    caught: dict[str, list[Tensor]] = {name: [] for name in names}
    hooks = [
        blocks[number]
        .get_submodule(name)
        .register_forward_pre_hook(
            lambda _, args, kept=kept: kept.append(args[0].flatten(0, 1).float().cpu())
        )
        for name, kept in caught.items()
    ]
    model.model.layers = blocks[: number + 1]
    try:
        for window in windows:
            model.model(torch.tensor([window], device=model.device), use_cache=False)
    finally:
        model.model.layers = blocks
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(kept) for name, kept in caught.items()}


def _random_windows(model_dir: Path, num_windows: int, seed: int) -> list[list[int]]:
    from transformers import AutoTokenizer

    vocabulary = range(len(AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)))
    rng = random.Random(seed)
    return [rng.choices(vocabulary, k=WINDOW) for _ in range(num_windows)]
