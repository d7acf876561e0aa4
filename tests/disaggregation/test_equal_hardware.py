"""The same traffic for two engines: against engines that answer by a formula."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from utils.disaggregation.equal_hardware import Served, replay, table, traffic
from utils.engine.kv_transfer.engine_process import EngineProcess, ProcessAnswer

KINDS = {"chat": (20, 4), "document": (300, 2)}


class Fake:
    """Answers a token every 10 ms, the first after 50 ms, without computing anything."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, list[int], int]] = []
        self.warmed = self.forgot = 0

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[Any]:
        self.warmed += 1
        return []

    def reset_prefix_cache(self) -> None:
        self.forgot += 1

    def submit(self, prompt: list[int], max_tokens: int) -> int:
        self.asked.append((time.perf_counter(), prompt, max_tokens))
        return len(self.asked) - 1

    def result(self, number: int) -> ProcessAnswer:
        arrival, prompt, max_tokens = self.asked[number]
        times = [arrival + 0.05 + 0.01 * i for i in range(max_tokens)]
        return ProcessAnswer(prompt[:max_tokens], arrival, times, 0)


def test_traffic_is_the_same_for_the_same_seed_and_has_all_kinds() -> None:
    once, again = traffic(KINDS, 5, 2.0, seed=3), traffic(KINDS, 5, 2.0, seed=3)
    assert once == again != traffic(KINDS, 5, 2.0, seed=4)
    assert [a.at for a in once] == sorted(a.at for a in once) and 0 <= once[0].at <= 2.0
    for kind, (prompt_tokens, max_tokens) in KINDS.items():
        mine = [a for a in once if a.kind == kind]
        assert len(mine) == 5
        assert {(len(a.prompt), a.max_tokens) for a in mine} == {(prompt_tokens, max_tokens)}


def test_count_and_seconds_must_be_positive() -> None:
    for count, seconds in ((0, 1.0), (1, 0.0)):
        with pytest.raises(ValueError, match="must be positive"):
            traffic(KINDS, count, seconds)


def test_each_request_goes_where_it_should_when_it_is_due() -> None:
    fakes = [Fake(), Fake()]
    engines = [cast(EngineProcess, fake) for fake in fakes]
    arrivals = traffic(KINDS, 3, 0.3, seed=1)
    served = replay(arrivals, lambda _, a: engines[a.kind == "document"], engines)
    assert [fake.warmed for fake in fakes] == [fake.forgot for fake in fakes] == [1, 1]
    for fake, kind in zip(fakes, KINDS, strict=True):
        assert [p for _, p, _ in fake.asked] == [a.prompt for a in arrivals if a.kind == kind]
    for arrival, answer in zip(arrivals, served, strict=True):
        assert answer.kind == arrival.kind and len(answer.times) == arrival.max_tokens
        assert answer.ttft >= 0.05 - 1e-6  # never sent before it is due
        assert answer.longest_gap == pytest.approx(0.01)


def test_the_table_says_what_was_measured() -> None:
    one = [Served("chat", 0.5, [1.0, 1.1, 1.4], [7, 8, 9]), Served("document", 2.0, [3.0], [5])]
    other = [Served("chat", 0.5, [1.0, 1.1, 1.2], [7, 8, 1]), Served("document", 1.0, [2.0], [5])]
    lines = table({"a": one, "b": other}).splitlines()
    assert "TTFT chat" in lines[0] and "TTFT document" in lines[0]
    assert " ".join(lines[1].split()) == "a 300 ms 200 ms 0.50 s 2.00 s 3.0 s 2 of 2"
    assert " ".join(lines[2].split()) == "b 100 ms 100 ms 0.50 s 1.00 s 2.0 s 1 of 2"
