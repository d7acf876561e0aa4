"""All features together: the tokens of Hugging Face, and those of vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.tiny_engines import nothing_is_held
from tests.near_ties import assert_same_but_for_ties
from utils.engine import LLM, SamplingParams, SpeculativeConfig
from utils.vllm.answers import vllm_answers

MAX_TOKENS = 16
GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
NGRAM = SpeculativeConfig("ngram", 4, prompt_lookup_min=1)


@pytest.fixture(scope="module")
def chosen(prompts: list[list[int]]) -> list[list[int]]:
    """20 prompts, from a single token to 200, many of which have a beginning in common."""
    long = max(prompts, key=len)
    some = prompts[:: len(prompts) // 13][:13] + [long[: 30 * i] + prompts[i] for i in range(1, 8)]
    assert len(some) == 20
    return [prompt[:200] for prompt in some]


@pytest.fixture(scope="module")
def expected(chosen: list[list[int]], hf_greedy: Callable) -> list[list[int]]:
    return hf_greedy(chosen, MAX_TOKENS)


@pytest.fixture
def engine_of(llm: LLM) -> Iterator[Callable[..., None]]:
    usual = llm.llm_engine

    def change(**changes) -> None:
        llm.llm_engine = llm.new_engine(
            changes={"max_model_len": 256, "num_gpu_blocks": 256, **changes}
        )

    yield change
    assert nothing_is_held(llm)
    llm.llm_engine = usual


@pytest.mark.parametrize(
    "changes",
    [
        dict(max_num_seqs=20, max_num_batched_tokens=33),
        dict(max_num_seqs=12, max_num_batched_tokens=50, num_gpu_blocks=20, num_cpu_blocks=30),
        dict(
            speculative_config=NGRAM,
            max_num_seqs=20,
            max_num_batched_tokens=90,
            num_gpu_blocks=20,
            num_cpu_blocks=20,
            scheduling_policy="priority",
        ),
        dict(
            speculative_config=NGRAM,
            block_size=5,
            num_gpu_blocks=80,
            enable_prefix_caching=False,
            max_num_seqs=9,
        ),
        dict(
            async_scheduling=True,
            max_num_seqs=12,
            max_num_batched_tokens=50,
            num_gpu_blocks=20,
            num_cpu_blocks=20,
            scheduling_policy="priority",
        ),
    ],
    ids=["chunks", "pressure and swap", "all with guesses", "guesses over small blocks", "async"],
)
def test_tokens_are_huggingfaces(
    llm: LLM, hf_model, engine_of, chosen, expected, changes: dict
) -> None:
    engine_of(**changes)
    engine = llm.llm_engine
    engine.step_trace = []
    outputs = llm.generate(chosen, GREEDY, False, priority=[i % 3 for i in range(20)])
    ours = [output.outputs[0].token_ids for output in outputs]
    assert_same_but_for_ties(hf_model, chosen, ours, expected)
    if "num_cpu_blocks" in changes:
        assert sum(len(record.preempted_req_ids) for record in engine.step_trace) > 0
    if engine.drafter is not None:
        stats = engine.spec_decoding_stats
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


def test_tokens_are_vllms(
    llm: LLM, hf_model, engine_of, model_path: Path, chosen, expected
) -> None:
    theirs = vllm_answers(model_path, chosen, ["float32"], MAX_TOKENS).token_ids["float32"]
    engine_of(speculative_config=NGRAM, max_num_seqs=16, max_num_batched_tokens=100)
    outputs = llm.generate(chosen, GREEDY, use_tqdm=False)
    ours = [output.outputs[0].token_ids for output in outputs]
    assert_same_but_for_ties(hf_model, chosen, ours, theirs)
    assert_same_but_for_ties(hf_model, chosen, expected, theirs)
