"""What lab 06 hands out: costs, the engine's form of a step, and a scheduler that swaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.core.sched.scheduler import Scheduler
from utils.engine.request import Request
from utils.engine.spec_decode.draft import NO_DRAFT

Recovery = Callable[[int], tuple[float, float]]


@dataclass(frozen=True)
class Costs:
    """What a model needs, and what a machine can do.

    Args:
        num_weights: weights that each token is multiplied with.
        flops_per_pair: FLOPs of attention for one pair of tokens, in all layers and heads.
        block_bytes: bytes of the keys and values in one block.
        block_size: tokens in a block.
        flops: FLOP/s of the machine.
        bandwidth: bytes/s between the KV cache and host memory.
        seconds_per_copy: to start the copy of one block, in one direction.
    """

    num_weights: int
    flops_per_pair: int
    block_bytes: int
    block_size: int
    flops: float
    bandwidth: float
    seconds_per_copy: float


# 32 layers, 32 query heads and 8 KV heads of 128 numbers each, 16-bit keys and values. A block is
# 64 pieces, the keys and the values of each layer, and to start the copy of one takes about 10 µs.
LARGE = Costs(
    num_weights=7 * 10**9,
    flops_per_pair=4 * 32 * 32 * 128,
    block_bytes=16 * 2 * 32 * 8 * 128 * 2,
    block_size=16,
    flops=2e14,
    bandwidth=2e10,
    seconds_per_copy=6e-4,
)


def scheduler_output(
    num_scheduled_tokens: dict[str, int],
    running: Sequence[Request],
    preempted: Sequence[Request],
    kv_cache_manager: Any,
) -> SchedulerOutput:
    """A step in the form that the engine wants: with block tables, and counted."""
    requests = [r for r in running if r.request_id in num_scheduled_tokens]
    for request in requests:
        request.scheduled_ts = request.scheduled_ts or perf_counter()
    for request in preempted:
        request.num_preemptions += 1
    preempted_req_ids = [request.request_id for request in preempted]
    output = SchedulerOutput.of(
        requests, num_scheduled_tokens, kv_cache_manager, preempted_req_ids=preempted_req_ids
    )
    output.num_scheduled_tokens = dict(num_scheduled_tokens)  # also of requests in no list
    return output


def scheduler_with(swapping: Any, recovery: Recovery) -> type[Scheduler]:
    """The engine's scheduler, with a learner's way of giving way and of coming back."""

    class Swapping(Scheduler):
        def __init__(self, config: Any, kv_cache_manager: Any) -> None:
            super().__init__(config, kv_cache_manager)
            self.swapping = swapping(kv_cache_manager, recovery)

        def _preempt(self, request: Request) -> None:
            self.swapping.give_way(request)
            request.num_preemptions += 1
            request.draft = NO_DRAFT
            self.waiting.add_request(request)

        def _admit(self, request: Request, budget: int) -> int:
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            return num_new_tokens if self.swapping.come_back(request, num_new_tokens) else 0

    return Swapping
