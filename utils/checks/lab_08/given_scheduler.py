"""A scheduler that doesn't wait, around a learner's bookkeeping: exercise 10 of lab 08."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.engine.config.engine import EngineConfig
from utils.engine.core.interfaces import KVCacheManagerInterface
from utils.engine.core.sched.async_scheduler import AsyncScheduler
from utils.engine.request import Request


def scheduler_with(books_class: Callable[[], Any]) -> type[AsyncScheduler]:
    """The engine's scheduler with another one's books. Pass it as `scheduler_cls`.

    Args:
        books_class: has `num_uncomputed`, `update_after_schedule` and `update_with_output`.
    """

    class LearnersScheduler(AsyncScheduler):
        def __init__(self, config: EngineConfig, kv_cache_manager: KVCacheManagerInterface) -> None:
            super().__init__(config, kv_cache_manager)
            self.books = books_class()

        def _num_uncomputed_ahead(self, request: Request) -> int:
            return int(self.books.num_uncomputed(request))

        def _update_after_schedule(self, request: Request, num_scheduled_tokens: int) -> None:
            self.books.update_after_schedule(request, num_scheduled_tokens)

        def _update_request_with_output(self, request: Request) -> None:
            self.books.update_with_output(request)

    return LearnersScheduler
