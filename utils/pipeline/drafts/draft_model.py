"""A draft model for a target: narrow, two layers, the target's vocabulary.

A draft is worth its price only if it is cheap, and in a small model the vocabulary is what costs:
the bundled target has 49,152 rows of 576 numbers to multiply with for every token. So the draft is
narrow. Its large matrices are not learned from nothing; they are computed from the target:

* The output head. The target's logits are `E h`. `project` finds the directions of `h` that its
  probabilities depend on most. The draft's head is `E` in these directions, and stays as it is.
  The engine takes of it only the rows of words that training met (`used_tokens`): the others cost
  as much as these, and are hardly ever the best.
* The input embedding. A token's row is what the target's hidden state is, on average, after this
  token. So without any layer, the draft already is a bigram model of the target.

The layers begin as the identity and learn the rest, by cross-entropy against the target's own
probabilities (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from utils.engine import LlamaForCausalLM
from utils.engine.kernels.packed_linear import OUTPUTS_TOGETHER
from utils.engine.spec_decode.draft_vocabulary import FILE, NAME
from utils.pipeline.drafts.target_answers import TOP_K, Answer, SoftTargets, soft_targets
from utils.pipeline.drafts.training import measures, minimize
from utils.pipeline.stages.cross_entropy import soft_cross_entropy
from utils.pipeline.stages.finetune import ATTENTION, Batch, Tokens, pack, pad
from utils.pipeline.stages.merge import TOKENIZER_FILES
from utils.profiles import fast_dtype

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM as HFLlama

HEAD_DIM = 64
PRIOR_COUNT = 3.0  # a token seen this often has as much say in its row as the other tokens
FISHER_STATES = 7000  # enough for an average; all of them take half a minute
MIN_PROB = 0.01  # less probable tokens take part in training only if the answers hold them


@dataclass(frozen=True)
class DraftSettings:
    """The draft's shape, and how it is trained. `hidden_size` is a multiple of 64."""

    hidden_size: int
    num_layers: int
    steps: int
    batch_size: int
    learning_rate: float
    seed: int = 0


@dataclass(frozen=True)
class Example:
    """A text, and the distributions to be learned for each token of its answer."""

    tokens: Tokens
    targets: SoftTargets


def train_draft(
    target: LlamaForCausalLM,
    target_dir: Path,
    answers: list[Answer],
    hard: list[Tokens],
    out_dir: Path,
    settings: DraftSettings,
) -> dict[str, Any]:
    """Train a draft model and write it into `out_dir`, a plain Hugging Face folder.

    Args:
        target: the model to be imitated.
        target_dir: its folder, for the tokenizer and config.json.
        answers: what it wrote, with hidden states; learned softly, with all its probabilities.
        hard: further texts, of which only the tokens are known.

    Returns:
        The measures: first and last loss, parameters, tokens seen.

    Raises:
        ValueError: there are fewer answers than fit into one batch.
        RuntimeError: the loss became NaN or infinite.
    """
    if len(answers) < settings.batch_size:
        raise ValueError(f"{len(answers)} answers, but one batch needs {settings.batch_size}.")
    lm_head = target.lm_head.weight.detach().cpu()
    hidden = torch.cat([answer.hidden for answer in answers])
    targets = soft_targets(hidden, lm_head.to(hidden.dtype))
    model = new_draft(target, target_dir, answers, targets, settings)
    vocabulary = used_tokens(answers, hard, targets, len(lm_head))
    soft = [
        Example(Tokens(answer.prompt, answer.answer), rows)
        for answer, rows in zip(answers, _split(targets, answers), strict=True)
    ]
    sure = [Example(tokens, certain(tokens.answer)) for tokens in hard]
    losses = _train(model, _within(soft, vocabulary), _within(sure, vocabulary),
                    vocabulary, settings)  # fmt: skip
    write_draft(model, target_dir, out_dir)
    guessed = whole_strips(vocabulary, len(lm_head))
    write_draft_vocabulary(out_dir, guessed)
    return measures(losses) | {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trained_vocabulary": len(vocabulary),
        "draft_vocabulary": len(guessed),
    }


# --- what is computed, not learned --------------------------------------------------------------


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
        raise ValueError(f"hidden_size must be a multiple of {HEAD_DIM}, "
                         f"got {settings.hidden_size}.")  # fmt: skip
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


# --- training -----------------------------------------------------------------------------------


def certain(token_ids: list[int]) -> SoftTargets:
    """Distributions that give all probability to one token each."""
    ids = torch.tensor(token_ids)[:, None].expand(-1, TOP_K)
    probs = torch.zeros(len(token_ids), TOP_K)
    probs[:, 0] = 1.0
    return SoftTargets(ids, probs)


def used_tokens(
    answers: list[Answer], hard: list[Tokens], targets: SoftTargets, vocab_size: int
) -> Tensor:
    """The tokens that training is about, in increasing order: a part of the vocabulary.

    The head is not trained, so the rest of its rows need not take part: a softmax over a quarter
    of the vocabulary costs a quarter.
    """
    used = torch.zeros(vocab_size, dtype=torch.bool)
    for token_ids in [t for a in answers for t in (a.prompt, a.answer)]:
        used[token_ids] = True
    for token_ids in [t for h in hard for t in (h.prompt, h.answer)]:
        used[token_ids] = True
    used[targets.token_ids[targets.probs >= MIN_PROB]] = True
    return used.nonzero()[:, 0]


def whole_strips(vocabulary: Tensor, vocab_size: int) -> Tensor:
    """`vocabulary` and the smallest ids beside it: the engine's own product takes rows by 64."""
    size = min(vocab_size, -(-len(vocabulary) // OUTPUTS_TOGETHER) * OUTPUTS_TOGETHER)
    others = torch.ones(vocab_size, dtype=torch.bool)
    others[vocabulary] = False
    more = others.nonzero()[: size - len(vocabulary), 0]
    return torch.cat([vocabulary, more]).sort().values


def _within(examples: list[Example], vocabulary: Tensor) -> list[Example]:
    """The same examples, their targets' token ids as positions in `vocabulary`."""
    found = []
    for example in examples:
        targets = within(example.targets, vocabulary)
        found.append(Example(example.tokens, targets))
    return found


def within(targets: SoftTargets, vocabulary: Tensor) -> SoftTargets:
    """Targets over a part of the vocabulary: token ids become positions in it."""
    positions = torch.searchsorted(vocabulary, targets.token_ids.contiguous())
    positions = positions.clamp(max=len(vocabulary) - 1)
    probs = targets.probs * (vocabulary[positions] == targets.token_ids)
    return SoftTargets(positions, probs / probs.sum(dim=-1, keepdim=True))


def _split(targets: SoftTargets, answers: list[Answer]) -> list[SoftTargets]:
    lengths = [len(answer.answer) for answer in answers]
    parts = zip(targets.token_ids.split(lengths), targets.probs.split(lengths), strict=True)
    return [SoftTargets(ids, probs) for ids, probs in parts]


def _batches(examples: list[Example], size: int, seed: int) -> Iterator[tuple[Batch, SoftTargets]]:
    """Endless batches, the targets without those that `pad` adds; each epoch in a new order."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(examples, len(examples))
        for start in range(0, max(1, len(order) - size + 1), size):
            chosen = order[start : start + size]
            ids = torch.cat([example.targets.token_ids for example in chosen])
            probs = torch.cat([example.targets.probs for example in chosen])
            yield pad(pack([example.tokens for example in chosen])), SoftTargets(ids, probs)


def _train(
    model: HFLlama,
    soft: list[Example],
    sure: list[Example],
    vocabulary: Tensor,
    settings: DraftSettings,
) -> list[float]:
    """Train on batches of both kinds in turn; return the loss of each step."""
    dtype = getattr(torch, fast_dtype())
    lm_head = model.lm_head.weight[vocabulary].to(dtype)
    sources = [_batches(part, settings.batch_size, settings.seed) for part in (soft, sure) if part]
    model.train()

    def next_loss(step: int) -> Tensor:
        batch, targets = next(sources[step % len(sources)])
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            hidden = model.model(
                input_ids=batch.input_ids, position_ids=batch.position_ids, lengths=batch.lengths,
                use_cache=False,
            ).last_hidden_state[0]  # fmt: skip
        of_answers = hidden[batch.predictors[: len(targets.probs)]].float()
        return soft_cross_entropy(of_answers, lm_head, targets.token_ids, targets.probs)

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return minimize(next_loss, trained, settings.steps, settings.learning_rate, "draft model")


def write_draft_vocabulary(folder: Path, token_ids: Tensor) -> None:
    """Write the token ids [n] that a draft may guess into its folder, where the engine looks."""
    save_file({NAME: token_ids.long().contiguous()}, folder / FILE, metadata={"format": "pt"})


def write_draft(model: HFLlama, target_dir: Path, out_dir: Path) -> None:
    """Write the draft in bfloat16, with the target's tokenizer."""
    raw = json.loads((target_dir / "config.json").read_text())
    model.to(torch.bfloat16).save_pretrained(out_dir)
    for pattern in (*TOKENIZER_FILES, "generation_config.json"):
        for path in target_dir.glob(pattern):
            shutil.copy2(path, out_dir / path.name)
    # transformers 4 and 5 write different names into it; the target's file speaks to both.
    config = model.config
    sizes = {name: getattr(config, name) for name in (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "tie_word_embeddings",
    )}  # fmt: skip
    raw.pop("layer_types", None)
    raw |= sizes | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    (out_dir / "config.json").write_text(json.dumps(raw, indent=2))


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """A power of a symmetric positive matrix. Tiny eigenvalues are lifted, so that -1/2 exists."""
    values, vectors = torch.linalg.eigh(matrix)
    values = values.clamp_min(0) + 1e-3 * values.mean()
    return (vectors * values**exponent) @ vectors.T
