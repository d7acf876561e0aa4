"""What the scheduler tells the model runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from utils.engine.core.kv_cache_utils import BlockCopies
from utils.engine.request import Request


@dataclass
class SchedulerOutput:
    """What the next step computes.

    Args:
        scheduled_requests: in the order of the flat batch.
        num_scheduled_tokens: by request id; guessed tokens among them.
        block_ids: the block tables, by request id.
        block_copies: to be made before the forward pass.
        preempted_req_ids: requests that lost their blocks in this step.
        resumed_req_ids: requests that had lost them earlier, and are back.
        deferred_req_ids: requests that wait for keys and values on their way to the connector.
        kv_connector_metadata: what a connector is to load and save (see `kv_transfer`).
        num_computed_tokens: by request id, how far each request was before this step.
        scheduled_spec_decode_tokens: by request id, the guessed tokens to be verified.
    """

    scheduled_requests: list[Request]
    num_scheduled_tokens: dict[str, int]
    block_ids: dict[str, list[int]] = field(default_factory=dict)
    block_copies: BlockCopies = field(default_factory=BlockCopies)
    preempted_req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: list[str] = field(default_factory=list)
    deferred_req_ids: list[str] = field(default_factory=list)
    kv_connector_metadata: Any = None
    num_computed_tokens: dict[str, int] = field(init=False)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        requests = self.scheduled_requests
        self.num_computed_tokens = {r.request_id: r.num_computed_tokens for r in requests}
        self.scheduled_spec_decode_tokens = {
            r.request_id: r.spec_token_ids for r in requests if r.spec_token_ids
        }

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())
