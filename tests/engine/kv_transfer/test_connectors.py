"""Engines that share a store: who finds what, on the real model; and blocks from peer to peer."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.tiny_engines import Oracle, nothing_is_held, tiny_llama
from tests.near_ties import assert_same_but_for_ties
from tests.serving.waiting import PATIENCE, eventually
from utils.engine import LLM, ContiguousKVCache, SamplingParams, load_model
from utils.engine.config.model import ModelConfig
from utils.engine.kernels.packed_linear import pack_linears
from utils.engine.kv_transfer.base import KVConnectorBase
from utils.engine.kv_transfer.engine_child import create_connector
from utils.engine.kv_transfer.keys import block_keys, model_fingerprint
from utils.engine.kv_transfer.p2p import FRAME, Inbox, Outbox, P2pConsumer, P2pProducer
from utils.engine.kv_transfer.pool_connector import PoolConnector
from utils.engine.kv_transfer.store import MemoryStore, StoreError

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
RNG = random.Random(0)
PROMPT = [RNG.randrange(3, 13) for _ in range(50)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny_llama(path, seed=0)
    return path


@pytest.fixture(scope="module")
def tiny(folder: Path) -> LLM:
    return LLM(folder, max_model_len=96, block_size=4)


def run(
    llm: LLM, connector: KVConnectorBase | None, prompts=PROMPT, params=GREEDY, **parts
) -> list[list[int]]:
    llm.llm_engine = llm.new_engine(kv_connector=connector, **parts)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert nothing_is_held(llm)
    return [output.outputs[0].token_ids for output in outputs]


def hits(llm: LLM, store: MemoryStore, prompts=PROMPT, **parts) -> int:
    connector = PoolConnector(store)
    run(llm, connector, prompts, **parts)
    return connector.stats.hits


def test_tokens_are_huggingfaces_though_another_engine_computed_the_prompts(
    llm: LLM, prompts: list[list[int]], hf_model: PreTrainedModel, hf_greedy: Callable
) -> None:
    usual, some = llm.llm_engine, [prompt[:400] for prompt in prompts[::6]]
    expected = hf_greedy(some, 8)
    store, params = MemoryStore(), SamplingParams(temperature=0, max_tokens=8)
    for connector in (PoolConnector(store), PoolConnector(store)):
        assert_same_but_for_ties(hf_model, some, run(llm, connector, some, params), expected)
    # The second engine computes only the last, broken block of each prompt.
    assert connector.stats.hits >= sum((len(prompt) - 1) // 16 * 16 for prompt in some)
    assert not connector.stats.failures
    llm.llm_engine = usual


def test_who_may_share_does_and_who_must_not_does_not(tiny: LLM, folder: Path, tmp_path) -> None:
    store = MemoryStore()
    assert hits(tiny, store) == 0
    assert hits(tiny, store) == 48
    salted = {"prompt_token_ids": PROMPT, "cache_salt": "a tenant"}
    assert hits(tiny, store, [salted]) == 0
    assert hits(tiny, store, [salted]) == 48
    assert hits(tiny, store, changes={"block_size": 8}) == 0
    assert hits(LLM(folder, "bfloat16", max_model_len=96, block_size=4), store) == 0
    tiny_llama(tmp_path, seed=1)
    assert hits(LLM(tmp_path, max_model_len=96, block_size=4), store) == 0
    longer = PoolConnector(store, layers_per_value=1)
    run(tiny, longer)
    assert longer.stats.hits == 0  # values of one layer are other values
    # A prompt that leaves the known path is found up to there.
    assert hits(tiny, store, [[*PROMPT[:30], 3, 4, 5, 6, 7, 8]]) == 28


def test_an_adapter_has_keys_of_its_own(tiny: LLM) -> None:
    from utils.engine.core.kv_cache_utils import generate_block_hash_extra_keys

    [state] = tiny.llm_engine.inputs.from_prompts([PROMPT], GREEDY)
    request = state.request
    found = set()
    for request.lora_name in (None, "one", "two"):
        extra = generate_block_hash_extra_keys(request)
        found.add(block_keys(b"n" * 32, PROMPT, 4, extra)[-1])
    assert len(found) == 3


def test_the_fingerprint_is_that_of_the_weights(folder: Path) -> None:
    config = ModelConfig.from_pretrained(folder)
    plain, packed = (load_model(folder, config) for _ in range(2))
    pack_linears(packed)
    assert model_fingerprint(plain) == model_fingerprint(packed)
    with torch.no_grad():
        plain.model.layers[1].mlp.down_proj.weight[0, 0] += 1e-3
    assert model_fingerprint(plain) != model_fingerprint(packed)


def test_keys_depend_on_everything_before_and_grow() -> None:
    keys = block_keys(b"n", PROMPT, 4)
    assert len(keys) == 12 and len(set(keys)) == 12
    assert block_keys(b"n", PROMPT, 4, known=keys[:5]) == keys
    changed = block_keys(b"n", [7 if i == 17 else t for i, t in enumerate(PROMPT)], 4)
    assert [a == b for a, b in zip(keys, changed, strict=True)] == [i < 4 for i in range(12)]


def test_damage_is_repaired(tiny: LLM) -> None:
    store = MemoryStore()
    want = run(tiny, PoolConnector(store))
    third = store.keys()[2]
    store.store(third, store.retrieve(third)[:-1] + b"\x55")  # type: ignore[index]
    second, later = PoolConnector(store), PoolConnector(store)
    assert run(tiny, second) == want
    assert second.stats.failures == {"damaged": 1}
    assert second.stats.recomputed_tokens > 0
    assert run(tiny, later) == want
    assert not later.stats.failures and later.stats.hits == 48


def test_a_seed_gives_the_same_tokens_though_a_step_was_taken_back(tiny: LLM) -> None:
    drawn = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
    store = MemoryStore()
    want = run(tiny, PoolConnector(store), params=drawn)
    first = store.keys()[0]
    store.store(first, b"nonsense")
    connector = PoolConnector(store)
    assert run(tiny, connector, params=drawn) == want
    assert connector.stats.failures == {"damaged": 1}


def test_bad_connectors_are_refused(tiny: LLM) -> None:
    connector = PoolConnector(MemoryStore())
    run(tiny, connector)
    with pytest.raises(ValueError, match="another engine already"):
        tiny.new_engine(kv_connector=connector)
    with pytest.raises(ValueError, match="paged KV cache"):
        tiny.new_engine(kv_cache_class=ContiguousKVCache, kv_connector=PoolConnector(MemoryStore()))
    with pytest.raises(ValueError, match="layers_per_value"):
        PoolConnector(MemoryStore(), layers_per_value=0)
    with pytest.raises(ValueError, match="Unknown connector 'Nixl'"):
        create_connector("Nixl", {})

    class Boastful(PoolConnector):
        def get_num_new_matched_tokens(self, request, num_computed_tokens):
            return 50, False

    with pytest.raises(ValueError, match="multiple of the block size"):
        run(tiny, Boastful(MemoryStore()))


# --- peer to peer ---------------------------------------------------------------------------------


def test_frames_arrive_and_strangers_are_shown_out() -> None:
    inbox = Inbox(max_bytes=100)
    outbox = Outbox(inbox.port)
    outbox.store_many({b"a": b"1" * 40, b"b": b"2" * 40})
    outbox.store(b"c", b"3" * 40)
    eventually(lambda: inbox.contains(b"c"), "the frames arrive")
    assert not inbox.contains(b"a") and inbox.retrieve(b"b") == b"2" * 40
    assert inbox.retrieve(b"b") is None  # once
    for rubbish in (b"GET / HTTP/1.1\r\n\r\n      ", FRAME.pack(b"KVF1", 1, 1 << 60)):
        stranger = socket.create_connection(("127.0.0.1", inbox.port))
        with contextlib.suppress(ConnectionResetError):
            stranger.sendall(rubbish)
            assert stranger.recv(1) == b""
        stranger.close()
    outbox.store(b"d", b"4")
    eventually(lambda: inbox.contains(b"d"), "the frame arrives")
    inbox.close()
    with pytest.raises(StoreError, match="Cannot send"):
        for _ in range(9):
            outbox.store(b"e", b"5" * 10**6)


@pytest.mark.parametrize("layers", [None, 1])
@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_either_may_come_first(tiny: LLM, folder: Path, layers, first: str) -> None:
    oracle = Oracle(tiny_llama(folder, seed=0))
    consumer = P2pConsumer(layers_per_value=layers, patience=PATIENCE)
    producer = P2pProducer(consumer.inbox.port, layers_per_value=layers)
    one_token = SamplingParams(temperature=0, max_tokens=1)
    other = LLM(folder, max_model_len=96, block_size=4)
    prompts = [PROMPT, PROMPT[:20], PROMPT[5:40]]

    def prefill() -> None:
        if first == "decode":
            eventually(lambda: len(consumer._waiting) == len(prompts), "all wait for their blocks")
        run(other, producer, prompts, one_token)

    thread = threading.Thread(target=prefill)
    thread.start()
    if first == "prefill":
        thread.join()
    params = SamplingParams(temperature=0, max_tokens=10)
    answers = run(tiny, consumer, prompts, params)
    thread.join()
    for prompt, answer in zip(prompts, answers, strict=True):
        assert oracle.explains(prompt, answer, 10)
    # 48 + 32 tokens; or the second prompt is complete first, and leaves the first one five blocks.
    assert consumer.stats.hits in (80, 76) and not consumer.stats.failures
    assert not consumer._waiting and not producer.stats.failures
    for connector in (producer, consumer):
        connector.shutdown()


def test_decode_goes_on_without_a_producer_that_does_not_come_or_dies(tiny: LLM) -> None:
    want = run(tiny, None)
    consumer = P2pConsumer(patience=0.2)
    assert run(tiny, consumer) == want
    assert consumer.stats.hits == 0
    consumer, came_late = P2pConsumer(patience=10**6), threading.Event()

    def die() -> None:
        eventually(lambda: consumer._waiting, "a request waits")
        socket.create_connection(("127.0.0.1", consumer.inbox.port)).close()
        try:
            eventually(lambda: not consumer._waiting, "it does not wait any more")
        except AssertionError:
            came_late.set()
            consumer.patience = 0.0

    dying = threading.Thread(target=die)
    dying.start()
    assert run(tiny, consumer) == want
    dying.join()
    assert not came_late.is_set()
    short = P2pConsumer(patience=10**6, min_tokens=len(PROMPT) + 1)
    assert run(tiny, short) == want
