"""A draft model for a target: narrow, two layers, the target's vocabulary.

A draft is worth its price only if it is cheap, and in a small model the vocabulary is what costs:
the bundled target has 49,152 rows of 576 numbers to multiply with for every token. So the draft is
narrow, and its large matrices, the embedding and the output head, are computed from the target
(`initial_draft.py`). The engine takes of the head only the rows of words that training met
(`used_tokens`): the others cost as much as these, and are hardly ever the best.

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
from torch import Tensor

from utils.engine import LlamaForCausalLM
from utils.engine.kernels.packed_linear import OUTPUTS_TOGETHER
from utils.engine.spec_decode.draft_vocabulary import write_draft_vocabulary
from utils.pipeline.drafts.initial_draft import DraftSettings, new_draft
from utils.pipeline.drafts.target_answers import TOP_K, Answer, SoftTargets, soft_targets
from utils.pipeline.drafts.training import measures, minimize
from utils.pipeline.stages.cross_entropy import soft_cross_entropy
from utils.pipeline.stages.merge import TOKENIZER_FILES
from utils.pipeline.stages.packed_batches import Batch, Tokens, pack, pad
from utils.profiles import fast_dtype

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM as HFLlama

MIN_PROB = 0.01  # less probable tokens take part in training only if the answers hold them


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
    losses = _train(
        model, _within(soft, vocabulary), _within(sure, vocabulary), vocabulary, settings
    )
    write_draft(model, target_dir, out_dir)
    guessed = whole_strips(vocabulary, len(lm_head))
    write_draft_vocabulary(out_dir, guessed)
    return measures(losses) | {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trained_vocabulary": len(vocabulary),
        "draft_vocabulary": len(guessed),
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


def part_of_head(answers: list[Answer], lm_head: Tensor) -> tuple[SoftTargets, Tensor, Tensor]:
    """What is learned of the target's distributions: over a part of its vocabulary.

    Args:
        lm_head: [vocab_size, hidden], the target's.

    Returns:
        The targets of all answers' hidden states; the head's rows [n, hidden] of the tokens that
        they are about; and these tokens' ids [n].
    """
    hidden = torch.cat([answer.hidden for answer in answers])
    lm_head = lm_head.detach().cpu().to(hidden.dtype)
    targets = soft_targets(hidden, lm_head)
    vocabulary = used_tokens(answers, [], targets, len(lm_head))
    return within(targets, vocabulary), lm_head[vocabulary], vocabulary


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
                input_ids=batch.input_ids,
                position_ids=batch.position_ids,
                lengths=batch.lengths,
                use_cache=False,
            ).last_hidden_state[0]
        of_answers = hidden[batch.predictors[: len(targets.probs)]].float()
        return soft_cross_entropy(of_answers, lm_head, targets.token_ids, targets.probs)

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return minimize(next_loss, trained, settings.steps, settings.learning_rate, "draft model")


def write_draft(model: HFLlama, target_dir: Path, out_dir: Path) -> None:
    """Write the draft in bfloat16, with the target's tokenizer."""
    raw = json.loads((target_dir / "config.json").read_text())
    model.to(torch.bfloat16).save_pretrained(out_dir)
    for pattern in (*TOKENIZER_FILES, "generation_config.json"):
        for path in target_dir.glob(pattern):
            shutil.copy2(path, out_dir / path.name)
    # transformers 4 and 5 write different names into it; the target's file speaks to both.
    config = model.config
    sizes = {
        name: getattr(config, name)
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "tie_word_embeddings",
        )
    }
    raw.pop("layer_types", None)
    raw |= sizes | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    (out_dir / "config.json").write_text(json.dumps(raw, indent=2))
