"""The scheduler of an engine with a connector. In vLLM: parts of `v1/core/sched/scheduler.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from utils.engine.core.scheduler import Scheduler
from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.kv_transfer.base import KVConnectorBase
from utils.engine.request import Request


class ConnectedScheduler(Scheduler):
    """Asks the connector for what the engine's own cache does not have."""

    connector: KVConnectorBase

    def schedule(self) -> SchedulerOutput:
        """As `Scheduler`. Who waits for keys and values does not hold up those behind."""
        deferred = [r for r in self.waiting if self.is_deferred(r)]
        for request in deferred:
            self.waiting.remove(request)
        try:
            output = super().schedule()
        finally:
            for request in deferred:
                self._wait(request)
        meta = self.connector.build_connector_meta(output)
        return replace(output, kv_connector_metadata=meta)

    def is_deferred(self, request: Request) -> bool:
        """Whether the connector does not know yet what it will have of a waiting request."""
        if not self.connector.may_defer or request.request_id in self.kv_cache_manager.swap_space:
            return False
        _, num_local = self.kv_cache_manager.get_computed_blocks(request)
        return self._matched_tokens(request, num_local)[0] is None

    def _matched_tokens(self, request: Request, num_local: int) -> tuple[int | None, bool]:
        """What the connector has of a request, which may have to compute everything itself."""
        if request.skip_reading_prefix_cache:
            return 0, False
        return self.connector.get_num_new_matched_tokens(request, num_local)

    def _admit(self, request: Request, budget: int) -> int:
        manager, size = self.kv_cache_manager, self.config.block_size
        if request.request_id in manager.swap_space:
            return super()._admit(request, budget)
        blocks, num_local = manager.get_computed_blocks(request)
        num_external, load_async = self._matched_tokens(request, num_local)
        num_external = num_external or 0
        left = request.num_tokens - num_local - num_external
        if num_external < 0 or num_external % size or left < 1 or load_async:
            raise ValueError(
                f"The connector says that it has {num_external} tokens of request "
                f"{request.request_id} (load_async={load_async}). Expected a multiple of the block "
                f"size, {size}, below {request.num_tokens - num_local}, and False."
            )
        # To the manager, loaded tokens are new ones: both get fresh slots, filled in this step.
        num_new_tokens = min(left, budget)
        first_time = request.request_id not in manager.req_to_blocks
        if not self._allocate(request, num_external + num_new_tokens, blocks):
            return 0
        request.num_computed_tokens = num_local + num_external
        if request.num_cached_tokens is None:
            request.num_cached_tokens = request.num_computed_tokens
        if first_time and request.num_preemptions == 0:
            self.connector.stats.queries += request.num_tokens - num_local
            self.connector.stats.hits += num_external
        table = manager.req_to_blocks[request.request_id]
        self.connector.update_state_after_alloc(request, table, num_external)
        return num_new_tokens

    def update_from_output(self, output: SchedulerOutput, sampled: Sequence[Request]) -> None:
        for request in sampled:
            if request.is_finished:
                self._say_goodbye(request)
        super().update_from_output(output, sampled)

    def abort_requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if not request.is_finished:
                self._say_goodbye(request)
        super().abort_requests(requests)

    def forget_requests(self, requests: Sequence[Request]) -> None:
        super().forget_requests(requests)
        self.connector.forget_requests()

    def take_back_invalid_blocks(self, output: SchedulerOutput, invalid: set[int]) -> None:
        """Some blocks did not get their contents: compute them, and all that was built on them.

        In vLLM: `_handle_invalid_blocks`, with `kv_load_failure_policy="recompute"`.
        """
        manager = self.kv_cache_manager
        for request in output.scheduled_requests:
            table = manager.req_to_blocks.get(request.request_id, [])
            first = next((i for i, b in enumerate(table) if b.block_id in invalid), None)
            if first is None:
                continue
            for block in table[first:]:
                if block.block_hash is not None:  # nobody may find it any more
                    manager.block_pool._evict(block)
            manager.num_cached_block[request.request_id] = min(
                first, manager.num_cached_block[request.request_id]
            )
            num_valid = first * self.config.block_size
            promised = output.num_computed_tokens[request.request_id]
            self.connector.stats.recomputed_tokens += promised - num_valid
            request.num_computed_tokens = num_valid
            request.num_cached_tokens = min(request.num_cached_tokens or 0, num_valid)

    def _say_goodbye(self, request: Request) -> None:
        blocks = self.kv_cache_manager.req_to_blocks.get(request.request_id, [])
        keeps, _ = self.connector.request_finished(request, [block.block_id for block in blocks])
        if keeps:
            raise ValueError("This engine frees a request's blocks itself: answer (False, None).")
