"""Log probabilities of a prompt are Hugging Face's, however the engine comes to compute it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.tiny_engines import nothing_is_held, tiny_llama
from utils.checks.kit.near_ties import hf_oracle
from utils.engine import LLM, Logprob, SamplingParams, SpeculativeConfig
from utils.engine.sample import prompt_logprobs

PROMPTS = [[3 + (i * j) % 10 for j in range(1 + 5 * i)] for i in range(5)]  # 1 to 21 tokens
Scores = list[dict[int, Logprob] | None]


class World:
    def __init__(self, folder: Path) -> None:
        self.model = tiny_llama(folder, seed=0)
        self.llm = LLM(folder, max_model_len=30)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def check(world: World, prompt: list[int], found: Scores | None, count: int = 2) -> None:
    assert found is not None and found[0] is None and len(found) == len(prompt)
    expected = hf_oracle(world.model)(prompt[:1], prompt[1:]).log_softmax(-1)
    for token, row, told in zip(prompt[1:], expected, found[1:], strict=True):
        assert told is not None and count <= len(told) <= count + 1
        assert told[token].rank == 1 + int((row > row[token]).sum())
        for i, entry in told.items():
            assert entry.logprob == pytest.approx(float(row[i]), abs=1e-4)
        best = sorted((entry.logprob for entry in told.values()), reverse=True)[:count]
        assert best == pytest.approx(row.topk(count).values.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_num_batched_tokens": 4, "max_num_seqs": 3},  # in chunks
        {"block_size": 3, "num_gpu_blocks": 11, "num_cpu_blocks": 0},  # preempted
        {"block_size": 3, "num_gpu_blocks": 11, "num_cpu_blocks": 20},  # swapped out
        {"speculative_config": SpeculativeConfig("ngram", 3, prompt_lookup_min=1)},
    ],
    ids=["at once", "chunks", "preempted", "swapped", "guesses"],
)
def test_they_are_hugging_faces(
    world: World, changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_logprobs, "ROWS", 4)
    engine = world.llm.llm_engine = world.llm.new_engine(changes=changes)
    engine.step_trace = []
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, prompt_logprobs=2)
    outputs = world.llm.generate(PROMPTS, params, use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        check(world, prompt, output.prompt_logprobs)
    preempted = sum(len(record.preempted_req_ids) for record in engine.step_trace)
    assert (preempted > 0) == ("num_gpu_blocks" in changes)
    assert nothing_is_held(world.llm)


def test_a_prompt_that_is_cached_is_scored_all_the_same(world: World) -> None:
    world.llm.llm_engine = world.llm.new_engine(changes={"block_size": 4})
    usual = SamplingParams(temperature=0, max_tokens=3)
    scored = SamplingParams(temperature=1.0, seed=1, n=2, max_tokens=3, prompt_logprobs=0)
    for params, hits in ((usual, 0), (usual, 20), (scored, 0), (usual, 20)):
        [output] = world.llm.generate([PROMPTS[4]], params, use_tqdm=False)
        assert output.num_cached_tokens == hits
        assert (output.prompt_logprobs is None) == (params is usual)
        if params is scored:
            for told, token in zip(output.prompt_logprobs or [], PROMPTS[4], strict=True):
                assert told is None or list(told) == [token]


def test_the_likelihood_of_an_answer_tells_good_from_bad(world: World) -> None:
    """What evaluation by likelihood does: the model's own answer beats any other."""
    prompt = PROMPTS[3]
    world.llm.llm_engine = world.llm.new_engine()
    [own] = world.llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1), False)
    options = [[token] for token in range(3, 13)]
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    outputs = world.llm.generate([prompt + option for option in options], params, use_tqdm=False)
    scores = [(output.prompt_logprobs or [])[-1] or {} for output in outputs]
    likelihood = torch.tensor([s[o[0]].logprob for s, o in zip(scores, options, strict=True)])
    assert options[int(likelihood.argmax())] == own.outputs[0].token_ids


@pytest.mark.parametrize("value", [-2, 1.5, "1"])
def test_what_is_no_number_of_tokens_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="prompt_logprobs must be"):
        SamplingParams(prompt_logprobs=value)  # type: ignore[arg-type]
