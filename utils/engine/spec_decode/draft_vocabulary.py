"""Words that a draft model may guess: with fewer of them, a guess costs less.

A small draft's output head is most of its work. It may leave out rows: a word that is never guessed
is never guessed wrongly, and the target says it all the same. Zhao et al. 2025, "FR-Spec",
https://arxiv.org/abs/2502.14856.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from utils.engine.kernels.packed_linear import PackedLinear

FILE = "draft_vocabulary.safetensors"  # beside the draft's weights; other programs pass it over
NAME = "token_ids"


def read_draft_vocabulary(folder: str | Path, vocab_size: int) -> Tensor | None:
    """The token ids [n] that the draft in `folder` may guess, int64; None for all.

    Raises:
        ValueError: the file is damaged, or is no list of different ids below `vocab_size`.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return None
    try:
        token_ids = load_file(path)[NAME]
    except (OSError, KeyError, SafetensorError) as error:
        raise ValueError(f"{path} holds no token ids: {error}. Make the draft anew.") from error
    inside = (token_ids >= 0) & (token_ids < vocab_size)
    integers = not (token_ids.is_floating_point() or token_ids.is_complex())
    if not (token_ids.ndim == 1 and integers and len(token_ids) and inside.all()):
        raise ValueError(
            f"{path} must hold a row of token ids below {vocab_size}, the draft's vocabulary; it "
            f"holds {token_ids.dtype} of shape {list(token_ids.shape)}. Make the draft anew."
        )
    if len(token_ids.unique()) < len(token_ids):
        raise ValueError(f"{path} names a token twice. Make the draft anew.")
    return token_ids.to(torch.int64)


def rows_of(lm_head: nn.Module, token_ids: Tensor) -> Callable[[Tensor], Tensor]:
    """An output head with these rows [n] of another: [B, hidden] -> [B, n]."""
    assert isinstance(lm_head.weight, Tensor)
    weight = lm_head.weight.detach()[token_ids]
    return (
        PackedLinear(weight)
        if isinstance(lm_head, PackedLinear)
        else partial(F.linear, weight=weight)
    )
