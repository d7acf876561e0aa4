"""The checks of lab 08.

Oracles: brute force, numpy, Hugging Face, and the course's engine in the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Passed, exercise
from utils.checks.kit.tiny_model import one_thread
from utils.checks.lab_08 import (
    bookkeeping,
    flat_batch,
    growing_text,
    learners_engine,
    params,
    real_model,
    request_times,
    stops,
    two_engines,
)


@exercise("Exercise 1: check_sampling_params", points=2)
def check_sampling_params(function: Callable[..., None]) -> str:
    """Check `check_sampling_params(params)`."""
    return params.judge_check_sampling_params(function)


@exercise("Exercise 2: prepare_inputs", points=4)
def prepare_inputs(function: Callable[..., Any]) -> Passed:
    """Check `prepare_inputs(requests, num_scheduled_tokens)`."""
    return flat_batch.judge_prepare_inputs(function)


@exercise("Exercise 3: update_request", points=3)
def update_request(function: Callable[..., None]) -> str:
    """Check `update_request(request, num_scheduled_tokens, token_id)`."""
    return bookkeeping.judge_update_request(function)


@exercise("Exercise 4: Detokenizer", points=3)
def detokenizer(detokenizer_class: Callable[..., Any]) -> str:
    """Check `Detokenizer(decode, prompt_token_ids).append(token_id)`."""
    return growing_text.judge_detokenizer(detokenizer_class)


@exercise("Exercise 5: text_to_show", points=3)
def text_to_show(function: Callable[..., Any]) -> str:
    """Check `text_to_show(text, num_gained, stop)`."""
    return stops.judge_text_to_show(function)


@exercise("Exercise 6: latencies", points=2)
def latencies(function: Callable[..., Any]) -> Passed:
    """Check `latencies(arrival_time, scheduled_ts, token_ts)`."""
    return request_times.judge_latencies(function)


@exercise("Exercise 7: serving_report", points=2)
def serving_report(function: Callable[..., Any]) -> str:
    """Check `serving_report(requests, duration, ttft_slo, tpot_slo)`."""
    return request_times.judge_serving_report(function)


@exercise("Exercise 8: first_difference", points=2)
def first_difference(function: Callable[..., Any]) -> str:
    """Check `first_difference(tokens_a, tokens_b, logits, noise)`."""
    return two_engines.judge_first_difference(function)


@exercise("Exercise 9: MyLLMEngine", points=5)
def engine(make_engine: Callable[..., Any]) -> Passed:
    """Check `make_engine(llm, **changes)`: small stories, random ones, then the real model."""
    with one_thread():
        for story in learners_engine.STORIES:
            story(make_engine)
        steps = learners_engine.random_stories(make_engine)
    words, figure = real_model.run(make_engine)
    return Passed(
        f"In {steps} random steps with little memory, the same outputs after each step as the "
        f"course's engine. A step that broke off left nothing behind. On the real model: {words}",
        figure,
        "Requests as rows, steps as columns: prompts in chunks, answers, and who waits.",
    )
