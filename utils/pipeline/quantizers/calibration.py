"""Calibration data: the activations that GPTQ and AWQ fit their rounding to."""

from __future__ import annotations

import random
from pathlib import Path

WINDOW = 512  # tokens of one calibration sample
MIN_BUDGET = 4096  # tokens in all, at most; wider models get twice their width


def calibration_windows(
    model_dir: Path, texts: list[str], widest_input: int, seed: int = 0, tokens: int | None = None
) -> list[list[int]]:
    """Cut `texts` into windows of 512 token ids and pick some at random.

    Every tool gets these same windows, so results differ by algorithm and not by data. They all
    have one length, because autoawq joins its samples and cuts them at equal lengths anyway.

    Args:
        model_dir: folder with the tokenizer.
        texts: plain texts, or rendered chats. They are joined, each ended by the model's EOS.
        widest_input: the largest number of input channels of any linear layer. GPTQ estimates a
            second-moment matrix of that size; fewer tokens than channels leave it singular.
        seed: picks the windows.
        tokens: how many to pick in all, at most; None for `MIN_BUDGET`, or twice the widest input.

    Returns:
        Token ids, [num_windows, 512].

    Raises:
        ValueError: the texts hold fewer tokens than `widest_input`.
    """
    windows = all_windows(model_dir, texts)
    if min(len(windows) * WINDOW, tokens or widest_input) < widest_input:
        raise ValueError(
            f"Too little calibration data: {len(texts)} texts make {len(windows)} windows of "
            f"{WINDOW} tokens. At least {-(-widest_input // WINDOW)} are needed, because the "
            f"widest layer has {widest_input} input channels. Pass more or longer texts; the "
            "course ships some, see utils.pipeline.stages.perplexity.load_text."
        )
    budget = (tokens or max(MIN_BUDGET, 2 * widest_input)) // WINDOW
    if len(windows) > budget:
        windows = random.Random(seed).sample(windows, budget)
    return windows


def all_windows(model_dir: Path, texts: list[str]) -> list[list[int]]:
    """Join `texts`, each ended by the model's EOS, and cut them into windows of 512 token ids."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
    token_ids: list[int] = []
    for text in texts:
        # verbose=False: a text may be longer than the model's context, since it is cut below.
        token_ids += tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        token_ids.append(tokenizer.eos_token_id)
    return [token_ids[i : i + WINDOW] for i in range(0, len(token_ids) - WINDOW + 1, WINDOW)]
