"""The last part of exercise 10 of lab 08: the learner's books in an engine that doesn't wait."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.lab.engine import as_hugging_face
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_08.given_scheduler import scheduler_with
from utils.checks.lab_08.learners_engine import PATIENCE, model
from utils.timing import one_thread


@one_thread()
def on_the_real_model(books_class: Callable[[], Any]) -> str:
    """The learner's books in the engine's scheduler, which now runs ahead of the real model."""
    llm = model()
    with held_output(), watching(), patience_of(PATIENCE):
        changes = {"async_scheduling": True}
        engine = llm.llm_engine = llm.new_engine(changes, scheduler_cls=scheduler_with(books_class))
        steps = engine.step_trace = []
        try:
            as_hugging_face(llm, "The stories passed. What depends on sizes?")
        finally:
            llm.llm_engine = llm.new_engine()
    ahead = sum(after.scheduled < step.executed for step, after in itertools.pairwise(steps))
    if not ahead:
        raise Mismatch(
            "The answers are right, but no step was scheduled before the one before it was over.",
            look="`num_uncomputed` counts the tokens that are on their way, too.",
        )
    return (
        "Right for chunks, for one step and two in flight, for answers that end and users that "
        f"leave. In the engine, {ahead} of {len(steps) - 1} steps were scheduled while the model "
        "still computed the step before, and every token is Hugging Face's."
    )
