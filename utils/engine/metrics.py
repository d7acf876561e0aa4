"""What the engine counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PrefixCacheStats:
    """Counts since the start, or since the last `make_prefix_cache_stats`."""

    requests: int = 0
    queries: int = 0  # tokens looked up
    hits: int = 0  # of these, tokens found

    @property
    def hit_rate(self) -> float:
        return self.hits / self.queries if self.queries else 0.0
