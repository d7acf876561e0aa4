"""How an answer that runs on several ranks is judged: results first, then what was sent."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Fault, Given, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.guards import as_at_first
from utils.checks.lab_15.simulated_ranks import SimulatedRanks


@dataclass
class OnRanks:
    """What came of a run: each rank's result, and the bytes that it sent to each other rank."""

    results: list[Any]
    sent: list[dict[int, int]]


class ThroughRun(Returns):
    """Judges `run(answer, *given)` in the place of the answer's own result."""

    keeps_from_call_to_call = False  # ranks are started anew for each

    def __init__(self, oracle: Callable[..., Any], run: Callable[..., Any], **named: Any) -> None:
        super().__init__(oracle, **named)
        self._run = run

    def fault(self, answer: Any, given: Given, expected: Any) -> Fault | None:
        as_at_first(answer)
        return super().fault(functools.partial(self._run, answer), given, expected)


def on_ranks(
    function: Callable[..., Any], arguments: list[tuple[Any, ...]], seed: int, bare: bool = False
) -> OnRanks:
    """Run `function(group, *arguments[rank])` on as many ranks as there are arguments."""
    ranks = SimulatedRanks(len(arguments), seed, bare)
    results = ranks.run(function, arguments)
    return OnRanks(results, [dict(group.sent_to) for group in ranks.groups])


def results_of_ranks(
    expected: Any,
    got: OnRanks,
    most_bytes: Callable[[int], int] | None = None,
    ring: bool = False,
    same_bits: bool = False,
) -> Fault | None:
    """Compare rank by rank; then look at what was sent.

    Args:
        expected: of each rank.
        most_bytes: how many a rank may send, by its number.
        ring: may a rank send to the next one only?
        same_bits: must all ranks have the same, to the bit?
    """
    for rank, (want, came) in enumerate(zip(expected, got.results, strict=True)):
        if says := difference(want, came):
            return Fault("returns", f"on rank {rank}", want, came, says)
    if same_bits:
        for rank, came in enumerate(got.results):
            if isinstance(came, Tensor) and not torch.equal(came, got.results[0]):
                return Fault("same bits", f"on rank {rank}", "the bits of rank 0", "others")
    size = len(got.sent)
    for rank, sent in enumerate(got.sent):
        for other, count in sent.items():
            if ring and count and other != (rank + 1) % size:
                words = f"bytes to rank {(rank + 1) % size} only", f"bytes to rank {other}"
                return Fault("neighbour", f"on rank {rank}", *words)
        if most_bytes is not None and sum(sent.values()) > most_bytes(rank):
            words = f"{most_bytes(rank)} bytes at most", f"{sum(sent.values())} bytes sent"
            return Fault("bytes", f"on rank {rank}", *words)
    return None
