"""Guessing ahead: proposers, verification, trees; and that the answers' distribution stays."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.tiny_engines import Oracle, nothing_is_held, tiny_eagle, tiny_llama, tiny_medusa
from tests.near_ties import assert_same_but_for_ties
from tests.scale import sized
from utils.checks.kit.near_ties import NEAR_TIE
from utils.engine import (
    LLM,
    ContiguousKVCache,
    NgramProposer,
    RejectionSampler,
    SamplingParams,
    SpeculativeConfig,
    choose_num_speculative_tokens,
    expected_tokens,
    follow_tree,
    tree_attention_mask,
    tree_depths,
)
from utils.engine.attention.tree_attention import tree_attention
from utils.engine.kernels.packed_linear import PackedLinear
from utils.engine.sample.draw import draw
from utils.engine.sample.rejection_sampler import BlockRejectionSampler
from utils.engine.spec_decode.draft import Draft
from utils.engine.spec_decode.draft_vocabulary import (
    read_draft_vocabulary,
    rows_of,
    write_draft_vocabulary,
)
from utils.engine.spec_decode.medusa import MedusaHeads, tree_of

NUM_SAMPLES = sized(3_000, 8_000)
SURE = 1e-4  # a right sampler fails a test of this level once in ten thousand seeds

# N-grams


@settings(deadline=None, max_examples=300)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    shortest=st.integers(1, 3),
    more=st.integers(0, 3),
    k=st.integers(1, 6),
)
def test_ngrams_are_vllms(tokens: list[int], shortest: int, more: int, k: int) -> None:
    from vllm.v1.spec_decode.ngram_proposer import (
        _find_longest_matched_ngram_and_propose_tokens as theirs,
    )

    ours = NgramProposer(shortest, shortest + more).propose(tokens, k)
    right = theirs(np.array(tokens, dtype=np.int32), shortest, shortest + more, 10_000, k)
    assert ours == right.tolist()


# Rejection sampling

P = torch.tensor([[0.5, 0.2, 0.2, 0.1, 0.0], [0.1, 0.1, 0.1, 0.3, 0.4], [0.0, 0.0, 0.6, 0.2, 0.2]])
Q = torch.tensor([[0.1, 0.5, 0.2, 0.0, 0.2], [0.4, 0.1, 0.1, 0.4, 0.0]])


def output_counts(sampler: RejectionSampler, certain: bool) -> Counter[tuple[int, ...]]:
    """Sequences of 3 tokens, from 2 guesses each; what is missing at the end is drawn from P."""
    generator = torch.Generator().manual_seed(1)
    counts: Counter[tuple[int, ...]] = Counter()
    drafts = draw(Q.repeat(NUM_SAMPLES, 1), [generator] * (2 * NUM_SAMPLES)).view(-1, 2).tolist()
    for guesses in drafts:
        guesses = [1, 3] if certain else guesses
        tokens = sampler.sample(guesses, None if certain else Q, P, generator)
        while len(tokens) < 3:
            tokens.append(int(draw(P[len(tokens)][None], [generator])))
        counts[tuple(tokens)] += 1
    return counts


def p_value(counts: Counter[tuple[int, ...]], joint: torch.Tensor) -> float:
    """Of the chi-square test that sequences come with these joint probabilities."""
    cells = [
        (counts.pop(tuple(index), 0), float(joint[tuple(index)]))
        for index in (joint > 0).nonzero().tolist()
    ]
    if counts:  # something came that cannot come
        return 0.0
    total = sum(count for count, _ in cells)
    likely = [(c, p * total) for c, p in cells if p * total >= 5]
    rest = (total - sum(c for c, _ in likely), total - sum(e for _, e in likely))
    observed, expected = zip(*likely, *([rest] if rest[1] > 5 else []), strict=True)
    scale = sum(observed) / sum(expected)
    statistic = sum(
        (o - e * scale) ** 2 / (e * scale) for o, e in zip(observed, expected, strict=True)
    )
    half_freedom = torch.tensor((len(observed) - 1) / 2, dtype=torch.double)
    return float(torch.special.gammaincc(half_freedom, torch.tensor(statistic / 2).double()))


JOINT = torch.einsum("a,b,c->abc", *P)


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("sampler", [RejectionSampler, BlockRejectionSampler])
def test_sampled_tokens_are_the_targets(sampler: type[RejectionSampler], certain: bool) -> None:
    assert p_value(output_counts(sampler(), certain), JOINT) > SURE


def test_a_block_is_accepted_as_often_as_its_paper_says() -> None:
    """A guess that the model doubts is kept for the sake of the one after it, which it likes."""
    generator = torch.Generator().manual_seed(3)
    p = torch.tensor([[0.9, 0.1], [0.0, 1.0], [0.5, 0.5]])
    q = torch.tensor([[0.0, 1.0], [0.9, 0.1]])
    mean = {}
    for sampler in (RejectionSampler(), BlockRejectionSampler()):
        accepted = 0
        for _ in range(NUM_SAMPLES):
            guesses = draw(q, [generator] * 2).tolist()
            accepted += len(sampler.sample(guesses, q, p, generator)) - 1
        mean[type(sampler)] = accepted / NUM_SAMPLES
    # One by one: token 1 stands with 0.1 / 1; one draft in ten is followed by another 1, which the
    # model is sure of.
    assert mean[RejectionSampler] == pytest.approx(0.1 + 0.1 * 0.1, abs=0.04)
    # As a block, 1 and 1 stand with min(1, 0.1 / 1 * 1 / 0.1), so both do.
    assert mean[BlockRejectionSampler] == pytest.approx(0.1 * 2, abs=0.04)


class FromTarget(RejectionSampler):
    """Replaces a rejected guess by a draw from the target, not from what the draft left open."""

    def sample(self, draft_token_ids, draft_probs, target_probs, generator):
        accepted = []
        for i, token in enumerate(draft_token_ids):
            q = 1.0 if draft_probs is None else float(draft_probs[i, token])
            if float(torch.rand(1, generator=generator)) * q < float(target_probs[i, token]):
                accepted.append(token)
            else:
                break
        return [*accepted, int(draw(target_probs[len(accepted)][None], [generator]))]


class AcceptsAll(RejectionSampler):
    def sample(self, draft_token_ids, draft_probs, target_probs, generator):
        return [*draft_token_ids, int(draw(target_probs[-1][None], [generator]))]


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("wrong", [FromTarget, AcceptsAll])
def test_wrong_samplers_are_found_out(wrong: type[RejectionSampler], certain: bool) -> None:
    assert p_value(output_counts(wrong(), certain), JOINT) < SURE


@pytest.mark.parametrize(
    ("target", "expected"),
    [([4, 5, 6], [4, 5, 6]), ([4, 9, 6], [4, 9]), ([9, 5, 6], [9])],
    ids=["bonus", "second rejected", "first rejected"],
)
def test_greedy_verification(target: list[int], expected: list[int]) -> None:
    assert RejectionSampler().greedy([4, 5], target) == expected


# The whole engine

METHODS = ["ngram", "draft", "block", "few words", "medusa", "tree", "eagle", "eagle tree"]
FEW_WORDS = torch.tensor([2, 3, 5, 6, 8, 11])


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.oracle = Oracle(tiny_llama(folder / "target", seed=0))
        tiny_llama(folder / "draft", seed=1, layers=1)
        tiny_llama(folder / "draft of few words", seed=1, layers=1)
        write_draft_vocabulary(folder / "draft of few words", FEW_WORDS)
        tiny_llama(folder / "other vocabulary", seed=1, vocab_size=14)
        tiny_medusa(folder / "medusa", num_heads=3)
        tiny_medusa(folder / "medusa of few words", num_heads=3)
        write_draft_vocabulary(folder / "medusa of few words", FEW_WORDS)
        tiny_eagle(folder / "eagle", self.oracle.model)
        tiny_medusa(folder / "wide medusa", num_heads=3, hidden_size=48)
        self.llm = LLM(folder / "target", max_model_len=64, max_num_seqs=250)
        self.configs = {
            "ngram": SpeculativeConfig("ngram", 3, prompt_lookup_min=1),
            "draft": SpeculativeConfig("draft_model", 2, model=folder / "draft"),
            "few words": SpeculativeConfig("draft_model", 2, model=folder / "draft of few words"),
            "medusa": SpeculativeConfig("medusa", 2, model=folder / "medusa"),
            "tree": SpeculativeConfig(
                "medusa", model=folder / "medusa of few words", tree_widths=(3, 2)
            ),
            "block": SpeculativeConfig(
                "draft_model", 2, model=folder / "draft", rejection_sample_method="block"
            ),
            "eagle": SpeculativeConfig("eagle", 2, model=folder / "eagle"),
            "eagle tree": SpeculativeConfig("eagle", model=folder / "eagle", tree_widths=(3, 2)),
        }

    def engine(self, spec: SpeculativeConfig | None, **changes):
        parts = {name: changes.pop(name) for name in ("rejection_sampler",) if name in changes}
        self.llm.llm_engine = self.llm.new_engine(
            changes={"speculative_config": spec, **changes}, **parts
        )
        return self.llm.llm_engine


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


PROMPT = [*range(13), 3, 4]


def answers(world: World, num_samples: int) -> Counter[tuple[int, ...]]:
    params = SamplingParams(temperature=0.7, top_k=6, max_tokens=3, ignore_eos=True)
    outputs = world.llm.generate([PROMPT] * num_samples, params, use_tqdm=False)
    return Counter(tuple(output.outputs[0].token_ids) for output in outputs)


@pytest.fixture(scope="module")
def joint(world: World) -> torch.Tensor:
    """[13, 13, 13]: how probable each answer of 3 tokens is, by Hugging Face's logits."""

    def next_probs(tokens: tuple[int, ...]) -> torch.Tensor:
        logits = world.oracle.logits(tokens) / 0.7
        threshold = logits.topk(6).values[-1]
        return logits.masked_fill(logits < threshold, -torch.inf).softmax(-1).double()

    result = torch.zeros(13, 13, 13, dtype=torch.double)
    prompt = tuple(PROMPT)
    first = next_probs(prompt)
    for a in first.nonzero()[:, 0].tolist():
        second = next_probs((*prompt, a))
        for b in second.nonzero()[:, 0].tolist():
            result[a, b] = first[a] * second[b] * next_probs((*prompt, a, b))
    return result


@pytest.mark.parametrize("method", METHODS)
def test_answers_are_distributed_as_without_guesses(
    world: World, joint: torch.Tensor, method: str
) -> None:
    engine = world.engine(world.configs[method])
    assert p_value(answers(world, NUM_SAMPLES), joint) > SURE
    stats = engine.spec_decoding_stats
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
    assert nothing_is_held(world.llm)


def seeded_answers(world: World, num_samples: int) -> list[tuple[int, ...]]:
    params = [
        SamplingParams(temperature=0.7, top_k=6, max_tokens=3, ignore_eos=True, seed=seed)
        for seed in range(num_samples)
    ]
    outputs = world.llm.generate([PROMPT] * num_samples, params, use_tqdm=False)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_says_the_answer_whoever_guesses(
    world: World, joint: torch.Tensor, method: str
) -> None:
    """The tokens are those without guesses, and over the seeds distributed as they should be."""
    num_samples = NUM_SAMPLES // 4
    world.engine(None)
    plain = seeded_answers(world, num_samples)
    assert p_value(Counter(plain), joint) > SURE
    engine = world.engine(world.configs[method])
    differ = sum(a != b for a, b in zip(plain, seeded_answers(world, num_samples), strict=True))
    assert differ <= 1  # at a near tie
    assert engine.spec_decoding_stats.num_accepted_tokens > 0


def test_a_draft_draws_with_the_noise_of_its_target(world: World) -> None:
    """A model that guesses for itself is never wrong, though it draws."""
    engine = world.engine(SpeculativeConfig("draft_model", 4, model=world.folder / "target"))
    params = [SamplingParams(seed=s, max_tokens=20, ignore_eos=True) for s in range(12)]
    world.llm.generate([PROMPT] * len(params), params, use_tqdm=False)
    stats = engine.spec_decoding_stats
    assert stats.num_draft_tokens > 100
    assert stats.num_accepted_tokens >= stats.num_draft_tokens - 1  # at a near tie


def test_a_wrong_sampler_in_the_engine_is_found_out(world: World, joint: torch.Tensor) -> None:
    world.engine(world.configs["draft"], rejection_sampler=FromTarget())
    assert p_value(answers(world, NUM_SAMPLES), joint) < SURE


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_of_few_words_guesses_as_the_whole_one_would_among_them(
    world: World, temperature: float
) -> None:
    """Logits of a token without a row are missing; the others, and their order, are the same."""
    params, seeded = SamplingParams(temperature=temperature), torch.Generator().manual_seed(0)
    logits = torch.randn(4, 13, generator=seeded)
    requests = [SimpleNamespace(sampling_params=params, seed=None, num_tokens=5) for _ in logits]
    few = world.engine(world.configs["few words"]).drafter.proposer
    assert torch.equal(few.token_ids, FEW_WORDS)
    whole = world.engine(world.configs["draft"]).drafter.proposer
    hidden = torch.randn(3, 32, generator=seeded)
    torch.testing.assert_close(few.head(hidden), whole.head(hidden)[:, FEW_WORDS])
    torch.testing.assert_close(few.model.compute_logits(hidden), whole.head(hidden))  # all words
    guesses, distributions = few._choose(logits[:, FEW_WORDS], requests, [0] * 4)
    logits[:, [t for t in range(13) if t not in FEW_WORDS]] = -torch.inf
    if temperature == 0:
        assert guesses == logits.argmax(-1).tolist() and distributions == [None] * 4
    else:
        expected = (logits / temperature).softmax(-1)
        torch.testing.assert_close(torch.stack(distributions), expected)
        assert set(guesses) <= set(FEW_WORDS.tolist())


def test_rows_of_a_packed_head_are_packed_too() -> None:
    weight, hidden = torch.randn(192, 64), torch.randn(3, 64)
    packed, token_ids = PackedLinear(weight), torch.arange(0, 192, 3)
    packed.weight = weight  # as `pack_linears` leaves that of an output head
    few = rows_of(packed, token_ids)
    assert isinstance(few, PackedLinear)
    torch.testing.assert_close(few(hidden), (hidden @ weight.T)[:, token_ids], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ("[3, 13]", "a list of token ids below 13"),
        ("[3, -1]", "below 13"),
        ("[[3, 4]]", "a list of token ids"),
        ("[true, 4]", "a list of token ids"),
        ('{"3": 4}', "a list of token ids"),
        ("[3, 4, 3]", "a token twice"),
        ("[]", "a list of token ids"),
        ("[3, 4", "is no JSON"),
    ],
)
def test_a_vocabulary_that_cannot_be_is_refused(
    tmp_path: Path, token_ids: str, message: str
) -> None:
    assert read_draft_vocabulary(tmp_path, 13) is None
    (tmp_path / "draft_vocabulary.json").write_text(token_ids)
    with pytest.raises(ValueError, match=message):
        read_draft_vocabulary(tmp_path, 13)


def test_a_head_of_two_blocks_is_one_after_the_other() -> None:
    torch.manual_seed(0)
    deep, hidden = MedusaHeads(3, 8, num_layers=2), torch.randn(4, 8)
    assert deep.num_heads == 3 and len(deep.blocks) == 6
    for head in range(3):
        expected = hidden
        for block in deep.blocks[2 * head : 2 * head + 2]:
            ahead = expected @ block.weight.T + block.bias
            expected = expected + ahead * torch.sigmoid(ahead)
        torch.testing.assert_close(deep(hidden, head), expected)


@pytest.mark.parametrize("method", ["medusa", "tree"])
def test_all_heads_guess_in_one_product(world: World, method: str) -> None:
    """The large `lm_head` is read once, and the guesses are those of one head after the other."""
    engine = world.engine(world.configs[method])
    proposer, lm_head = engine.drafter.proposer, engine.executor.model.lm_head
    widths = proposer.tree_widths or (1, 1)
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    may_guess = torch.arange(13) if method == "medusa" else FEW_WORDS
    by_head = [
        may_guess[lm_head(proposer.heads(hidden, head))[:, may_guess].topk(width).indices].tolist()
        for head, width in enumerate(widths)
    ]
    products: list[int] = []
    few_rows = proposer.head
    proposer.head = lambda rows: products.append(len(rows)) or few_rows(rows)
    most = world.configs[method].num_speculative_tokens
    wanted = [(SimpleNamespace(request_id=name), most) for name in "abc"]
    drafts = proposer.draft(wanted, None, dict(zip("abc", hidden.split(1), strict=True)))
    proposer.head = few_rows
    assert products == [3 * len(widths)]
    for row, draft in enumerate(drafts):
        expected = tree_of([of_head[row] for of_head in by_head])
        assert draft.token_ids == expected.token_ids
        assert draft.parents == (expected.parents if proposer.tree_widths else None)


def test_a_model_that_guesses_for_itself_is_never_wrong(world: World) -> None:
    """Its own keys and values are right then, also after hits. The random stories know more."""
    itself = SpeculativeConfig("draft_model", 4, model=world.folder / "target")
    engine = world.engine(itself, block_size=3, num_gpu_blocks=120, max_num_seqs=6)
    params = SamplingParams(temperature=0, max_tokens=22, ignore_eos=True)
    prompts = [[3 + (i * j) % 10 for j in range(5 + i)] for i in range(8)]
    for _ in range(2):
        world.llm.generate(prompts, params, use_tqdm=False)
    stats = engine.spec_decoding_stats
    assert stats.num_draft_tokens > 200
    assert stats.num_accepted_tokens == stats.num_draft_tokens
    assert stats.acceptance_rate == 1
    assert engine.kv_cache_manager.prefix_cache_stats.hits > 0
    assert 4 < stats.mean_acceptance_length <= 5


def test_logprobs_and_min_tokens_are_as_without_guesses(world: World) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, min_tokens=4, logprobs=3)
    prompts = [[3 + (i * j) % 10 for j in range(5 + i)] for i in range(12)]
    seen = []
    for spec in (None, *world.configs.values()):
        world.engine(spec)
        outputs = world.llm.generate(prompts, params, use_tqdm=False)
        seen.append([output.outputs[0] for output in outputs])
    plain, *guessed = seen
    assert any(len(answer.token_ids) < 40 for answer in plain)
    for answers_ in guessed:
        ours, usual = ([answer.token_ids for answer in some] for some in (answers_, plain))
        assert_same_but_for_ties(world.oracle.model, prompts, ours, usual)
        for one, other in zip(plain, answers_, strict=True):
            if one.token_ids != other.token_ids:
                continue  # at a near tie
            assert one.finish_reason == other.finish_reason
            assert one.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-4)
            for ours_at, usual_at in zip(one.logprobs, other.logprobs, strict=True):
                same_but_for_order(ours_at, usual_at)


def same_but_for_order(one: dict, other: dict) -> None:
    """The same log probabilities of the same tokens; those that all but tie may change places."""
    assert [at.logprob for at in one.values()] == pytest.approx(
        [at.logprob for at in other.values()], abs=NEAR_TIE
    )
    for token in one.keys() & other.keys():
        assert one[token].logprob == pytest.approx(other[token].logprob, abs=NEAR_TIE)


def test_guesses_end_with_the_answer(world: World) -> None:
    """No guess is computed that could not become a token: not beyond max_tokens."""
    engine = world.engine(SpeculativeConfig("draft_model", 4, model=world.folder / "target"))
    engine.step_trace = []
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    [output] = world.llm.generate([PROMPT], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 8
    records = [next(iter(record.tokens.values())) for record in engine.step_trace]
    assert [(t.num_draft, t.num_sampled) for t in records] == [(0, 1), (4, 5), (1, 2)]


# How many to guess


def test_expected_tokens() -> None:
    assert expected_tokens(0.0, 5) == 1
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.8, 3) == pytest.approx((1 - 0.8**4) / (1 - 0.8))


@pytest.mark.parametrize(
    ("acceptance_rate", "cost", "best"), [(0.0, 0.1, 0), (1.0, 0.1, 8), (0.5, 0.1, 2), (0.5, 2, 0)]
)
def test_the_best_number_of_guesses(acceptance_rate: float, cost: float, best: int) -> None:
    assert choose_num_speculative_tokens(acceptance_rate, 8, cost) == best


@pytest.mark.parametrize(("proposer_is", "few"), [("right", False), ("wrong", True)])
def test_each_request_guesses_as_much_as_pays(world: World, proposer_is: str, few: bool) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    world.engine(None)
    plain = world.llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0].token_ids

    class Knows:
        def propose(self, token_ids: list[int], num_speculative_tokens: int) -> list[int]:
            done = len(token_ids) - len(PROMPT)
            right = plain[done : done + num_speculative_tokens]
            return right if proposer_is == "right" else [(t + 1) % 13 for t in right]

    spec = SpeculativeConfig("custom_class", 6, adaptive=True, proposer=Knows())
    engine = world.engine(spec)
    engine.step_trace = []
    [output] = world.llm.generate([PROMPT], params, use_tqdm=False)
    drafted = [t.num_draft for record in engine.step_trace for t in record.tokens.values()]
    assert output.outputs[0].token_ids == plain
    if few:
        assert sum(drafted[-len(drafted) // 2 :]) <= 2  # a probe now and then
    else:
        assert drafted[2:6] == [6] * 4  # all that are allowed, until the end is near


def test_the_account_of_a_request_ends_with_it(world: World) -> None:
    """A server runs for weeks, and its callers may use an id again for other texts."""
    engine = world.engine(world.configs["ngram"])
    world.llm.generate([PROMPT] * 3, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    engine.add_request("dropped", PROMPT, SamplingParams(temperature=0, max_tokens=40))
    for _ in range(12):
        engine.step()
    assert engine.spec_decoding_stats.num_draft_tokens > 0
    assert len(engine.drafter._of_late) > 0
    engine.abort_request("dropped")
    gc.collect()
    assert len(engine.drafter._of_late) == 0


# Trees


@st.composite
def trees(draw_: st.DrawFn) -> list[int]:
    return [draw_(st.integers(-1, node - 1)) for node in range(draw_(st.integers(1, 8)))]


def way(parents: list[int], node: int) -> list[int]:
    """Brute force: the nodes from the root's child down to this one."""
    return [] if node == -1 else [*way(parents, parents[node]), node]


@given(parents=trees())
def test_tree_depths_and_mask(parents: list[int]) -> None:
    mask = tree_attention_mask(parents)
    for node in range(-1, len(parents)):
        seen = {-1, *way(parents, node)}
        assert {i - 1 for i in mask[node + 1].nonzero()[:, 0].tolist()} == seen
    assert tree_depths(parents) == [len(way(parents, node)) for node in range(len(parents))]


def test_a_parent_must_come_first() -> None:
    with pytest.raises(ValueError, match="Node 1 has parent 2"):
        tree_depths([-1, 2, 0])


@settings(deadline=None, max_examples=40)
@given(parents=trees(), before=st.integers(0, 5), seed=st.integers(0, 50))
def test_each_node_attends_as_if_it_were_a_chain(
    parents: list[int], before: int, seed: int
) -> None:
    torch.manual_seed(seed)
    num = 1 + len(parents)
    query, key, value = (
        torch.randn(num, 4, 8),
        torch.randn(before + num, 2, 8),
        torch.randn(before + num, 2, 8),
    )
    out = tree_attention(query, key, value, tree_attention_mask(parents), 0.35)
    for node in range(-1, len(parents)):
        rows = [*range(before + 1), *(before + 1 + i for i in way(parents, node))]
        k, v = (t[rows].repeat_interleave(2, dim=1) for t in (key, value))
        weights = torch.einsum("hd,khd->hk", query[node + 1], k).mul(0.35).softmax(-1)
        torch.testing.assert_close(
            out[node + 1], torch.einsum("hk,khd->hd", weights, v), atol=1e-5, rtol=1e-5
        )


def test_following_a_tree() -> None:
    #         root
    #      5        6
    #    7   8    7
    tokens, parents = [5, 6, 7, 8, 7], [-1, -1, 0, 0, 1]
    assert follow_tree(tokens, parents, [6, 0, 7, 0, 0, 0]) == [1, 4]
    assert follow_tree(tokens, parents, [5, 8, 0, 0, 9, 0]) == [0, 3]
    assert follow_tree(tokens, parents, [5, 9, 0, 0, 0, 0]) == [0]
    assert follow_tree(tokens, parents, [9, 0, 0, 0, 0, 0]) == []


def test_the_tree_of_the_heads_best_tokens() -> None:
    tree = tree_of([[5, 6], [7, 8]])
    assert tree.token_ids == [5, 6, 7, 8, 7, 8]
    assert tree.parents == [-1, -1, 0, 0, 1, 1]
    assert tree.first(3) == Draft([5, 6, 7], [-1, -1, 0])


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "unknown method 'magic'. Expected ngram, draft_model"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "integer of at least 1, got 0"),
        ({"method": "ngram", "prompt_lookup_min": 5}, "prompt_lookup_min <= prompt_lookup_max"),
        ({"method": "ngram", "model": "x"}, "method 'ngram' takes no model"),
        ({"method": "draft_model"}, "method 'draft_model' needs model"),
        ({"method": "custom_class"}, "proposer belongs to method 'custom_class'"),
        (
            {"method": "ngram", "rejection_sample_method": "synthetic"},
            "unknown rejection_sample_method 'synthetic'. Expected standard or block.",
        ),
        ({"method": "ngram", "tree_widths": (2,)}, "belongs to method 'medusa'"),
        ({"method": "medusa", "model": "x", "tree_widths": ()}, "positive integers"),
        ({"method": "medusa", "model": "x", "tree_widths": (2,), "adaptive": True}, "adaptive"),
        ({"method": "ngram", "draft_token_cost": 0}, "draft_token_cost must be above 0"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeculativeConfig(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "draft_model", "model": "other vocabulary"}, "14 tokens, the target one of 13"),
        ({"method": "draft_model", "model": "medusa"}, "Unsupported architecture|lacks"),
        ({"method": "medusa", "model": "wide medusa"}, "hidden_size=48, the model has 32"),
        ({"method": "medusa", "model": "draft"}, "holds no Medusa heads"),
        ({"method": "medusa", "model": "medusa", "num_speculative_tokens": 4}, "holds 3"),
        ({"method": "eagle", "model": "other vocabulary"}, "vocab_size=14, and this one has 13"),
        ({"method": "eagle", "model": "target"}, "holds 2 layers. Expected one"),
        ({"method": "eagle", "model": "draft"}, "Unexpected weight 'lm_head.weight'"),
        ({"method": "eagle", "model": "nothing"}, "does not exist"),
    ],
)
def test_drafts_that_do_not_fit(world: World, options: dict, message: str) -> None:
    spec = SpeculativeConfig(**{**options, "model": world.folder / options["model"]})
    with pytest.raises(ValueError, match=message):
        world.engine(spec)


def test_guesses_need_paging(world: World) -> None:
    with pytest.raises(ValueError, match="needs a paged KV cache"):
        world.llm.new_engine(
            kv_cache_class=ContiguousKVCache, changes={"speculative_config": world.configs["ngram"]}
        )


def test_the_dict_of_vllm_is_understood(world: World, tmp_path: Path) -> None:
    """As one would write it for vLLM."""
    spec = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 1,
    }
    llm = LLM(world.folder / "target", max_model_len=32, speculative_config=spec)
    assert llm.config.speculative_config == SpeculativeConfig("ngram", 3, prompt_lookup_min=1)
