"""The engine's pool as an oracle, which no learner's class can let do its work."""

from __future__ import annotations

from contextlib import AbstractContextManager

from utils.checks.kit.contracts.guards import methods_refuse
from utils.engine.core.block_pool import BlockPool

METHODS = ("get_new_blocks", "get_cached_block", "touch", "free_blocks", "cache_full_blocks")
# The engine's methods under another name, which `engine_methods_refuse` does not reach.
RightPool = type("RightPool", (BlockPool,), {name: vars(BlockPool)[name] for name in METHODS})


def engine_methods_refuse() -> AbstractContextManager[None]:
    """While this is on, a learner's pool cannot let the engine's pool do the work."""
    return methods_refuse(
        BlockPool,
        METHODS,
        "The engine's own method does the work, by inheritance or through `super()`.",
        f"Write all five methods yourself: {', '.join(METHODS)}.",
    )
