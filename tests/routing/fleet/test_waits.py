"""What several clients wait at once, on two real replicas, and the prompts that they send."""

from __future__ import annotations

from collections import Counter

import pytest

from utils.routing.fleet.replicas import course_replicas
from utils.routing.fleet.waits import ask_together, mixed_notes
from utils.routing.policies import RoundRobin
from utils.routing.router.server import our_router


def test_long_and_short_notes_are_mixed_and_new_for_each_seed() -> None:
    prompts = mixed_notes(2, 3, 4, seed=5)
    assert Counter(prompt.group for prompt in prompts) == dict.fromkeys(range(5), 4)
    lengths = {prompt.group: len(prompt.text.split()) for prompt in prompts}
    assert all(lengths[group] > 400 for group in (0, 1))
    assert all(lengths[group] < 20 for group in (2, 3, 4))
    assert prompts == mixed_notes(2, 3, 4, seed=5)
    others = {prompt.text for prompt in mixed_notes(2, 3, 4, seed=6)}
    assert not others & {prompt.text for prompt in prompts}


def test_other_notes_can_come_in_the_same_order() -> None:
    one, other = mixed_notes(seed=5, order=1), mixed_notes(seed=6, order=1)
    assert [prompt.group for prompt in one] == [prompt.group for prompt in other]
    assert not {prompt.text for prompt in one} & {prompt.text for prompt in other}


@pytest.mark.slow
def test_every_request_is_timed_and_counted() -> None:
    prompts = mixed_notes(1, 2, 2, seed=1)
    with (
        course_replicas(
            2, num_gpu_blocks_override=400, max_model_len=512, max_num_seqs=2, verbose=False
        ) as replicas,
        our_router(RoundRobin(), replicas) as router,
    ):
        waited = ask_together(router.url, replicas, prompts, num_clients=3, max_tokens=2)
    assert len(waited.ttfts) == len(prompts) and (waited.ttfts > 0).all()
    assert waited.run.errors == [] and waited.run.num_requests == [3, 3]
    assert waited.ttfts.min() <= waited.percentile(50) <= waited.ttfts.max()
