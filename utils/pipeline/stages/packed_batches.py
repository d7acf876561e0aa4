"""Examples in one row behind their shared prefix, and the loss on their answers.

All prompts begin with the same long system prompt. So a batch holds it once (`pack`), and every
example attends to it: the same gradient for about half the work. Prefix caching uses the same fact
when serving.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from utils.pipeline.stages.cross_entropy import soft_cross_entropy
from utils.pipeline.stages.perplexity import exp_or_inf
from utils.pipeline.task.data import Example

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ATTENTION = "shared_prefix"
IGNORED = -100  # a target that the loss leaves out


@dataclass(frozen=True)
class Tokens:
    """One example as token ids. The answer ends with EOS: the model must learn to stop."""

    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Batch:
    """Several examples in one row of T tokens, behind their shared prefix; no padding.

    `targets` are the N answer tokens, and `predictors` the positions whose logits predict them.
    """

    input_ids: Tensor  # [1, T]
    position_ids: Tensor  # [1, T]
    lengths: list[int]  # tokens of the prefix, then of each example's rest; their sum is T
    predictors: Tensor  # [N]
    targets: Tensor  # [N]


def encode(tokenizer: PreTrainedTokenizerBase, examples: list[Example]) -> list[Tokens]:
    """Render examples with the chat template and tokenize them."""
    encoded = []
    for example in examples:
        prompt = tokenizer.apply_chat_template(
            example.messages(), tokenize=False, add_generation_prompt=True
        )
        # The template writes the special tokens itself.
        prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        answer_ids = tokenizer(example.answer_text(), add_special_tokens=False)["input_ids"]
        encoded.append(Tokens(prompt_ids, [*answer_ids, tokenizer.eos_token_id]))
    return encoded


def pack(examples: list[Tokens]) -> Batch:
    """Put examples into one row: their common prefix once, then the rest of each.

    An example sees the prefix and itself, never another example; its positions continue the
    prefix's. So each gets the logits that it would get alone.
    """
    if not examples:
        raise ValueError("A batch needs at least one example.")
    prefix = _common_prefix([example.prompt[:-1] for example in examples])
    ids, positions, lengths = list(prefix), list(range(len(prefix))), [len(prefix)]
    predictors: list[int] = []
    targets: list[int] = []
    for example in examples:
        rest = example.prompt[len(prefix) :] + example.answer[:-1]  # EOS is only predicted
        last_of_prompt = len(ids) + len(example.prompt) - len(prefix) - 1
        predictors += range(last_of_prompt, last_of_prompt + len(example.answer))
        targets += example.answer
        ids += rest
        positions += range(len(prefix), len(prefix) + len(rest))
        lengths.append(len(rest))
    return Batch(
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([positions]),
        lengths=lengths,
        predictors=torch.tensor(predictors),
        targets=torch.tensor(targets),
    )


def pad(batch: Batch, each: int = 16, total: int = 64) -> Batch:
    """Round up the tokens of each example, and of all, and the targets; the loss stays as it was.

    The tokens added to an example come after its answer, so no other token sees them, and the
    targets added are `IGNORED`.

    On a CPU, oneDNN compiles the matrix products anew for each shape and keeps up to 1,024 of
    them. That takes time, and they lie between the tensors, so that no tensor of the next batch, a
    little longer, fits into the gaps. With new lengths in each batch, a process that needs 2 GB
    thus grew to 7.
    """
    prefix, *rests = batch.lengths
    added = [-length % each for length in rests[:-1]]
    added.append(-(batch.input_ids.shape[1] + sum(added)) % total)
    ids = list(batch.input_ids[0].split(batch.lengths))
    positions = list(batch.position_ids[0].split(batch.lengths))
    predictors, end, shift = batch.predictors.clone(), prefix, 0
    for i, (length, more) in enumerate(zip(rests, added, strict=True), start=1):
        inside = (batch.predictors >= end) & (batch.predictors < end + length)
        predictors[inside] += shift
        ids[i] = F.pad(ids[i], (0, more))
        positions[i] = torch.arange(length + more) + prefix
        end, shift = end + length, shift + more
    targets = -len(batch.targets) % total
    return Batch(
        input_ids=torch.cat(ids).unsqueeze(0),
        position_ids=torch.cat(positions).unsqueeze(0),
        lengths=[prefix, *(length + more for length, more in zip(rests, added, strict=True))],
        predictors=F.pad(predictors, (0, targets)),
        targets=F.pad(batch.targets, (0, targets), value=IGNORED),
    )


def _common_prefix(sequences: list[list[int]]) -> list[int]:
    first, last = min(sequences), max(sequences)  # in dictionary order, these differ the most
    length = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )
    return first[:length]


def shared_prefix_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    lengths: list[int],
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention for a `Batch`: the prefix sees itself; each rest the prefix and itself.

    Written as products of matrices: with lengths of a few hundred tokens they take half the time of
    PyTorch's fused kernel on a CPU. The query heads that share a key head are rows of one product.

    Args:
        query: [1, H, T, D]; key, value: [1, H_kv, T, D], T = sum(lengths).

    Returns:
        [1, T, H, D], and None for the attention weights (transformers' convention).
    """
    key_heads = key.shape[1]
    group = query.shape[1] // key_heads
    queries = (query[0] * scaling).unflatten(0, (key_heads, group)).split(lengths, dim=2)
    keys, values = key[0].split(lengths, dim=1), value[0].split(lengths, dim=1)
    outputs = []
    for i, length in enumerate(lengths):
        k = torch.cat([keys[0], keys[i]], dim=1) if i else keys[0]  # [H_kv, T_k, D]
        v = torch.cat([values[0], values[i]], dim=1) if i else values[0]
        hidden = torch.full((length, k.shape[1]), -torch.inf, dtype=k.dtype, device=k.device)
        hidden = hidden.triu(k.shape[1] - length + 1).repeat(group, 1)  # [group * T_q, T_k]
        scores = torch.baddbmm(hidden, queries[i].flatten(1, 2), k.mT)
        output = scores.softmax(dim=-1) @ v  # [H_kv, group * T_q, D]
        outputs.append(output.unflatten(1, (group, length)).flatten(0, 1))
    return torch.cat(outputs, dim=1).transpose(0, 1).unsqueeze(0), None


AttentionInterface.register(ATTENTION, shared_prefix_attention)


def answer_states(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """What the answer tokens of a batch are predicted from: states [N, H], and the head [V, H].

    Their product is the logits. There are none for the prompt, of which nothing is learned.
    """
    device = model.device
    language_model = getattr(model, "get_base_model", lambda: model)()
    hidden = language_model.model(
        input_ids=batch.input_ids.to(device),
        position_ids=batch.position_ids.to(device),
        lengths=batch.lengths,  # reaches `shared_prefix_attention`
        use_cache=False,
    ).last_hidden_state[0]
    head = language_model.get_output_embeddings().weight
    return hidden[batch.predictors.to(device)], head


def answer_loss(model: PreTrainedModel | PeftModel, batch: Batch) -> Tensor:
    """Mean cross-entropy of the answer tokens of `batch`, a float32 scalar; the head is frozen."""
    states, head = answer_states(model, batch)
    targets = batch.targets.to(states.device).unsqueeze(1)
    probs = (targets != IGNORED).float()
    return soft_cross_entropy(states, head, targets.clamp(min=0), probs)


def batches(examples: list[Tokens], batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless batches; each epoch in a new order."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(examples, len(examples))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            yield pack(order[start : start + batch_size])


@torch.inference_mode()
def answer_perplexity(model: Any, examples: list[Tokens], batch_size: int = 8) -> float:
    """exp of the mean loss per answer token: how surprised the model is by the right answers."""
    total, count = 0.0, 0
    for start in range(0, len(examples), batch_size):
        batch = pack(examples[start : start + batch_size])
        total += answer_loss(model, batch).item() * len(batch.targets)
        count += len(batch.targets)
    return exp_or_inf(total / count)
