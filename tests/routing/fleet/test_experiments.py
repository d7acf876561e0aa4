"""The field's routers and ours in front of two real servers of ours: hits, truth, and a death."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.serving.conftest import eventually
from utils.engine import LLM, SamplingParams
from utils.processes.server import PortInUse, listener
from utils.processes.supervised import WorkerError
from utils.routing.fleet.experiments import ask_warmed, kill_under_load, warm_behind
from utils.routing.fleet.real_routers import NoReplicaAnswers, real_router
from utils.routing.fleet.replicas import Replicas, course_replicas
from utils.routing.fleet.workload import (
    GroupedPrompt,
    predicted_hit_rate,
    prompt_groups,
    routing_requests,
    run_prompts,
)
from utils.routing.policies import LeastLoaded, RoundRobin
from utils.routing.prefix_index import KVIndex
from utils.routing.prefix_policies import LongestPrefixAndLoad
from utils.routing.router.server import our_router

pytestmark = pytest.mark.slow
WORDS = 40
LONG_ANSWER = 24


@pytest.fixture(scope="module")
def replicas() -> Iterator[Replicas]:
    with course_replicas(
        2, num_gpu_blocks_override=400, max_model_len=256, max_num_seqs=2, verbose=False
    ) as servers:
        yield servers


def groups(seed: int) -> list[GroupedPrompt]:
    return prompt_groups(3, 3, WORDS, seed)


def the_fields(program: str, policy: str) -> Callable[..., Any]:
    def start(replicas: Replicas) -> Any:
        options: dict[str, Any] = {}
        if policy == "kv_aware":
            options = {"kv_events": replicas.events, "kv_event_block_size": replicas.block_size}
        return real_router(program, policy, replicas.urls, replicas.model, verbose=False, **options)

    return start


@pytest.mark.parametrize(
    ("program", "policy"),
    [
        ("smg", "cache_aware"),
        ("vllm-router", "consistent_hash"),
        ("vllm-router", "cache_aware"),
        ("vllm-router", "kv_aware"),
    ],
)
def test_the_fields_routers_reach_the_best_hit_rate(
    replicas: Replicas, tokenizer: Any, program: str, policy: str
) -> None:
    prompts = groups(len(program + policy))
    with the_fields(program, policy)(replicas) as router:
        run = run_prompts(router.url, replicas, prompts)
        assert run.errors == [] and sum(run.num_requests) == len(prompts)
        best = predicted_hit_rate(routing_requests(prompts, tokenizer, 16), 16)
        assert run.hit_rate == pytest.approx(best, abs=0.03)
        assert router.metrics().samples


def test_a_real_router_is_exact_in_front_of_our_engine(replicas: Replicas) -> None:
    with the_fields("vllm-router", "kv_aware")(replicas) as router:
        asked, owners = warm_behind(replicas, 6, WORDS, seed=71)
        assert ask_warmed(router.url, replicas, asked, owners).num_right == 6


def test_our_router_with_the_truth_is_exact_and_round_robin_as_foretold(
    replicas: Replicas, tokenizer: Any
) -> None:
    index = KVIndex(2)
    policy = LongestPrefixAndLoad(index, 16)
    with our_router(policy, replicas, tokenizer=tokenizer, index=index) as router:
        asked, owners = warm_behind(replicas, 6, WORDS, seed=72)
        assert ask_warmed(router.url, replicas, asked, owners).num_right == 6
    prompts = groups(73)
    with our_router(RoundRobin(), replicas) as router:
        run = run_prompts(router.url, replicas, prompts)
    turn = iter(range(len(prompts)))
    requests = routing_requests(prompts, tokenizer, 16)
    assert run.hit_rate == pytest.approx(
        predicted_hit_rate(requests, 16, lambda request: next(turn) % 2)
    )


def test_a_replica_is_killed_under_load_and_comes_back(replicas: Replicas, llm: LLM) -> None:
    prompts = prompt_groups(8, 1, 20, seed=74)
    index = KVIndex(2)
    with our_router(LeastLoaded(), replicas, index=index) as router:
        # Each replica gets four and answers two at a time. When four answers have begun, the victim
        # is in the middle of two, and two more wait for it: unless a replica has written two whole
        # answers before the other one has begun.
        report = kill_under_load(
            router.url, replicas, prompts, victim=0, max_tokens=LONG_ANSWER, num_begun=4
        )
        found = router.metrics()
        assert found.value("course:router_alive") == 1
        # What had begun is lost, what waited is answered by the other one.
        assert report.num_lost == found.value("course:router_lost_total") >= 1
        assert found.value("course:router_retries_total") >= 1
        assert report.num_refused == 0
        assert report.num_complete == len(prompts) - report.num_lost
        params = SamplingParams(temperature=0, max_tokens=LONG_ANSWER, ignore_eos=True)
        expected = llm.generate([p.text for p in prompts], params, use_tqdm=False)
        for answer, output in zip(report.answers, expected, strict=True):
            assert answer in (None, output.outputs[0].text)
        replicas.restart(0)
        eventually(lambda: router.metrics().value("course:router_alive") == 2, "it is alive again")
        run = run_prompts(router.url, replicas, prompt_groups(4, 1, 20, seed=75))
        assert run.errors == [] and min(run.num_requests) > 0


def test_clear_errors(replicas: Replicas) -> None:
    with listener(0) as taken:  # nobody else can listen there, and nobody does
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NoReplicaAnswers, match=f"Start one first.\n{nobody}"):
            real_router("smg", "round_robin", [nobody], "smol")
        with pytest.raises(NoReplicaAnswers):
            our_router(RoundRobin(), [nobody])
    with pytest.raises(PortInUse):
        real_router("smg", "random", replicas.urls, "smol", port=replicas.servers[0].port)
    with pytest.raises(WorkerError, match=r"(?s)smg \(fastest\) ended.*invalid choice"):
        real_router("smg", "fastest", replicas.urls, "smol", verbose=False)
    with pytest.raises(ValueError, match="Unknown router 'nginx'"):
        real_router("nginx", "random", replicas.urls, "smol")
    with pytest.raises(ValueError, match="kv_aware needs kv_events"):
        real_router("vllm-router", "kv_aware", replicas.urls, "smol")
