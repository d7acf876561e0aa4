"""Words that a draft model may guess: with fewer of them, a guess costs less.

A small draft's output head is most of its work. It may leave out rows: a word that is never guessed
is never guessed wrongly, and the target says it all the same. Zhao et al. 2025, "FR-Spec",
https://arxiv.org/abs/2502.14856.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.engine.kernels.packed_linear import PackedLinear

# Beside the draft's weights. Not in their format: vLLM would take it for one more file of weights.
FILE = "draft_vocabulary.json"


def read_draft_vocabulary(folder: str | Path, vocab_size: int) -> Tensor | None:
    """The token ids [n] that the draft in `folder` may guess, int64; None for all.

    Raises:
        ValueError: the file is damaged, or is no list of different ids below `vocab_size`.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    try:
        token_ids = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}. Make the draft again.") from error
    is_list = isinstance(token_ids, list) and token_ids
    if not is_list or not all(type(i) is int and 0 <= i < vocab_size for i in token_ids):
        raise ValueError(
            f"{path} must hold a list of token ids below {vocab_size}, the size of the target's "
            f"vocabulary. Make the draft again."
        )
    if len(set(token_ids)) < len(token_ids):
        raise ValueError(f"{path} names a token twice. Make the draft again.")
    return torch.tensor(token_ids)


def write_draft_vocabulary(folder: Path, token_ids: Iterable[int]) -> None:
    """Write what a draft may guess into its folder, where `read_draft_vocabulary` looks."""
    (folder / FILE).write_text(json.dumps([int(token_id) for token_id in token_ids]))


def head_of(
    lm_head: nn.Module, token_ids: Tensor | None
) -> tuple[Callable[[Tensor], Tensor], Tensor | None]:
    """The output head of a draft that may guess these tokens, and their ids beside the head.

    Args:
        lm_head: of all tokens.
        token_ids: [n]; no other rows of the head are computed. None: all tokens.

    Returns:
        [B, hidden] -> [B, n]; and what `named` turns places among the n into tokens with.
    """
    assert isinstance(lm_head.weight, Tensor)
    if token_ids is None:
        return lm_head, None
    token_ids = token_ids.to(lm_head.weight.device)
    return rows_of(lm_head, token_ids), token_ids


def named(places: Tensor, token_ids: Tensor | None) -> Tensor:
    """The tokens at these places of a draft's scores, of any shape."""
    return places if token_ids is None else token_ids[places]


def rows_of(lm_head: nn.Module, token_ids: Tensor) -> Callable[[Tensor], Tensor]:
    """An output head with these rows [n] of another: [B, hidden] -> [B, n]."""
    assert isinstance(lm_head.weight, Tensor)
    weight = lm_head.weight.detach()[token_ids]
    return (
        PackedLinear(weight)
        if isinstance(lm_head, PackedLinear)
        else partial(F.linear, weight=weight)
    )
