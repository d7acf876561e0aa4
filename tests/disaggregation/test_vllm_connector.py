"""Our connector in vLLM's real scheduler: what is found, loaded and saved, and every failure."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from redis import Redis
from vllm.v1.request import Request, RequestStatus

from tests.disaggregation.vllm_without_server import BLOCK, Engine
from utils.checks.lab_16 import answers
from utils.checks.lab_16.inside_vllm import LearnersConnector
from utils.checks.lab_16.learners_parts import Parts
from utils.disaggregation.block_store import BlockStore
from utils.disaggregation.valkey import ValkeyServer

Make = Callable[..., Engine]


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    """vLLM writes into it when it is configured."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def store() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def client(store: ValkeyServer) -> Iterator[Redis]:
    client = store.client(timeout=60)
    client.flushall()
    yield client


@pytest.fixture
def make(model_path: Path, store: ValkeyServer, client: Redis) -> Iterator[Make]:
    """Makes engines. Their threads end with the test, not when the collector finds them."""
    engines = []

    def one_more(port: int = store.port, **options: Any) -> Engine:
        engines.append(Engine(model_path, port, **options))
        return engines[-1]

    yield one_more
    for engine in engines:
        engine.worker.shutdown()


def prompt(length: int, seed: int = 0) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(3, 1000) for _ in range(length)]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 100, 250])
def test_the_second_engine_loads_all_full_blocks_but_the_last_token(
    make: Make, client: Redis, length: int
) -> None:
    first, second = make(), make()
    (answer,) = first.run(first.add(prompt(length)))
    assert client.dbsize() == length // BLOCK
    request = second.add(prompt(length))
    assert second.run(request) == [answer]
    found = (length - 1) // BLOCK * BLOCK
    assert second.computed[request.request_id] == length + 1 - found
    assert second.stats() == (length, found)


def test_the_search_stops_at_the_first_miss(make: Make, client: Redis) -> None:
    first, second = make(), make()
    keys: list[bytes] = []
    for end in range(BLOCK, 5 * BLOCK, BLOCK):  # block after block, so that their order is known
        first.run(first.add(prompt(end)))
        keys += set(client.keys()) - set(keys)
    client.delete(keys[1])
    request = second.add(prompt(100))
    second.run(request)
    assert second.stats() == (100, BLOCK)  # blocks 2 and 3 are there, and of no use


def test_own_blocks_come_first_and_the_store_goes_on_from_there(make: Make) -> None:
    first, second = make(), make()
    first.run(first.add(prompt(100)))
    second.run(second.add(prompt(40)))
    assert second.stats() == (40, 32)
    request = second.add(prompt(100))
    second.run(request)
    assert second.stats() == (100 - 32, 96 - 32)
    assert second.computed[request.request_id] == 100 + 1 - 96


def test_many_at_once_with_the_same_beginning(make: Make) -> None:
    first, second = make(), make()
    prompts = [prompt(80) + prompt(30, seed) for seed in range(5)]
    answers = [first.run(first.add(p))[0] for p in prompts]
    assert second.run(*[second.add(p) for p in prompts]) == answers


def test_it_works_when_memory_is_short_and_requests_are_preempted(make: Make) -> None:
    first, second = make(), make(num_blocks=18)
    prompts = [prompt(70, seed) for seed in range(3)]
    answers = [first.run(first.add(p, max_tokens=40))[0] for p in prompts]
    requests = [second.add(p, max_tokens=40) for p in prompts]
    assert second.run(*requests) == answers
    assert sum(request.num_preemptions for request in requests) > 0


@pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "another block's"])
@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_damaged_block_is_computed_and_repaired(
    make: Make, client: Redis, damage: str, which: str
) -> None:
    first, second, third = make(), make(), make()
    keys: list[bytes] = []
    for end in range(BLOCK, 6 * BLOCK, BLOCK):
        first.run(first.add(prompt(end)))
        keys += set(client.keys()) - set(keys)
    (answer,) = first.run(first.add(prompt(85)))
    bad = {"first": 0, "middle": 2, "last": 4}[which]
    value = client.get(keys[bad])
    assert isinstance(value, bytes)
    client.set(
        keys[bad],
        {
            "a bit": value[:50] + bytes([value[50] ^ 1]) + value[51:],
            "cut": value[:-4],
            "empty": b"",
            "another block's": client.get(keys[(bad + 1) % 5]),
        }[damage],
    )
    request = second.add(prompt(85))
    assert second.run(request) == [answer]
    assert second.computed[request.request_id] == 85 + 1 - bad * BLOCK
    repaired = third.add(prompt(85))
    assert third.run(repaired) == [answer] and third.computed[repaired.request_id] == 86 - 80


def test_an_intact_value_of_another_size_is_promised_only_once(
    make: Make, client: Redis, store: ValkeyServer
) -> None:
    first, second = make(), make()
    (answer,) = first.run(first.add(prompt(85)))
    names = list(client.scan_iter())
    client.flushall()
    BlockStore(store.port, 60.0).save([(name, b"another layout") for name in names])
    request = second.add(prompt(85))
    assert second.run(request) == [answer]
    assert second.computed[request.request_id] == 86


def test_with_others_that_share_the_damaged_beginning(make: Make, client: Redis) -> None:
    first, second = make(), make(max_batched=32)
    prompts = [prompt(80) + prompt(20, seed) for seed in range(4)]
    answers = [first.run(first.add(p))[0] for p in prompts]
    for key in client.scan_iter():
        client.set(key, b"no block")
    assert second.run(*[second.add(p) for p in prompts]) == answers


@pytest.mark.parametrize("failure", ["dead", "stalled", "full", "emptied"])
def test_a_failing_store_costs_a_recompute(make: Make, failure: str) -> None:
    with ValkeyServer(eviction="noeviction") as store:
        patience = 0.3 if failure == "stalled" else 60.0  # such a store answers to nobody
        first, second = make(store.port), make(store.port, timeout=patience)
        if failure == "full":
            store.client(timeout=60).config_set("maxmemory", 1)
        (answer,) = first.run(first.add(prompt(100)))
        assert store.stats().keys == (0 if failure == "full" else 6)
        if failure == "dead":
            store.kill()
        elif failure == "stalled":
            store.pause()
        elif failure == "emptied":
            store.client(timeout=60).flushall()
        request = second.add(prompt(100))
        assert second.run(request) == [answer]
        assert second.computed[request.request_id] == 101


def test_a_store_that_dies_between_the_promise_and_the_load(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ValkeyServer() as store:
        first, second = make(store.port), make(store.port)
        (answer,) = first.run(first.add(prompt(100)))
        connector = second.scheduler.connector
        assert connector is not None
        ask = connector.get_num_new_matched_tokens

        def promise(request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
            found = ask(request, num_computed_tokens)
            store.kill()
            return found

        monkeypatch.setattr(connector, "get_num_new_matched_tokens", promise)
        request = second.add(prompt(100))
        assert second.run(request) == [answer]
        assert second.stats()[1] == 96 and second.computed[request.request_id] == 101


def test_with_the_policy_fail_the_request_ends_in_an_error(make: Make, client: Redis) -> None:
    first, second = make(), make(policy="fail")
    first.run(first.add(prompt(100)))
    for key in client.scan_iter():
        client.set(key, b"no block")
    request = second.add(prompt(100))
    second.run(request)
    assert str(request.get_finished_reason()) == "error"


def test_kv_of_something_else_is_never_found(
    make: Make, client: Redis, small_copy: Path, store: ValkeyServer
) -> None:
    first = make()
    first.run(first.add(prompt(100)))
    others = {
        "another dtype": (make(dtype="bfloat16"), None),
        "another model": (Engine(small_copy, store.port), None),
        "another tenant": (make(), "tenant 2"),
    }
    for name, (engine, salt) in others.items():
        engine.run(engine.add(prompt(100), salt=salt))
        assert engine.stats() == (100, 0), name
    same = make()
    same.run(same.add(prompt(100), salt="tenant 2"))
    assert same.stats() == (100, 96)


@pytest.fixture
def small_copy(model_path: Path, tmp_path: Path) -> Path:
    """The same files in another folder: nobody can know that they are the same."""
    for file in model_path.iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


def test_a_producer_does_not_load_and_a_consumer_does_not_save(make: Make, client: Redis) -> None:
    consumer = make(role="kv_consumer")
    consumer.run(consumer.add(prompt(100)))
    assert client.dbsize() == 0
    producer = make(role="kv_producer")
    producer.run(producer.add(prompt(100)))
    assert client.dbsize() == 6
    again = make(role="kv_producer")
    request = again.add(prompt(100))
    again.run(request)
    assert again.computed[request.request_id] == 101
    consumer = make(role="kv_consumer")
    consumer.run(consumer.add(prompt(100)))
    assert consumer.stats() == (100, 96)


def test_nothing_is_remembered_of_a_finished_or_aborted_request(make: Make) -> None:
    first, second = make(), make()
    first.run(first.add(prompt(100)))
    request = second.add(prompt(100))
    second.step()
    second.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    for _ in range(20):
        second.step()
    connector = second.scheduler.connector
    assert connector is not None
    books = (connector.keys, connector.blocks, connector.first, connector.tried, connector.loads)  # type: ignore[attr-defined]
    assert not any(books)


def test_with_a_learners_parts_in_it_it_does_the_same(
    make: Make, store: ValkeyServer, client: Redis, tmp_path: Path
) -> None:
    file = tmp_path / "parts"
    parts = Parts(
        answers.chunk_keys,
        answers.matched_tokens,
        answers.LRUStore,
        answers.blocks_to_save,
        answers.SchedulerSide,
        answers.extract_block,
        answers.inject_block,
    )
    file.write_bytes(cloudpickle.dumps(parts))
    first, second = (make(connector=LearnersConnector, parts=str(file)) for _ in range(2))
    (answer,) = first.run(first.add(prompt(100)))
    request = second.add(prompt(100))
    assert second.run(request) == [answer] and second.stats() == (100, 96)
    values = {name: client.get(name) for name in client.scan_iter()}
    for name, value in values.items():  # the learner's own function refuses these
        client.delete(name)
        BlockStore(store.port, 60.0).save([(name, b"x" * (len(value) - 8))])
    third = make(connector=LearnersConnector, parts=str(file))
    request = third.add(prompt(100))
    assert third.run(request) == [answer] and third.computed[request.request_id] == 101
