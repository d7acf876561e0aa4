"""Every layout computes what one process computes: logits, and answers of the whole engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from utils.engine import LLM, BeamSearchParams, SamplingParams
from utils.engine.attention.batch import Span, paged_batch
from utils.engine.distributed.launcher import RankError
from utils.engine.distributed.layers import ParallelOps, RowParallelLinear
from utils.engine.distributed.shard import Shard

LAYOUTS = [(2, 1), (1, 2), (2, 2), (1, 3)]
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 3, 4], [5, 6, 7, 8, 9, 10], [4], [7, 7, 7, 7, 7], [12, 11]]


SETTINGS = dict(
    block_size=4, num_gpu_blocks_override=20, max_model_len=64, max_num_seqs=4,
    max_num_batched_tokens=7, swap_space=1e-6,
)  # fmt: skip


@pytest.fixture(scope="module", params=LAYOUTS, ids=[f"TP{tp} PP{pp}" for tp, pp in LAYOUTS])
def spread(request: pytest.FixtureRequest, folder: Path) -> Iterator[LLM]:
    tp, pp = request.param
    llm = LLM(folder, tensor_parallel_size=tp, pipeline_parallel_size=pp, **SETTINGS)
    yield llm
    llm.shutdown()


def logits_of(llm: LLM, token_ids: list[int]) -> torch.Tensor:
    """Scores [T, vocab_size] after each token, of one flat batch with a fresh cache."""
    size, config = 4, llm.config
    num_blocks = -(-len(token_ids) // size)
    cache = llm.model.new_kv_cache(llm.model_config, num_blocks, size, config.dtype, config.device)
    batch = paged_batch(cache, [Span(list(range(num_blocks)), 0, len(token_ids))])
    hidden = llm.model(torch.tensor(token_ids), torch.arange(len(token_ids)), batch)
    return llm.model.compute_logits(hidden)


def answers(llm: LLM, engine=None, **params) -> list[list[int]]:
    if engine is not None:
        llm.llm_engine = engine
    settings = SamplingParams(**{"temperature": 0, "max_tokens": 20, **params})
    outputs = llm.generate(PROMPTS, settings, use_tqdm=False)
    return [completion.token_ids for output in outputs for completion in output.outputs]


def test_logits_are_those_of_one_process(spread, alone):
    ids = [5, 6, 7, 8, 9, 10, 11, 12, 3, 4, 1, 0]
    with torch.inference_mode():
        want = alone.model.compute_logits(alone.model(torch.tensor(ids), torch.arange(len(ids))))
    got = logits_of(spread, ids)
    if spread.model.parallel.tensor_parallel_size == 1:
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
    ],
)
def test_answers_are_those_of_one_process(spread, alone, changes, params):
    want = answers(alone, alone.new_engine(changes=changes), **params)
    assert answers(spread, spread.new_engine(changes=changes), **params) == want


def test_guessing_ahead_and_beams_work_on_ranks(folder, spread, alone):
    from utils.engine import SpeculativeConfig

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
    spread.model.num_micro_batches = 3
    spread.model.take_timeline()
    try:
        assert answers(spread, spread.new_engine()) == want
    finally:
        spread.model.num_micro_batches = 1
    runs = spread.model.take_timeline()
    assert {run.micro_batch for run in runs} == {0, 1, 2}
    assert {run.stage for run in runs} == set(range(spread.model.parallel.pipeline_parallel_size))


def test_bytes_sent_and_held_are_those_of_the_formulas(spread, folder):
    model, parallel = spread.model_config, spread.model.parallel
    tp, pp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    before = spread.model.sent_bytes()
    tokens = 8
    logits_of(spread, list(range(tokens)))
    sent = [
        {group: now[group] - then[group] for group in now}
        for then, now in zip(before, spread.model.sent_bytes(), strict=True)
    ]
    activations = tokens * model.hidden_size * 4
    for rank, counted in enumerate(sent):
        shard = Shard(model, rank % tp, tp, rank // tp, pp)
        all_reduces = 2 * len(shard.layers) + shard.has_embedding
        assert counted["tp"]["all_reduce"] == all_reduces * 2 * (tp - 1) * activations // tp
        scores = tokens * len(shard.vocabulary) * 4
        assert counted["tp"]["gather"] == (scores if shard.has_lm_head and rank % tp else 0)
        assert counted["pp"]["send"] == (0 if shard.has_lm_head else activations)
    weights = sum(use.weights for use in spread.model.memory())
    whole = sum(p.nbytes for p in LLM(folder, **SETTINGS).model.parameters())
    norms = (2 * model.num_hidden_layers + 1) * model.hidden_size * 4
    assert weights == whole + (tp - 1) * norms  # norms are everywhere, all else is divided


def test_the_caches_divide_the_memory_of_one(folder):
    llm = LLM(folder, tensor_parallel_size=2, **SETTINGS)
    alone = LLM(folder, **SETTINGS)
    assert llm.llm_engine.kv_cache.nbytes == alone.llm_engine.kv_cache.nbytes
    uses = llm.model.memory()
    assert len({use.kv_cache for use in uses}) == 1
    llm.new_engine()  # thrown away at once, and so is its cache
    assert llm.model.memory() == uses
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
    os.kill(llm.model.executor.ranks.pids[1], signal.SIGKILL)
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
