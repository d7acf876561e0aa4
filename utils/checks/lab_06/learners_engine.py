"""The engine with a learner's scheduler in it: the last check of lab 06."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from utils.checks.kit.contracts import Raised, Stage
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.near_ties import engine_oracle, same_but_for_a_tie
from utils.checks.kit.reference import chat_token_ids
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_06 import pictures
from utils.checks.lab_06.bare_requests import Arrival, Story, name_of
from utils.checks.lab_06.learners_parts import check_scheduler, faulty_part
from utils.checks.lab_06.pictures import Mark
from utils.checks.lab_06.scheduler_mistakes import RightScheduler
from utils.checks.lab_06.scheduler_stories import Teller
from utils.engine import StepRecord
from utils.engine.core.scheduler import Scheduler
from utils.engine.llm import LLM
from utils.engine.request import SamplingParams

MAX_TOKENS, BLOCK_SIZE = 10, 8
QUESTIONS = (
    "What is the capital of France?",
    "Name two colours.",
    "Write one short sentence about the sea and the wind.",
    "Is 7 a prime number? Answer yes or no.",
    "What do bees make?",
)
SchedulerClass = Callable[..., Any]


@dataclass(frozen=True)
class Scene:
    """What the engine is asked, and what it has for that."""

    what: str
    num_gpu_blocks: int = 80
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    priorities: tuple[int, ...] = (0,) * len(QUESTIONS)
    max_tokens: int = MAX_TOKENS
    aborts_first: bool = False  # after two steps

    def told(self, count: int) -> str:
        limits = (
            f"num_gpu_blocks {self.num_gpu_blocks}, max_num_seqs {self.max_num_seqs}, "
            f"max_num_batched_tokens {self.max_num_batched_tokens}"
        )
        asked = " ".join(repr(question) for question in QUESTIONS[:count])
        return f"{self.what}: {limits}; {asked}"

    def steps(self, count: int, answers: Sequence[list[int]]) -> list[dict[str, Mark]]:
        """The steps that a right scheduler plans to give these answers, found without the model."""
        sizes = zip(chat_token_ids(QUESTIONS[:count]), answers, self.priorities, strict=False)
        arrivals = [
            Arrival(len(prompt), len(tokens[: self.max_tokens]), priority, False, 0, ())
            for prompt, tokens, priority in sizes
        ]
        if self.aborts_first:
            arrivals[-1] = replace(arrivals[-1], num_steps=2, aborted=(0,))
        story = Story(
            self.max_num_seqs,
            self.max_num_batched_tokens,
            self.num_gpu_blocks,
            BLOCK_SIZE,
            tuple(arrivals),
            tuple(map(float, range(count))),
            False,
        )
        teller = Teller(Stage(), RightScheduler, story)
        teller.tell()
        return teller.chart


# Blocks for about three of the five requests, and prompts in chunks.
SCARCE = Scene("little memory", 18, 4, 32)
SCENES = (
    Scene("plenty of memory"),
    Scene("priorities 1, 2 and 0", max_num_seqs=1, priorities=(1, 2, 0), max_tokens=2),
    Scene(
        "the first request is aborted after two steps",
        priorities=(0, 0),
        max_tokens=4,
        aborts_first=True,
    ),
    SCARCE,
)


@functools.cache
def model() -> LLM:
    """The model, loaded once."""
    return LLM(
        dtype="float32",
        max_model_len=96,
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=80,
        enable_prefix_caching=False,
        scheduling_policy="priority",
    )


@functools.cache
def reference() -> list[list[int]]:
    """The answers with the engine's own scheduler, and plenty of memory."""
    return list(play(Scheduler, SCENES[0], len(QUESTIONS)).tokens.values())


@dataclass(frozen=True)
class Run:
    """What came of a scene: tokens by request, the steps, and the blocks still held."""

    tokens: dict[str, list[int]]
    trace: list[StepRecord]
    usage: float


class Watched:
    """A learner's scheduler in the engine: endless loops are ended, errors become feedback."""

    def __init__(self, scheduler_class: SchedulerClass, *args: Any) -> None:
        self._yours = _patiently(scheduler_class, *args)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._yours, name)
        return functools.partial(_patiently, value) if callable(value) else value


def _patiently(function: Callable[..., Any], *args: Any) -> Any:
    got = attempt(function, *args)
    if isinstance(got, Raised):
        raise Mismatch(got.says, look=got.look)
    return got


def play(scheduler_class: SchedulerClass, scene: Scene, count: int) -> Run:
    """Ask the first `count` questions, all at once. The requests are called A, B, C, ..."""
    changes = {
        "num_gpu_blocks": scene.num_gpu_blocks,
        "max_num_seqs": scene.max_num_seqs,
        "max_num_batched_tokens": scene.max_num_batched_tokens,
    }
    own = scheduler_class is Scheduler
    scheduler: Any = scheduler_class if own else functools.partial(Watched, scheduler_class)
    engine = model().new_engine(changes=changes, scheduler_cls=scheduler)
    engine.step_trace = []
    params = SamplingParams(temperature=0.0, max_tokens=scene.max_tokens)
    for number, prompt in enumerate(chat_token_ids(QUESTIONS[:count])):
        engine.add_request(name_of(number), prompt, params, scene.priorities[number])
    tokens: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        if scene.aborts_first and len(engine.step_trace) == 2:
            engine.abort_request("A")
            tokens.pop("A", None)
        if engine.has_unfinished_requests():
            outputs = engine.step()
            tokens |= {o.request_id: list(o.outputs[0].token_ids) for o in outputs}
    return Run(tokens, engine.step_trace, engine.kv_cache_manager.usage)


def run(scheduler_class: SchedulerClass) -> Passed:
    """Check the learner's scheduler by itself, then in the engine, and say what is to blame."""
    if scheduler_class is Scheduler:
        raise Mismatch("That is the engine's own scheduler.", look="Pass `MyScheduler`.")
    try:
        check_scheduler(scheduler_class)
    except Mismatch as wrong:
        wrong.headline = f"Exercise 8 is not right yet. {wrong.headline}"
        raise
    with held_output():
        for scene in SCENES:
            mine = _judged(scheduler_class, scene, len(scene.priorities))
            if isinstance(mine, Mismatch):
                fewer = range(1, len(scene.priorities))
                tried = (_judged(scheduler_class, scene, count) for count in fewer)
                smallest = next((wrong for wrong in tried if isinstance(wrong, Mismatch)), mine)
                raise faulty_part(cast(type, scheduler_class)) or smallest
    assert isinstance(mine, Run)
    return _passed(mine)


def _judged(scheduler_class: SchedulerClass, scene: Scene, count: int) -> Run | Mismatch:
    """The learner's scheduler in the engine, or the first difference from a right one."""
    told, answers = scene.told(count), reference()[:count]
    try:
        mine = call(play, scheduler_class, scene, count, given=told)
    except Mismatch as wrong:
        wrong.details = (("Input", told), *(d for d in wrong.details if d[0] != "Input"))
        return wrong
    look = (
        "The check of exercise 8 finds no fault in your scheduler. What is here that none of its "
        "stories has?"
    )
    oracle, differs = engine_oracle(model()), None
    for number, (prompt, usual) in enumerate(zip(chat_token_ids(QUESTIONS), answers, strict=False)):
        want, got = usual[: scene.max_tokens], mine.tokens.get(name_of(number), [])
        if got == want or (scene.aborts_first and number == 0):
            continue
        if same_but_for_a_tie(oracle, prompt, got, want):  # other batches, other rounding
            answers[number] = got
        else:
            differs = differs or (name_of(number), want, got)
    steps, chart = scene.steps(count, answers), pictures.chart_of(mine.trace, count)
    plans = [[_plan(step) for step in both] for both in (steps, chart)]
    right, yours = ([*plan, "no step"] for plan in plans)
    first = next((n for n, (a, b) in enumerate(zip(right, yours, strict=False)) if a != b), None)
    where = told if first is None else f"{told}; step {first + 1}"
    if differs is not None:
        (name, want, got), decode = differs, model().get_tokenizer().decode
        return Mismatch(
            f"The engine answers request {name} otherwise than with its own scheduler.",
            input=where,
            expected=repr(decode(want)),
            got=repr(decode(got)),
            look=look,
        )
    if first is not None:
        names = [name_of(number) for number in range(count)]
        return Mismatch(
            "The answers are right, but the steps are not those of the engine's own scheduler.",
            input=where,
            expected=right[first],
            got=yours[first],
            look=look,
            figure=pictures.gantt(names, {"expected": steps, "yours": chart}, "The steps"),
            alt="The steps, request by request: expected, and yours.",
        )
    if mine.usage:
        return Mismatch(
            "All requests are done, and some blocks are still held.",
            input=told,
            look="`self.kv_cache_manager.free(request)` for whoever is finished or aborted.",
        )
    return mine


def _plan(step: Mapping[str, Mark]) -> str:
    """Who gets how many tokens, and who loses its blocks."""
    served = {name: mark.count for name, mark in sorted(step.items()) if mark.count}
    return f"tokens {served}, preempted {sorted(n for n, m in step.items() if m.kind == 'lost')}"


def _passed(mine: Run) -> Passed:
    prompts = chat_token_ids(QUESTIONS)
    num_preempted = sum(len(record.preempted_req_ids) for record in mine.trace)
    num_computed = sum(tokens.num_new for record in mine.trace for tokens in record.tokens.values())
    needed = sum(map(len, prompts)) + sum(len(tokens) - 1 for tokens in mine.tokens.values())
    text = model().get_tokenizer().decode(mine.tokens["A"], skip_special_tokens=True)
    return Passed(
        "Token for token, and step for step, what the engine's own scheduler gives. With blocks "
        f"for only {SCARCE.num_gpu_blocks * BLOCK_SIZE} tokens it took {len(mine.trace)} steps; "
        f"requests lost their blocks {num_preempted} times, and {num_computed - needed} of "
        f"{num_computed} tokens were computed again. Priorities and an abort work, too. The engine "
        f"says: {text.strip()!r}",
        pictures.gantt(
            [name_of(i) for i in range(len(prompts))],
            {"yours": pictures.chart_of(mine.trace, len(QUESTIONS))},
            "Your scheduler at work, with too few blocks for all",
        ),
        "Requests as rows, steps as columns: prompts in chunks, answers, and lost blocks.",
    )
