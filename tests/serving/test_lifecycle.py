"""Clients that leave, steps that fail, limits, and what is counted meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.engine.tiny_engines import nothing_is_held
from tests.serving.conftest import Served, Steps, serve, slow_down
from tests.serving.waiting import PATIENCE, eventually
from utils.engine import LLM

LONG: dict[str, Any] = dict(prompt=[3, 4, 5, 6, 7], max_tokens=120, temperature=0, ignore_eos=True)


@pytest.fixture
def slow(tiny: LLM) -> Iterator[Served]:
    """A server whose steps take a while, so that its clients have time to do something."""
    slow_down(tiny.llm_engine, 0.02)
    with serve(tiny.llm_engine) as served:
        yield served


@pytest.fixture
def steps(tiny: LLM) -> Iterator[Steps]:
    """The steps of the `held` server: none is made before the test allows it."""
    steps = Steps(tiny.llm_engine)
    yield steps
    steps.allow_all()


@pytest.fixture
def held(tiny: LLM, steps: Steps) -> Iterator[Served]:
    with serve(tiny.llm_engine, max_num_queued_reqs=6) as served:
        yield served
        steps.allow_all()  # also of a test that failed: the server ends with its engine


def leave_after(served: Served, num_lines: int, **body: Any) -> None:
    """Read the beginning of a stream, and close the connection."""
    client = httpx.Client(base_url=served.url, timeout=PATIENCE, trust_env=False)
    with client, client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
        lines = stream.iter_lines()
        for _ in range(num_lines):
            next(lines)


def num_tokens(served: Served) -> float:
    return served.metrics().value("vllm:generation_tokens_total")


@pytest.mark.parametrize("leave", ["stream", "whole"])
def test_who_leaves_frees_the_blocks_and_stops_the_work(
    held: Served, steps: Steps, tiny: LLM, leave: str
) -> None:
    begin = held.metrics()
    steps.allow(10)
    if leave == "stream":
        leave_after(held, 1, **LONG, n=1)  # on a busy machine one line may hold all ten tokens
    else:
        connection = held.ask(**LONG)
        eventually(lambda: num_tokens(held) >= 3, "the answer is being written")
        connection.close()
    eventually(lambda: held.engine.num_requests == 0, "nobody is counted")
    steps.allow_all()
    eventually(lambda: nothing_is_held(tiny), "everything is freed")
    gained = held.metrics().since(begin)
    assert gained.value("vllm:request_success_total", finished_reason="abort") == 1
    num_written = gained.value("vllm:generation_tokens_total")
    # Ten steps, and the few that an engine makes before it reads what it was told.
    assert 0 < num_written < 20  # of 120
    reading = held.metrics()
    assert reading.value("vllm:num_requests_running") == 0
    assert reading.value("vllm:kv_cache_usage_perc") == 0
    assert reading.since(begin).value("vllm:generation_tokens_total") == num_written


def test_who_leaves_while_waiting_is_forgotten(held: Served, steps: Steps, tiny: LLM) -> None:
    def number(state: str, after: int = 0) -> float:
        steps.allow(after)
        return held.metrics().value(f"vllm:num_requests_{state}")

    threads = [threading.Thread(target=leave_after, args=(held, 80), kwargs=LONG) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: held.engine.num_requests == 4, "all four are there")
    eventually(lambda: number("running", after=1) == 4, "all slots are full")
    connection = held.ask(**LONG)  # there are four slots
    eventually(lambda: number("waiting", after=1) == 1, "it waits")
    connection.close()
    eventually(lambda: held.engine.num_requests == 4, "nobody counts it any more")
    eventually(lambda: number("waiting", after=1) == 0, "it left the queue")
    assert held.metrics().value("vllm:request_queue_time_seconds_count") == 0  # it was never let in
    steps.allow_all()
    for thread in threads:
        thread.join()
    eventually(lambda: nothing_is_held(tiny), "everything is freed")


def test_the_others_do_not_notice_who_leaves(slow: Served, tiny: LLM) -> None:
    body = LONG | {"prompt": [9, 8, 7], "max_tokens": 30}
    alone = slow.complete(**body).json()["choices"][0]["text"]
    texts: list[str] = []

    def ask() -> None:
        texts.append(slow.complete(**body).json()["choices"][0]["text"])

    thread = threading.Thread(target=ask)
    thread.start()
    leave_after(slow, 4, **LONG)
    thread.join()
    assert texts == [alone]


def test_answers_of_a_family_leave_together(held: Served, steps: Steps, tiny: LLM) -> None:
    steps.allow(10)
    leave_after(held, 1, **LONG | {"temperature": 1, "n": 3, "seed": 1})
    eventually(lambda: held.engine.num_requests == 0, "nobody is counted")
    steps.allow_all()
    eventually(lambda: nothing_is_held(tiny), "all three are freed")
    success = held.metrics().value("vllm:request_success_total", finished_reason="abort")
    assert success == 3


def test_more_than_the_limit_are_told_to_come_back(held: Served, steps: Steps) -> None:
    def rejected() -> float:
        return held.metrics().value("vllm:admission_rejections_total")

    async def ask_all() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=held.url, timeout=2 * PATIENCE) as client:
            body = LONG | {"max_tokens": 10}
            jobs = [
                client.post("/v1/completions", json=body | {"stream": i % 2 == 0})
                for i in range(20)
            ]
            return await asyncio.gather(*jobs)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(asyncio.run, ask_all())
        try:  # nobody gets an answer before all have asked
            eventually(lambda: rejected() == 14 or asking.done(), "all others are refused")
            assert held.engine.num_requests == 6
        finally:
            steps.allow_all()
        answers = asking.result()
    counts = Counter(answer.status_code for answer in answers)
    assert counts == {200: 6, 503: 14}
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert refused.headers["Retry-After"] == "1"
    assert "6 is the limit" in refused.json()["error"]["message"]
    assert rejected() == 14
    assert held.complete(**LONG | {"max_tokens": 2}).status_code == 200
    never = held.complete(**LONG | {"prompt": [[3]] * 7})
    assert never.status_code == 400 and "at most 6 requests at a time" in never.text


def test_a_step_that_fails_fails_its_requests_and_no_others(served: Served, tiny: LLM) -> None:
    right = served.complete(**LONG).json()["choices"][0]["text"]
    execute, calls = tiny.llm_engine.executor.execute_model, Counter[str]()

    def fail_at_the_fourth(output: Any) -> Any:
        calls["steps"] += 1
        if calls["steps"] == 4:
            raise RuntimeError("the memory is on fire")
        return execute(output)

    tiny.llm_engine.executor.execute_model = fail_at_the_fourth  # type: ignore[method-assign]
    response = served.complete(**LONG)
    assert response.status_code == 500
    assert "the memory is on fire" in response.json()["error"]["message"]
    assert nothing_is_held(tiny)
    calls.clear()
    text = served.complete(**LONG, stream=True).text
    assert '"delta"' not in text and text.rstrip().endswith("[DONE]")
    assert "the memory is on fire" in text and '"code": 500' in text
    assert served.http.get("/health").status_code == 200
    assert served.complete(**LONG).json()["choices"][0]["text"] == right


def test_an_engine_that_died_says_so(served: Served, tiny: LLM) -> None:
    def die() -> None:
        raise RuntimeError("out of luck")

    assert served.http.get("/health").status_code == 200
    served.engine._inbox.put(die)
    eventually(lambda: served.http.get("/health").status_code == 503, "it is not healthy")
    response = served.complete(**LONG)
    assert response.status_code == 503 and "out of luck" in response.json()["error"]["message"]


def test_shutting_down_lets_requests_finish(tiny: LLM, steps: Steps) -> None:
    answers: list[httpx.Response] = []

    def go_on_in_the_end() -> None:
        eventually(lambda: served.server.should_exit, "the server shuts down")
        steps.allow_all()

    with serve(tiny.llm_engine) as served:
        body = LONG | {"max_tokens": 20}
        threads = [
            threading.Thread(target=lambda: answers.append(served.complete(**body))),
            threading.Thread(target=go_on_in_the_end),
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: served.engine.num_requests == 1, "the request is there")
    for thread in threads:
        thread.join()
    assert answers[0].json()["usage"]["completion_tokens"] == 20
    assert nothing_is_held(tiny) and not served.engine._thread.is_alive()


def test_who_waits_when_the_engine_stops_is_told(tiny: LLM, steps: Steps) -> None:
    with serve(tiny.llm_engine) as served:
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(served.complete(**LONG)))
        thread.start()
        eventually(lambda: served.engine.num_requests == 1, "the request is there")
        served.engine.stop()
        steps.allow_all()  # the step that is running may end
        served.engine.shutdown(PATIENCE)
        thread.join()
    assert answers[0].status_code == 503 and "shutting down" in answers[0].text
    assert nothing_is_held(tiny)


def test_metrics_agree_with_what_was_sent(served: Served) -> None:
    begin = served.metrics()
    assert begin.value("vllm:generation_tokens_total") == 0
    usages, num_answers = [], 0
    for i in range(6):
        n = 1 + i % 2
        body = dict(prompt=[3, 4, 5, 6] * 3 + [i], max_tokens=4 + i, temperature=1, seed=i, n=n)
        usages.append(served.complete(**body).json()["usage"])
        num_answers += n
    gained = served.metrics().since(begin)
    totals = {
        name: sum(usage[name] for usage in usages)
        for name in usages[0]
        if name[-1] != "d" and name != "prompt_tokens_details"
    }
    assert gained.value("vllm:prompt_tokens_total") == totals["prompt_tokens"]
    assert gained.value("vllm:generation_tokens_total") == totals["completion_tokens"]
    hits = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert gained.value("vllm:prefix_cache_hits_total") == hits > 0
    assert gained.value("vllm:prefix_cache_queries_total") == totals["prompt_tokens"]
    assert gained.value("vllm:request_success_total") == num_answers
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert gained.value(f"vllm:{name}_seconds_count") == 6
    gaps = totals["completion_tokens"] - num_answers
    assert gained.value("vllm:inter_token_latency_seconds_count") == gaps
    steps = gained.value("vllm:iteration_tokens_total_count")
    assert gained.value("vllm:iteration_tokens_total_sum") >= totals["completion_tokens"]
    assert 0 < steps < totals["completion_tokens"] + 1
    assert gained.value("course:engine_seconds_total", part="execute") > 0
    assert served.metrics().value("vllm:num_requests_running") == 0


def test_a_slow_reader_gets_everything(slow: Served) -> None:
    body = LONG | {"max_tokens": 40}
    whole = slow.complete(**body).json()["choices"][0]["text"]
    with slow.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
        eventually(lambda: slow.engine.num_requests == 0, "the server is done")
        text = "".join(stream.iter_text())
    pieces = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == whole
