"""A right scheduler's side for exercise 4, and those that make known mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.lab_16.learners_parts import Pair, Scheduled, Transfers

KeysOf = Callable[[Any], list[bytes]]
Matched = Callable[[Any, int], int]


class RightSide:
    """Plain and right. The switches make known mistakes."""

    forgets, skips_local, begins, rounds, at_question, answers, cleans = (
        True,
        True,
        "computed",
        "down",
        False,
        True,
        True,
    )

    def __init__(self, block_size: int, keys_of: KeysOf, matched_tokens: Matched) -> None:
        self.block_size, self.keys_of, self.matched_tokens = block_size, keys_of, matched_tokens
        self.loads: list[Pair] = []
        self.prompts: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed: int) -> tuple[int, bool]:
        found = self.matched_tokens(request, num_computed)
        if self.at_question:
            first = num_computed // self.block_size
            keys = self.keys_of(request)[first : first + found // self.block_size]
            self.loads += [(key, first + i) for i, key in enumerate(keys)]
        return found, False

    def update_state_after_alloc(self, request: Any, block_ids: list[int], num_ext: int) -> None:
        self.prompts.setdefault(request.request_id, request.num_tokens)
        count, end = num_ext // self.block_size, request.num_computed_tokens // self.block_size
        first = end - count if self.skips_local else 0
        if not self.at_question:
            self.loads += list(zip(self.keys_of(request), block_ids, strict=False))[
                first : first + count
            ]

    def build_connector_meta(self, scheduled: list[Scheduled]) -> Transfers:
        step = Transfers(list(self.loads))
        if self.forgets:
            self.loads = []
        for part in scheduled:
            after = part.num_computed_tokens + part.num_scheduled_tokens
            first = part.num_computed_tokens // self.block_size
            first = 0 if self.begins == "zero" else first
            last = after // self.block_size
            if self.rounds == "up":
                last = -(-after // self.block_size)
            if not self.answers and after > self.prompts[part.request.request_id]:
                continue
            pairs = zip(self.keys_of(part.request), part.block_ids, strict=False)
            step.saves += list(pairs)[first:last]
        return step

    def request_finished(self, request: Any) -> tuple[bool, None]:
        self.prompts.pop(request.request_id, None)
        return False, None


def with_switches(**switches: Any) -> type[RightSide]:
    """The connector that makes one mistake."""
    return type("Wrong", (RightSide,), switches)


class SavesOnce(RightSide):
    """Saves only in the first step of a request."""

    def build_connector_meta(self, scheduled: list[Scheduled]) -> Transfers:
        step = super().build_connector_meta([])
        for part in scheduled:
            if part.request.request_id in self.prompts:
                step.saves += super().build_connector_meta([part]).saves
                del self.prompts[part.request.request_id]
        return step


class LoadsByKey(RightSide):
    """Of two blocks with one key, only the last is loaded."""

    def build_connector_meta(self, scheduled: list[Scheduled]) -> Transfers:
        self.loads = list(dict(self.loads).items())
        return super().build_connector_meta(scheduled)


class NoEmptySteps(RightSide):
    """Tells nothing in a step that computes nothing."""

    def build_connector_meta(self, scheduled: list[Scheduled]) -> Transfers:
        return super().build_connector_meta(scheduled) if scheduled else Transfers()


class OfThoseWhoCompute(RightSide):
    """Tells a request's loads when the request computes something."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.by_request: dict[str, list[Pair]] = {}

    def update_state_after_alloc(self, request: Any, block_ids: list[int], num_ext: int) -> None:
        super().update_state_after_alloc(request, block_ids, num_ext)
        self.by_request[request.request_id], self.loads = self.loads, []

    def build_connector_meta(self, scheduled: list[Scheduled]) -> Transfers:
        for part in scheduled:
            self.loads += self.by_request.pop(part.request.request_id, [])
        return super().build_connector_meta(scheduled)


class LoadsOnce(RightSide):
    """A request that comes again loads nothing."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.known: set[str] = set()

    def update_state_after_alloc(self, request: Any, block_ids: list[int], num_ext: int) -> None:
        if num_ext and request.request_id not in self.known:
            self.known.add(request.request_id)
            super().update_state_after_alloc(request, block_ids, num_ext)

    def request_finished(self, request: Any) -> tuple[bool, None]:
        self.known.discard(request.request_id)
        return super().request_finished(request)


class Shared(RightSide):
    """All connectors note what is to be loaded in one list."""

    noted: list[Pair] = []  # noqa: RUF012

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.loads = self.noted

    def build_connector_meta(self, scheduled: list[Scheduled]) -> Transfers:
        step = super().build_connector_meta(scheduled)
        self.noted.clear()
        self.loads = self.noted
        return step
