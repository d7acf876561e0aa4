"""Keys of blocks: they stand for the prefix, for what computed it, and are the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.disaggregation.block_keys import chain_keys, model_fingerprint, namespace
from utils.environments.pipeline import ROOT

TOKENS = st.lists(st.integers(0, 3), max_size=20)


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_two_keys_are_equal_exactly_when_the_prefixes_are(
    a: list[int], b: list[int], size: int
) -> None:
    root = namespace("model")
    first, second = chain_keys(root, a, size), chain_keys(root, b, size)
    assert (len(first), len(second)) == (len(a) // size, len(b) // size)
    for i, one in enumerate(first, 1):
        for j, other in enumerate(second, 1):
            assert (one == other) == (a[: i * size] == b[: j * size])


def test_vllm_tells_the_same_prefixes_apart() -> None:
    pytest.importorskip("vllm")
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import hash_block_tokens, init_none_hash

    init_none_hash(sha256)
    prompts = [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [3, 4, 1, 2], [1, 2, 1, 2]]
    ours = [key for p in prompts for key in chain_keys(namespace(), p, 2)]
    theirs = []
    for p in prompts:
        parent = None
        for at in range(0, len(p), 2):
            parent = hash_block_tokens(sha256, parent, p[at : at + 2], None)
            theirs.append(parent)
    assert [ours.index(key) for key in ours] == [theirs.index(key) for key in theirs]


def test_every_fact_of_the_namespace_counts() -> None:
    roots = [
        namespace("model", "float32", 32, None),
        namespace("model", "bfloat16", 32, None),
        namespace("model", "float32", 16, None),
        namespace("other", "float32", 32, None),
        namespace("model", "float32", 32, ["adapter"]),
        namespace("modelfloat32", 32, None),
    ]
    keys = [chain_keys(root, [1, 2], 2)[0] for root in roots]
    assert len(set(keys)) == len(keys)


def test_another_process_finds_the_same_keys() -> None:
    code = (
        "from utils.disaggregation.block_keys import *; "
        "print(chain_keys(namespace('model', 32), [1, 2, 70000], 1)[-1].hex())"
    )
    out = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert out == {chain_keys(namespace("model", 32), [1, 2, 70000], 1)[-1].hex()}


def test_a_block_size_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size=0"):
        chain_keys(b"", [1], 0)


def test_a_model_that_was_trained_again_is_another_one(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"some weights")
    before = model_fingerprint(str(tmp_path))
    assert before == model_fingerprint(str(tmp_path))
    os.utime(weights, ns=(0, 5))
    assert model_fingerprint(str(tmp_path)) != before
    assert model_fingerprint("organisation/name") == ["organisation/name"]
