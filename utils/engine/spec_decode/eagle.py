"""EAGLE: one layer that goes on from the model's own hidden states.

Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty". In vLLM:
`v1/spec_decode/eagle.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from utils.engine.attention.batch import Batch
from utils.engine.attention.paged_kv_cache import PagedKVCache, slot_mapping
from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.models.llama_eagle import EagleLlamaModel
from utils.engine.request import Request
from utils.engine.spec_decode.draft import NO_DRAFT, Draft
from utils.engine.spec_decode.draft_vocabulary import named
from utils.engine.spec_decode.llm_base_proposer import Part, SpecDecodeBaseProposer


class EagleProposer(SpecDecodeBaseProposer):
    """Guesses with an EAGLE layer: a chain, or a tree.

    For each token the layer wants the target's hidden state of the token before. That token may
    have been computed in an earlier step, by another request, or before a swap. So the hidden
    states lie in paged memory, too, at the slots of their tokens, and all that happens to blocks
    happens to them. vLLM keeps none, and gives up the last block that a prompt has found in the
    prefix cache, to compute its hidden states again (`use_eagle_block_drop`).

    Only blocks that a connector has filled lack both, since other engines have no such layer: what
    is guessed after them is less often right.

    Args:
        model: trained for the target.
        target: its embedding and head are used.
        config: of the engine.
        token_ids: [n], what it may guess. None: all tokens.
        tree_widths: of each node, how many tokens to guess, level by level. None for a chain.
    """

    def __init__(
        self,
        model: EagleLlamaModel,
        target: LlamaForCausalLM,
        config: EngineConfig,
        token_ids: Tensor | None = None,
        tree_widths: tuple[int, ...] | None = None,
    ) -> None:
        memory = PagedKVCache.for_engine(model.config, config)
        super().__init__(memory, target.lm_head, token_ids, config.seed)
        self.model, self.embed_tokens = model, target.model.embed_tokens
        self.tree_widths = tree_widths
        self.hidden_states = PagedKVCache.for_engine(as_one_layer(model.config), config)

    def run(self, ids: Tensor, positions: Tensor, batch: Batch, before: Tensor | None) -> Tensor:
        """See `SpecDecodeBaseProposer`."""
        assert before is not None
        hidden: Tensor = self.model(self.embed_tokens(ids), before, positions, batch)
        return hidden

    def keep(self, output: SchedulerOutput, hidden_states: dict[str, Tensor]) -> None:
        """See `SpecDecodeBaseProposer`. The step's hidden states go to the slots of their tokens.

        Those of a tree's accepted guesses, too, at once: what the next step moves for the target is
        where it should be.
        """
        copies = replace(output.block_copies, move=[])
        self.kv_cache.copy_blocks(copies)
        self.hidden_states.copy_blocks(copies)
        size = self.kv_cache.block_size
        slots, rows = [], []
        for request in output.scheduled_requests:
            states, start = hidden_states[request.request_id], request.num_computed_tokens
            slots += slot_mapping(request.block_ids, size, start, start + len(states))
            rows.append(states)
        if rows:
            first, second = torch.cat(rows).unsqueeze(1).chunk(2, dim=-1)
            self.hidden_states.write(0, first, second, torch.tensor(slots, device=self.device))

    def states_before(self, parts: Sequence[Part]) -> Tensor:
        """See `SpecDecodeBaseProposer`. Before a request's first token there is nothing: zeros."""
        size = self.kv_cache.block_size
        slots: list[int] = []
        firsts: list[int] = []
        for part in parts:
            before = part.start - 1
            if before < 0:
                firsts.append(len(slots))
                slots.append(0)
            begin = max(before, 0)
            slots += slot_mapping(part.block_ids, size, begin, before + len(part.token_ids))
        halves = self.hidden_states.device_memory[:, 0].flatten(1, 2)[:, slots, 0]  # [2, T, half]
        states = torch.cat([*halves], dim=-1)
        states[firsts] = 0
        return states

    def guess(
        self,
        wanted: Sequence[tuple[Request, int]],
        parts: Sequence[Part],
        room: Sequence[int],
        active: list[int],
        hidden: Tensor,
    ) -> list[Draft]:
        """See `SpecDecodeBaseProposer`; with `tree_widths` the guesses are a tree."""
        if self.tree_widths is None:
            return super().guess(wanted, parts, room, active, hidden)
        before = self.states_before([root(parts[i]) for i in active])
        trees = {
            i: GrowingTree(root(parts[i]), state[None], read[None])
            for i, state, read in zip(active, before, hidden, strict=True)
        }
        for depth, width in enumerate(self.tree_widths):
            growing = list(trees.values())
            if depth:  # the newest guesses have to be read before others can follow them
                growing = [
                    tree
                    for i, tree in trees.items()
                    if (count := len(tree.parents)) <= room[i] and count < wanted[i][1]
                ]
                self._read(growing)
            self._grow(growing, width)
        return [
            Draft(trees[i].token_ids[1:], trees[i].parents).first(num_tokens)
            if i in trees
            else NO_DRAFT
            for i, (_, num_tokens) in enumerate(wanted)
        ]

    def _grow(self, trees: Sequence[GrowingTree], width: int) -> None:
        """Give each of the newest nodes its `width` best tokens as children."""
        if not trees:
            return
        best = self.head(torch.cat([tree.leaves() for tree in trees])).topk(width).indices
        token_ids = iter(named(best, self.token_ids).tolist())
        for tree in trees:
            tree.grow([next(token_ids) for _ in tree.leaves()])

    def _read(self, trees: Sequence[GrowingTree]) -> None:
        """Run trees through the layer: the newest nodes, and what lies above them once more."""
        if not trees:
            return
        before = [tree.states_before() for tree in trees]
        hidden = self.read([tree.part() for tree in trees], torch.cat(before))
        sizes = [len(rows) for rows in before]
        for tree, rows in zip(trees, hidden.split(sizes), strict=True):
            tree.hidden = rows


class GrowingTree:
    """A tree of guesses on its way: some nodes are read, and the newest ones not yet.

    Args:
        root: the request's newest token.
        before: [1, hidden], the target's hidden state of the token before it.
        hidden: [1, hidden], what the layer computed for the root.
    """

    def __init__(self, root: Part, before: Tensor, hidden: Tensor) -> None:
        self.root, self.before = root, before
        self.token_ids = list(root.token_ids)  # the root's, then the nodes'
        self.parents: list[int] = []  # of each node (see `Draft`)
        self.hidden = hidden  # [1 + nodes that are read, hidden]
        self.num_inner = 0  # of these rows, how many belong to nodes that have children

    def part(self) -> Part:
        """All there is, to be read."""
        return self.root._replace(token_ids=self.token_ids, parents=self.parents)

    def states_before(self) -> Tensor:
        """[1 + nodes, hidden]: for each token a hidden state of the token before it."""
        return torch.cat([self.before, self.hidden[[parent + 1 for parent in self.parents]]])

    def leaves(self) -> Tensor:
        """[leaves, hidden]: of the nodes that are read and have no children yet."""
        return self.hidden[self.num_inner :]

    def grow(self, token_ids: Sequence[list[int]]) -> None:
        """Give each leaf its children."""
        first, self.num_inner = self.num_inner, len(self.hidden)
        for row, children in enumerate(token_ids, first):
            self.token_ids += children
            self.parents += [row - 1] * len(children)


def root(part: Part) -> Part:
    """Of a part, the last token alone."""
    last = len(part.token_ids) - 1
    return Part(part.block_ids, part.token_ids[last:], part.start + last)


def as_one_layer(config: ModelConfig) -> ModelConfig:
    """A model whose keys and values have room for a hidden state: each of them for one half."""
    half = config.hidden_size // 2
    return replace(
        config, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=half
    )
