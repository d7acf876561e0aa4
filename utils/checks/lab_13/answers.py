"""One right answer for each exercise of lab 13, as in the solution. Mistakes are edits of these."""

from __future__ import annotations

from collections.abc import Callable


def predict_cached_tokens(
    requests: list[tuple[str | None, list[int]]], block_size: int
) -> list[int]:
    seen: set[tuple[str | None, tuple[int, ...]]] = set()  # beginnings that end with a full block
    predicted = []
    for salt, prompt in requests:
        ends = range(block_size, len(prompt) + 1, block_size)
        found = [end for end in ends if end < len(prompt) and (salt, tuple(prompt[:end])) in seen]
        predicted.append(max(found, default=0))
        seen.update((salt, tuple(prompt[:end])) for end in ends)
    return predicted


def order_parts(parts: dict[str, list[str]]) -> list[str]:
    return sorted(parts, key=lambda name: len(set(parts[name])))


def predict_with_eviction(prompts: list[list[int]], block_size: int, num_blocks: int) -> list[int]:
    from collections import deque

    # What each free block holds: a prompt's beginning up to the block's end, or nothing.
    free: deque[tuple[int, ...] | None] = deque([None] * num_blocks)
    predicted = []
    for prompt in prompts:
        full = [tuple(prompt[:end]) for end in range(block_size, len(prompt) + 1, block_size)]
        hits = []
        for beginning in full:
            if beginning not in free:
                break
            hits.append(beginning)
        for beginning in hits:
            free.remove(beginning)
        for _ in range(len(full) + 1 - len(hits)):  # one more for the last block
            free.popleft()
        free.appendleft(None)
        free.extend(reversed(full))
        predicted.append(len(hits) * block_size)
    return predicted


def order_requests(prompts: list[list[int]]) -> list[int]:
    return sorted(range(len(prompts)), key=lambda i: prompts[i])


def smallest_cache(hits_with: Callable[[int], int], target: int, most: int) -> int | None:
    if hits_with(most) < target:
        return None
    low, high = 1, most  # high is enough; whatever is below low is not
    while low < high:
        middle = (low + high) // 2
        if hits_with(middle) >= target:
            high = middle
        else:
            low = middle + 1
    return high


def predict_ttft(
    measurements: tuple[tuple[int, float], tuple[int, float]],
    num_tokens: int,
    num_cached_tokens: int,
) -> float:
    (tokens_1, seconds_1), (tokens_2, seconds_2) = measurements
    per_token = (seconds_2 - seconds_1) / (tokens_2 - tokens_1)
    left = num_tokens - num_cached_tokens
    return seconds_1 + (left - tokens_1) * per_token


def hit_rate(before: str, after: str) -> float | None:
    import re

    pattern = re.compile(r"^vllm:prefix_cache_(queries|hits)_total(\{.*\}) (\S+)$", re.MULTILINE)
    earlier = {(what, labels): float(value) for what, labels, value in pattern.findall(before)}
    increase = {"queries": 0.0, "hits": 0.0}
    for what, labels, value in pattern.findall(after):
        old, new = earlier.get((what, labels), 0.0), float(value)
        increase[what] += new - old if new >= old else new
    return increase["hits"] / increase["queries"] if increase["queries"] else None
