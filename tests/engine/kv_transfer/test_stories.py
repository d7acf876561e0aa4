"""Random stories with a connector: whatever the store does, each request gets its own tokens."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.core.test_random_stories import World, play, stories
from tests.engine.kv_transfer.faults import UnreliableStore
from tests.scale import sized
from utils.engine import LLM
from utils.engine.kv_transfer.base import KVConnectorStats
from utils.engine.kv_transfer.pool_connector import PoolConnector
from utils.engine.kv_transfer.store import KVCacheStore, MemoryStore


class ConnectedWorld(World):
    """The world of the engine's own stories, with a connector in each engine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.plain_engine = self.llm.new_engine

    def play(self, store: KVCacheStore, layers: int | None, *story: Any) -> KVConnectorStats:
        connector = PoolConnector(store, layers, timeout=5.0, retry_after=0.0)
        self.llm.new_engine = partial(self.plain_engine, kv_connector=connector)  # type: ignore[method-assign]
        play(self, *story)
        assert not connector._chains  # every request has said goodbye
        connector.courier.stop()
        return connector.stats


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ConnectedWorld:
    return ConnectedWorld(tmp_path_factory.mktemp("connected"))


CALM = settings(
    deadline=None,
    max_examples=sized(3, 6),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("method", ["none", "ngram", "itself", "medusa", "eagle"])
@CALM
@given(config=stories(), seed=st.integers(0, 10**6), layers=st.sampled_from([None, 1]))
def test_a_store_that_works(world, method: str, config: dict, seed: int, layers) -> None:
    store = MemoryStore()
    for again in range(2):  # an engine that finds nothing, and one that finds the first one's
        stats = world.play(store, layers, method, config, seed + again % 2)
        assert not stats.failures and not stats.recomputed_tokens
        assert stats.loaded_blocks * config["block_size"] >= stats.hits


@pytest.mark.parametrize("method", ["ngram", "tree", "eagle tree"])
@CALM
@given(
    config=stories(),
    seed=st.integers(0, 10**6),
    layers=st.sampled_from([None, 1]),
    how_often=st.sampled_from([0.02, 0.1, 0.4]),
)
def test_a_store_that_does_not(
    world, method: str, config: dict, seed: int, layers, how_often: float
) -> None:
    store = UnreliableStore(seed, how_often)
    for _ in range(2):
        world.play(store, layers, method, config, seed)


def test_the_stories_are_not_idle(world: ConnectedWorld) -> None:
    config = dict(
        block_size=3,
        num_gpu_blocks=20,
        num_cpu_blocks=0,
        max_num_seqs=4,
        max_num_batched_tokens=11,
        scheduling_policy="fcfs",
        enable_prefix_caching=True,
    )
    calm, wild = MemoryStore(), UnreliableStore(0, 0.1)
    for store in (calm, wild):
        first, second = (world.play(store, None, "ngram", config, 12) for _ in range(2))
        assert first.saved_blocks > 20 and second.hits > 30
    assert second.failures["damaged"] and second.failures["error"] and second.recomputed_tokens
    assert set(wild.done) >= {"refuses", "loses", "dead", "lies", "flips a bit", "cuts", "mixes up"}
    assert isinstance(world.llm, LLM)
