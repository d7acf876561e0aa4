"""Attention while an EAGLE layer learns to go on from its own guesses.

When the layer guesses a second token, the hidden state before it is its own, while all those
further back are the target's. In training, all positions of a text are to be in that situation at
once. So the layer runs over the text several times, "unrolled": in pass `j` each token's input
comes from what pass `j - 1` has made of the token before. A token attends to itself and the `j`
tokens before it as passes `j`, `j - 1`, ..., 0 have seen them, and further back to pass 0 alone,
which saw nothing but the target's hidden states.

Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", https://arxiv.org/abs/2503.01840, section 3.2 and figure 6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from utils.engine.attention.ops import AttentionOps


class UnrolledBatch:
    """Several texts of one length, and the passes over them so far. One pass calls `attend` once.

    Args:
        num_texts: B, each of the same number of tokens; shorter ones are filled up at their end.
        sees_first: [B], whether a text's first token is attended to. In the engine it is, but in
            vLLM there is none: the layer's tokens begin with the second.
    """

    def __init__(self, num_texts: int, sees_first: Tensor) -> None:
        self.num_texts, self.sees_first = num_texts, sees_first
        self.keys: list[Tensor] = []  # of each pass: [B, H, L, D]
        self.values: list[Tensor] = []

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, ops: AttentionOps, scale: float
    ) -> Tensor:
        """See `Batch`. Shapes there, with T = B * L."""
        num_heads = query.shape[1]
        query, key, value = (self._by_text(x, num_heads) for x in (query, key, value))
        self.keys.append(key)
        self.values.append(value)
        newest, length = len(self.keys) - 1, query.shape[2]
        scores = query @ self.keys[0].transpose(2, 3) * scale  # [B, H, L, L]
        parts = [scores.masked_fill(~self._visible(length, newest), -torch.inf)]
        passes = range(1, newest + 1)
        for number in passes:  # of the token `newest - number` places before
            shifted = self.keys[number].roll(newest - number, dims=2)
            parts.append((query * shifted).sum(-1, keepdim=True) * scale)  # [B, H, L, 1]
        probs = torch.cat(parts, dim=-1).softmax(dim=-1)
        out = probs[..., :length] @ self.values[0]
        for number in passes:
            shifted = self.values[number].roll(newest - number, dims=2)
            out = out + probs[..., length + number - 1, None] * shifted
        return out.transpose(1, 2).flatten(0, 1)  # [T, H, D]

    def _by_text(self, x: Tensor, num_heads: int) -> Tensor:
        """[T, heads, D] -> [B, H, L, D], each key and value for the queries that share it."""
        texts = x.view(self.num_texts, -1, *x.shape[1:]).transpose(1, 2)
        return texts.repeat_interleave(num_heads // x.shape[1], dim=1)

    def _visible(self, length: int, newest: int) -> Tensor:
        """[B, 1, L, L]: which tokens of pass 0 each token attends to."""
        visible = torch.ones(length, length, dtype=torch.bool).tril(-newest)
        visible = visible.expand(self.num_texts, 1, length, length).clone()
        visible[:, :, 1:, 0] &= self.sees_first[:, None, None]
        return visible
