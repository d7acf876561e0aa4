"""The engine on paged KV: the same tokens whatever happens to the blocks, and nothing leaks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from tests.near_ties import assert_same_but_for_ties, narrowest_choice, same_beams
from tests.scale import sized
from utils.checks.kit.near_ties import NEAR_TIE
from utils.engine import (
    LLM,
    AttentionMetadata,
    BeamSearchParams,
    ContiguousKVCache,
    LlamaOps,
    RequestOutput,
    SamplingParams,
    attention_reference,
    paged_attention,
    paged_attention_reference,
)
from utils.engine.run_requests import run_to_end
from utils.hub import load_hf_model

GREEDY = SamplingParams(temperature=0, max_tokens=12)


def run(llm: LLM, prompts, params=GREEDY) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def nothing_is_held(llm: LLM) -> bool:
    manager = llm.llm_engine.kv_cache_manager
    return (
        manager.usage == 0
        and not manager.req_to_blocks
        and not llm.llm_engine.requests
        and not llm.llm_engine.output_processor.request_states
    )


# Attention over blocks


@settings(deadline=None, max_examples=sized(20, 60))
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), min_size=1, max_size=4),
    block_size=st.sampled_from([1, 2, 5, 16]),
    heads=st.sampled_from([(4, 4), (6, 2), (4, 1)]),
    seed=st.integers(0, 100),
)
def test_attention_over_blocks(lengths, block_size: int, heads: tuple[int, int], seed: int) -> None:
    """Queries and tokens before them, of several requests, whose blocks lie anywhere."""
    num_heads, num_kv_heads = heads
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    seq_lens = [queries + before for queries, before in lengths]
    counts = [-(-n // block_size) for n in seq_lens]
    order = torch.randperm(sum(counts) + 3, generator=generator)
    tables = list(order[: sum(counts)].split(counts))
    # Slots that hold nobody's tokens are full of garbage, and must not be looked at.
    key_cache = torch.full((len(order), block_size, num_kv_heads, 8), 1e4)
    value_cache = torch.full_like(key_cache, 1e4)
    expected, queries = [], []
    for (num_queries, _), seq_len, table in zip(lengths, seq_lens, tables, strict=True):
        key, value = randn(seq_len, num_kv_heads, 8), randn(seq_len, num_kv_heads, 8)
        for position in range(seq_len):
            block, offset = table[position // block_size], position % block_size
            key_cache[block, offset], value_cache[block, offset] = key[position], value[position]
        queries.append(randn(num_queries, num_heads, 8))
        expected.append(attention_reference(queries[-1], key, value, 0.4))
    metadata = AttentionMetadata(
        [n for n, _ in lengths], seq_lens, tables, torch.empty(0, dtype=torch.long)
    )
    fast = paged_attention(torch.cat(queries), key_cache, value_cache, metadata, 0.4)
    torch.testing.assert_close(fast, torch.cat(expected), atol=1e-5, rtol=1e-5)
    for query, table, seq_len, right in zip(queries, tables, seq_lens, expected, strict=True):
        slow = paged_attention_reference(
            query, key_cache, value_cache, table.tolist(), seq_len, 0.4
        )
        torch.testing.assert_close(slow, right, atol=1e-5, rtol=1e-5)


def test_online_softmax_survives_large_scores() -> None:
    """Scores of a thousand, which overflow exp() unless the largest is taken off first."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 8) * 60, torch.randn(10, 2, 8) * 60, torch.randn(10, 2, 8)
    got = paged_attention_reference(
        query, key.view(5, 2, 2, 8), value.view(5, 2, 2, 8), range(5), 10, 1.0
    )
    torch.testing.assert_close(got, attention_reference(query, key, value, 1.0))


# The same tokens


@pytest.fixture(scope="module")
def some(prompts: list[list[int]]) -> list[list[int]]:
    """Every eighth prompt, and one of 400 tokens."""
    return [*prompts[::8], max(prompts, key=len)[:400]]


@pytest.fixture(scope="module")
def expected(some: list[list[int]], hf_greedy: Callable) -> list[list[int]]:
    return hf_greedy(some, GREEDY.max_tokens)


@pytest.fixture
def engine_of(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LLM]]:
    """The session's LLM with another engine configuration; the weights are loaded only once."""

    def change(**options) -> LLM:
        options.setdefault("max_model_len", 512)
        options.setdefault("num_gpu_blocks", 8192 // options.get("block_size", 16))
        monkeypatch.setattr(llm, "config", replace(llm.config, **options))
        monkeypatch.setattr(llm, "llm_engine", llm.new_engine())
        return llm

    yield change
    assert nothing_is_held(llm)


@pytest.mark.parametrize("block_size", [1, 16, 33])
def test_block_sizes(engine_of, hf_model, some, expected, block_size: int) -> None:
    """Twice: the second time every prompt is found in the cache, as far as its blocks are full."""
    llm, number = engine_of(block_size=block_size), sized(5, len(some))
    some, expected = some[-number:], expected[-number:]  # the last one is the long one
    assert_same_but_for_ties(hf_model, some, tokens(run(llm, some)), expected)
    again = run(llm, some)
    assert_same_but_for_ties(hf_model, some, tokens(again), expected)
    for prompt, output in zip(some, again, strict=True):
        assert output.num_cached_tokens == (len(prompt) - 1) // block_size * block_size


def test_contiguous_equals_paged(llm: LLM, hf_model, monkeypatch, some, expected) -> None:
    monkeypatch.setattr(llm, "llm_engine", llm.new_engine(kv_cache_class=ContiguousKVCache))
    outputs = run(llm, some)
    assert_same_but_for_ties(hf_model, some, tokens(outputs), expected)
    assert all(output.num_cached_tokens == 0 for output in outputs)


@pytest.mark.parametrize(
    ("enable_prefix_caching", "num_cpu_blocks"), [(True, 0), (True, 2), (False, 0), (False, 100)]
)
def test_a_pool_that_overflows(
    engine_of, hf_model, some, expected, enable_prefix_caching: bool, num_cpu_blocks: int
) -> None:
    """Requests are preempted, swapped out or computed again, and end with the same tokens."""
    llm = engine_of(
        num_gpu_blocks=32,
        enable_prefix_caching=enable_prefix_caching,
        max_num_batched_tokens=100,
        num_cpu_blocks=num_cpu_blocks,
    )
    some, expected = some[-7:], expected[-7:]
    requests = llm.llm_engine.inputs.from_prompts(some, GREEDY)
    execute, computed = llm.llm_engine.executor.execute_model, []

    def counted(output):
        computed.append(output.total_num_scheduled_tokens)
        return execute(output)

    llm.llm_engine.executor.execute_model = counted
    for _ in run_to_end(llm.llm_engine, requests):
        pass
    got = [request.output_token_ids for request in requests]
    assert_same_but_for_ties(hf_model, some, got, expected)
    assert sum(state.request.num_preemptions for state in requests) > 0
    once = sum(state.request.num_tokens - 1 for state in requests)
    if num_cpu_blocks == 100:
        assert sum(computed) == once  # nothing was computed twice
    elif not enable_prefix_caching and num_cpu_blocks == 0:
        assert sum(computed) > once
    assert llm.llm_engine.kv_cache_manager.swap_space.num_free_blocks == num_cpu_blocks


def test_equal_prefixes_in_one_step(engine_of, hf_model, some, expected) -> None:
    """The second request finds blocks that the first fills in the very same step."""
    llm = engine_of()
    longest = max(range(len(some)), key=lambda i: len(some[i]))
    asked, right = [some[longest]] * 3, [expected[longest]] * 3
    outputs = run(llm, asked)
    # All three may take the other token of one and the same tie.
    assert_same_but_for_ties(hf_model, asked, tokens(outputs), right, at_most=3)
    assert [output.num_cached_tokens for output in outputs] == [0, 384, 384]


def test_multi_turn_finds_the_answer_too(engine_of, hf_model, some, hf_greedy) -> None:
    llm = engine_of(block_size=8)
    first = run(llm, some[:4])
    followed = [
        [*prompt, *answer, 42] for prompt, answer in zip(some[:4], tokens(first), strict=True)
    ]
    outputs = run(llm, followed)
    right = hf_greedy(followed, GREEDY.max_tokens)
    assert_same_but_for_ties(hf_model, followed, tokens(outputs), right)
    for prompt, output in zip(some[:4], outputs, strict=True):
        # All but the last token of the answer were computed.
        computed = len(prompt) + GREEDY.max_tokens - 1
        assert output.num_cached_tokens == min(computed, len(output.prompt_token_ids)) // 8 * 8


def test_tenants_share_nothing(engine_of, some) -> None:
    llm = engine_of()
    prompt = max(some, key=len)[:104]

    def found(salt: str | None) -> int | None:
        whole = {"prompt_token_ids": prompt} | ({"cache_salt": salt} if salt else {})
        return run(llm, whole, SamplingParams(max_tokens=1))[0].num_cached_tokens

    assert [found(salt) for salt in ("a", "b", None, "a", "b", None)] == [0, 0, 0, 96, 96, 96]
    llm.reset_prefix_cache()
    assert found("a") == 0


def test_tokens_are_the_same_with_the_fast_hash(engine_of, hf_model, some, expected) -> None:
    llm, number = engine_of(prefix_caching_hash_algo="xxhash"), sized(4, len(some))
    some, expected = some[-number:], expected[-number:]
    got = tokens(run(llm, some * 2))
    assert_same_but_for_ties(hf_model, some * 2, got, expected * 2, at_most=2)  # each comes twice


def test_the_reference_runs_the_engine(model_path: Path, hf_model, some, expected) -> None:
    """Block by block with the online softmax, in place of the fast path."""

    def one_by_one(query, key_cache, value_cache, metadata, scale):
        outputs = [
            paged_attention_reference(q, key_cache, value_cache, table.tolist(), seq_len, scale)
            for q, table, seq_len in zip(
                query.split(metadata.query_lens),
                metadata.block_tables,
                metadata.seq_lens,
                strict=True,
            )
        ]
        return torch.cat(outputs)

    llm = LLM(model_path, ops=LlamaOps(paged_attention=one_by_one))
    assert_same_but_for_ties(hf_model, some[:4], tokens(run(llm, some[:4])), expected[:4])


# Several answers


def test_parallel_sampling_shares_the_prompt(engine_of, some) -> None:
    llm = engine_of()
    prompt = [*max(some, key=len)][:390]  # 24 full blocks and a partial one
    manager = llm.llm_engine.kv_cache_manager
    params = SamplingParams(n=4, temperature=1.0, seed=3, max_tokens=6, ignore_eos=True)
    [request] = llm.llm_engine.inputs.from_prompts(prompt, params)
    used = []
    for _ in run_to_end(llm.llm_engine, [request]):
        used.append(manager.block_pool.num_gpu_blocks - manager.block_pool.get_num_free_blocks())
    # Forked: nothing more. First write: three copy the partial block, the last one keeps it.
    assert used == [25, 28, 28, 28, 28, 0]
    output = request.output()
    assert [answer.index for answer in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(answer.token_ids) for answer in output.outputs}) > 1

    # Each answer is what it would have been alone, with its own seed.
    for i, answer in enumerate(output.outputs):
        alone = SamplingParams(temperature=1.0, seed=3 + i, max_tokens=6, ignore_eos=True)
        assert run(llm, prompt, alone)[0].outputs[0].token_ids == answer.token_ids


def test_several_answers_under_pressure(engine_of, some) -> None:
    """Forks are preempted like any other request."""
    long = max(some, key=len)
    pieces = [long[start : start + 40] for start in range(0, 160, 40)]
    params = [
        SamplingParams(n=2, temperature=0.8, seed=i, max_tokens=12, ignore_eos=True)
        for i in range(len(pieces))
    ]
    free = [output.outputs for output in run(engine_of(), pieces, params)]
    llm = engine_of(num_gpu_blocks=8, max_model_len=128)
    requests = llm.llm_engine.inputs.from_prompts(pieces, params)
    for _ in run_to_end(llm.llm_engine, requests):
        pass
    members = [member.request for state in requests for member in state.family]
    assert sum(member.num_preemptions for member in members) > 0
    for request, answers in zip(requests, free, strict=True):
        assert [a.token_ids for a in request.output().outputs] == [a.token_ids for a in answers]


def test_answers_that_end_at_once(engine_of, some) -> None:
    llm = engine_of()
    params = SamplingParams(n=3, temperature=1.0, seed=0, max_tokens=1)
    for output in run(llm, some[:5], params):
        assert [len(answer.token_ids) for answer in output.outputs] == [1, 1, 1]
        assert output.finished


# Beam search


@pytest.mark.parametrize("width", [1, 2, 4])
def test_beam_search_equals_huggingface(
    engine_of, hf_model: PreTrainedModel, some: list[list[int]], width: int
) -> None:
    llm, num_ties = engine_of(block_size=8), 0
    for prompt in some[: sized(2, 3)]:
        got = llm.beam_search(prompt, BeamSearchParams(width, max_tokens=12))[0].sequences
        with torch.inference_mode():
            right = hf_model.generate(
                torch.tensor([prompt]),
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=12,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
                length_penalty=1.0,
            )
        assert len(got) == width
        if not same_beams(got, right.sequences):
            narrowest = narrowest_choice(hf_model, prompt, width, max_tokens=12)
            assert narrowest < NEAR_TIE, (prompt, got, right.sequences)
            num_ties += 1
        elif width > 1:
            scores = torch.tensor([sequence.score for sequence in got])
            torch.testing.assert_close(scores, right.sequences_scores, atol=1e-4, rtol=0)
    assert num_ties <= 1


def test_beams_share_blocks(engine_of, some) -> None:
    """A beam that dies gives its blocks back, and what beams have in common is stored once."""
    from utils.engine.beam_search import BeamSearchOutput, beam_search_steps

    llm = engine_of(block_size=4)
    pool = llm.llm_engine.kv_cache_manager.block_pool
    [request] = llm.llm_engine.inputs.from_prompts([some[1]], GREEDY)
    steps = beam_search_steps(llm.llm_engine, request, BeamSearchParams(4, 20), BeamSearchOutput())
    for beams in steps:
        used = pool.num_gpu_blocks - pool.get_num_free_blocks()
        manager = llm.llm_engine.kv_cache_manager
        copies = sum(len(manager.req_to_blocks[beam.request_id]) for beam in beams)
        assert used == len({b for beam in beams for b in manager.get_block_ids(beam.request_id)})
        assert used <= copies
        if len(beams) == 4:
            assert copies - used >= 3 * (len(some[1]) // 4)  # the prompt, three times saved


# Bad input, errors, interruptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size must be a positive integer, got 0"),
        ({"block_size": -4}, "block_size must be a positive integer, got -4"),
        ({"num_gpu_blocks_override": 2, "max_model_len": 33}, "too small for one request"),
        ({"kv_cache_memory_bytes": 1000}, "too small for one request"),
        ({"swap_space": -1}, "swap_space must be 0 GiB or more"),
        ({"prefix_caching_hash_algo": "md5"}, "Unknown hash 'md5'"),
    ],
)
def test_bad_options(model_path: Path, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(model_path, **options)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ({"text": "a"}, None, "Expected either 'prompt' or"),
        ({"prompt": "a", "prompt_token_ids": [1]}, None, "Expected either 'prompt' or"),
        ({"prompt": "a", "cache_salt": ""}, None, "cache_salt must be a non-empty string"),
        ({"prompt_token_ids": []}, None, "Prompt 0 is empty"),
        ([5] * 512, None, "leaves no room for an answer"),
        ("a", SamplingParams(n=65), "n=65 answers cannot run together"),
    ],
)
def test_bad_prompts(engine_of, prompt, params, message: str) -> None:
    llm = engine_of()
    with pytest.raises(ValueError, match=message):
        llm.generate([prompt], params, use_tqdm=False)


def test_bad_beams(engine_of) -> None:
    llm = engine_of(num_gpu_blocks=32)
    with pytest.raises(ValueError, match="beam_width must be an integer of at least 1"):
        BeamSearchParams(0, 5)
    with pytest.raises(ValueError, match="more than max_num_seqs=64"):
        llm.beam_search("a", BeamSearchParams(65, 5))
    with pytest.raises(ValueError, match="may need 34 blocks, and 32 are free"):
        llm.beam_search([[1] * 16], BeamSearchParams(3, 170))


class Interrupted(Exception):
    pass


def test_a_broken_off_step_leaves_nothing_behind(
    engine_of, hf_model, some, expected, monkeypatch
) -> None:
    """Blocks that were promised contents, and did not get them, are not found afterwards."""
    llm = engine_of()
    prompt = max(range(len(some)), key=lambda i: len(some[i]))
    forward = llm.model.forward

    def interrupt(*arguments):
        raise Interrupted

    monkeypatch.setattr(llm.model, "forward", interrupt)
    with pytest.raises(Interrupted):
        run(llm, some[prompt])
    with pytest.raises(Interrupted):
        llm.beam_search([some[prompt]], BeamSearchParams(2, 4))
    assert nothing_is_held(llm)
    monkeypatch.setattr(llm.model, "forward", forward)
    outputs = run(llm, some[prompt])
    assert outputs[0].num_cached_tokens == 0
    assert_same_but_for_ties(hf_model, [some[prompt]], tokens(outputs), [expected[prompt]])


def test_a_stream_that_nobody_reads_to_its_end(engine_of, some) -> None:
    llm = engine_of()
    stream = llm.stream(some[3], SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
    next(stream)
    assert not nothing_is_held(llm)
    stream.close()
    assert nothing_is_held(llm)


def test_engine_by_hand(engine_of, hf_model, some, expected) -> None:
    """add_request, step, abort_request: requests come and go between steps."""
    engine = engine_of(max_num_batched_tokens=64).llm_engine
    rng, waiting, answers = random.Random(0), list(enumerate(some)), {}
    while waiting or engine.has_unfinished_requests():
        if waiting and rng.random() < 0.5:
            i, prompt = waiting.pop()
            engine.add_request(f"request {i}", prompt, GREEDY)
            if i % 3 == 0:
                engine.add_request(f"victim {i}", prompt, GREEDY)
                with pytest.raises(ValueError, match="is in use"):
                    engine.add_request(f"victim {i}", prompt, GREEDY)
        for output in engine.step():
            answers[output.request_id] = output.outputs[0].token_ids
        engine.abort_request(f"victim {rng.randrange(len(some))}")
    got = [answers[f"request {i}"] for i in range(len(some))]
    assert_same_but_for_ties(hf_model, some, got, expected)
    assert engine.step() == []


# Random shapes of model, batch and pool, against Hugging Face


@settings(
    deadline=None,
    max_examples=sized(5, 15),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_tiny_models(tiny_llms, data) -> None:
    llm, hf = data.draw(st.sampled_from(tiny_llms))
    block_size = data.draw(st.integers(1, 20))
    llm.config = replace(
        llm.config,
        block_size=block_size,
        num_gpu_blocks=-(-64 // block_size) + data.draw(st.integers(0, 8)),
        max_model_len=64,
        max_num_seqs=data.draw(st.integers(1, 6)),
        max_num_batched_tokens=data.draw(st.integers(6, 40)),
        enable_prefix_caching=data.draw(st.booleans()),
    )
    llm.llm_engine = llm.new_engine()
    stem = data.draw(st.lists(st.integers(3, 98), max_size=30))
    tails = st.lists(st.integers(3, 98), min_size=1, max_size=20)
    prompts = [[*stem, *tail] for tail in data.draw(st.lists(tails, min_size=1, max_size=8))]
    got = tokens(run(llm, prompts, SamplingParams(temperature=0, max_tokens=10)))
    with torch.inference_mode():
        right = [
            hf.generate(torch.tensor([prompt]), max_new_tokens=10, do_sample=False, pad_token_id=0)
            for prompt in prompts
        ]
    right = [rows[0, len(prompt) :].tolist() for prompt, rows in zip(prompts, right, strict=True)]
    assert_same_but_for_ties(hf, prompts, got, right)
    assert nothing_is_held(llm)


@pytest.fixture(scope="module")
def tiny_llms(tmp_path_factory, model_path: Path) -> list[tuple[LLM, PreTrainedModel]]:
    """Tiny models with random weights, as LLM and as Hugging Face model."""
    import shutil

    from tests.engine.conftest import TINY, tiny_model

    pairs = []
    for i, options in enumerate(TINY.values()):
        folder = tmp_path_factory.mktemp("tiny")
        tiny_model(seed=i, **dict(options)).save_pretrained(folder)
        for file in model_path.glob("tokenizer*"):
            shutil.copy(file, folder)
        pairs.append((LLM(folder, dtype="float32"), load_hf_model(folder, dtype=torch.float32)))
    return pairs
