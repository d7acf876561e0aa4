"""Reuse of keys and values that are no prefix: what it does to the next token, measured.

Several notes were each computed by themselves, and now stand behind each other in one prompt. Their
keys and values are put together; some tokens may be computed again over the others. The measure is
the KL divergence of the next token's distribution from that of the whole prompt.

Yao et al., "CacheBlend: Fast Large Language Model Serving for RAG with Cached Knowledge Fusion",
2024, https://arxiv.org/abs/2405.16444
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.disaggregation.reuse_prompts import Prompt, prompts
from utils.engine.attention.batch import Batch
from utils.engine.config.model import ModelConfig
from utils.engine.models.llama import LlamaForCausalLM, apply_rotary, rotary_cos_sin
from utils.engine.models.weights import load_model
from utils.hub import load_tokenizer, resolve_model

if TYPE_CHECKING:
    pass

LOOKED_AT = 1  # the layer whose deviation chooses; it and those before are computed for all tokens


@dataclass(frozen=True)
class ReuseRow:
    """A way to reuse, over all prompts.

    Attributes:
        recomputed: share of the tokens before the question that were computed again.
        kl: mean KL divergence of the next token, in nats.
        same_token: in how many prompts the most likely token is the same.
        prompts: how many there were.
    """

    name: str
    recomputed: float
    kl: float
    same_token: int
    prompts: int


class Memory(Batch):
    """Keys and values of all layers, and a batch whose tokens are written among them.

    Args:
        keys, values: one tensor [N, H_kv, D] per layer. The batch's own are put into them.
        slots: [T], where in them the batch's tokens lie.
        visible: [T, N], which of them each token of the batch sees.
    """

    def __init__(
        self, keys: list[Tensor], values: list[Tensor], slots: Tensor, visible: Tensor
    ) -> None:
        self.keys, self.values, self.slots, self.visible = keys, values, slots, visible

    def attend(self, layer, query, key, value, ops, scale):  # type: ignore[no-untyped-def]
        """[T, H, D] queries, [T, H_kv, D] keys and values -> [T, H, D]."""
        self.keys[layer][self.slots], self.values[layer][self.slots] = key, value
        q, k, v = (x.transpose(0, 1) for x in (query, self.keys[layer], self.values[layer]))
        out = F.scaled_dot_product_attention(q, k, v, self.visible, scale=scale, enable_gqa=True)
        return out.transpose(0, 1)


class Study:
    """The model, and the ways to reuse what it has computed."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model, self.config = model, model.config

    def compute(self, ids: Tensor, positions: Tensor, visible: Tensor) -> tuple[Memory, Tensor]:
        """Keys and values of tokens that see each other as told, and the last one's logits."""
        shape = (len(ids), self.config.num_key_value_heads, self.config.head_dim)
        layers = range(self.config.num_hidden_layers)
        keys, values = ([torch.zeros(shape) for _ in layers] for _ in range(2))
        memory = Memory(keys, values, torch.arange(len(ids)), visible)
        return memory, self.forward(ids, positions, memory)

    def forward(self, ids: Tensor, positions: Tensor, memory: Memory) -> Tensor:
        """Run tokens; the logits of the last one, [vocab_size]."""
        return self.model.compute_logits(self.model(ids, positions, memory)[-1:])[0]

    def whole(self, prompt: Prompt) -> tuple[Memory, Tensor]:
        """The prompt as it should be: every token sees all before it."""
        n = len(prompt.ids)
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        return self.compute(prompt.ids, torch.arange(n), causal)

    def pieces(self, prompt: Prompt, *, behind: str, rotate: bool) -> Memory:
        """Keys and values of the prefix and of the notes, each note computed without the others.

        Args:
            behind: what each note saw: "nothing", the "system prompt", or the whole "prefix".
            rotate: turn each key from the position where it was computed to where it stands now.
        """
        begin = {"nothing": 0, "system prompt": len(prompt.system), "prefix": len(prompt.head)}
        reused, seen = prompt.num_reused, begin[behind]
        part = torch.zeros(reused, dtype=torch.long)  # 0: the prefix, then the notes
        positions = torch.arange(reused)
        for number, (start, note) in enumerate(zip(prompt.starts, prompt.notes, strict=True), 1):
            part[start : start + len(note)] = number
            positions[start : start + len(note)] = seen + torch.arange(len(note))
        visible = (part[:, None] == part[None]).tril()
        visible[part > 0, :seen] = True
        memory, _ = self.compute(prompt.ids[:reused], positions, visible)
        if rotate:
            moved = torch.arange(reused) - positions
            turn = rotary_cos_sin(moved, self.config.head_dim, self.config.rope_theta)
            memory.keys = [apply_rotary(key, *turn) for key in memory.keys]
        return memory

    def blend(self, prompt: Prompt, pieces: Memory, right: Memory, again: Tensor) -> Tensor:
        """The next token's logits over pieces, with some tokens computed again.

        Args:
            right: keys and values of the whole prompt. Of these, only those of the layers up to the
                one that is looked at are used, and only if any token is computed again.
            again: the places of the tokens that are computed again, ascending.
        """
        n, reused = len(prompt.ids), prompt.num_reused
        room = torch.zeros(n - reused, *pieces.keys[0].shape[1:])
        keys, values = ([torch.cat([x, room]) for x in xs] for xs in (pieces.keys, pieces.values))
        if len(again):
            for layer in range(LOOKED_AT + 1):
                keys[layer], values[layer] = right.keys[layer].clone(), right.values[layer].clone()
        slots = torch.cat([again, torch.arange(reused, n)])
        visible = torch.arange(n)[None] <= slots[:, None]
        return self.forward(prompt.ids[slots], slots, Memory(keys, values, slots, visible))


Choice = Callable[[Prompt, Memory, Memory, int], Tensor]


def by_deviation(prompt: Prompt, pieces: Memory, right: Memory, count: int) -> Tensor:
    """CacheBlend's rule: the tokens whose keys and values differ most from the right ones."""
    n, at = prompt.num_reused, LOOKED_AT
    pairs = ((pieces.keys, right.keys), (pieces.values, right.values))
    off = sum(((a[at] - b[at][:n]) ** 2).sum((1, 2)) for a, b in pairs)
    assert isinstance(off, Tensor)
    off[: prompt.starts[0]] = -1  # the prefix is right as it is
    return off.topk(min(count, n - prompt.starts[0])).indices.sort().values


def at_random(prompt: Prompt, pieces: Memory, right: Memory, count: int) -> Tensor:
    """Any tokens of the notes."""
    first = prompt.starts[0]
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(prompt.num_reused - first, generator=generator)
    return (order[:count] + first).sort().values


def first_of_each(prompt: Prompt, pieces: Memory, right: Memory, count: int) -> Tensor:
    """The beginning of each note, as many tokens of each."""
    each = count // len(prompt.notes)
    pairs = zip(prompt.starts, prompt.notes, strict=True)
    return torch.cat([torch.arange(s, s + min(each, len(note))) for s, note in pairs])


# Name, what the notes saw, re-rotated?, share computed again, which.
WAYS: list[tuple[str, str, bool, float, Choice]] = [
    ("put together as they are", "nothing", False, 0.0, at_random),
    ("re-rotated", "nothing", True, 0.0, at_random),
    ("some again, by deviation (CacheBlend)", "nothing", True, 0.15, by_deviation),
    ("some again, at random", "nothing", True, 0.15, at_random),
    ("some again, the beginnings (EPIC)", "nothing", True, 0.15, first_of_each),
    ("all three notes again", "nothing", True, 1.0, at_random),
    ("computed behind the system prompt", "system prompt", True, 0.0, at_random),
    ("computed behind the whole prefix", "prefix", True, 0.0, at_random),
]


def run_study(model: str | Path = "bundled") -> list[ReuseRow]:
    """Every way of `WAYS`, on every prompt, in float32."""
    folder = resolve_model(str(model))
    study = Study(load_model(folder, ModelConfig.from_pretrained(folder)))
    results: list[list[tuple[float, float, bool]]] = [[] for _ in WAYS]
    with torch.inference_mode():
        for prompt in prompts(load_tokenizer(folder)):
            right, want = study.whole(prompt)
            made = {
                (behind, rotate): study.pieces(prompt, behind=behind, rotate=rotate)
                for behind, rotate in {way[1:3] for way in WAYS}
            }
            for number, (_, behind, rotate, share, choose) in enumerate(WAYS):
                pieces = made[behind, rotate]
                again = choose(prompt, pieces, right, int(share * prompt.num_reused))
                got = study.blend(prompt, pieces, right, again)
                p, q = want.log_softmax(-1), got.log_softmax(-1)
                kl = float((p.exp() * (p - q)).sum())
                results[number].append(
                    (kl, len(again) / prompt.num_reused, bool(p.argmax() == q.argmax()))
                )
    rows = []
    for way, rated in zip(WAYS, results, strict=True):
        (kls, shares, hits), n = zip(*rated, strict=True), len(rated)
        rows.append(ReuseRow(way[0], sum(shares) / n, sum(kls) / n, sum(hits), n))
    return rows
