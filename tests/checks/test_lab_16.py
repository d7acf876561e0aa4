"""The oracles of lab 16 against the engine's own connector, published numbers, and by hand."""

from __future__ import annotations

import hashlib
import itertools
import random
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from utils.checks import lab_16
from utils.checks.kit.contracts import Choices
from utils.checks.lab_16 import answers
from utils.checks.lab_16.blocks import FITS, Memory, payload_of, right_extract, right_inject
from utils.checks.lab_16.learners_connector import Stored
from utils.checks.lab_16.learners_parts import BareRequest, Machine, Scheduled, Shape, Transfers
from utils.engine.kv_transfer.keys import block_keys
from utils.engine.kv_transfer.store import MemoryStore
from utils.engine.kv_transfer.wire import blocks_to_rows


@given(st.binary(max_size=8), st.lists(st.integers(0, 2**32 - 1), max_size=20), st.integers(1, 5))
def test_the_keys_are_those_of_the_engines_connector(
    namespace: bytes, tokens: list[int], size: int
) -> None:
    root = hashlib.sha256(namespace + b"None").digest()  # the engine hashes adapter and salt first
    assert lab_16.packed_keys(root, tokens, size) == block_keys(namespace, tokens, size)


@given(st.integers(1, 40), st.integers(1, 5), st.data())
def test_the_match_is_the_engines(num_tokens: int, size: int, data: st.DataObject) -> None:
    keys = [b"%d" % i for i in range(num_tokens // size)]
    stored = set(data.draw(st.lists(st.sampled_from(keys), unique=True))) if keys else set()
    computed = size * data.draw(st.integers(0, (num_tokens - 1) // size))
    store = MemoryStore()
    for key in stored:
        store.store(key, b"")
    some = keys[computed // size : (num_tokens - 1) // size]
    want = store.count_first(some) * size
    assert lab_16.up_to_the_first_hole(keys, stored, num_tokens, size, computed) == want


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_bytes_are_those_of_the_engines_connector(dtype: torch.dtype) -> None:
    layers = [torch.randn(2, 4, 3, 2, 5).to(dtype) for _ in range(3)]  # as the engine's memory
    seen = [layer.transpose(0, 1) for layer in layers]
    assert right_extract(seen, 2) == blocks_to_rows(layers, [2])[0].tobytes()
    other = [torch.zeros_like(layer).transpose(0, 1) for layer in layers]
    assert right_inject(other, 1, right_extract(seen, 2))
    assert all(torch.equal(b[1], a[2]) and not b[0].any() for a, b in zip(seen, other, strict=True))
    assert not right_inject(other, 1, right_extract(seen, 2)[:-1])


@pytest.mark.parametrize("gaps", [False, True])
def test_a_view_has_the_numbers_and_the_layout_that_it_names(gaps: bool) -> None:
    tail, axes = (3, 2, 4), range(4)
    [plain] = Memory(1, 2, tail, torch.float32, tuple(axes), False, False, 0).tensors()
    for order in itertools.permutations(axes):
        [seen] = Memory(1, 2, tail, torch.float32, order, gaps, False, 0).tensors()
        assert torch.equal(seen, plain)
        assert sorted(axes, key=seen.stride, reverse=True) == list(order)
        assert seen.permute(order).is_contiguous() != gaps
        assert right_extract([seen], 1) == plain[1].numpy().tobytes()
        into = torch.zeros_like(seen)
        assert right_inject([into], 1, right_extract([seen], 1)) and torch.equal(into[1], plain[1])


def test_some_numbers_lose_bits_in_every_conversion() -> None:
    for dtype, wider in ((torch.bfloat16, torch.float32), (torch.float32, torch.float64)):
        [odd] = Memory(1, 2, (9, 9), dtype, (0, 1, 2), False, True, 0).tensors()
        there_and_back = odd.to(wider).to(dtype)
        assert right_extract([odd], 0) != right_extract([there_and_back], 0)
        assert ((odd == 0) & odd.signbit()).any()  # -0.0


def test_only_a_blocks_bytes_have_its_length() -> None:
    for seed in range(50):
        memory = lab_16.blocks.draw_payload(Choices(random.Random(seed)))
        block = len(right_extract(memory.tensors(), 0))
        assert (len(payload_of(memory)) == block) == (memory.payload == FITS)


def test_the_bandwidths_are_mooncakes() -> None:
    told = lab_16.praise_costs(lab_16.exact_seconds)
    assert [float(found) for found in re.findall(r"([\d.]+) GB/s", told)] == [5.9, 18.6]
    assert lab_16.exact_seconds(0, Shape(1, 64, 1, 4), Machine(1e9, 1e9, 0.5)) == (0.5, 0.0)


def test_a_request_in_chunks_step_by_step() -> None:
    def keys_of(request: BareRequest) -> list[bytes]:
        return [b"%d" % i for i in range(request.num_tokens // 4)]

    def to_save(part: Scheduled) -> list[tuple[bytes, int]]:
        return answers.blocks_to_save(part, keys_of(part.request), 4)

    side = answers.SchedulerSide(4, keys_of, lambda request, num_computed: 4, to_save)
    request = BareRequest("r", list(range(15)))
    assert side.get_num_new_matched_tokens(request, 4) == (4, False)
    request.num_computed_tokens = 8  # 4 of its own, and 4 that are loaded
    side.update_state_after_alloc(request, [7, 6, 5, 4], 4)
    assert side.build_connector_meta([Scheduled(request, [7, 6, 5, 4], 8, 3)]) == Transfers(
        [(b"1", 6)], []
    )
    request.all_token_ids.append(1)
    assert side.build_connector_meta([Scheduled(request, [7, 6, 5, 4], 11, 5)]) == Transfers(
        [], [(b"2", 5), (b"3", 4)]
    )


def test_a_store_is_asked_not_listed() -> None:
    store = MemoryStore()
    store.store(b"a", b"")
    stored = Stored(store)
    assert b"a" in stored and b"b" not in stored
    with pytest.raises(TypeError):
        set(stored)


def test_a_lab_that_nobody_has_touched() -> None:
    def stub(*args):
        raise NotImplementedError

    class Stub:
        def __init__(self, *args):
            raise NotImplementedError

    for name, check in vars(lab_16).items():
        if hasattr(check, "max_points"):
            feedback = check(Stub if name in ("lru_store", "scheduler_side") else stub)
            assert feedback.status == "not written yet", (name, feedback.message)
