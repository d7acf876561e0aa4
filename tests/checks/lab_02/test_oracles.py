"""What lab 02 calls right is what transformers does."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from utils.checks import lab_02
from utils.checks.kit.contracts import Choices
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_02 import answers
from utils.engine.attention.kv_cache import ContiguousKVCache


@pytest.mark.parametrize(
    ("shape", "tokens", "batch"),
    [((1, 2, 2, 4, 8), 1, 1), ((3, 6, 2, 4, 24), 5, 3), ((2, 4, 1, 16, 40), 7, 2)],
)
def test_bytes_are_those_of_a_filled_cache(shape, tokens, batch):
    config = lab_02.model_config(*shape)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=config.hidden_size,
            intermediate_size=8,
            num_hidden_layers=config.num_hidden_layers,
            head_dim=config.head_dim,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
        )
    )
    with torch.no_grad():
        layers = model(torch.zeros(batch, tokens, dtype=torch.long)).past_key_values.layers
    filled = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    assert lab_02.allocated(config, tokens, batch, 4, 1) == filled


def test_requests_are_those_that_one_counts():
    for given in sample(lab_02.draw_machine, 300):
        memory, utilization, weights, per_token, tokens = given.args
        count = lab_02.requests_that_fit(*given.args)
        used = weights + count * per_token * tokens
        assert used <= memory * utilization or count == 0
        assert used + per_token * tokens > memory * utilization


def test_exact_fits_are_drawn():
    fits = [
        given.args
        for given in sample(lab_02.draw_machine, 300)
        if (given.args[0] * given.args[1] - given.args[2]) % (given.args[3] * given.args[4]) == 0
    ]
    assert 50 < len(fits) < 250


def test_the_right_cache_is_transformers_cache():
    config = lab_02.model_config(3, 4, 2, 4, 16)
    cache, oracle = ContiguousKVCache(config, 16), DynamicCache()
    for size in (3, 2, 1, 5):
        for layer in range(3):
            key, value = torch.randn(2, size, 2, 4)
            got = cache.append(layer, key, value)
            want = oracle.update(key.transpose(0, 1)[None], value.transpose(0, 1)[None], layer)
            assert all(torch.equal(g, w[0].transpose(0, 1)) for g, w in zip(got, want, strict=True))


def test_stories_show_all_that_the_contract_speaks_of():
    """Overflow, mid-step truncates, two caches, long ones, all dtypes, another device."""
    stories = [lab_02.CacheStory.draw(Choices(random.Random(n))) for n in range(200)]
    settings = [story.setting for story in stories]
    assert {s.given for s in settings} == set(lab_02.GIVEN)
    assert {s.dtype for s in settings} == set(lab_02.DTYPES)
    assert {len(s.slots) for s in settings} == {1, 2}
    assert max(s.slots[0] for s in settings) > 128
    assert {kind for story in stories for kind, _ in story.steps} == set(lab_02.CacheStory.kinds)


def test_requests_are_long_now_and_then_and_follow_one_that_was_broken_off():
    requests = sample(lab_02.draw_request, 300)
    assert any(len(request.prompt) > 2048 for request in requests)
    assert any(len(r.prompt) > 128 and r.max_tokens < 7 for r in requests)
    assert any(r.max_tokens > 128 for r in requests)
    assert any(r.broken_off and not r.left for r in requests)


class WithHf:
    """The tiny model as the learner's loop calls it, with a cache that only counts."""

    def __init__(self) -> None:
        self.hf = TinyModel().hf
        self.cache = DynamicCache()

    @torch.no_grad()
    def __call__(self, token_ids, positions, kv_cache):
        assert positions.tolist() == list(range(kv_cache.num_tokens, int(positions[-1]) + 1))
        out = self.hf(token_ids[None], past_key_values=self.cache, use_cache=True)
        kv_cache.states += token_ids.tolist()
        return out.logits[0]


def empty() -> Any:
    """A pretended cache without tokens."""
    return lab_02.PretendedCache(lab_02.Request((), 1, frozenset(), 0, False))


@pytest.mark.parametrize("prompt", [[7], [3, 1, 4, 1, 5]])
def test_the_right_loop_says_what_hf_generate_says(prompt):
    expected = TinyModel().greedy(prompt, 8)
    assert answers.generate_with_cache(WithHf(), empty(), prompt, 8, set()) == expected
    stop = expected[4]
    ended = answers.generate_with_cache(WithHf(), empty(), prompt, 8, {stop})
    assert ended == TinyModel().greedy(prompt, 8, {stop})
