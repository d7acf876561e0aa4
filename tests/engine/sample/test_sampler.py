"""Filters against brute force, transformers and vLLM; draws against the distribution they name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.engine.tiny_engines import tiny_llama
from utils.engine import LLM, Sampler, SamplingParams
from utils.engine.sample.draw import Noise, draw
from utils.engine.sample.sampler import (
    apply_min_p,
    apply_temperature,
    apply_top_k,
    apply_top_p,
    top_logprobs,
)


def row_of_logits(seed: int, vocab_size: int = 500) -> Tensor:
    return torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def chi_square_p_value(counts: Tensor, expected: Tensor) -> float:
    """How likely counts at least this far from the expected ones are, if they follow them."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(expected) - 1) / 2, dtype=statistic.dtype)
    return float(torch.special.gammaincc(freedom, statistic / 2))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "function, value, warper",
    [
        (apply_temperature, 0.3, TemperatureLogitsWarper(0.3)),
        (apply_temperature, 1.9, TemperatureLogitsWarper(1.9)),
        (apply_top_k, 1, TopKLogitsWarper(1)),
        (apply_top_k, 40, TopKLogitsWarper(40)),
        (apply_top_k, 9999, TopKLogitsWarper(9999)),
        (apply_top_p, 0.01, TopPLogitsWarper(0.01)),
        (apply_top_p, 0.9, TopPLogitsWarper(0.9)),
        (apply_min_p, 0.05, MinPLogitsWarper(0.05)),
        (apply_min_p, 1.0, MinPLogitsWarper(1.0)),
    ],
)
def test_equals_transformers(
    seed: int, function: Callable, value: float, warper: LogitsProcessor
) -> None:
    logits = row_of_logits(seed)
    ours, theirs = function(logits, torch.tensor([value])), warper(None, logits.clone())
    torch.testing.assert_close(ours, theirs)


# Distinct multiples of 1/8: ties and rounding at a threshold can't blur what is right.
distinct_logits = st.lists(st.integers(-60, 60), min_size=1, max_size=30, unique=True).map(
    lambda values: torch.tensor([values]) / 8
)


def kept(logits: Tensor) -> set[int]:
    return {i for i, value in enumerate(logits[0].tolist()) if value != -float("inf")}


@given(distinct_logits, st.integers(-1, 40))
def test_top_k_by_brute_force(logits: Tensor, k: int) -> None:
    values = logits[0].tolist()
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)
    expected = set(order if k < 1 else order[:k])
    assert kept(apply_top_k(logits, torch.tensor([k]))) == expected


@given(distinct_logits, st.floats(0.01, 1.0))
def test_top_p_by_brute_force(logits: Tensor, p: float) -> None:
    """The kept set reaches p; without its least probable member it does not."""
    probs = logits[0].double().softmax(-1).tolist()
    result = kept(apply_top_p(logits, torch.tensor([p])))
    least = min(result, key=probs.__getitem__)
    assert all(probs[i] <= probs[least] for i in range(len(probs)) if i not in result)
    mass = sum(probs[i] for i in result)
    assert mass >= p - 1e-5
    assert len(result) == 1 or mass - probs[least] < p + 1e-5


@given(distinct_logits, st.floats(0.0, 1.0))
def test_min_p_by_brute_force(logits: Tensor, min_p: float) -> None:
    probs = logits[0].double().softmax(-1).tolist()
    result = kept(apply_min_p(logits, torch.tensor([min_p])))
    surely = {i for i, q in enumerate(probs) if q > min_p * max(probs) * (1 + 1e-5)}
    perhaps = {i for i, q in enumerate(probs) if q > min_p * max(probs) * (1 - 1e-5)}
    assert surely <= result <= perhaps | {probs.index(max(probs))}


@settings(deadline=None)
@given(distinct_logits, st.floats(0.01, 1), st.integers(1, 40), st.floats(0, 1))
def test_filters_never_drop_the_best_nor_change_what_they_keep(
    logits: Tensor, top_p: float, top_k: int, min_p: float
) -> None:
    pairs = [(apply_top_p, top_p), (apply_top_k, top_k), (apply_min_p, min_p)]
    for function, value in pairs:
        out = function(logits, torch.tensor([value]))
        assert int(logits.argmax()) in kept(out)
        assert all(out[0, i] == logits[0, i] for i in kept(out))
        assert kept(function(out, torch.tensor([value]))) <= kept(out)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.1, 2.0),
    st.sampled_from([0, 1, 7, 100]),
    st.floats(0.05, 1.0),
    st.sampled_from([0.0, 0.02, 0.3]),
    st.integers(0, 100),
)
def test_equals_vllm(temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> None:
    """All steps in vLLM's order, with vLLM's own top-k and top-p."""
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    logits = row_of_logits(seed)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = logits / params.temperature
    probs = expected.softmax(-1)
    expected = expected.masked_fill(probs < min_p * probs.max(), -float("inf"))
    k = torch.tensor([top_k or logits.shape[1]])
    expected = apply_top_k_top_p_pytorch(expected, k, torch.tensor([top_p])).softmax(-1)
    torch.testing.assert_close(Sampler().probabilities(logits, [params]), expected)


def test_each_row_has_its_own_parameters() -> None:
    logits = torch.cat([row_of_logits(seed) for seed in range(4)])
    params = [
        SamplingParams(temperature=0.5, top_k=3),
        SamplingParams(top_p=0.5),
        SamplingParams(),
        SamplingParams(temperature=1.5, min_p=0.1, top_k=50, top_p=0.8),
    ]
    together = Sampler().probabilities(logits, params)
    alone = [Sampler().probabilities(logits[i : i + 1], [p]) for i, p in enumerate(params)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_greedy_rows_take_the_best_and_use_no_randomness() -> None:
    logits = torch.cat([row_of_logits(seed) for seed in range(3)])
    params = [SamplingParams(temperature=0), SamplingParams(seed=1), SamplingParams(temperature=0)]
    sources = generators(1, 2, 3)
    tokens = Sampler()(logits, params, sources)
    assert tokens[[0, 2]].tolist() == logits.argmax(-1)[[0, 2]].tolist()
    fresh = generators(1, 2, 3)
    unused = [
        torch.equal(a.get_state(), b.get_state()) for a, b in zip(sources, fresh, strict=True)
    ]
    assert unused == [True, False, True]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=1.4, top_k=8),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p"],
)
@pytest.mark.parametrize("seeded", [False, True])
def test_draws_follow_the_distribution(params: SamplingParams, seeded: bool) -> None:
    """Chi-square test against probabilities computed in float64, apart from the sampler."""
    logits, n = torch.randn(20, generator=torch.Generator().manual_seed(3)) * 1.5, 20_000
    values = logits.double() / params.temperature
    probs = values.softmax(-1)
    keep = probs >= params.min_p * probs.max()
    order = probs.argsort(descending=True)
    if params.top_k:
        keep[order[params.top_k :]] = False
    before = probs[order].cumsum(0) - probs[order]
    keep[order[before >= params.top_p]] = False
    expected = torch.where(keep, probs, 0) / probs[keep].sum()

    noises = [Noise(seed, position) for seed in range(n // 100) for position in range(100)]
    sources = noises if seeded else generators(0) * n
    tokens = Sampler()(logits.expand(n, -1), [params] * n, sources)
    counts = tokens.bincount(minlength=20)
    assert counts[~keep].sum() == 0
    assert chi_square_p_value(counts[keep], expected[keep] * n) > 1e-3


def test_the_chi_square_test_can_fail() -> None:
    counts, expected = torch.tensor([5200, 4800]), torch.tensor([5000.0, 5000.0])
    # Tabulated: with one degree of freedom, 3.841 is the critical value at 5 %.
    assert chi_square_p_value(torch.tensor([5098, 4902]), expected) == pytest.approx(0.05, abs=1e-3)
    assert chi_square_p_value(counts, expected) < 1e-3


def test_a_row_with_a_seed_does_not_depend_on_the_other_rows() -> None:
    probs = torch.cat([row_of_logits(seed) for seed in range(3)]).softmax(-1)
    for position in range(20):
        noise, other, [generator] = Noise(7, position), Noise(8, position), generators(9)
        alone = draw(probs[:1], [noise])
        together = draw(probs, [noise, other, generator])
        swapped = draw(probs.flip(0), [generator, other, noise])
        assert alone[0] == together[0] == swapped[2]


def test_a_row_without_a_seed_does_not_depend_on_those_with_one() -> None:
    probs = torch.cat([row_of_logits(seed) for seed in range(3)]).softmax(-1)
    mixed = draw(probs, [Noise(7, 0), *generators(8, 9)])
    assert mixed[1:].tolist() == draw(probs[1:], generators(8, 9)).tolist()


@pytest.mark.parametrize("seeded", [False, True])
def test_never_draws_what_has_no_probability(seeded: bool) -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(5000, -1)
    sources = [Noise(0, i) for i in range(5000)] if seeded else generators(0) * 5000
    assert set(draw(probs, sources).tolist()) == {1, 3}


def test_neighboring_seeds_and_positions_have_unrelated_noise() -> None:
    """Seeds of n answers follow each other, and so do positions: each pair is as good as random."""
    device, size = torch.device("cpu"), 400
    noises = torch.stack(
        [Noise(s, p).exponential(size, device) for s in (-1, 0, 1, 2**62) for p in range(5)]
    )
    related = torch.corrcoef(noises) - torch.eye(len(noises))
    assert related.abs().max() < 5 / size**0.5
    assert torch.equal(noises[7], Noise(0, 2).exponential(size, device))


@pytest.mark.parametrize("noise", [0.02, 0.3, 1.5])
def test_similar_distributions_mostly_draw_the_same(noise: float) -> None:
    """Between Daliri et al.'s lower bound and the upper bound that holds for every method."""
    p, n = row_of_logits(0, 50).double(), 4000
    other = torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=p.dtype)
    q = (p + noise * other).softmax(-1)
    p = p.softmax(-1)
    distance = float((p - q).abs().sum() / 2)
    noises = [Noise(1, position) for position in range(n)]
    same = draw(p.expand(n, -1), noises) == draw(q.expand(n, -1), noises)
    slack = 4 / n**0.5 / 2  # four standard deviations of a share of n draws, at most
    agreed = float(same.double().mean())
    assert (1 - distance) / (1 + distance) - slack <= agreed <= 1 - distance + slack


def test_from_what_is_not_a_number_nothing_is_chosen() -> None:
    logits = torch.tensor([[0.0, float("nan")], [0.0, 1.0]] * 2)
    params = [SamplingParams(temperature=t) for t in (0, 0, 1, 1)]
    chosen = Sampler()(logits, params, generators(0) * 4).tolist()
    assert [token < 0 for token in chosen] == [True, False, True, False]


@pytest.mark.parametrize("temperature", [0, 1])
def test_the_engine_refuses_what_is_not_a_number(tmp_path, temperature) -> None:
    tiny_llama(tmp_path, seed=1)
    llm = LLM(tmp_path, max_model_len=32)
    llm.model.lm_head.weight.data[3] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        llm.generate([[4, 5]], SamplingParams(temperature=temperature), use_tqdm=False)


def test_top_logprobs() -> None:
    logits = row_of_logits(0)[0]
    expected = logits.double().log_softmax(-1)
    order = expected.argsort(descending=True).tolist()
    result = top_logprobs(logits, order[9], 3)
    assert list(result) == [order[9], *order[:3]]
    assert [entry.rank for entry in result.values()] == [10, 1, 2, 3]
    for token, entry in result.items():
        assert entry.logprob == pytest.approx(float(expected[token]), abs=1e-5)
    assert len(top_logprobs(logits, order[1], 3)) == 3
    assert len(top_logprobs(logits, 0, -1)) == len(logits)
    assert list(top_logprobs(logits, 5, 0)) == [5]
