"""What the benchmark of growth measures, with engines whose times are known."""

from __future__ import annotations

from typing import Any

import pytest
from tqdm.auto import tqdm

from benchmarks import growth
from benchmarks.growth import CONTEXTS, LIMITS, REQUESTS, STEPS, measure


class Known:
    """1 ms per prompt token that is not cached, 2 ms per token written, 5 ms per call."""

    def __init__(self, name: str, log: list[str], times: float = 1.0) -> None:
        self.name, self.log, self.times = name, log, times
        self.cache: set[tuple[int, ...]] = set()

    def run(
        self, prompts: list[list[int]], max_tokens: list[int], cached: bool = False
    ) -> dict[str, Any]:
        self.log.append(self.name)
        if not cached:
            self.cache.clear()
        assert len(prompts) == len(max_tokens) <= LIMITS.max_num_seqs
        new = 0
        for prompt, written in zip(prompts, max_tokens, strict=True):
            assert len(prompt) + written <= LIMITS.max_model_len
            new += 0 if tuple(prompt) in self.cache else len(prompt)
            self.cache.add(tuple(prompt))
        return {"seconds": self.times * (0.005 + 0.001 * new + 0.002 * sum(max_tokens))}


@pytest.mark.parametrize("size", REQUESTS)
def test_a_step_of_many_requests_is_free_of_prompts_and_calls(size: int) -> None:
    engines = [Known("ours", []), Known("vLLM", [], times=3)]
    found = measure(engines, "requests", size, 2, tqdm(disable=True))
    assert found["ours"] == pytest.approx([0.002 * size] * 2)
    assert found["vLLM"] == pytest.approx([0.006 * size] * 2)
    ends = {len(prompt) + growth.WRITTEN for prompt in engines[0].cache}
    assert ends == {growth.SHORT} and len(engines[0].cache) == size


@pytest.mark.parametrize("size", CONTEXTS)
def test_contexts_and_prompts_end_where_they_are_said_to(size: int) -> None:
    engine = Known("ours", [])
    found = measure([engine], "context", size, 1, tqdm(disable=True))
    assert found["ours"] == pytest.approx([0.002 * growth.FEW])
    assert {len(prompt) for prompt in engine.cache} == {size - growth.WRITTEN}
    assert growth.WRITTEN > STEPS
    found = measure([engine], "prompt", size, 1, tqdm(disable=True))
    assert found["ours"] == pytest.approx([0.005 + 0.001 * (size - 1) + 0.002])


def test_engines_take_turns_and_a_failure_is_told() -> None:
    log: list[str] = []
    engines = [Known("ours", log), Known("vLLM", log)]
    measure(engines, "prompt", 256, 2, tqdm(disable=True))
    assert log == ["ours", "vLLM", "ours", "vLLM", "vLLM", "ours"]
    engines[1].run = lambda *_, **__: {"error": "no memory"}
    with pytest.raises(RuntimeError, match="no memory"):
        measure(engines, "prompt", 256, 2, tqdm(disable=True))
