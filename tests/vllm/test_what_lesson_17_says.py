"""What notebook 17 says about vLLM's queue and caches, held against the installed vLLM."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("vllm")


def test_a_prompt_counts_as_running_from_its_first_chunk_on() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    counts = inspect.getsource(Scheduler.get_request_counts)
    assert "return len(self.running), len(self.waiting)" in counts
    code = inspect.getsource(Scheduler.schedule)
    assert "self.running.append(request)" in code


def test_blocks_are_looked_up_and_stored_when_scheduled_and_events_leave_after_the_step() -> None:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler

    assert "cache_blocks(" in inspect.getsource(KVCacheManager.allocate_slots)
    assert "_get_local_prefix_cache_hit(" in inspect.getsource(Scheduler.schedule)
    assert "take_events()" not in inspect.getsource(Scheduler.schedule)
    assert "self.kv_event_publisher.publish(" in inspect.getsource(Scheduler.update_from_output)
