"""KV events against vLLM's own classes: the same bytes, and each decodes the other's."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
import vllm.distributed.kv_events as theirs
from hypothesis import given
from hypothesis import strategies as st
from vllm.config.kv_events import KVEventsConfig as TheirConfig

from utils.kv_events import kv_events as ours

HASH = st.integers(0, 2**64 - 1) | st.binary(min_size=32, max_size=32)
TEXT = st.none() | st.text(max_size=5)
KEYS = st.none() | st.lists(st.none() | st.tuples(st.text(max_size=3)), max_size=3)
STORED = st.fixed_dictionaries(
    {
        "block_hashes": st.lists(HASH, max_size=4),
        "parent_block_hash": st.none() | HASH,
        "token_ids": st.lists(st.integers(0, 2**31), max_size=8),
        "block_size": st.integers(1, 128),
        "lora_id": st.none() | st.integers(0, 9),
        "medium": TEXT,
        "lora_name": TEXT,
    },
    optional={
        "extra_keys": KEYS,
        "group_idx": st.none() | st.integers(0, 3),
        "kv_cache_spec_kind": TEXT,
        "kv_cache_spec_sliding_window": st.none() | st.integers(1, 99),
        "locality": TEXT,
        "ownership": TEXT,
        "session_id": TEXT,
    },
)
REMOVED = st.fixed_dictionaries(
    {"block_hashes": st.lists(HASH, max_size=4), "medium": TEXT},
    optional={"group_idx": st.none() | st.integers(0, 3), "locality": TEXT, "ownership": TEXT},
)
EVENTS = st.lists(
    st.tuples(st.just("BlockStored"), STORED)
    | st.tuples(st.just("BlockRemoved"), REMOVED)
    | st.just(("AllBlocksCleared", {})),
    max_size=5,
)


def batch(module: Any, ts: float, events: list[tuple[str, dict[str, Any]]], rank: Any) -> Any:
    made = [getattr(module, name)(**fields) for name, fields in events]
    return module.KVEventBatch(ts=ts, events=made, data_parallel_rank=rank)


@given(st.floats(0, 2e9), EVENTS, st.none() | st.integers(0, 7))
def test_our_bytes_are_vllms_bytes(ts: float, events: list[Any], rank: int | None) -> None:
    ours_encoded = ours.encode(batch(ours, ts, events, rank))
    theirs_encoded = msgspec.msgpack.encode(batch(theirs, ts, events, rank))
    assert ours_encoded == theirs_encoded
    decoder = msgspec.msgpack.Decoder(theirs.KVEventBatch)
    assert decoder.decode(ours_encoded) == batch(theirs, ts, events, rank)
    assert ours.encode(ours.decode(theirs_encoded)) == theirs_encoded


@pytest.mark.parametrize("name", ["BlockStored", "BlockRemoved", "AllBlocksCleared"])
def test_fields_are_vllms_in_vllms_order(name: str) -> None:
    mine, other = getattr(ours, name), getattr(theirs, name)
    assert mine.__struct_fields__ == other.__struct_fields__
    assert mine.__struct_defaults__ == other.__struct_defaults__


@pytest.mark.parametrize("payload", [b"", b"xx", msgspec.msgpack.encode({"ts": 1})])
def test_other_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="not a batch of KV events"):
        ours.decode(payload)


def test_the_configuration_has_vllms_fields_and_defaults() -> None:
    mine = {field.name: field.default for field in dataclasses.fields(ours.KVEventsConfig)}
    other = {field.name: field.default for field in dataclasses.fields(TheirConfig)}
    assert mine.keys() == other.keys()
    # vLLM's endpoint is open to other machines; theirs fills the publisher in.
    assert {name for name in mine if mine[name] != other[name]} == {"endpoint"}
    for enabled in (False, True):
        config = ours.KVEventsConfig(enabled)
        assert config.is_on == (TheirConfig(enabled).publisher == "zmq")
    assert not ours.KVEventsConfig(True, "null").is_on


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"publisher": "kafka"}, "Unknown publisher 'kafka'"), ({"hwm": 0}, "hwm must be at least 1")],
)
def test_bad_configurations(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ours.KVEventsConfig(True, **fields)
