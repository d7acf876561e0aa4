"""What lab 07b calls right, held against the engine, and against brute force in hard stories."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engine.core.test_random_stories import HARD
from tests.engine.spec_decode.test_eagle import TREE, World, play
from utils.checks import lab_07b
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_07b import answers, trees
from utils.checks.lab_07b.eagle_story import OLD, EagleStory
from utils.checks.lab_07b.given_proposer import proposer_with, trees_with
from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.attention.tree_attention import tree_attention_mask
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.core.kv_cache_utils import BlockCopies
from utils.engine.spec_decode.eagle import EagleProposer
from utils.engine.spec_decode.llm_base_proposer import Part
from utils.engine.spec_decode.tree import follow_tree


def test_the_engine_agrees_about_trees():
    for tokens, parents, target in (inputs.args for inputs in sample(trees.draw_walk, 150)):
        path = follow_tree(tokens, parents, target)
        assert trees.longest_right_path(tokens, parents, target) == path
        assert torch.equal(trees.seen(parents), tree_attention_mask(parents))
    assert max(len(inputs.args[1]) for inputs in sample(trees.draw_walk, 150)) > 64


def test_a_wrong_mask_comes_with_its_picture():
    mask = trees.seen([-1, -1])
    yours = mask.clone()
    yours[2, 1] = True
    figure, _ = trees.draw_masks(mask, yours)
    crosses = [[text.get_position() for text in ax.texts] for ax in figure.axes]
    assert crosses == [[], [(1, 2)]]  # column 1, row 2


def test_the_engine_keeps_and_finds_the_same_hidden_states():
    """Its own methods, in blocks of one token: a block table is a list of slots then."""
    rng, hidden_size = random.Random(0), 4
    one_half: Any = SimpleNamespace(num_hidden_layers=1, num_key_value_heads=1, head_dim=2)
    for _ in range(50):
        cache = PagedKVCache(one_half, num_gpu_blocks=20, block_size=1)
        engine: Any = SimpleNamespace(kv_cache=cache, hidden_states=cache, device="cpu")
        mine = answers.MyEagleProposer(torch.zeros(20, hidden_size))
        slots, start = rng.sample(range(20), 12), 0
        while start < 12:
            end = rng.randint(start + 1, 12)
            states = torch.randn(end - start, hidden_size)
            request = SimpleNamespace(request_id="A", block_ids=slots, num_computed_tokens=start)
            output: Any = SimpleNamespace(scheduled_requests=[request], block_copies=BlockCopies())
            EagleProposer.keep(engine, output, {"A": states})
            mine.keep(slots[start:end], states)
            for begin in (start, 0):
                part = Part(slots, [7] * (end - begin), begin)
                right = EagleProposer.states_before(engine, [part])
                assert torch.equal(mine.states_before(slots, begin, end), right)
            start = end


class LearnersWorld(World):
    """A tiny target and its EAGLE layer, with the lab's answer between them."""

    def engine(self, widths: tuple[int, ...] | None = None, **changes: object):
        spec = SpeculativeConfig("eagle", 3, model=self.folder / "eagle", tree_widths=widths)
        self.llm.llm_engine = self.llm.new_engine(
            changes={"speculative_config": spec, **changes},
            proposer=proposer_with(answers.MyEagleProposer),
        )
        return self.llm.llm_engine


@pytest.mark.parametrize("widths", [None, TREE], ids=["chain", "tree"])
def test_in_a_hard_story_the_engine_guesses_what_brute_force_guesses(
    tmp_path: Path, widths: tuple[int, ...] | None
) -> None:
    """Requests give way, fork, find blocks; each guess is compared with the layer's own."""
    mine = trees_with(answers.tree_attention_mask, answers.follow_tree)
    with mine if widths else contextlib.nullcontext():
        happened = play(LearnersWorld(tmp_path), widths, HARD, seed=0)
    assert min(happened.values()) > 0, happened


SEEN: set[str] = set()


class Watched(answers.MyEagleProposer):
    """Notes what it is asked for."""

    def keep(self, slots, hidden_states):
        if (self.hidden_states[slots] != OLD).any():
            SEEN.add("a slot that was used before")
        if slots != sorted(slots):
            SEEN.add("blocks in another order")
        SEEN.add(str(hidden_states.dtype))
        super().keep(slots, hidden_states)

    def states_before(self, slots, start, end):
        SEEN.add("from the beginning" if start == 0 else "from the middle")
        SEEN.add("one token" if end - start == 1 else "several tokens")
        if len(slots) > end:
            SEEN.add("more slots than tokens")
        return super().states_before(slots, start, end)

    def guess(self, hidden, num_tokens, best_token, read):
        SEEN.add(f"{num_tokens} guesses")
        return super().guess(hidden, num_tokens, best_token, read)


def test_stories_reach_the_corners(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    say = EagleStory.say
    monkeypatch.setattr(EagleStory, "say", lambda self, line: (lines.append(line), say(self, line)))
    assert lab_07b.my_eagle_proposer(Watched).passed
    assert {
        *("a slot that was used before", "blocks in another order", "more slots than tokens"),
        *("from the beginning", "from the middle", "one token", "several tokens"),
        *("torch.float32", "torch.bfloat16", *(f"{n} guesses" for n in range(6))),
    } == SEEN
    for happened in ("finds its first tokens computed", "is copied", "is finished"):
        assert any(happened in line for line in lines), happened
