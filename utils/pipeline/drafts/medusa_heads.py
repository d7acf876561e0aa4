"""Medusa heads for a target that is left as it is (Medusa-1).

Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
https://arxiv.org/abs/2401.10774, section 2.2.1. The target's hidden states are computed once, so
training touches nothing but the heads: a few linear layers each, before the target's own `lm_head`.
(In the paper each head has an output matrix of its own.)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from utils.engine.spec_decode.draft_vocabulary import write_draft_vocabulary
from utils.engine.spec_decode.medusa import MedusaHeads
from utils.pipeline.drafts.draft_model import part_of_head, whole_strips
from utils.pipeline.drafts.target_answers import Answer, SoftTargets
from utils.pipeline.drafts.training import measures, minimize
from utils.pipeline.stages.cross_entropy import soft_cross_entropy


@dataclass(frozen=True)
class MedusaSettings:
    """How many heads, and how they are trained. `batch_size` counts tokens."""

    num_heads: int
    steps: int
    batch_size: int
    learning_rate: float
    num_layers: int = 1  # of each head
    seed: int = 0


def train_medusa(
    lm_head: Tensor, answers: list[Answer], out_dir: Path, settings: MedusaSettings
) -> dict[str, Any]:
    """Train heads on the hidden states of `answers`, and write them into `out_dir`.

    Args:
        lm_head: [V, H], the target's.

    Returns:
        The measures: the mean loss of the first and of the last steps.

    Raises:
        ValueError: no answer is long enough for the last head to have something to guess.
        RuntimeError: the loss became NaN or infinite.
    """
    hidden = torch.cat([answer.hidden for answer in answers])
    targets, rows, vocabulary = part_of_head(answers, lm_head)
    starts = states_with_future(answers, settings.num_heads)
    torch.manual_seed(settings.seed)
    heads = MedusaHeads(settings.num_heads, lm_head.shape[1], settings.num_layers)
    for parameter in heads.parameters():
        torch.nn.init.zeros_(parameter)  # so each head begins as the target's own guess

    def next_loss(step: int) -> Tensor:
        chosen = starts[torch.randint(len(starts), (settings.batch_size,))]
        parts = [
            head_loss(heads, head, hidden, chosen, rows, targets)
            for head in range(settings.num_heads)
        ]
        return torch.stack(parts).mean()

    losses = minimize(
        next_loss, list(heads.parameters()), settings.steps, settings.learning_rate, "Medusa heads"
    )
    write_medusa(heads, len(lm_head), out_dir)
    write_draft_vocabulary(out_dir, whole_strips(vocabulary, len(lm_head)))
    return measures(losses) | {"parameters": sum(p.numel() for p in heads.parameters())}


def states_with_future(answers: list[Answer], num_heads: int) -> Tensor:
    """The rows of all answers' hidden states for which every head has something to guess.

    Row `j` of an answer is what token `j` was sampled from. Head `i` guesses token `j + 1 + i`.
    """
    rows: list[int] = []
    start = 0
    for answer in answers:
        rows += range(start, start + len(answer.answer) - num_heads)
        start += len(answer.answer)
    if not rows:
        raise ValueError(
            f"All answers are too short: {num_heads} heads need more than {num_heads} tokens."
        )
    return torch.tensor(rows)


def head_loss(
    heads: MedusaHeads,
    head: int,
    hidden: Tensor,
    rows: Tensor,
    lm_head: Tensor,
    targets: SoftTargets,
) -> Tensor:
    """Cross-entropy of what head `head` guesses from `hidden[rows]`, a scalar.

    The goal is what the target itself says, `head + 1` tokens later.
    """
    guess = heads(hidden[rows].float(), head)
    wanted = targets[rows + head + 1]
    return soft_cross_entropy(guess, lm_head, wanted.token_ids, wanted.probs)


def write_medusa(heads: MedusaHeads, vocab_size: int, out_dir: Path) -> None:
    """Write the heads in bfloat16, as `MedusaHeads.from_pretrained` reads them."""
    weights = {name: tensor.bfloat16() for name, tensor in heads.state_dict().items()}
    save_file(weights, out_dir / "model.safetensors", metadata={"format": "pt"})
    config = {
        "num_heads": heads.num_heads,
        "num_layers": heads.num_layers,
        "hidden_size": weights["blocks.0.weight"].shape[1],
        "base_vocab_size": vocab_size,
    }
    (out_dir / "config.json").write_text(json.dumps(config, indent=2))
