"""The checks of lab 08.

Oracles: brute force, numpy, Hugging Face, and the course's engine in the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.runner import Mismatch, Passed, exercise
from utils.checks.lab_08 import (
    bookkeeping,
    flat_batch,
    growing_text,
    params,
    reports,
    request_times,
    stops,
    two_engines,
)
from utils.checks.lab_08.given_parts import EngineBase
from utils.checks.lab_08.loop import parts, play, real_model
from utils.timing import one_thread

PATIENCE = 1200  # ticks for a call on the real model: about a minute of computing


@exercise("Exercise 1: check_sampling_params", points=2)
def check_sampling_params(function: Callable[..., None]) -> str | Passed:
    """Check `check_sampling_params(params)`."""
    return params.CHECK_SAMPLING_PARAMS.check(function)


@exercise("Exercise 2: prepare_inputs", points=4)
def prepare_inputs(function: Callable[..., Any]) -> str | Passed:
    """Check `prepare_inputs(requests, num_scheduled_tokens)`."""
    return flat_batch.PREPARE_INPUTS.check(function)


@exercise("Exercise 3: update_request", points=3)
def update_request(function: Callable[..., None]) -> str | Passed:
    """Check `update_request(request, num_scheduled_tokens, token_id)`."""
    return bookkeeping.UPDATE_REQUEST.check(function)


@exercise("Exercise 4: Detokenizer", points=3)
def detokenizer(detokenizer_class: Callable[..., Any]) -> str | Passed:
    """Check `Detokenizer(decode, prompt_token_ids).append(token_id)`."""
    return growing_text.DETOKENIZER.check(detokenizer_class)


@exercise("Exercise 5: text_to_show", points=3)
def text_to_show(function: Callable[..., Any]) -> str | Passed:
    """Check `text_to_show(text, num_gained, stop)`."""
    return stops.TEXT_TO_SHOW.check(function)


@exercise("Exercise 6: latencies", points=2)
def latencies(function: Callable[..., Any]) -> str | Passed:
    """Check `latencies(arrival_time, scheduled_ts, token_ts)`."""
    return request_times.LATENCIES.check(function)


@exercise("Exercise 7: serving_report", points=2)
def serving_report(function: Callable[..., Any]) -> str | Passed:
    """Check `serving_report(requests, duration, ttft_slo, tpot_slo)`."""
    return reports.SERVING_REPORT.check(function)


@exercise("Exercise 8: first_difference", points=2)
def first_difference(function: Callable[..., Any]) -> str | Passed:
    """Check `first_difference(tokens_a, tokens_b, logits, noise)`."""
    return two_engines.FIRST_DIFFERENCE.check(function)


@exercise("Exercise 9: MyLLMEngine", points=5)
def engine(make_engine: Callable[..., Any]) -> Passed:
    """Check `make_engine(llm, **changes)`: its parts, its loop in small stories, the real model."""
    with one_thread(), held_output(), watching():
        made = attempt(make_engine, play.tiny_llm())
        if not isinstance(made, EngineBase):
            says = "`my_engine` must return an object of your class, which extends `EngineBase`."
            raise Mismatch(getattr(made, "says", says), look=getattr(made, "look", ""))
        parts.judge_parts(made.parts)
        parts.judge_loop(make_engine)
    with held_output(), watching(), patience_of(PATIENCE):
        words, figure = real_model.run(make_engine)
    return Passed(
        "Your parts are right, and in random stories with little memory your loop gives the same "
        "outputs after each step as the course's engine. A step that broke off left nothing "
        f"behind. On the real model: {words}",
        figure,
        "Requests as rows, steps as columns: prompts in chunks, answers, and who waits.",
    )
