"""Requests without a model: their tokens are made up."""

from __future__ import annotations

import copy
import functools
from typing import Any

from utils.checks.kit.contracts import Choices
from utils.engine.request import Request, RequestStatus, SamplingParams

EOS = 2
_TOKENS = list(range(1000, 6000))


@functools.cache
def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens)


class BareRequest(Request):
    """A request that is quick to copy: only its lists are new."""

    def __deepcopy__(self, memo: Any) -> BareRequest:
        new = copy.copy(self)
        vars(new).update({k: list(v) for k, v in vars(self).items() if isinstance(v, list)})
        return new

    @property
    def lacking(self) -> int:
        return self.num_tokens - self.num_computed_tokens


def bare_request(
    name: str, num_prompt: int, num_answer: int = 0, *, max_tokens: int = 64, **more: Any
) -> BareRequest:
    """A request with that many tokens in its prompt, and in its answer so far."""
    request = BareRequest(
        name,
        _TOKENS[:num_prompt],
        _params(max_tokens),
        num_prompt + max_tokens,
        (EOS,),
        output_token_ids=_TOKENS[:num_answer],
        **{"arrival_time": 0.0} | more,
    )
    request.all_token_ids += request.output_token_ids
    return request


def draw_request(
    c: Choices, name: str = "A", high: int = 3000, started: bool = False
) -> BareRequest:
    """A new request, a decode, one whose prompt comes in chunks, or one that computes its answer
    again. Its priority and arrival say nothing about its place in a list."""
    num_prompt, num_answer = c.size(1, high), c.pick((0, 1, 0, 3, 10))
    most = num_prompt + num_answer - 1
    computed = min(most, c.pick((0, most, most, num_prompt, c.integer(0, most))))
    if started and not computed:
        num_prompt, computed = num_prompt + 1, 1
    status = RequestStatus.PREEMPTED if num_answer else RequestStatus.WAITING
    return bare_request(
        name,
        num_prompt,
        num_answer,
        num_computed_tokens=computed,
        priority=c.pick((0, 0, 1, -2)),
        arrival_time=1.5 * c.integer(0, 9),
        status=RequestStatus.RUNNING if started else status,
    )


def name_of(number: int) -> str:
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def names(requests: Any) -> list[str]:
    """Requests as their names, and anything else as what it is."""
    return [getattr(request, "request_id", repr(request)) for request in requests]
