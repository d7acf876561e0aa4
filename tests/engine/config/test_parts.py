"""Each part of an engine can be another one's; what an engine is made from is listed once."""

from __future__ import annotations

import argparse
import pickle
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.engine.tiny_engines import Oracle, nothing_is_held, tiny_llama
from utils.engine import (
    LLM,
    Draft,
    EngineArgs,
    RejectionSampler,
    Request,
    SamplingParams,
    SpeculativeConfig,
)
from utils.engine.config.parts import EngineParts
from utils.engine.core.sched.request_queue import get_policy
from utils.engine.kv_transfer.base import NoConnector
from utils.engine.kv_transfer.pool_connector import PoolConnector
from utils.engine.kv_transfer.store import MemoryStore

PARAMS = SamplingParams(temperature=0, max_tokens=10)
PROMPTS = [[3 + (i * 7 + j * j) % 10 for j in range(6 + 2 * i)] for i in range(4)]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Oracle, Path]:
    folder = tmp_path_factory.mktemp("parts")
    return Oracle(tiny_llama(folder, seed=0)), folder


@pytest.fixture(scope="module")
def tiny(oracle: tuple[Oracle, Path]) -> LLM:
    return LLM(oracle[1], max_model_len=64, num_gpu_blocks_override=64, block_size=4)


def test_a_policy_of_ones_own(tiny: LLM, oracle: tuple[Oracle, Path]) -> None:
    def longest_prompt_first(request: Request) -> tuple[int, ...]:
        return (-len(request.prompt_token_ids), request.arrival_index)

    changes = {"scheduling_policy": longest_prompt_first, "max_num_seqs": 1}
    tiny.llm_engine = engine = tiny.new_engine(changes)
    engine.step_trace = []
    for prompt, output in zip(PROMPTS, tiny.generate(PROMPTS, PARAMS, False), strict=True):
        assert oracle[0].explains(prompt, output.outputs[0].token_ids, 10)
    order = list(dict.fromkeys(name for step in engine.step_trace for name in step.tokens))
    assert order == sorted(order, reverse=True)  # ids go up with the prompts' lengths
    with pytest.raises(ValueError, match=r"'lifo'\. Expected fcfs or priority, or a function"):
        get_policy("lifo")


class Prophet:
    """Guesses what it was told, for all requests of a step: a part in place of `make_proposer`."""

    uses_slots = False

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self.answers = answers

    def draft(self, wanted, output, hidden_states) -> list[Draft]:
        return [
            Draft(self.answers[tuple(r.prompt_token_ids)][len(r.output_token_ids) :][:n])
            for r, n in wanted
        ]


def test_a_proposer_of_ones_own(tiny: LLM, oracle: tuple[Oracle, Path]) -> None:
    answers = {tuple(prompt): oracle[0].answer(prompt, 10) for prompt in PROMPTS}
    tiny.llm_engine = engine = tiny.new_engine(
        {"speculative_config": SpeculativeConfig("ngram", 4)},
        proposer=lambda config, model: Prophet(answers),
    )
    engine.step_trace = []
    outputs = tiny.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in outputs] == list(answers.values())
    assert engine.spec_decoding_stats.acceptance_rate == 1
    longest = max(map(len, answers.values()))
    assert len(engine.step_trace) <= 2 + longest // 5  # five tokens a step, but for the first


def test_a_sampler_of_ones_own_is_not_replaced(tiny: LLM) -> None:
    class Mine(RejectionSampler): ...

    spec = SpeculativeConfig("ngram", 2, rejection_sample_method="block")
    with pytest.raises(ValueError, match=r"was given a Mine\. Leave one of the two out"):
        tiny.new_engine({"speculative_config": spec}, rejection_sampler=Mine())


def test_a_scheduler_that_asks_no_connector_is_refused(tiny: LLM) -> None:
    class Plain:
        def __init__(self, config, kv_cache_manager) -> None: ...

    with pytest.raises(ValueError, match="Plain asks no connector"):
        tiny.new_engine(scheduler_cls=Plain, kv_connector=PoolConnector(MemoryStore()))


class Undecided(NoConnector):
    """Does not know, for some of the requests, before it has been asked three times."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, int] = {}

    def num_external_tokens(self, request: Request, num_computed_tokens: int) -> int | None:
        self.asked[request.request_id] = self.asked.get(request.request_id, 0) + 1
        return None if request.request_id in "02" and self.asked[request.request_id] < 4 else 0


def test_who_waits_for_a_connector_holds_nobody_up(tiny: LLM, oracle: tuple[Oracle, Path]) -> None:
    tiny.llm_engine = engine = tiny.new_engine({"max_num_seqs": 2})
    connector = engine.scheduler.connector = Undecided()
    engine.step_trace = []
    for prompt, output in zip(PROMPTS, tiny.generate(PROMPTS, PARAMS, False), strict=True):
        assert oracle[0].explains(prompt, output.outputs[0].token_ids, 10)
    order = list(dict.fromkeys(name for step in engine.step_trace for name in step.tokens))
    assert order == ["1", "3", "0", "2"]
    assert connector.asked["0"] == 4 and connector.asked["1"] == 1
    assert nothing_is_held(tiny)


def test_an_engine_waits_where_all_wait_for_a_connector(tiny: LLM) -> None:
    engine = tiny.new_engine()
    engine.scheduler.connector = Undecided()
    engine.add_request("0", PROMPTS[0], PARAMS)
    assert [engine.step() for _ in range(3)] == [[]] * 3
    assert len(engine.scheduler.waiting) == 1 and engine.step()


# --- EngineArgs -----------------------------------------------------------------------------------


def parsed(*words: str, without: tuple[str, ...] = ()) -> EngineArgs:
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser, without)
    return EngineArgs.from_cli_args(parser.parse_args(words))


def test_a_command_line_sets_what_python_sets() -> None:
    same = {"kv_cache_manager", "sampler", "rejection_sampler"}  # made anew each time
    defaults, nothing = vars(EngineArgs()), vars(parsed())
    assert {k: v for k, v in nothing.items() if k not in same} == {
        k: v for k, v in defaults.items() if k not in same
    }
    args = parsed(
        "--model",
        "folder",
        "--max-model-len",
        "64",
        "--no-enable-prefix-caching",
        "--swap-space",
        "0.5",
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 2}',
        "--tensor-parallel-size",
        "3",
    )
    assert (args.model, args.max_model_len, args.swap_space) == ("folder", 64, 0.5)
    assert args.enable_prefix_caching is False
    assert args.speculative_config == SpeculativeConfig("ngram", 2)
    assert args.create_parallel_config().world_size == 3


def test_what_a_command_line_cannot_say_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--ops", "x"], ["--scheduler-cls", "x"], ["--kv-connector", "x"]):
        with pytest.raises(SystemExit):
            parsed(*words)
    with pytest.raises(SystemExit):
        parsed("--seed", "1", without=("seed",))
    with pytest.raises(SystemExit):
        parsed("--help")
    text = capsys.readouterr().out
    assert "the most requests that run at a time." in text and "--kernels" in text


def test_arguments_travel_to_replicas_and_stay_the_same() -> None:
    args = EngineArgs("folder", max_num_seqs=5, data_parallel_size=2, seed=7)
    there = pickle.loads(pickle.dumps(replace(args, data_parallel_size=1)))
    assert (there.model, there.max_num_seqs, there.seed) == ("folder", 5, 7)


def test_unknown_options_are_named(tiny: LLM, oracle: tuple[Oracle, Path]) -> None:
    with pytest.raises(TypeError, match="max_model_length"):
        LLM(oracle[1], max_model_length=64)
    with pytest.raises(TypeError, match="schedular"):
        tiny.new_engine(schedular=None)
    with pytest.raises(ValueError, match="unknown method 'magic'"):
        EngineArgs(speculative_config={"method": "magic"})


def test_every_field_is_described() -> None:
    for cls in (EngineParts, EngineArgs):
        own = {field.name for field in fields(cls)}
        if cls is EngineArgs:
            own -= {field.name for field in fields(EngineParts)}
        assert {name for name in own if f"        {name}: " not in str(cls.__doc__)} == set()
