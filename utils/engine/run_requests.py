"""Requests to their end: what `LLM.generate` and `LLM.stream` do with an engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tqdm.auto import tqdm

from utils.engine.output_processor import RequestState
from utils.engine.outputs import RequestOutput


def answer(engine: Any, requests: list[RequestState], use_tqdm: bool) -> list[RequestOutput]:
    """Answer them all. The bar counts prompts, and tells the tokens of all answers a second."""
    with tqdm(total=len(requests), desc="Processed prompts", disable=not use_tqdm) as bar:
        for updated in run_to_end(engine, requests):
            num_tokens = sum(len(m.output_token_ids) for r in requests for m in r.family)
            bar.update(len({r.family[0].request_id for r in updated if r.is_answered}))
            seconds = bar.format_dict["elapsed"] or 1e-9
            bar.set_postfix_str(f"{num_tokens / seconds:.1f} tokens/s")
    return [request.output() for request in requests]


def run_to_end(engine: Any, requests: list[RequestState]) -> Iterator[list[RequestState]]:
    """Run requests to their end; after each step, yield those that got a new token.

    Other requests in the engine, such as those of a stream that is not read to its end yet, move
    forward as well.

    Args:
        engine: an `LLMEngine`, or a `DataParallelEngine`.

    Raises:
        RuntimeError: one was dropped before its end: somebody aborted it, or a step failed or was
            interrupted while this was not running, and the engine has forgotten everything.
    """
    members = [member for request in requests for member in request.family]
    reported = [0] * len(members)
    try:
        for request in requests:
            engine.add(request)
        while True:
            counts = [len(member.output_token_ids) for member in members]
            news = zip(members, counts, reported, strict=True)
            if updated := [member for member, count, before in news if count > before]:
                reported = counts
                yield updated
            elif any(m.finish_reason == "abort" for m in members):
                raise RuntimeError("Dropped: aborted, or others' step was broken off. Ask again.")
            elif all(request.is_answered for request in requests):
                return
            else:
                engine.advance()
    finally:  # also when the caller stops reading, or interrupts the cell, even in `add`
        engine.abort_requests([request.request_id for request in requests])
