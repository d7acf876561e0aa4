"""An EAGLE proposer around a learner's class, and an engine with a learner's trees: exercise 4."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from utils.engine.attention.paged_kv_cache import PagedKVCache, slot_mapping
from utils.engine.config.engine import EngineConfig
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.models.llama_eagle import EagleLlamaModel
from utils.engine.request import Request
from utils.engine.spec_decode import llm_base_proposer
from utils.engine.spec_decode.draft import NO_DRAFT, Draft
from utils.engine.spec_decode.draft_vocabulary import named
from utils.engine.spec_decode.eagle import EagleProposer, as_one_layer
from utils.engine.spec_decode.llm_base_proposer import Part
from utils.engine.spec_decode.make_proposer import make_eagle
from utils.engine.worker import model_runner


def proposer_with(proposer_class: Callable[[Tensor], Any]) -> Callable[..., EagleProposer]:
    """The engine's EAGLE proposer with a learner's class in it. Pass it as `proposer`.

    Args:
        proposer_class: is called with the memory for hidden states, [num_slots, hidden]; has
            `keep`, `states_before` and `guess`.
    """

    class LearnersProposer(EagleProposer):
        def __init__(
            self,
            model: EagleLlamaModel,
            target: LlamaForCausalLM,
            config: EngineConfig,
            *others: Any,
        ) -> None:
            super().__init__(model, target, config, *others)
            hidden_size = target.config.hidden_size
            one_row = replace(as_one_layer(target.config), head_dim=hidden_size)
            # Paged memory of which one half is used: what copies blocks then copies hidden states.
            self.hidden_states = PagedKVCache.for_engine(one_row, config)
            self.memory = self.hidden_states.keys[0].flatten(0, 1)[:, 0]  # [num_slots, hidden]
            self.mine = proposer_class(self.memory)

        def keep(self, output: SchedulerOutput, hidden_states: dict[str, Tensor]) -> None:
            copies = replace(output.block_copies, move=[])  # see `EagleProposer`
            self.kv_cache.copy_blocks(copies)
            self.hidden_states.copy_blocks(copies)
            for request in output.scheduled_requests:
                states, start = hidden_states[request.request_id], request.num_computed_tokens
                end = start + len(states)
                self.mine.keep(self._slots(request.block_ids, start, end), states)

        def states_before(self, parts: Sequence[Part]) -> Tensor:
            rows = [self.memory[:0]]
            for part in parts:
                end = part.start + len(part.token_ids)
                slots = self._slots(part.block_ids, 0, end)
                rows.append(self.mine.states_before(slots, part.start, end))
            return torch.cat(rows)

        def guess(
            self,
            wanted: Sequence[tuple[Request, int]],
            parts: Sequence[Part],
            room: Sequence[int],
            active: list[int],
            hidden: Tensor,
        ) -> list[Draft]:
            if self.tree_widths is not None:
                return super().guess(wanted, parts, room, active, hidden)
            drafts = [NO_DRAFT] * len(wanted)
            for i, state in zip(active, hidden, strict=True):
                request, num_tokens = wanted[i]
                most = min(num_tokens, 1 + room[i])
                read = self._reader(parts[i].block_ids, request.num_tokens)
                drafts[i] = Draft(self.mine.guess(state, most, self._best_token, read))
            return drafts

        def _slots(self, block_ids: list[int], start: int, end: int) -> list[int]:
            return slot_mapping(block_ids, self.kv_cache.block_size, start, end)

        def _best_token(self, hidden: Tensor) -> int:
            return int(named(self.head(hidden[None]).argmax(), self.token_ids))

        def _reader(self, block_ids: list[int], position: int) -> Callable[[int, Tensor], Tensor]:
            """Reads one guess after another, each at the next position."""
            num_read = 0

            def read(token_id: int, before: Tensor) -> Tensor:
                nonlocal num_read
                part = Part(block_ids, [token_id], position + num_read)
                num_read += 1
                return self.read([part], before[None])[0]

            return read

    return functools.partial(make_eagle, proposer_class=LearnersProposer)


@contextlib.contextmanager
def trees_with(
    tree_attention_mask: Callable[[list[int]], Tensor],
    follow_tree: Callable[[list[int], list[int], list[int]], list[int]],
) -> Iterator[None]:
    """While this is open, all engines verify trees with these functions."""

    def mask(parents: Sequence[int]) -> Tensor:
        return tree_attention_mask(list(parents))

    def follow(
        draft_token_ids: Sequence[int], parents: Sequence[int], sampled: Sequence[int]
    ) -> list[int]:
        return follow_tree(list(draft_token_ids), list(parents), list(sampled))

    with (
        patch.object(llm_base_proposer, "tree_attention_mask", mask),
        patch.object(model_runner, "tree_attention_mask", mask),
        patch.object(model_runner, "follow_tree", follow),
    ):
        yield
