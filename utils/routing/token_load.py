"""Load counted in prompt tokens instead of requests: no index, no prefix."""

from __future__ import annotations

from collections.abc import Sequence

from utils.routing.policies import Replica, RoutingPolicy, RoutingRequest


class FewestWaitingTokens(RoutingPolicy):
    """The replica that has the fewest prompt tokens to compute. Equal ones take turns.

    It is `LongestPrefixAndLoad` without the prefix: what is left of that rule's gain where no two
    prompts begin alike.
    """

    def __init__(self) -> None:
        self.start = -1

    def pick(self, request: RoutingRequest, replicas: Sequence[Replica]) -> int:
        self.start = start = (self.start + 1) % len(replicas)
        in_turn = [*replicas[start:], *replicas[:start]]
        return min(in_turn, key=lambda replica: replica.waiting_tokens).index
