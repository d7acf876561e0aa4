"""The engine with a learner's scheduler in it: the last check of lab 06."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

from utils.checks.kit.reference import chat_token_ids
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_06 import pictures
from utils.checks.lab_06.pictures import Mark
from utils.checks.lab_06.plain_scheduler import PlainScheduler
from utils.engine.core.scheduler import Scheduler
from utils.engine.llm import LLM
from utils.engine.llm_engine import LLMEngine
from utils.engine.metrics import StepRecord
from utils.engine.request import RequestOutput, SamplingParams

MAX_TOKENS, BLOCK_SIZE = 10, 8
QUESTIONS = (
    "What is the capital of France?",
    "Name two colours.",
    "Write one short sentence about the sea and the wind.",
    "Is 7 a prime number? Answer yes or no.",
    "What do bees make?",
)
ROOMY = {"num_gpu_blocks": 80}
# Blocks for about three of the five requests, and prompts in chunks.
SCARCE = {"num_gpu_blocks": 18, "max_num_batched_tokens": 32, "max_num_seqs": 4}

SchedulerClass = Callable[..., Any]


@functools.cache
def model() -> LLM:
    """The model, loaded once."""
    return LLM(
        dtype="float32", max_model_len=96, block_size=BLOCK_SIZE, num_gpu_blocks_override=80,
        enable_prefix_caching=False, scheduling_policy="priority",
    )  # fmt: skip


def new_engine(scheduler_class: SchedulerClass, changes: dict[str, int]) -> LLMEngine:
    """An engine with an empty KV cache and this scheduler, which records its steps."""
    engine = model().new_engine(changes=changes, scheduler_cls=scheduler_class)
    engine.step_trace = []
    return engine


def answer(
    engine: LLMEngine, prompts: Sequence[list[int]], priorities: Sequence[int] | None = None
) -> list[RequestOutput]:
    """Run the prompts to their end, together. The requests are called A, B, C, ..."""
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    outputs: dict[str, RequestOutput] = {}
    for number, prompt in enumerate(prompts):
        engine.add_request(
            _name(number), prompt, params, (priorities or [0] * len(prompts))[number]
        )
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step()}
    return [outputs[_name(number)] for number in range(len(prompts))]


def _name(number: int) -> str:
    return chr(ord("A") + number)


def run(scheduler_class: SchedulerClass) -> Passed:
    """Generate with the learner's scheduler, and compare with the engine's own."""
    prompts, expected = chat_token_ids(QUESTIONS), _reference()
    for says, changes in (("plenty of memory", ROOMY), ("little memory", SCARCE)):
        given = f"{len(prompts)} questions, {says}: {changes}"
        engine = call(new_engine, scheduler_class, changes, given=given)
        outputs = call(answer, engine, prompts, given=given)
        _compare(outputs, expected, given)
        _nothing_held(engine, given)
    trace = cast(list[StepRecord], engine.step_trace)
    _compare_steps(trace, prompts, expected)
    _check_priorities(scheduler_class, prompts)
    _check_abort(scheduler_class, prompts, expected)

    num_preempted = sum(len(record.preempted_req_ids) for record in trace)
    num_computed = sum(tokens.num_new for record in trace for tokens in record.tokens.values())
    needed = sum(map(len, prompts)) + sum(len(tokens) - 1 for tokens in expected)
    return Passed(
        f"Token for token what the engine's own scheduler gives. With blocks for only "
        f"{SCARCE['num_gpu_blocks'] * BLOCK_SIZE} tokens it took {len(trace)} steps; requests lost "
        f"their blocks {num_preempted} times, and {num_computed - needed} of {num_computed} tokens "
        f"were computed again. Priorities and an abort work, too. The engine says: "
        f"{outputs[0].outputs[0].text.strip()!r}",
        pictures.gantt(
            [_name(i) for i in range(len(prompts))],
            {"yours": _chart(trace)},
            "Your scheduler at work, with too few blocks for all",
        ),
        "Requests as rows, steps as columns: prompts in chunks, answers, and lost blocks.",
    )


@functools.cache
def _reference() -> list[list[int]]:
    """The answers with the engine's own scheduler, and plenty of memory."""
    return [_tokens(o) for o in answer(new_engine(Scheduler, ROOMY), chat_token_ids(QUESTIONS))]


def _tokens(output: RequestOutput) -> list[int]:
    return list(output.outputs[0].token_ids)


def _compare(outputs: Sequence[RequestOutput], expected: Sequence[list[int]], given: str) -> None:
    for number, (output, tokens) in enumerate(zip(outputs, expected, strict=True)):
        if _tokens(output) != tokens:
            raise Mismatch(
                "The engine says something else than with its own scheduler.",
                input=f"{given}; request {_name(number)}",
                expected=repr(model().get_tokenizer().decode(tokens)),
                got=repr(output.outputs[0].text),
                look="Tokens were left out, or computed with another request's keys and values. "
                "The check of exercise 7 has more to say.",
            )  # fmt: skip


def _nothing_held(engine: LLMEngine, given: str) -> None:
    if engine.kv_cache_manager.usage:
        raise Mismatch(
            "All requests are done, and some blocks are still held.", input=given,
            look="`self.kv_cache_manager.free(request)` for whoever is finished or aborted.",
        )  # fmt: skip


def _compare_steps(
    trace: Sequence[StepRecord], prompts: Sequence[list[int]], expected: Sequence[list[int]]
) -> None:
    """The steps under pressure are those that plain numbers predict."""
    plain = PlainScheduler(
        SCARCE["max_num_seqs"],
        SCARCE["max_num_batched_tokens"],
        SCARCE["num_gpu_blocks"],
        BLOCK_SIZE,
    )
    for number, (prompt, tokens) in enumerate(zip(prompts, expected, strict=True)):
        plain.add(_name(number), len(prompt), len(tokens))
    for number, record in enumerate(trace):
        plan = plain.schedule()
        plain.finish(plan)
        got = {name: tokens.num_new for name, tokens in record.tokens.items()}
        if (got, record.preempted_req_ids) != (plan.tokens, plan.preempted):
            raise Mismatch(
                "The answers are right, but the steps are not those of exercise 7.",
                input=f"step {number + 1} of {len(trace)}: {SCARCE}",
                expected=f"{plan.tokens}, preempted {plan.preempted}",
                got=f"{got}, preempted {record.preempted_req_ids}",
                look="The check of exercise 7 has more to say.",
            )  # fmt: skip


def _check_priorities(scheduler_class: SchedulerClass, prompts: Sequence[list[int]]) -> None:
    """One at a time: whoever has the lowest number is answered first."""
    given = "three questions with priorities 1, 2 and 0, max_num_seqs 1"
    engine = call(new_engine, scheduler_class, ROOMY | {"max_num_seqs": 1}, given=given)
    call(answer, engine, prompts[:3], [1, 2, 0], given=given)
    trace = cast(list[StepRecord], engine.step_trace)
    order = [name for record in trace for name in record.finished_req_ids]
    if order != ["C", "A", "B"]:
        raise Mismatch(
            "The priorities are not kept.", input=given, expected="answered: C, A, B",
            got=", ".join(order), look="The check of exercise 5, and the order of both lists.",
        )  # fmt: skip


def _check_abort(
    scheduler_class: SchedulerClass, prompts: Sequence[list[int]], expected: Sequence[list[int]]
) -> None:
    """A request is dropped in the middle of its answer; the other is not disturbed."""
    given = "two questions; the first is aborted after two steps"
    engine = call(new_engine, scheduler_class, ROOMY, given=given)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    for number in range(2):
        engine.add_request(_name(number), prompts[number], params)
    outputs = [call(engine.step, given=given) for _ in range(2)][-1]
    call(engine.abort_request, "A", given=given)
    while engine.has_unfinished_requests():
        outputs = call(engine.step, given=given)
    _compare(outputs, [expected[1]], given)
    _nothing_held(engine, given)


def _chart(trace: Sequence[StepRecord]) -> list[dict[str, Mark]]:
    """The recorded steps as cells of a picture."""
    chart = []
    answered: dict[str, int] = {}
    waits = {_name(number) for number in range(len(QUESTIONS))}
    for record in trace:
        marks = {name: Mark("waits") for name in waits - set(record.tokens)}
        waits = (waits | set(record.preempted_req_ids)) - set(record.tokens)
        marks |= {name: Mark("lost") for name in record.preempted_req_ids}
        for name, tokens in record.tokens.items():
            again = answered.get(name) and not (tokens.num_new == 1 and tokens.num_sampled)
            kind = "again" if again else "answer" if answered.get(name) else "prompt"
            marks[name] = Mark(kind, tokens.num_new)
            answered[name] = answered.get(name, 0) + tokens.num_sampled
        chart.append(marks)
    return chart
