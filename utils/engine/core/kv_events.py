"""Who listens to what the prefix cache gains and loses: a router, for instance.

In vLLM the block pool keeps a list of events, and the scheduler publishes it after each step
(`--kv-events-config`). Here the manager and its pool tell a listener, and the engine says when a
step is over.
`utils/kv_events/engine_events.py` has one that publishes vLLM's messages.
"""

from __future__ import annotations

from utils.engine.core.kv_cache_utils import BlockHash, HashedRequest


class KVEvents:
    """A listener. This one does nothing."""

    def blocks_stored(self, request: HashedRequest, begin: int, end: int, block_size: int) -> None:
        """A request's blocks number `begin` to `end - 1`, of `block_size` tokens each, can be found
        from now on."""

    def block_removed(self, block_hash: BlockHash) -> None:
        """A block with these contents can no longer be found. There may be another one."""

    def all_blocks_cleared(self) -> None:
        """Nothing can be found any more."""

    def step_ended(self) -> None:
        """All events of a step have been told."""


NO_EVENTS = KVEvents()
