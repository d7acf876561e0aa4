"""A draft before training: what can be computed from the target, and need not be learned.

* The output head. The target's logits are `E h`. `project` finds the directions of `h` that its
  probabilities depend on most. The draft's head is `E` in these directions, and stays as it is.
* The input embedding. A token's row is what the target's hidden state is, on average, after this
  token. So without any layer, the draft already is a bigram model of the target.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from utils.engine import LlamaForCausalLM
from utils.pipeline.drafts.target_answers import Answer, SoftTargets
from utils.pipeline.stages.packed_batches import ATTENTION

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM as HFLlama

HEAD_DIM = 64
PRIOR_COUNT = 3.0  # a token seen this often has as much say in its row as the other tokens
FISHER_STATES = 7000  # enough for an average; all of them take half a minute


@dataclass(frozen=True)
class DraftSettings:
    """The draft's shape, and how it is trained. `hidden_size` is a multiple of 64."""

    hidden_size: int
    num_layers: int
    steps: int
    batch_size: int
    learning_rate: float
    seed: int = 0


def project(hidden: Tensor, lm_head: Tensor, targets: SoftTargets, size: int) -> tuple[Tensor, ...]:
    """The `size` directions of the hidden state that the target's probabilities depend on most.

    A small change `d` of the hidden state changes the probabilities by a KL divergence of about
    `d^T F d / 2`, where `F` is the covariance of the rows of `lm_head` under these probabilities,
    their Fisher information. So it is `F^(1/2) h` whose main components are kept.

    Args:
        hidden: [N, H]
        lm_head: [V, H]
        targets: of the N hidden states.

    Returns:
        `to_draft` [H, size], which takes hidden states to the draft's, and the draft's output head
        [V, size]; such that `hidden @ to_draft @ head.T` is close to `hidden @ lm_head.T`.
    """
    fisher = torch.zeros(hidden.shape[1], hidden.shape[1])
    sample = targets[:: max(1, len(hidden) // FISHER_STATES)]
    for ids, probs in zip(sample.token_ids.split(512), sample.probs.split(512), strict=True):
        rows = lm_head[ids]  # [B, k, H]
        rows = rows - (probs[..., None] * rows).sum(dim=1, keepdim=True)
        rows = (rows * probs[..., None].sqrt()).flatten(0, 1)
        fisher += rows.T @ rows
    fisher /= len(sample.probs)
    root = _power(fisher, 0.5)
    covariance = root @ (hidden.T @ hidden / len(hidden)) @ root
    directions = torch.linalg.eigh(covariance).eigenvectors[:, -size:].flip(1)  # largest first
    return root @ directions, lm_head @ _power(fisher, -0.5) @ directions


def bigram_embedding(tokens: Tensor, states: Tensor, embedding: Tensor) -> Tensor:
    """For each token of the vocabulary, the state to expect after it: [V, size].

    The average over the token's occurrences; drawn, for a rare token, towards what a linear map of
    the target's embedding predicts, which knows of similar tokens.

    Args:
        tokens: [N], token ids.
        states: [N, size], what came after each.
        embedding: [V, H], the target's input embedding.
    """
    seen = embedding[tokens]
    ridge = 30 * seen.square().mean() * torch.eye(seen.shape[1])
    prior = embedding @ torch.linalg.solve(seen.T @ seen + ridge, seen.T @ states)
    counts = torch.bincount(tokens, minlength=len(embedding))[:, None]
    sums = torch.zeros_like(prior).index_add_(0, tokens, states)
    return (sums + PRIOR_COUNT * prior) / (counts + PRIOR_COUNT)


def new_draft(
    target: LlamaForCausalLM,
    target_dir: Path,
    answers: list[Answer],
    targets: SoftTargets,
    settings: DraftSettings,
) -> HFLlama:
    """A draft before training: a bigram model of the target, its layers the identity."""
    from transformers import LlamaConfig
    from transformers import LlamaForCausalLM as HFLlama

    hidden = torch.cat([answer.hidden for answer in answers]).float()
    before = torch.tensor([t for a in answers for t in (a.prompt[-1], *a.answer[:-1])])
    lm_head = target.lm_head.weight.detach().float().cpu()
    embedding = target.model.embed_tokens.weight.detach().float().cpu()
    to_draft, head = project(hidden, lm_head, targets, settings.hidden_size)
    states = hidden @ to_draft
    scale = states.square().mean(dim=0).sqrt()  # what RMSNorm takes away, its weight gives back
    raw = draft_config(target_dir, settings)
    torch.manual_seed(settings.seed)
    model = HFLlama(LlamaConfig(**raw, attn_implementation=ATTENTION))
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(bigram_embedding(before, states, embedding) / scale)
        model.model.norm.weight.copy_(scale)
        model.lm_head.weight.copy_(head).requires_grad_(False)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


def draft_config(target_dir: Path, settings: DraftSettings) -> dict[str, Any]:
    """The target's config.json with the draft's sizes."""
    if settings.hidden_size % HEAD_DIM or settings.hidden_size < HEAD_DIM:
        raise ValueError(
            f"hidden_size must be a multiple of {HEAD_DIM}, got {settings.hidden_size}."
        )
    raw = json.loads((target_dir / "config.json").read_text())
    for key in ("layer_types", "_name_or_path", "_model_name_or_path", "quantization_config"):
        raw.pop(key, None)
    heads = settings.hidden_size // HEAD_DIM
    return raw | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": settings.hidden_size,
        "intermediate_size": 4 * settings.hidden_size,
        "num_hidden_layers": settings.num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": HEAD_DIM,
        "tie_word_embeddings": False,
    }


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """A power of a symmetric positive matrix. Tiny eigenvalues are lifted, so that -1/2 exists."""
    values, vectors = torch.linalg.eigh(matrix)
    values = values.clamp_min(0) + 1e-3 * values.mean()
    return (vectors * values**exponent) @ vectors.T
