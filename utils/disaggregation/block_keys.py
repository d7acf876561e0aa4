"""The names under which blocks lie in a store that several servers share.

A block's key depends on its tokens, on all tokens before them, and on what computed them. So equal
keys mean equal keys and values, in whichever process they were computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from utils.engine.core.kv_cache_utils import get_hash_fn_by_name, hash_block_tokens

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def namespace(*facts: object) -> bytes:
    """The root of all chains: a digest of everything but the tokens that decides keys and values.

    Args:
        facts: model, dtype, block size, adapter, salt, ... in a fixed order. Anything that
            `json.dumps` takes; the digest is the same in every process.
    """
    return hashlib.sha256(json.dumps(facts).encode()).digest()


def chain_keys(root: bytes, tokens: Sequence[int], block_size: int) -> list[bytes]:
    """One key of 32 bytes per full block of `block_size` tokens.

    Each is the hash of the key before it and of the block's own tokens, as the engine's block
    hashes are, so it stands for the whole prefix.

    Raises:
        ValueError: `block_size` is not positive.
    """
    if block_size < 1:
        raise ValueError(f"block_size={block_size}; expected a positive number of tokens.")
    sha256 = get_hash_fn_by_name("sha256")
    keys: list[bytes] = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        block = tokens[start : start + block_size]
        keys.append(hash_block_tokens(sha256, keys[-1] if keys else root, block))
    return keys


def model_fingerprint(model: str) -> list[object]:
    """What tells a model from another one of the same name.

    For a folder, name, size and time of its weight files: who trains it again, changes them.
    Reading all weights would be surer, and would take minutes for a large model.
    """
    folder = Path(model)
    if not folder.is_dir():
        return [model]
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin"), folder / "config.json"])
    stats = [(file.name, file.stat()) for file in files if file.exists()]
    return [str(folder.resolve()), *([name, s.st_size, s.st_mtime_ns] for name, s in stats)]


def computed_by(vllm_config: VllmConfig, version: str) -> list[object]:
    """Everything but tokens, adapter and salt that decides what is in a block of vLLM's.

    vLLM's version is part of it: how a block lies in memory is vLLM's own business.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel = vllm_config.parallel_config
    return [
        version,
        *model_fingerprint(model.model),
        str(model.revision),
        str(model.dtype),
        str(model.quantization),
        str(cache.cache_dtype),
        cache.block_size,
        parallel.tensor_parallel_size,
        parallel.pipeline_parallel_size,
    ]
