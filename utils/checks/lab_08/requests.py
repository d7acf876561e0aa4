"""The engine's own requests, as a learner's function gets them in exercises 2 and 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from utils.engine.request import Request, RequestStatus
from utils.engine.sampling_params import SamplingParams


def running_request(
    request_id: str,
    prompt: Sequence[int],
    output: Sequence[int] = (),
    num_computed_tokens: int = 0,
    max_num_tokens: int = 10**6,
    eos_token_ids: Sequence[int] = (),
    **params: Any,
) -> Request:
    """A request in the middle of its work.

    Args:
        params: of its `SamplingParams`
    """
    request = Request(
        request_id, list(prompt), SamplingParams(**params), max_num_tokens, tuple(eos_token_ids)
    )
    request.output_token_ids += output
    request.all_token_ids += output
    request.num_computed_tokens = num_computed_tokens
    request.status = RequestStatus.RUNNING
    return request


def state(request: Request) -> dict[str, Any]:
    """All that exercise 3 may change, or must not."""
    return {
        "num_computed_tokens": request.num_computed_tokens,
        "output_token_ids": list(request.output_token_ids),
        "all_token_ids": list(request.all_token_ids),
        "status": getattr(request.status, "name", repr(request.status)),
        "stop_reason": request.stop_reason,
        "prompt_token_ids": list(request.prompt_token_ids),
        "max_num_tokens": request.max_num_tokens,
        "eos_token_ids": tuple(request.eos_token_ids),
        "sampling_params": repr(request.sampling_params),
    }


def some_tokens(token_ids: Sequence[int]) -> str:
    """Token ids in words, also where there are many."""
    if len(token_ids) <= 12:
        return str(list(token_ids))
    return f"{len(token_ids)} tokens that begin with {str(list(token_ids[:3]))[1:-1]}"
