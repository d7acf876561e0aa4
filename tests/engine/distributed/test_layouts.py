"""Every layout computes what one process computes: logits, and answers of the whole engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from utils.engine import (
    LLM,
    BeamSearchParams,
    ContiguousKVCache,
    Draft,
    RequestOutput,
    Sampler,
    SamplingParams,
    SpeculativeConfig,
)
from utils.engine.distributed.layers import ParallelOps, RowParallelLinear
from utils.engine.distributed.shard import Shard
from utils.engine.kv_transfer.pool_connector import PoolConnector
from utils.engine.kv_transfer.store import MemoryStore
from utils.processes.ranks import RankError

LAYOUTS = [(2, 1), (1, 2), (2, 2), (1, 3)]
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 3, 4], [5, 6, 7, 8, 9, 10], [4], [7, 7, 7, 7, 7], [12, 11]]


SETTINGS = dict(
    block_size=4,
    num_gpu_blocks_override=20,
    max_model_len=64,
    max_num_seqs=4,
    max_num_batched_tokens=7,
    swap_space=1e-6,
)


@pytest.fixture(scope="module", params=LAYOUTS, ids=[f"TP{tp} PP{pp}" for tp, pp in LAYOUTS])
def spread(request: pytest.FixtureRequest, folder: Path) -> Iterator[LLM]:
    tp, pp = request.param
    llm = LLM(folder, tensor_parallel_size=tp, pipeline_parallel_size=pp, **SETTINGS)
    yield llm
    llm.shutdown()


def layout_of(llm: LLM) -> tuple[int, int]:
    """Its sizes of tensor and pipeline parallelism."""
    world_size, answering = llm.workers.ranks.world_size, llm.workers.answering_rank
    return world_size - answering, world_size // (world_size - answering)


def logits_of(llm: LLM, token_ids: list[int]) -> torch.Tensor:
    """Scores [T, vocab_size] after each token."""
    [scores] = [s for s in llm.collective_rpc("logits", args=[token_ids]) if s is not None]
    return scores


def outputs(llm: LLM, engine=None, **params) -> list[RequestOutput]:
    if engine is not None:
        llm.llm_engine = engine
    settings = SamplingParams(**{"temperature": 0, "max_tokens": 20, **params})
    return llm.generate(PROMPTS, settings, use_tqdm=False)


def token_ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [completion.token_ids for output in outputs for completion in output.outputs]


def answers(llm: LLM, engine=None, **params) -> list[list[int]]:
    return token_ids(outputs(llm, engine, **params))


def test_logits_are_those_of_one_process(spread, alone):
    ids = [5, 6, 7, 8, 9, 10, 11, 12, 3, 4, 1, 0]
    with torch.inference_mode():
        want = alone.model.compute_logits(alone.model(torch.tensor(ids), torch.arange(len(ids))))
    got = logits_of(spread, ids)
    if layout_of(spread)[0] == 1:
        assert torch.equal(got, want)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "params"),
    [
        ({}, {}),  # chunks, swapping and preemption: the pool holds 20 blocks
        ({}, dict(temperature=1.0, seed=4, n=2, max_tokens=9)),  # copy-on-write
        (
            {"num_gpu_blocks": 80, "max_num_batched_tokens": 64},
            dict(logprobs=2, stop_token_ids=[9]),
        ),
        ({}, dict(prompt_logprobs=1, temperature=0.9)),  # by the engine's own random numbers
    ],
)
def test_answers_are_those_of_one_process(spread, alone, changes, params):
    want = outputs(alone, alone.new_engine(changes=changes), **params)
    got = outputs(spread, spread.new_engine(changes=changes), **params)
    assert token_ids(got) == token_ids(want)
    scores, expected = (
        torch.tensor(
            [
                logprob.logprob
                for output in these
                for place in [*(output.prompt_logprobs or []), *(output.outputs[0].logprobs or [])]
                for logprob in (place or {}).values()
            ]
        )
        for these in (got, want)
    )
    assert len(expected) > 0 or not {"logprobs", "prompt_logprobs"} & params.keys()
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)


class Bush:
    """Guesses trees in which the right tokens are never the first ones."""

    uses_slots = False

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self.answers = answers

    def draft(self, wanted, output, hidden_states) -> list[Draft]:
        drafts = []
        for request, n in wanted:
            given = self.answers[tuple(request.prompt_token_ids)][len(request.output_token_ids) :]
            ids, parents = [], []
            for depth, token in enumerate(given[: n // 2]):
                before = 2 * depth - 1
                ids += [(token + 1) % 12, token]
                parents += [before, before]
            drafts.append(Draft(ids, parents).first(n))
        return drafts


def test_a_tree_of_guesses_works_on_ranks(spread, alone):
    """Keys and values of accepted guesses move on all ranks, also on those that sample nothing."""
    want = answers(alone, alone.new_engine())
    told = {tuple(prompt): answer for prompt, answer in zip(PROMPTS, want, strict=True)}
    guess = {
        "speculative_config": SpeculativeConfig("ngram", 6),
        "max_num_batched_tokens": 64,
        "num_gpu_blocks": 60,
    }
    engine = spread.new_engine(guess, proposer=lambda config, model: Bush(told))
    assert answers(spread, engine) == want
    stats = engine.spec_decoding_stats
    assert stats.num_accepted_tokens > 40 and stats.num_accepted_tokens < stats.num_draft_tokens


def test_a_draft_model_guesses_for_ranks(folder, spread, alone):
    guess = {"speculative_config": SpeculativeConfig("draft_model", 3, model=folder)}
    want = answers(alone, alone.new_engine())
    engine = spread.new_engine(guess | {"num_gpu_blocks": 60})
    assert answers(spread, engine) == want
    assert engine.spec_decoding_stats.acceptance_rate > 0.9  # it is the model itself


def test_ranks_sample_by_a_class_of_a_cell(spread):
    class Stubborn(Sampler):
        def __call__(self, logits, params, sources):
            return torch.full((len(logits),), 7)

    got = answers(spread, spread.new_engine(sampler=Stubborn()))
    assert {token for answer in got for token in answer} == {7}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (dict(kv_connector=PoolConnector(MemoryStore())), "kv_connector and kv_cache_class need"),
        (dict(kv_cache_class=ContiguousKVCache), "kv_connector and kv_cache_class need"),
        (
            dict(changes={"speculative_config": SpeculativeConfig("medusa", 2, model="x")}),
            "Medusa heads use the model's hidden states",
        ),
    ],
)
def test_parts_that_need_the_model_here_are_refused(spread, parts, message):
    with pytest.raises(ValueError, match=message):
        spread.new_engine(**parts)


def test_workers_can_be_asked_where_there_are_some(alone):
    with pytest.raises(ValueError, match="in this very process"):
        alone.collective_rpc("memory")


def test_guessing_ahead_and_beams_work_on_ranks(folder, spread, alone):
    guess = {"speculative_config": SpeculativeConfig("ngram", 3, prompt_lookup_min=1)}
    want = answers(alone, alone.new_engine())
    assert answers(spread, spread.new_engine(changes=guess)) == want
    spread.llm_engine = spread.new_engine(changes={"num_gpu_blocks": 60})
    alone.llm_engine = alone.new_engine(changes={"num_gpu_blocks": 60})
    beams = BeamSearchParams(beam_width=3, max_tokens=8)
    got, expected = (llm.beam_search(PROMPTS[:2], beams) for llm in (spread, alone))
    for a, b in zip(got, expected, strict=True):
        assert [s.tokens for s in a.sequences] == [s.tokens for s in b.sequences]


def test_micro_batches_change_no_answer(spread, alone):
    want = answers(alone, alone.new_engine())
    spread.collective_rpc("set_num_micro_batches", args=[3])
    spread.collective_rpc("take_timeline")
    try:
        assert answers(spread, spread.new_engine()) == want
    finally:
        spread.collective_rpc("set_num_micro_batches", args=[1])
    runs = [run for of_rank in spread.collective_rpc("take_timeline") for run in of_rank]
    assert {run.micro_batch for run in runs} == {0, 1, 2}
    assert {run.stage for run in runs} == set(range(layout_of(spread)[1]))


def test_bytes_sent_and_held_are_those_of_the_formulas(spread, folder):
    model, (tp, pp) = spread.model_config, layout_of(spread)
    before = spread.collective_rpc("sent_bytes")
    tokens = 8
    logits_of(spread, list(range(tokens)))
    sent = [
        {group: now[group] - then[group] for group in now}
        for then, now in zip(before, spread.collective_rpc("sent_bytes"), strict=True)
    ]
    activations = tokens * model.hidden_size * 4
    for rank, counted in enumerate(sent):
        shard = Shard(model, rank % tp, tp, rank // tp, pp)
        all_reduces = 2 * len(shard.layers) + shard.has_embedding
        assert counted["tp"]["all_reduce"] == all_reduces * 2 * (tp - 1) * activations // tp
        scores = tokens * len(shard.vocabulary) * 4
        assert counted["tp"]["gather"] == (scores if shard.has_lm_head and rank % tp else 0)
        assert counted["pp"]["send"] == (0 if shard.has_lm_head else activations)
    weights = sum(use.weights for use in spread.collective_rpc("memory"))
    whole = sum(p.nbytes for p in LLM(folder, **SETTINGS).model.parameters())
    norms = (2 * model.num_hidden_layers + 1) * model.hidden_size * 4
    assert weights == whole + (tp - 1) * norms  # norms are everywhere, all else is divided


def test_the_caches_divide_the_memory_of_one(folder):
    llm = LLM(folder, tensor_parallel_size=2, **SETTINGS)
    alone = LLM(folder, **SETTINGS)
    uses = llm.collective_rpc("memory")
    assert sum(use.kv_cache for use in uses) == alone.llm_engine.kv_cache.nbytes
    assert len({use.kv_cache for use in uses}) == 1
    llm.new_engine()  # thrown away at once, and so is its cache
    assert llm.collective_rpc("memory") == uses
    llm.shutdown()


def test_layers_of_ones_own_run_the_engine(folder, alone):
    def one_after_the_other(group, tensor):
        """The plainest all-reduce: all to the first, and back from there."""
        total = tensor.clone()
        if group.is_first_rank:
            for src in range(1, group.world_size):
                total += group.recv(tensor.clone(), src)
        else:
            group.send(tensor, 0)
        for dst in range(1, group.world_size):
            if group.is_first_rank:
                group.send(total, dst)
            elif group.rank_in_group == dst:
                group.recv(total, 0)
        return total

    class Mine(RowParallelLinear):
        def forward(self, x):
            return self.group.all_reduce(x @ self.weight.T)

    ops = ParallelOps(all_reduce=one_after_the_other, row_parallel_linear=Mine)
    llm = LLM(folder, tensor_parallel_size=2, parallel_ops=ops, **SETTINGS)
    assert answers(llm) == answers(alone, alone.new_engine())
    llm.shutdown()


def test_a_rank_that_dies_ends_the_engine_clearly(folder):
    import os
    import signal

    llm = LLM(folder, tensor_parallel_size=2, **SETTINGS)
    os.kill(llm.workers.ranks.pids[1], signal.SIGKILL)
    with pytest.raises(RankError, match="Rank 1 was killed by signal 9"):
        answers(llm)
    with pytest.raises(RankError, match="Start them anew"):
        answers(llm)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(tensor_parallel_size=3), "more than the model's 2 KV heads"),
        (dict(pipeline_parallel_size=4), "more than the model's 3 layers"),
        (dict(tensor_parallel_size=0), "tensor_parallel_size must be a positive integer, got 0"),
        (dict(data_parallel_size=1.5), "data_parallel_size must be a positive integer, got 1.5"),
        (dict(tensor_parallel_size=2, kernels="cpp"), "kernels='torch' for several ranks"),
        (dict(enable_expert_parallel=True), "needs experts to spread"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(folder, options, message):
    with pytest.raises(ValueError, match=message):
        LLM(folder, **SETTINGS, **options)


def test_a_world_larger_than_memory_is_refused(folder, monkeypatch):
    import psutil

    small = type("Memory", (), {"available": 5e8})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: small)
    with pytest.raises(ValueError, match=r"2 ranks need about 0\.7 GB, and 0\.5 GB are available"):
        LLM(folder, tensor_parallel_size=2, **SETTINGS)
