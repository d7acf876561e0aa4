"""What a step gave to the model, its flat batch and block tables, recorded as the engine runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from utils.engine import LLMEngine, ModelRunner
from utils.engine.core.step_record import StepRecord


@dataclass(frozen=True)
class StepAnatomy:
    """What one step gave to the model.

    Args:
        record: the engine's record of the step.
        input_ids: [T], the flat batch.
        positions: [T], of each token in its request.
        slots: [T], where its keys and values went.
        block_tables: by request id, the blocks of each scheduled request.
    """

    record: StepRecord
    input_ids: list[int]
    positions: list[int]
    slots: list[int]
    block_tables: dict[str, list[int]]

    @property
    def owners(self) -> list[str]:
        """The request id of each token of the flat batch."""
        return [name for name, new in self.record.tokens.items() for _ in range(new.num_new)]


@contextmanager
def record_anatomy(engine: LLMEngine) -> Iterator[list[StepAnatomy]]:
    """Record the engine's steps while the context lasts. The list is filled when it ends.

    Raises:
        ValueError: the engine has no paged KV cache.
    """
    if engine.kv_cache is None or not isinstance(engine.executor, ModelRunner):
        raise ValueError("Only an engine with a paged KV cache has blocks to show.")
    given: list[tuple[list[int], list[int], list[int], list[list[int]]]] = []

    def record(module: Any, arguments: tuple[Tensor, Tensor, Any]) -> None:
        input_ids, positions, batch = arguments
        tables = [table.tolist() for table in batch.metadata.block_tables]
        slots = batch.metadata.slot_mapping.tolist()
        given.append((input_ids.tolist(), positions.tolist(), slots, tables))

    anatomy: list[StepAnatomy] = []
    before, engine.step_trace = engine.step_trace, []
    hook = engine.executor.model.register_forward_pre_hook(record)
    try:
        yield anatomy
    finally:
        hook.remove()
        steps, engine.step_trace = engine.step_trace, before
    for step, (input_ids, positions, slots, tables) in zip(steps, given, strict=True):
        by_request = dict(zip(step.tokens, tables, strict=True))
        anatomy.append(StepAnatomy(step, input_ids, positions, slots, by_request))


def _events(record: StepRecord) -> tuple[int, int, int]:
    """How much a step has to show: kinds of events first, then guesses, then requests."""
    kinds = (record.preempted_req_ids, record.resumed_req_ids, record.finished_req_ids)
    guesses = sum(new.num_draft for new in record.tokens.values())
    return sum(map(bool, kinds)) + bool(guesses), guesses, len(record.tokens)
