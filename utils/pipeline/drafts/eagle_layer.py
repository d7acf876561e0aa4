"""An EAGLE layer for a target that is left as it is.

Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty",
https://arxiv.org/abs/2401.15077, section 4.2; the passes over its own guesses are from EAGLE-3 (see
`unrolled_attention.py`). The target's hidden states are computed once, when it writes its answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.models.llama_eagle import EagleLlamaModel
from utils.engine.models.weights import checkpoint_views
from utils.engine.spec_decode.draft_vocabulary import write_draft_vocabulary
from utils.pipeline.drafts.draft_model import part_of_head, whole_strips
from utils.pipeline.drafts.target_answers import Answer, SoftTargets
from utils.pipeline.drafts.training import measures, minimize
from utils.pipeline.drafts.unrolled_attention import UnrolledBatch
from utils.pipeline.stages.cross_entropy import soft_cross_entropy
from utils.profiles import fast_dtype

LATER_COUNTS = 0.8  # a guess further ahead counts this much of the one before it
RIDGE = 1e-3  # of the mean square of the numbers that are guessed from
LENGTHS = 64  # texts are filled up to a multiple of it, so that there are few different products


@dataclass(frozen=True)
class EagleSettings:
    """The layer's shape, and how it is trained.

    Args:
        intermediate_size: of its gate. Its other sizes are the target's.
        steps: how often it is trained.
        batch_size: texts of a step.
        num_passes: how many guesses in a row it learns.
        num_rows: tokens of a step whose distribution is compared, in each pass.
        max_tokens: of a text; of a longer one the end is taken.
    """

    intermediate_size: int
    steps: int
    batch_size: int
    learning_rate: float
    num_passes: int = 3
    num_rows: int = 192
    max_tokens: int = 256
    seed: int = 0


class Text(NamedTuple):
    """What a text teaches.

    `token_ids` [n]; `before` [n, hidden], the target's hidden state of the token before each;
    `hidden` [n, hidden], of the token itself; `first_row`, of `SoftTargets`, belongs to the token
    `first`, and the rows of those after it follow.
    """

    token_ids: Tensor
    before: Tensor
    hidden: Tensor
    first: int
    first_row: int


def train_eagle(
    target: LlamaForCausalLM,
    target_dir: Path,
    answers: list[Answer],
    out_dir: Path,
    settings: EagleSettings,
) -> dict[str, Any]:
    """Train a layer, and write it into `out_dir`, as this engine and vLLM read it.

    Args:
        target: its embedding and head are used, and stay as they are.
        target_dir: its folder, for config.json.
        answers: what it wrote, with the hidden states of all tokens.

    Returns:
        The measures: first and last loss, parameters.

    Raises:
        ValueError: there are fewer answers than fit into one batch.
        RuntimeError: the loss became NaN or infinite.
    """
    if len(answers) < settings.batch_size:
        raise ValueError(f"{len(answers)} answers, but one batch needs {settings.batch_size}.")
    lm_head = target.lm_head.weight
    targets, rows, vocabulary = part_of_head(answers, lm_head)
    embedding = target.model.embed_tokens.weight.detach().cpu()
    torch.manual_seed(settings.seed)
    texts = texts_of(answers, settings.max_tokens)
    model = new_eagle(target, texts, embedding, settings.intermediate_size)
    batches = _batches(texts, settings)

    def next_loss(step: int) -> Tensor:
        return unrolled_loss(model, next(batches), embedding, rows, targets, settings)

    losses = minimize(
        next_loss, list(model.parameters()), settings.steps, settings.learning_rate, "EAGLE layer"
    )
    write_eagle(model, target_dir, out_dir)
    write_draft_vocabulary(out_dir, whole_strips(vocabulary, len(lm_head)))
    return measures(losses) | {"parameters": sum(p.numel() for p in model.parameters())}


def new_eagle(
    target: LlamaForCausalLM, texts: list[Text], embedding: Tensor, intermediate_size: int
) -> EagleLlamaModel:
    """A layer that begins as the best linear guess, and learns what to add to it.

    Its first product `fc` is solved for: no other matrix guesses a hidden state better from the one
    before it and the token's embedding. Attention and gate begin at 0.
    """
    config = replace(target.config, num_hidden_layers=1, intermediate_size=intermediate_size)
    model = EagleLlamaModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                torch.nn.init.ones_(parameter)  # of a norm
            elif "o_proj" in name or "down_proj" in name:
                torch.nn.init.zeros_(parameter)  # what the layer adds
            else:
                torch.nn.init.normal_(parameter, std=0.02)
        model.fc.weight.copy_(best_linear_guess(texts, embedding).T)
    return model.requires_grad_(True)


def best_linear_guess(texts: list[Text], embedding: Tensor) -> Tensor:
    """[2 * hidden, hidden], by least squares with a small ridge."""
    width = embedding.shape[1]
    gram = torch.zeros(2 * width, 2 * width, dtype=torch.float64)
    product = torch.zeros(2 * width, width, dtype=torch.float64)
    for text in texts:
        known = torch.cat([embedding[text.token_ids].float(), text.before], dim=1)
        gram += (known.T @ known).double()
        product += (known.T @ text.hidden).double()
    ridge = RIDGE * gram.diagonal().mean()
    return torch.linalg.solve(gram + ridge * torch.eye(2 * width, dtype=torch.float64), product)


def texts_of(answers: list[Answer], max_tokens: int) -> list[Text]:
    """All tokens of each answer and its prompt, but the last one: nobody knows what follows."""
    texts = []
    row = 0
    for answer in answers:
        ids = torch.tensor([*answer.prompt, *answer.answer[:-1]])
        hidden = torch.cat([answer.prompt_hidden, answer.hidden]).float()
        before = F.pad(hidden[:-1], (0, 0, 1, 0))  # nothing lies before the first token
        first, cut = len(answer.prompt) - 1, max(0, len(ids) - max_tokens)
        skipped = max(0, cut - first)  # of the answer
        texts.append(
            Text(ids[cut:], before[cut:], hidden[cut:], max(0, first - cut), row + skipped)
        )
        row += len(answer.answer)
    return texts


def _batches(texts: list[Text], settings: EagleSettings) -> Iterator[list[Text]]:
    """Endless batches; each epoch in a new order."""
    rng, size = random.Random(settings.seed), settings.batch_size
    while True:
        order = rng.sample(texts, len(texts))
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]


def unrolled_loss(
    model: EagleLlamaModel,
    texts: list[Text],
    embedding: Tensor,
    lm_head: Tensor,
    targets: SoftTargets,
    settings: EagleSettings,
) -> Tensor:
    """How wrong the layer's guesses are, a scalar: the first ones, those after them, and so on.

    Args:
        embedding: [vocab_size, hidden], the target's.
        lm_head: [n, hidden], those rows of the target's head that `targets` are about.
        targets: the target's own distributions.
    """
    length = -(-max(len(text.token_ids) for text in texts) // LENGTHS) * LENGTHS

    def padded(parts: list[Tensor]) -> Tensor:
        """All texts' rows one after the other, each text filled up to `length`."""
        others = (0, 0) * (parts[0].ndim - 1)
        return torch.cat([F.pad(part, (*others, 0, length - len(part))) for part in parts])

    ids = padded([text.token_ids for text in texts])
    before = padded([text.before for text in texts])  # [B * length, hidden]
    wanted = padded([text.hidden for text in texts])
    positions = torch.arange(length).repeat(len(texts))
    # The rows that belong to answers, and those of the targets.
    rows, of_targets = [], []
    for i, text in enumerate(texts):
        count = len(text.token_ids) - text.first
        rows.append(torch.arange(count) + i * length + text.first)
        of_targets.append(torch.arange(count) + text.first_row)
    answer_rows, target_rows = torch.cat(rows), torch.cat(of_targets)
    embedded = embedding[ids].float()
    batch = UnrolledBatch(len(texts), torch.arange(len(texts)) % 2 == 0)
    loss, weight = torch.zeros(()), 1.0
    for _ in range(settings.num_passes):
        with torch.autocast("cpu", torch.bfloat16, enabled=fast_dtype() == "bfloat16"):
            hidden = model(embedded, before, positions, batch).float()
        chosen = torch.randint(len(answer_rows), (settings.num_rows,))
        goal = targets[target_rows[chosen]]
        guess = hidden[answer_rows[chosen]]
        loss = loss + weight * soft_cross_entropy(guess, lm_head, goal.token_ids, goal.probs)
        loss = loss + weight * F.smooth_l1_loss(hidden[answer_rows], wanted[answer_rows])
        # In the next pass, what lies before a token is what this one has made of it.
        before = hidden.view(len(texts), length, -1).roll(1, dims=1).flatten(0, 1)
        weight *= LATER_COUNTS
    return loss


def write_eagle(model: EagleLlamaModel, target_dir: Path, out_dir: Path) -> None:
    """Write the layer in bfloat16, with a config.json of the target's model."""
    weights = {name: part.bfloat16().contiguous() for name, part in checkpoint_views(model).items()}
    save_file(weights, out_dir / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((target_dir / "config.json").read_text())
    raw.pop("layer_types", None)
    raw |= {
        "num_hidden_layers": 1,
        "intermediate_size": model.config.intermediate_size,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }
    (out_dir / "config.json").write_text(json.dumps(raw, indent=2))
