"""Routing policies that look for a cached prefix: a rule, and an index that it asks.

The two are independent. The index says *what the router knows*: history (what it sent) or truth
(the replicas' events). The rule says *what it does with that*. "Prefix-aware" routers mostly keep
a history, "KV-aware" ones listen to events; both need a rule that also looks at load.
"""

from __future__ import annotations

from collections.abc import Sequence

from utils.routing.policies import LeastLoaded, Replica, RoutingPolicy, RoutingRequest
from utils.routing.prefix_index import PrefixIndex


class PrefixPolicy(RoutingPolicy):
    """Asks an index who holds how much of the prompt, and tells it what was decided."""

    def __init__(self, index: PrefixIndex) -> None:
        self.index = index

    def pick(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
        matches = self.index.matches(request.block_hashes)
        chosen = self.rank(request, replicas, matches)
        self.index.sent(chosen, request.block_hashes)
        return chosen

    def rank(
        self, request: RoutingRequest, replicas: Sequence[Replica], matches: Sequence[int]
    ) -> int:
        """The chosen index. `matches[i]`: leading blocks that replica i holds."""
        raise NotImplementedError

    def lost(self, index: int) -> None:
        self.index.cleared(index)


class LongestPrefix(PrefixPolicy):
    """The longest prefix wins, whatever the load; the first of equal ones. It stampedes."""

    def rank(
        self, request: RoutingRequest, replicas: Sequence[Replica], matches: Sequence[int]
    ) -> int:
        best = replicas[0].index
        for replica in replicas:
            if matches[replica.index] > matches[best]:
                best = replica.index
        return best


class CacheAware(PrefixPolicy):
    """The longest prefix while the load is balanced, the least loaded replica otherwise.

    The rule `cache_aware` of `vllm-router` 0.1.17, with its switches, which it has from SGLang's
    router. (`smg` 1.13 has another rule of that name: a matched replica is skipped when its own
    load is too far above the mean of all.) The load counts as out of balance when the most loaded
    replica has more than `balance_abs_threshold` unfinished requests more than the least loaded,
    and more than `balance_rel_threshold` times as many. Where no replica holds more than
    `cache_threshold` of the prompt's blocks, the least loaded one gets the request, too. (So 0.1.17
    behaves; a docstring in its package says "the worker with the smallest tree".)

    Raises:
        ValueError: a threshold is out of its range.
    """

    def __init__(
        self,
        index: PrefixIndex,
        cache_threshold: float = 0.3,
        balance_abs_threshold: int = 64,
        balance_rel_threshold: float = 1.5,
    ) -> None:
        if not 0 <= cache_threshold <= 1:
            raise ValueError(f"cache_threshold must be 0 to 1, not {cache_threshold}")
        if balance_abs_threshold < 0 or balance_rel_threshold < 1:
            raise ValueError(
                "balance_abs_threshold must be 0 or more and balance_rel_threshold 1 or more, not "
                f"{balance_abs_threshold} and {balance_rel_threshold}"
            )
        super().__init__(index)
        self.cache_threshold = cache_threshold
        self.balance_abs_threshold = balance_abs_threshold
        self.balance_rel_threshold = balance_rel_threshold
        self.least_loaded = LeastLoaded()

    def rank(
        self, request: RoutingRequest, replicas: Sequence[Replica], matches: Sequence[int]
    ) -> int:
        loads = [replica.num_running + replica.num_waiting for replica in replicas]
        most, least = max(loads), min(loads)
        unbalanced = (
            most - least > self.balance_abs_threshold and most > self.balance_rel_threshold * least
        )
        held = [matches[replica.index] for replica in replicas]
        best = max(held)
        if unbalanced or best <= self.cache_threshold * len(request.block_hashes):
            return self.least_loaded.pick(request, replicas)
        holders = [replica for replica, n in zip(replicas, held, strict=True) if n == best]
        return holders[0].index if len(holders) == 1 else self.least_loaded.pick(request, holders)


class LongestPrefixAndLoad(PrefixPolicy):
    """The replica where the first token will come soonest, in tokens to compute.

    That is what this prompt lacks there, and what waits there before it. The rule of Mooncake's
    Conductor (arXiv 2407.00079, algorithm 1) with equal speeds, and in spirit that of NVIDIA
    Dynamo's router and of vLLM's `kv_aware`. Equal ones take turns.

    Args:
        index: what the router knows.
        block_size: tokens in a block.
        load_weight: what a waiting token counts, against a token of this prompt. 0 looks at the
            prefix alone.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(self, index: PrefixIndex, block_size: int, load_weight: float = 1.0) -> None:
        if block_size < 1 or load_weight < 0:
            raise ValueError(
                f"block_size must be at least 1 token and load_weight 0 or more, not {block_size} "
                f"and {load_weight}"
            )
        super().__init__(index)
        self.block_size, self.load_weight = block_size, load_weight
        self.start = -1

    def rank(
        self, request: RoutingRequest, replicas: Sequence[Replica], matches: Sequence[int]
    ) -> int:
        self.start = start = (self.start + 1) % len(replicas)
        weight, block_size = self.load_weight, self.block_size
        best, least = start, float("inf")
        for place in range(start - len(replicas), start):
            replica = replicas[place]
            # Tokens until this prompt is computed, up to what is the same for all replicas.
            cost = weight * replica.waiting_tokens - block_size * matches[replica.index]
            if cost < least:
                best, least = replica.index, cost
        return best
