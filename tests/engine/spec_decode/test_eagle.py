"""EAGLE: what it guesses is what its layer says, whatever happened to the blocks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.core.test_random_stories import HARD, MAX_LEN, stories
from tests.engine.tiny_engines import EagleOracle, nothing_is_held, tiny_eagle, tiny_llama
from tests.scale import sized
from utils.engine import LLM, SamplingParams, SpeculativeConfig
from utils.engine.models.llama_eagle import load_eagle
from utils.engine.request import Request
from utils.pipeline.drafts.unrolled_attention import UnrolledBatch

TREE = (3, 2, 2)


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = tiny_llama(folder / "target", seed=0)
        self.oracle = tiny_eagle(folder / "eagle", self.target)
        self.llm = LLM(folder / "target", max_model_len=MAX_LEN, num_gpu_blocks_override=64)

    def engine(self, widths: tuple[int, ...] | None = None, **changes: object):
        spec = SpeculativeConfig("eagle", 3, model=self.folder / "eagle", tree_widths=widths)
        changes = {"speculative_config": spec, **changes}
        engine = self.llm.llm_engine = self.llm.new_engine(changes=changes)
        return engine


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def check_draft(oracle: EagleOracle, request: Request, widths: tuple[int, ...] | None) -> int:
    """Compare a request's guesses with the oracle's. Returns how many there are."""
    draft, tokens = request.draft, request.all_token_ids
    parents = draft.parents or range(-1, len(draft.token_ids) - 1)
    paths = draft.paths()
    for node, (token_id, parent) in enumerate(zip(draft.token_ids, parents, strict=True)):
        scores = oracle.scores(tokens, paths[parent + 1])
        rank = 0 if widths is None else sum(p == parent for p in parents[:node])
        best = scores.topk(rank + 1).values[-1]
        assert abs(float(scores[token_id] - best)) < 1e-4, (tokens, draft, node)
    return len(draft.token_ids)


def play(world: World, widths: tuple[int, ...] | None, config: dict, seed: int) -> dict[str, int]:
    """Play a story, and compare all guesses of greedy requests. Counts what happened in it."""
    rng = random.Random(seed)
    engine = world.engine(widths, **config)
    trace = engine.step_trace = []
    stems = [[rng.randrange(3, 13) for _ in range(rng.randrange(1, 20))] for _ in range(3)]
    arrived, guessed = 0, 0
    while arrived < 10 or engine.has_unfinished_requests():
        while arrived < 10 and rng.random() < 0.4:
            prompt = [*rng.choice(stems), *(rng.randrange(3, 13) for _ in range(rng.randrange(4)))]
            several = config["max_num_seqs"] >= 2 and rng.random() < 0.3
            params = SamplingParams(
                n=2 if several else 1,
                temperature=0.8 if several else 0.0,
                seed=seed if several else None,
                max_tokens=rng.randrange(1, 25),
                ignore_eos=True,
            )
            engine.add_request(f"r{arrived}", prompt, params, priority=rng.randrange(3))
            arrived += 1
        engine.step()
        for request in engine.requests.values():
            if widths or request.sampling_params.temperature == 0:
                guessed += check_draft(world.oracle, request, widths)
    assert nothing_is_held(world.llm)
    return {
        "guessed": guessed,
        "preempted": sum(len(record.preempted_req_ids) for record in trace),
        "hits": int(engine.kv_cache_manager.prefix_cache_stats.hits),
        "accepted": engine.spec_decoding_stats.num_accepted_tokens,
    }


@pytest.mark.parametrize("widths", [None, TREE], ids=["chain", "tree"])
@settings(
    deadline=None,
    max_examples=sized(10, 25),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(config=stories(), seed=st.integers(0, 10**6))
def test_guesses_are_the_layers_whatever_happened(
    world: World, widths: tuple[int, ...] | None, config: dict, seed: int
) -> None:
    play(world, widths, config, seed)


@pytest.mark.parametrize("widths", [None, TREE], ids=["chain", "tree"])
def test_a_story_is_hard_enough(world: World, widths: tuple[int, ...] | None) -> None:
    happened = play(world, widths, HARD, seed=0)
    assert min(happened.values()) > 0, happened


def test_a_hit_on_blocks_of_a_finished_request_costs_no_guess(world: World) -> None:
    """A request that is finished in its first step has been read all the same."""
    engine = world.engine(block_size=4)
    prompt = [3, 7, 5, 9, 4, 11, 6, 8, 3, 5, 12, 4, 9]
    for name, max_tokens in (("short", 1), ("long", 8)):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        engine.add_request(name, prompt, params)
        while engine.has_unfinished_requests():
            engine.step()
            for request in engine.requests.values():
                check_draft(world.oracle, request, None)
    assert engine.kv_cache_manager.prefix_cache_stats.hits == 12


def test_training_sees_what_guessing_sees(world: World) -> None:
    """Pass `j` of the unrolled layer computes, for each token, what the chain's guess `j` would."""
    oracle, target = world.oracle, world.target
    layer = load_eagle(world.folder / "eagle", world.llm.model.config)
    tokens = [3, 7, 5, 9, 4, 11, 6, 8]
    states = oracle.states(tuple(tokens))
    before = F.pad(states[:-1], (0, 0, 1, 0))
    embedded = target.model.embed_tokens(torch.tensor(tokens))
    batch = UnrolledBatch(1, torch.tensor([True]))
    for number in range(3):
        hidden = layer(embedded, before, torch.arange(len(tokens)), batch)
        scores = target.lm_head(hidden)
        for row in range(number, len(tokens)):
            known, guessed = tokens[: row + 1 - number], tokens[row + 1 - number : row + 1]
            right = oracle.scores(known, guessed)
            torch.testing.assert_close(scores[row], right, rtol=1e-4, atol=1e-4)
        before = hidden.roll(1, dims=0)


def test_a_text_may_leave_out_its_first_token(world: World) -> None:
    """As vLLM does: nobody attends to it then, and the others are as if it weren't there."""
    layer = load_eagle(world.folder / "eagle", world.llm.model.config)
    generator = torch.Generator().manual_seed(0)
    embedded, before = torch.randn(2, 6, 32, generator=generator)

    def run(rows: slice, sees_first: bool) -> torch.Tensor:
        batch = UnrolledBatch(1, torch.tensor([sees_first]))
        return layer(embedded[rows], before[rows], torch.arange(6)[rows], batch)

    torch.testing.assert_close(run(slice(0, 6), False)[1:], run(slice(1, 6), True))
