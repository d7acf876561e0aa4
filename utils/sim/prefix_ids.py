"""Which requests of a trace share a prefix: a number for every block, equal where blocks are equal.

A block is the same as another one when its tokens and all tokens before it are the same. An engine
finds that out by hashing tokens. A trace says it outright: requests share a prefix where their
leading segments are equal. So a simulation needs no tokens, only one number per different block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from utils.sim.traces import TraceRequest

Segment = tuple[int, int]


def answer_segments(trace: Sequence[TraceRequest]) -> list[Segment]:
    """The segment that holds each request's answer, one per request.

    It is the segment that follows the request's prompt in a later prompt, and is as long as the
    request's output: there, the answer became part of a conversation. An answer that is never
    quoted gets a segment id of its own, below zero.
    """
    followers: dict[tuple[Segment, ...], set[Segment]] = {}
    for request in trace:
        for end in range(1, len(request.segments)):
            prompt, follower = request.segments[:end], request.segments[end]
            followers.setdefault(prompt, set()).add(follower)
    answers = []
    for number, request in enumerate(trace):
        candidates = followers.get(request.segments, set())
        quoted = [segment for segment in candidates if segment[1] == request.output_len]
        answers.append(min(quoted, default=(-1 - number, request.output_len)))
    return answers


def prefix_ids(
    segments_of_requests: Sequence[Sequence[Segment]], block_size: int
) -> Iterator[np.ndarray]:
    """The numbers of each request's full blocks, int64 `[num_tokens // block_size]`.

    Two blocks have one number exactly when they hold equal tokens after equal tokens. With a block
    size of 1 that is a number for every token in its context.

    Raises:
        ValueError: `block_size` is not positive.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1 token, not {block_size}")
    # A path is a series of leading segments. Its own number is that of the first block that ends in
    # its last segment; the other blocks that end there follow.
    paths: dict[tuple[int, Segment], int] = {}
    next_number = 0
    for segments in segments_of_requests:
        path, num_tokens = -1, 0
        pieces = [np.empty(0, dtype=np.int64)]
        for segment in segments:
            step = (path, segment)
            ending_here = (num_tokens + segment[1]) // block_size - num_tokens // block_size
            if step not in paths:
                paths[step] = next_number
                next_number += max(1, ending_here)
            path = paths[step]
            pieces.append(np.arange(path, path + ending_here))
            num_tokens += segment[1]
        yield np.concatenate(pieces)


def next_uses(
    ids_of_requests: Sequence[np.ndarray], num_usable: Sequence[int], never: int
) -> list[np.ndarray]:
    """Per request and block: the next request that can hit this block, or `never`.

    Args:
        ids_of_requests: as from `prefix_ids`.
        num_usable: how many leading blocks of each request a cache may serve.
        never: what to write where no later request can hit the block.
    """
    soonest = np.full(1 + max(int(ids.max(initial=-1)) for ids in ids_of_requests), never)
    uses: list[np.ndarray] = []
    for number in reversed(range(len(ids_of_requests))):
        ids = ids_of_requests[number]
        uses.append(soonest[ids])
        soonest[ids[: num_usable[number]]] = number
    return uses[::-1]
