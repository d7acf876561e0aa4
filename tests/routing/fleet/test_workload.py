"""The workload of prompt groups, and the hit rate foretold for it, against the engine itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from utils.engine import LLM, SamplingParams
from utils.routing.fleet.workload import predicted_hit_rate, prompt_groups, routing_requests
from utils.routing.policies import RoutingRequest
from utils.routing.router.block_names import block_names


def test_rounds_of_groups_that_share_their_beginning() -> None:
    prompts = prompt_groups(4, 3, num_words=20)
    assert [sorted(p.group for p in prompts[i : i + 4]) for i in (0, 4, 8)] == [[0, 1, 2, 3]] * 3
    assert len({prompt.text for prompt in prompts}) == 12
    for group in range(4):
        texts = [prompt.text for prompt in prompts if prompt.group == group]
        assert len({text.partition(" Question")[0] for text in texts}) == 1
    assert prompts == prompt_groups(4, 3, num_words=20)
    # Another seed: the same order, and not a context in common.
    others = prompt_groups(4, 3, num_words=20, seed=1)
    assert [p.group for p in others] == [p.group for p in prompts]
    assert not {p.text[:30] for p in others} & {p.text[:30] for p in prompts}


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_prediction_is_what_engines_find(llm: LLM, tokenizer: Any, replicas: int) -> None:
    prompts = prompt_groups(2, 2, num_words=30)
    requests = routing_requests(prompts, tokenizer, 16)
    params = SamplingParams(temperature=0, max_tokens=1)
    engines = [llm.new_engine() for _ in range(replicas)]
    queries = hits = 0
    for i, prompt in enumerate(prompts):
        engine = engines[i % replicas]
        engine.add_request(str(i), prompt.text, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                queries += len(output.prompt_token_ids)
                hits += output.num_cached_tokens or 0
    turn = {request.request_id: i % replicas for i, request in enumerate(requests)}
    found = predicted_hit_rate(requests, 16, lambda request: turn[request.request_id])
    assert found == pytest.approx(hits / queries) and (replicas == 2 or hits > 0)


def test_of_a_prompt_that_ends_with_a_block_the_last_one_is_computed(tiny_folder: Path) -> None:
    prompt = [3, 4, 5, 6, 7, 8, 9, 10]
    tiny = LLM(tiny_folder, block_size=4)
    params = SamplingParams(temperature=0, max_tokens=1)
    found = [tiny.generate([prompt], params, use_tqdm=False)[0].num_cached_tokens for _ in "ab"]
    requests = [RoutingRequest(i, block_names(prompt, 4), len(prompt)) for i in range(2)]
    assert predicted_hit_rate(requests, 4) == sum(n or 0 for n in found) / 16 == 4 / 16


def test_notes_share_less_than_a_routers_cache_threshold() -> None:
    """So a new note is no match for `cache_aware`, and goes to the least loaded replica."""
    first = [prompt.text for prompt in prompt_groups(num_groups=6, requests_per_group=1, seed=11)]
    for text in first[1:]:
        same = [one == other for one, other in zip(first[0], text, strict=False)]
        assert same.index(False) < 0.05 * len(text)
