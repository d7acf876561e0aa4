"""Medusa heads: small extra heads that guess the tokens after the next one.

Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.request import Request
from utils.engine.spec_decode.draft import Draft
from utils.engine.spec_decode.draft_vocabulary import head_of, named


class MedusaHeads(nn.Module):
    """Residual blocks for each head; the model's own `lm_head` turns their output into logits.

    Head `i` looks `i + 2` tokens ahead of the last token read, since the model itself looks one
    ahead. Section 2.1.1. One block a head is usual.
    """

    def __init__(self, num_heads: int, hidden_size: int, num_layers: int = 1) -> None:
        super().__init__()
        self.num_heads, self.num_layers = num_heads, num_layers
        count = num_heads * num_layers  # those of head 0 come first
        self.blocks = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(count))

    def forward(self, hidden: Tensor, head: int) -> Tensor:
        """What head `head` hands to `lm_head`: [B, hidden] -> [B, hidden]."""
        first = head * self.num_layers
        for number in range(first, first + self.num_layers):
            hidden = hidden + F.silu(self.blocks[number](hidden))
        return hidden

    @classmethod
    def from_pretrained(cls, folder: str | Path, hidden_size: int) -> MedusaHeads:
        """Load heads for a model of this width.

        Raises:
            ValueError: the folder holds no heads, or heads for another model.
        """
        folder = Path(folder)
        try:
            config = json.loads((folder / "config.json").read_text())
            weights = load_file(folder / "model.safetensors")
            num_layers = config.get("num_layers", 1)
            heads = cls(config["num_heads"], config["hidden_size"], num_layers)
            heads.load_state_dict(weights)
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise ValueError(f"{folder} holds no Medusa heads: {error}") from error
        if config["hidden_size"] != hidden_size:
            raise ValueError(
                f"The Medusa heads in {folder} were trained for hidden_size="
                f"{config['hidden_size']}, the model has {hidden_size}. Train them for this model."
            )
        return heads.requires_grad_(False)


class MedusaProposer:
    """Guesses from the hidden state that the last token was sampled from.

    Args:
        heads: as many as guesses in a row.
        lm_head: the target's.
        token_ids: [n], what they may guess; no other rows of `lm_head` are read. None: all tokens.
        tree_widths: how many tokens of each head to guess, for a tree; None for a chain.
    """

    uses_slots = False

    def __init__(
        self,
        heads: MedusaHeads,
        lm_head: nn.Linear,
        token_ids: Tensor | None = None,
        tree_widths: tuple[int, ...] | None = None,
    ) -> None:
        self.heads = heads.to(lm_head.weight.device, lm_head.weight.dtype)
        self.tree_widths = tree_widths
        self.head, self.token_ids = head_of(lm_head, token_ids)

    @torch.inference_mode()
    def draft(
        self,
        wanted: Sequence[tuple[Request, int]],
        output: SchedulerOutput,
        hidden_states: dict[str, Tensor],
    ) -> list[Draft]:
        """See `Proposer`."""
        drafts = [Draft() for _ in wanted]
        rows = [i for i, (r, n) in enumerate(wanted) if n and r.request_id in hidden_states]
        if not rows:
            return drafts
        hidden = torch.stack([hidden_states[wanted[i][0].request_id][-1] for i in rows])
        most = max(wanted[i][1] for i in rows)
        widths = self.tree_widths or (1,) * min(most, self.heads.num_heads)
        # All heads' rows in one product: it reads the large `lm_head` once, not once a head.
        ahead = torch.cat([self.heads(hidden, head) for head in range(len(widths))])
        logits = self.head(ahead).chunk(len(widths))  # [rows, vocab_size] for each head
        best = [  # [rows, width] for each head
            named(of_head.topk(width, dim=-1).indices, self.token_ids).tolist()
            for of_head, width in zip(logits, widths, strict=True)
        ]
        for row, i in enumerate(rows):
            chosen = [tokens[row] for tokens in best]
            if self.tree_widths is None:
                draft = Draft([tokens[0] for tokens in chosen])
            else:
                draft = tree_of(chosen)
            drafts[i] = draft.first(wanted[i][1])
        return drafts


def tree_of(tokens: Sequence[Sequence[int]]) -> Draft:
    """The tree in which each node of depth `d` has `tokens[d]` as its children.

    Level by level, so that a cut takes away the guesses that look furthest ahead.
    """
    index: dict[tuple[int, ...], int] = {(): -1}  # by the way from the root
    token_ids: list[int] = []
    parents: list[int] = []
    for depth in range(1, len(tokens) + 1):
        for way in product(*(range(len(level)) for level in tokens[:depth])):
            index[way] = len(token_ids)
            token_ids.append(tokens[depth - 1][way[-1]])
            parents.append(index[way[:-1]])
    return Draft(token_ids, parents)
