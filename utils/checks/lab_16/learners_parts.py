"""What lab 16 hands to learners: what scheduler and connector say to each other, models and
machines, and the parts of a connector."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Pair = tuple[bytes, int]  # a block's key, and its number in the engine's memory


@dataclass
class Transfers:
    """What the worker's side has to do in a step: blocks to fill, and blocks to save."""

    loads: list[Pair] = field(default_factory=list)
    saves: list[Pair] = field(default_factory=list)


@dataclass(frozen=True)
class Scheduled:
    """One request in one step of the engine.

    Attributes:
        request: with `request_id`, `all_token_ids`, `num_tokens`.
        block_ids: its blocks, in order; the step's own tokens have room in them.
        num_computed_tokens: before the step, what was found or loaded included.
        num_scheduled_tokens: that the step computes.
    """

    request: Any
    block_ids: list[int]
    num_computed_tokens: int
    num_scheduled_tokens: int


@dataclass
class BareRequest:
    """As much of a request as a connector needs."""

    request_id: str
    all_token_ids: list[int]
    num_computed_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


@dataclass(frozen=True)
class Shape:
    """A model, in the words of Mooncake's section 2.

    Attributes:
        num_layers: l
        hidden_size: d
        heads_per_kv_head: query heads that share a KV head
        bytes_per_number: s
    """

    num_layers: int
    hidden_size: int
    heads_per_kv_head: int
    bytes_per_number: int


@dataclass(frozen=True)
class Machine:
    """What a machine can do: G, B, and the seconds until the first byte comes."""

    flops_per_second: float
    bytes_per_second: float
    round_trip_seconds: float


@dataclass(frozen=True)
class Parts:
    """The parts of a connector that learners have written."""

    chunk_keys: Callable[[bytes, list[int], int], list[bytes]]
    matched_tokens: Callable[[list[bytes], Container[bytes], int, int, int], int]
    store: Callable[[int], Any]
    blocks_to_save: Callable[[Scheduled, list[bytes], int], list[Pair]]
    scheduler_side: Callable[..., Any]
    extract_block: Callable[[list[Tensor], int], bytes]
    inject_block: Callable[[list[Tensor], int, bytes], bool]
