"""Requests for tests that need no model."""

from __future__ import annotations

from typing import Any

from utils.engine import Request, SamplingParams

_PARAMS = SamplingParams(max_tokens=None)


def make_request(token_ids: list[int], request_id: str = "0", **settings: Any) -> Request:
    """A request for which only block management is asked; it cannot be decoded."""
    return Request(request_id, token_ids, _PARAMS, 10**6, (), **settings)
