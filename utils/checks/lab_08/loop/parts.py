"""Whose fault it is when a learner's engine goes wrong: the loop's, or one of its parts'."""

from __future__ import annotations

from typing import Any

from utils.checks.kit.contracts import Contract
from utils.checks.kit.patience import patience_of
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_08 import bookkeeping, flat_batch, growing_text, params, stops
from utils.checks.lab_08.given_parts import EngineBase, Parts
from utils.checks.lab_08.loop.play import LOOP, EngineFactory, Remembering

CONTRACTS: dict[str, Contract] = {
    "check_sampling_params": params.CHECK_SAMPLING_PARAMS,
    "prepare_inputs": flat_batch.PREPARE_INPUTS,
    "update_request": bookkeeping.UPDATE_REQUEST,
    "detokenizer_class": growing_text.DETOKENIZER,
    "text_to_show": stops.TEXT_TO_SHOW,
}
RIGHT = Parts(
    params.refuse,
    flat_batch.row_by_row,
    bookkeeping.with_rules(),
    growing_text.EnginesDetokenizer,
    stops.right_text_to_show,
)


def judge_parts(parts: Parts) -> None:
    """Each part by the check of its own exercise."""
    for number, (name, contract) in enumerate(CONTRACTS.items(), start=1):
        try:
            contract.check(getattr(parts, name))
        except Mismatch as wrong:
            wrong.headline = f"Exercise {number} is not right yet. {wrong.headline}"
            raise


def judge_loop(make_engine: EngineFactory) -> None:
    """The loop, with the learner's parts; a part without which all goes right is named."""
    try:
        LOOP.check(make_engine)
    except Mismatch as wrong:
        judge = LOOP.judge
        assert isinstance(judge, Remembering)
        story = judge.wrong_story
        for number, name in enumerate(Parts._fields, start=1):
            with patience_of(5):
                fault = judge.fault(with_right_part(make_engine, name), story, judge.expect(story))
            if fault is None:
                wrong.headline = (
                    f"Your part of exercise {number} passes its own check, but with the course's "
                    f"in its place this goes right. {wrong.headline}"
                )
                break
        raise


def with_right_part(make_engine: EngineFactory, name: str) -> EngineFactory:
    """The learner's engine, one of its parts replaced by a right one."""

    def make(*args: Any, **changes: Any) -> EngineBase:
        engine = make_engine(*args, **changes)
        engine.parts = engine.parts._replace(**{name: getattr(RIGHT, name)})
        if name == "prepare_inputs":
            engine.executor.prepare_inputs = RIGHT.prepare_inputs  # type: ignore[attr-defined]
        return engine

    return make
