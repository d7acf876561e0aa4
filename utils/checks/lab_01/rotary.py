"""What lab 01 says of rotary embeddings: exercise 2."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib.figure import Figure
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from utils.checks.kit import model_mistakes, pictures
from utils.checks.kit.runner import Bug, Case, compare


def judge_apply_rotary(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str:
    """Check `apply_rotary(x [T, heads, head_dim], cos [T, head_dim], sin [T, head_dim])`."""

    def case(given: str, positions: list[int], heads: int, head_dim: int) -> Case:
        config = LlamaConfig(
            hidden_size=heads * head_dim, num_attention_heads=heads, head_dim=head_dim
        )
        x = torch.randn(len(positions), heads, head_dim)
        cos, sin = LlamaRotaryEmbedding(config)(x, torch.tensor([positions]))
        batched = x.transpose(0, 1)[None]
        expected = apply_rotary_pos_emb(batched, batched, cos, sin)[0][0].transpose(0, 1)
        return Case(given, (x, cos[0], sin[0]), expected.contiguous())

    cases = [
        case("1 token at position 1, 1 head, head_dim 2", [1], 1, 2),
        case("1 token at position 3, 1 head, head_dim 4", [3], 1, 4),
        case("2 tokens at positions 0 and 1, 2 heads, head_dim 4", [0, 1], 2, 4),
        case("3 tokens at positions 5, 6, 7, 2 heads, head_dim 8", [5, 6, 7], 2, 8),
        case(
            "4 tokens at positions 0, 9, 100, 2000, 3 heads, head_dim 16", [0, 9, 100, 2000], 3, 16
        ),
    ]

    def wide(angles: Tensor) -> Tensor:
        return angles[:, None, :]

    bugs = [
        Bug("You rotate neighbouring numbers (0 with 1, 2 with 3). Llama's checkpoints pair number "
            "i with number i + head_dim / 2.",
            "Split the last dimension into two halves with `chunk(2, dim=-1)`; do not take every "
            "second number.",
            lambda x, c, s: x * wide(c) + model_mistakes.swap_neighbours(x) * wide(s)),
        Bug("You rotate neighbouring numbers (0 with 1, 2 with 3). Llama's checkpoints pair number "
            "i with number i + head_dim / 2.",
            "Split the last dimension into two halves with `chunk(2, dim=-1)`; do not take every "
            "second number.",
            lambda x, c, s: x * wide(model_mistakes.neighbour_angles(c))
            + model_mistakes.swap_neighbours(x) * wide(model_mistakes.neighbour_angles(s))),
        Bug("The sign is wrong: you turn by minus the angle.",
            "The minus stands before the *second* half, which moves to the front: "
            "`cat((-second, first))`.",
            lambda x, c, s: x * wide(c) - model_mistakes.swap(x) * wide(s)),
        Bug("The minus sign is missing: without it this is no rotation, and lengths change.",
            "`cat((-second, first))`: one half changes its sign, the other does not.",
            lambda x, c, s: x * wide(c) + x.roll(x.shape[-1] // 2, -1) * wide(s)),
        Bug("The halves are not swapped before they are multiplied with the sine.",
            "The sine multiplies `cat((-second, first))`, not `cat((first, -second))`.",
            lambda x, c, s: x * wide(c) + torch.cat(
                (-x.chunk(2, -1)[0], x.chunk(2, -1)[1]), -1) * wide(s)),
        Bug("The halves are not swapped before they are multiplied with the sine.",
            "The sine multiplies `cat((-second, first))`, not `x` itself.",
            lambda x, c, s: x * wide(c) + x * wide(s)),
        Bug("Cosine and sine are exchanged.",
            "`x * cos + rotated * sin`.",
            lambda x, c, s: x * wide(s) + model_mistakes.swap(x) * wide(c)),
        Bug("The angles run along the heads, not along the tokens: head h got the angle of "
            "token h.",
            "`x` is [T, heads, D] and `cos` is [T, D]. Make it [T, 1, D] with `cos.unsqueeze(1)`, "
            "or torch lines up T with the heads.",
            lambda x, c, s: x * c + model_mistakes.swap(x) * s),
        Bug("Every token is rotated by the angle of the first one: positions are lost.",
            "Row t of `cos` and `sin` belongs to token t.",
            lambda x, c, s: x * wide(c[:1]) + model_mistakes.swap(x) * wide(s[:1])),
        Bug("You rotate as if the first token stood at position 0. Its position is already in "
            "`cos` and `sin`.",
            "Use the rows of `cos` and `sin` as they come; compute no angles of your own.",
            model_mistakes.restarted),
    ]  # fmt: skip

    def picture(case: Case, got: Tensor) -> tuple[Figure, str]:
        x, _, _ = case.args
        pairs = min(2, x.shape[-1] // 2)
        half = x.shape[-1] // 2

        def as_pairs(t: Tensor) -> Tensor:
            one = t[:3, 0]
            return torch.stack((one[:, :half], one[:, half:]), dim=-1)[:, :pairs]

        figure = pictures.rotation(as_pairs(x), as_pairs(case.expected), as_pairs(got))
        return figure, "Arrows of the pairs before, expected and yours."

    compare(function, cases, bugs, picture)
    return "Equal to transformers' apply_rotary_pos_emb, at positions up to 2000."
