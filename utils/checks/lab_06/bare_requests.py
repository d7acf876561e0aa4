"""Requests and block managers without a model, for the checks of lab 06."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import KVCacheBlock
from utils.engine.request import Request, SamplingParams


class _NoText:
    """Stands in for a detokenizer: the tokens here mean nothing."""

    def append(self, token_id: int) -> str:
        return ""


def bare_request(
    name: str, num_prompt: int, max_tokens: int, arrival: float = 0.0, priority: int = 0
) -> Request:
    """A request whose tokens are made up; it ends after `max_tokens`."""
    request = Request(
        request_id=name, prompt=None, prompt_token_ids=list(range(1, num_prompt + 1)),
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        max_num_tokens=num_prompt + max_tokens, eos_token_ids=(), generator=torch.Generator(),
        detokenizer=cast(Any, _NoText()), priority=priority,
    )  # fmt: skip
    request.metrics.arrival_time = arrival
    return request


class WatchedManager(KVCacheManager):
    """The engine's manager without prefix caching. `before_allocate` is called first each time."""

    def __init__(self, num_gpu_blocks: int, block_size: int) -> None:
        super().__init__(num_gpu_blocks, block_size, enable_caching=False)
        self.before_allocate: Callable[[], None] = lambda: None
        self.freed: set[str] = set()

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock] = (),
        *args: Any,
        **kwargs: Any,
    ) -> list[KVCacheBlock] | None:
        self.before_allocate()
        return super().allocate_slots(request, num_new_tokens, new_computed_blocks, *args, **kwargs)

    def free(self, request: Request) -> None:
        self.freed.add(request.request_id)
        super().free(request)

    def num_blocks(self, request_id: str) -> int:
        """How many blocks a request has."""
        return len(self.req_to_blocks.get(request_id, ()))
