"""Who runs when: order, priorities, chunks, fairness; and what a step's record tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.tiny_engines import Oracle, nothing_is_held, tiny_llama
from utils.engine import LLM, RejectionSampler, SamplingParams, Scheduler, SpeculativeConfig

FOREVER = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scheduler")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(tiny_llama(folder, seed=0))


@pytest.fixture(scope="module")
def llm(oracle: Oracle, folder: Path) -> LLM:
    return LLM(folder, max_model_len=64, num_gpu_blocks_override=64, block_size=4)


def engine_of(llm: LLM, **changes):
    llm.llm_engine = llm.new_engine(changes=changes)
    llm.llm_engine.step_trace = []
    return llm.llm_engine


def prompt(i: int, length: int = 6) -> list[int]:
    return [3 + (i * 7 + j * j) % 10 for j in range(length)]


def first_seen(engine) -> list[str]:
    """Request ids in the order in which they were first scheduled."""
    return list(dict.fromkeys(i for record in engine.step_trace for i in record.tokens))


def test_first_come_first_served(llm: LLM) -> None:
    engine = engine_of(llm, max_num_seqs=2, max_num_batched_tokens=8)
    for i in range(5):
        engine.add_request(str(i), prompt(i), SamplingParams(max_tokens=3 + i), priority=-i)
    while engine.has_unfinished_requests():
        engine.step()
    assert first_seen(engine) == list("01234")  # the numbers are ignored


def test_lower_priority_numbers_go_first(llm: LLM) -> None:
    engine = engine_of(llm, max_num_seqs=1, scheduling_policy="priority")
    for i, priority in enumerate([5, 1, 3, 1, 0]):
        engine.add_request(str(i), prompt(i), SamplingParams(max_tokens=2), priority=priority)
    while engine.has_unfinished_requests():
        engine.step()
    assert first_seen(engine) == ["4", "1", "3", "2", "0"]


def test_generate_takes_priorities(llm: LLM) -> None:
    engine = engine_of(llm, max_num_seqs=1, scheduling_policy="priority")
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    outputs = llm.generate([prompt(i) for i in range(3)], params, False, priority=[2, 0, 1])
    queued = [output.metrics.queue_time for output in outputs]
    assert queued[1] < queued[2] < queued[0]
    assert len(engine.step_trace) == 6
    with pytest.raises(ValueError, match="Got 3 prompts but 2 priorities"):
        llm.generate([prompt(i) for i in range(3)], params, False, priority=[2, 0])


def test_the_least_important_gives_way(llm: LLM) -> None:
    """When blocks run out, the urgent late-comer keeps its own, and the patient one loses them."""
    engine = engine_of(llm, num_gpu_blocks=16, scheduling_policy="priority", max_num_seqs=4)
    for i, priority in enumerate([2, 1, 3]):
        engine.add_request(str(i), prompt(i, 8), FOREVER, priority=priority)
    engine.step()
    engine.add_request("urgent", prompt(9, 8), FOREVER, priority=0)
    while engine.has_unfinished_requests():
        engine.step()
    victims = [i for record in engine.step_trace for i in record.preempted_req_ids]
    assert victims
    assert victims[0] == "2"
    assert "urgent" not in victims
    resumed = [i for record in engine.step_trace for i in record.resumed_req_ids]
    assert sorted(resumed) == sorted(victims)


def test_a_long_prompt_leaves_a_token_to_each_that_runs(llm: LLM) -> None:
    """Also to those that are less important, as after a preemption."""
    engine = engine_of(llm, max_num_batched_tokens=8, max_num_seqs=4, scheduling_policy="priority")
    for i in range(3):
        engine.add_request(str(i), prompt(i, 3), FOREVER, priority=5)
    engine.step()
    engine.step()
    engine.add_request("long", prompt(7, 40), FOREVER, priority=0)
    engine.step()  # joins with what is left
    for _ in range(3):
        engine.step()
        tokens = engine.step_trace[-1].tokens
        assert [tokens[i].num_new for i in ("long", "0", "1", "2")] == [5, 1, 1, 1]
        assert tokens["long"].num_sampled == 0


def test_guesses_take_only_what_is_left_of_the_budget(llm: LLM) -> None:
    spec = SpeculativeConfig("ngram", 6, prompt_lookup_min=1)
    engine = engine_of(llm, max_num_batched_tokens=5, max_num_seqs=3, speculative_config=spec)
    for i in range(3):
        engine.add_request(str(i), [3, 4, 3, 4, 3, 4], FOREVER)
    while engine.has_unfinished_requests():
        engine.step()
        tokens = engine.step_trace[-1].tokens.values()
        assert sum(t.num_new for t in tokens) <= 5
    assert engine.spec_decoding_stats.num_draft_tokens > 0


def test_guesses_preempt_nobody(llm: LLM, oracle: Oracle) -> None:
    """The same requests in the same small pool: guessing costs no request its blocks earlier."""
    counts = []
    for spec in (None, SpeculativeConfig("ngram", 8, prompt_lookup_min=1)):
        engine = engine_of(
            llm, num_gpu_blocks=17, enable_prefix_caching=False, speculative_config=spec
        )
        for i in range(2):
            engine.add_request(str(i), prompt(i, 8), FOREVER)
        needed = 0
        while engine.has_unfinished_requests():
            engine.step()
            needed += len(engine.step_trace[-1].preempted_req_ids)
        counts.append(needed)
    assert counts == [0, 0]  # two requests of 28 tokens need 14 of 17 blocks


def test_times_of_a_request(llm: LLM) -> None:
    engine_of(llm, max_num_seqs=1)
    outputs = llm.generate([prompt(0), prompt(1)], FOREVER, use_tqdm=False)
    for output in outputs:
        metrics = output.metrics
        assert metrics.arrival_time <= metrics.scheduled_ts < metrics.first_token_ts
        assert len(metrics.token_ts) == metrics.num_generation_tokens == 20
        gaps = metrics.inter_token_latencies
        assert len(gaps) == 19
        assert metrics.tpot == pytest.approx(sum(gaps) / 19)
        assert metrics.e2e_latency == pytest.approx(metrics.ttft + sum(gaps))
        assert metrics.queue_time < metrics.ttft
    assert outputs[1].metrics.queue_time > outputs[0].metrics.e2e_latency * 0.9


def test_a_record_adds_up(llm: LLM) -> None:
    engine = engine_of(llm, max_num_batched_tokens=16, max_num_seqs=8)
    outputs = llm.generate([prompt(i, 5 + 9 * i) for i in range(4)], FOREVER, use_tqdm=False)
    ends: dict[str, int] = {}
    sampled: dict[str, int] = {}
    for record in engine.step_trace:
        for name, tokens in record.tokens.items():
            assert tokens.start == ends.get(name, tokens.start)  # a hit may let it start later
            ends[name] = tokens.start + tokens.num_new
            sampled[name] = sampled.get(name, 0) + tokens.num_sampled
    assert list(sampled.values()) == [len(o.outputs[0].token_ids) for o in outputs]
    assert [ends[o.request_id] for o in outputs] == [len(o.prompt_token_ids) + 19 for o in outputs]
    finished = [name for record in engine.step_trace for name in record.finished_req_ids]
    assert sorted(finished) == sorted(o.request_id for o in outputs)


# A learner's part that goes wrong


class Breaks(Exception):
    pass


class BrokenScheduler(Scheduler):
    broken = True

    def schedule(self):
        output = super().schedule()
        if BrokenScheduler.broken:
            raise Breaks
        return output


class BrokenProposer:
    broken = True

    def propose(self, token_ids: list[int], num_speculative_tokens: int) -> list[int]:
        if BrokenProposer.broken:
            raise Breaks
        return token_ids[:num_speculative_tokens]


class BrokenSampler(RejectionSampler):
    broken = True

    def greedy(self, draft_token_ids: list[int], target_token_ids: list[int]) -> list[int]:
        if BrokenSampler.broken:
            raise Breaks
        return super().greedy(draft_token_ids, target_token_ids)


@pytest.mark.parametrize("part", [BrokenScheduler, BrokenProposer, BrokenSampler])
def test_a_part_that_raises_leaves_the_engine_usable(llm: LLM, oracle: Oracle, part: type) -> None:
    spec = SpeculativeConfig("custom_class", 3, proposer=BrokenProposer())
    scheduler = BrokenScheduler if part is BrokenScheduler else Scheduler
    llm.llm_engine = llm.new_engine(
        changes={"speculative_config": spec},
        scheduler_cls=scheduler,
        rejection_sampler=BrokenSampler(),
    )
    for one in (BrokenScheduler, BrokenProposer, BrokenSampler):
        one.broken = one is part
    prompts = [prompt(i) for i in range(3)]
    with pytest.raises(Breaks):
        llm.generate(prompts, FOREVER, use_tqdm=False)
    assert nothing_is_held(llm)
    part.broken = False
    params = SamplingParams(temperature=0, max_tokens=10)
    for p, output in zip(prompts, llm.generate(prompts, params, use_tqdm=False), strict=True):
        assert oracle.explains(p, output.outputs[0].token_ids, 10)


@pytest.mark.parametrize("answer", [[], [12, 3], [3, 4, 5, 6, 7, 8]])
def test_a_rejection_sampler_that_makes_up_tokens(llm: LLM, answer: list[int]) -> None:
    class Inventive(RejectionSampler):
        def greedy(self, draft_token_ids, target_token_ids):
            return answer

    class Always:
        def propose(self, token_ids, num_speculative_tokens):
            return [3, 4, 5]

    spec = SpeculativeConfig("custom_class", 3, proposer=Always())
    llm.llm_engine = llm.new_engine(
        changes={"speculative_config": spec}, rejection_sampler=Inventive()
    )
    with pytest.raises(ValueError, match="Expected the accepted part of the draft"):
        llm.generate([prompt(0)], FOREVER, use_tqdm=False)
    assert nothing_is_held(llm)


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens=0 must be at least"),
        ({"scheduling_policy": "lifo"}, "Unknown scheduling_policy 'lifo'. Expected fcfs or pri"),
        ({"num_gpu_blocks": 15}, "too small for one request of max_model_len=64"),
    ],
)
def test_bad_settings(llm: LLM, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.new_engine(changes=changes)


def test_no_request_is_starved_by_a_stream_of_urgent_ones(llm: LLM) -> None:
    """Under "fcfs" a request's turn comes however many arrive after it."""
    engine = engine_of(llm, max_num_seqs=2, max_num_batched_tokens=4, num_gpu_blocks=20)
    engine.add_request("first", prompt(0, 30), FOREVER)
    for i in range(60):
        engine.add_request(f"later-{i}", prompt(i, 20), SamplingParams(max_tokens=4))
        engine.step()
        if "first" in engine.step_trace[-1].finished_req_ids:
            return
    pytest.fail("60 steps, and the first request is still not finished")
