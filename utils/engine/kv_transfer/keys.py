"""Under which names keys and values are kept: the same for everybody who may share them.

A key is a hash of all that the numbers in a block depend on. Two engines that agree in all of that
find each other's blocks, and engines that differ in any of it never do.
"""

from __future__ import annotations

import hashlib

import torch
import xxhash
from torch import nn

from utils.engine.config.engine import EngineConfig
from utils.engine.core.kv_cache_utils import (
    HASH_FUNCTIONS,
    ExtraKeys,
    generate_block_hash_extra_keys,
    hash_block_tokens,
)
from utils.engine.core.sched.output import ScheduledRequest
from utils.engine.kernels.packed_linear import PackedLinear
from utils.engine.models.llama import LlamaForCausalLM
from utils.engine.request import Request

FORMAT = 1  # of the values; to be raised when their layout changes


def model_fingerprint(model: LlamaForCausalLM) -> bytes:
    """A hash of the model's shape and of all its weights, as they are in memory: 16 bytes.

    A path or a name would not do: the same name may stand for other weights tomorrow.
    """
    digest = xxhash.xxh3_128(repr(model.config).encode())
    weights = {}
    for path, module in model.named_modules():
        for name, weight in module.named_parameters(recurse=False):
            weights[f"{path}.{name}"] = weight
        if isinstance(module, PackedLinear):  # the same numbers in another order
            weights[f"{path}.weight"] = nn.Parameter(module.unpacked(), requires_grad=False)
    for name in sorted(weights):
        digest.update(name.encode())
        flat = weights[name].detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy())
    return digest.digest()


def kv_namespace(model: LlamaForCausalLM, config: EngineConfig) -> bytes:
    """What all keys of an engine begin with, in their hash: model, dtype and block size, 32 bytes.

    An adapter and a tenant's salt belong to a request, and enter the hash of its first block.
    """
    parts = (FORMAT, model_fingerprint(model).hex(), str(config.dtype), config.block_size)
    return hashlib.sha256(repr(parts).encode()).digest()


def block_keys(
    namespace: bytes,
    token_ids: list[int],
    block_size: int,
    extra_keys: ExtraKeys = None,
    known: list[bytes] | None = None,
) -> list[bytes]:
    """A key for each full block of a sequence, 32 bytes: it depends on all tokens up to its end.

    The engine's own chain of hashes, behind the namespace. Always SHA-256, whatever the engine uses
    for itself: those who share a store don't know each other, and a key that somebody can make
    twice would give one prompt another one's keys and values.

    Args:
        extra_keys: what else must agree (see `generate_block_hash_extra_keys`).
        known: the keys of the first blocks, which are not computed again.
    """
    keys = list(known or [])
    sha256 = HASH_FUNCTIONS["sha256"]
    root = sha256(namespace + repr(extra_keys).encode())
    for begin in range(len(keys) * block_size, len(token_ids) - block_size + 1, block_size):
        tokens = token_ids[begin : begin + block_size]
        keys.append(hash_block_tokens(sha256, keys[-1] if keys else root, tokens))
    return keys


class KeyChain:
    """The keys of a request's full blocks, which grow as it does."""

    def __init__(self, namespace: bytes, block_size: int, num_saved: int = 0) -> None:
        self.namespace, self.block_size = namespace, block_size
        self.num_saved = num_saved  # blocks from the beginning that were passed on, or came in
        self.keys: list[bytes] = []

    def of(self, request: Request | ScheduledRequest) -> list[bytes]:
        """The keys of the request's full blocks by now."""
        self.keys = block_keys(
            self.namespace,
            request.all_token_ids,
            self.block_size,
            generate_block_hash_extra_keys(request),
            self.keys,
        )
        return self.keys
