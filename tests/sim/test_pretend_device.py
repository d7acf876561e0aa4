"""The pretend device takes its time, and gives each request that is up to date its token."""

from __future__ import annotations

import pytest

from utils.engine import LLM, SamplingParams
from utils.sim.pretend_device import engine_on_device

SECONDS = 0.002


@pytest.mark.parametrize("is_async", [False, True])
def test_all_write_one_word(llm: LLM, is_async: bool) -> None:
    engine = engine_on_device(
        llm, SECONDS, async_scheduling=is_async, max_num_batched_tokens=8, max_num_seqs=4
    )
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    for i, length in enumerate((3, 20)):  # the second one comes in chunks
        engine.add_request(str(i), list(range(100, 100 + length)), params)
    texts = {}
    while engine.has_unfinished_requests():
        texts |= {output.request_id: output.outputs[0].text for output in engine.step()}
    assert texts == {"0": " the" * 5, "1": " the" * 5}
    assert all(step.executed - step.started >= SECONDS for step in engine.step_trace)
    assert engine.kv_cache_manager.usage == 0
