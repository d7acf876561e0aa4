"""The engine with a learner's scheduler in it: the last graded exercise of lab 06."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.near_ties import engine_oracle, same_but_for_a_tie
from utils.checks.kit.reference import chat_token_ids
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_06 import answers, pictures
from utils.checks.lab_06.bare import name_of
from utils.checks.lab_06.pictures import Mark
from utils.checks.lab_06.scheduler_story import Arrival, Limits, SchedulerStory
from utils.engine import StepRecord
from utils.engine.core.sched.scheduler import Scheduler
from utils.engine.llm import LLM
from utils.engine.request import SamplingParams
from utils.timing import one_thread

BLOCK_SIZE = 8
PLENTY = Limits(64, 2048, 80, BLOCK_SIZE)
# How many tokens each answer has, whatever they are: so the steps don't depend on the tokens.
QUESTIONS = {
    "What is the capital of France?": 12,
    "Name two colors.": 8,
    "Write one short sentence about the sea and the wind.": 14,
    "Is 7 a prime number? Answer yes or no.": 6,
    "What do bees make?": 12,
}
LOOK = (
    "The check of your scheduler alone finds no fault. What is there in this run that none of its "
    "stories has?"
)


@dataclass(frozen=True)
class Scene:
    """What the engine has, and who asks it."""

    what: str
    limits: Limits = PLENTY
    priorities: tuple[int, ...] = (0,) * len(QUESTIONS)
    aborts_first: bool = False  # after two steps
    most: int = 100  # tokens of an answer

    def __str__(self) -> str:
        asked = " ".join(repr(question) for question in list(QUESTIONS)[: len(self.priorities)])
        return f"{self.what}: {SchedulerStory.tell(self.limits)}; {asked}"

    def asked(self) -> list[tuple[list[int], int, int]]:
        """Prompt, number of tokens in the answer, and priority of each request."""
        lengths = [min(length, self.most) for length in QUESTIONS.values()]
        return list(zip(prompts(), lengths, self.priorities, strict=False))

    def chart(self) -> list[dict[str, Mark]]:
        """The steps that the right scheduler plans, found without the model."""
        arrivals = [
            Arrival(len(prompt), num_answer, priority, time=float(number))
            for number, (prompt, num_answer, priority) in enumerate(self.asked())
        ]
        steps = [*SchedulerStory.told(self.limits, arrivals).steps]
        if self.aborts_first:
            steps += [("step", ()), ("step", ()), ("abort", ("A",))]
        story = SchedulerStory.of(answers.MyScheduler, self.limits, steps)
        story.end()
        return list(story.chart)


# Blocks for about three of the five requests, and prompts in chunks.
SCARCE = Scene("little memory", Limits(4, 32, 16, BLOCK_SIZE))
SCENES = (
    Scene("plenty of memory"),
    Scene("priorities 1, 2 and 0", Limits(1, 2048, 80, BLOCK_SIZE), (1, 2, 0), most=2),
    Scene("the first request is aborted after two steps", priorities=(0, 0), aborts_first=True),
    SCARCE,
)


def prompts() -> list[list[int]]:
    return chat_token_ids(list(QUESTIONS))


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
def reference() -> dict[str, list[int]]:
    """The answers with the engine's own scheduler, and plenty of memory."""
    return play(Scheduler, SCENES[0]).tokens


@dataclass(frozen=True)
class Run:
    """What came of a scene: tokens by request, the steps, and the part of the blocks still held."""

    tokens: dict[str, list[int]]
    trace: list[StepRecord]
    usage: float


class Watched:
    """A learner's scheduler in the engine: endless loops are ended, errors become feedback."""

    def __init__(self, scheduler_class: Callable[..., Any], *args: Any) -> None:
        self._yours = patiently(scheduler_class, *args)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._yours, name)
        return functools.partial(patiently, value) if callable(value) else value


def patiently(function: Callable[..., Any], *args: Any) -> Any:
    got = attempt(function, *args)
    if isinstance(got, Raised):
        raise Mismatch(got.says, look=got.look)
    return got


def play(scheduler_class: Any, scene: Scene) -> Run:
    """Ask the questions, all at once. The requests are called A, B, C, ..."""
    changes = {
        "num_gpu_blocks": scene.limits.num_blocks,
        "max_num_seqs": scene.limits.max_num_seqs,
        "max_num_batched_tokens": scene.limits.budget,
    }
    own = scheduler_class is Scheduler
    scheduler: Any = scheduler_class if own else functools.partial(Watched, scheduler_class)
    engine = model().new_engine(changes=changes, scheduler_cls=scheduler)
    engine.step_trace = []
    for number, (prompt, num_answer, priority) in enumerate(scene.asked()):
        params = SamplingParams(temperature=0.0, max_tokens=num_answer, ignore_eos=True)
        engine.add_request(name_of(number), prompt, params, priority)
    tokens: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        if scene.aborts_first and len(engine.step_trace) == 2:
            engine.abort_request("A")
            tokens.pop("A", None)
        if engine.has_unfinished_requests():
            outputs = engine.step()
            tokens |= {o.request_id: list(o.outputs[0].token_ids) for o in outputs}
    return Run(tokens, engine.step_trace, engine.kv_cache_manager.usage)


@one_thread()
def run(scheduler_class: Any) -> Passed:
    """The learner's scheduler in the engine, scene by scene, against a right one."""
    with held_output():
        runs = [judged(scheduler_class, scene) for scene in SCENES]
    return praise(runs[-1])


def judged(scheduler_class: Any, scene: Scene) -> Run:
    try:
        mine = call(play, scheduler_class, scene, given=str(scene))
    except Mismatch as wrong:
        wrong.details = (("Input", str(scene)), *(d for d in wrong.details if d[0] != "Input"))
        raise
    oracle, decode = engine_oracle(model()), model().get_tokenizer().decode
    count = len(scene.priorities)
    for number in range(int(scene.aborts_first), count):
        name = name_of(number)
        want, got = reference()[name][: scene.most], mine.tokens.get(name, [])
        # Other batches round differently: a near tie may turn.
        if not same_but_for_a_tie(oracle, prompts()[number], got, want):
            raise Mismatch(
                f"The engine answers request {name} otherwise than with its own scheduler.",
                input=str(scene),
                expected=repr(decode(want)),
                got=repr(decode(got)),
                look=LOOK,
            )
    steps, chart = scene.chart(), pictures.chart_of(mine.trace, count)
    right, yours = ([*map(plan_of, plans), "no step"] for plans in (steps, chart))
    for number, (want_plan, plan) in enumerate(zip(right, yours, strict=False), 1):
        if plan != want_plan:
            rows = {"expected": steps, "yours": chart}
            raise Mismatch(
                "The answers are right, but the steps are not those of the engine's own scheduler.",
                input=f"{scene}; step {number}",
                expected=want_plan,
                got=plan,
                look=LOOK,
                figure=pictures.gantt([name_of(n) for n in range(count)], rows, "The steps"),
                alt="The steps, request by request: expected, and yours.",
            )
    if mine.usage:
        raise Mismatch(
            "All requests are done, and some blocks are still held.",
            input=str(scene),
            look="`self.kv_cache_manager.free(request)` for each request that finishes or is "
            "aborted.",
        )
    return mine


def plan_of(step: Mapping[str, Mark]) -> str:
    """Which request gets how many tokens, and which ones lose their blocks."""
    served = {name: mark.count for name, mark in sorted(step.items()) if mark.count}
    return f"tokens {served}, preempted {sorted(n for n, m in step.items() if m.kind == 'lost')}"


def praise(mine: Run) -> Passed:
    num_preempted = sum(len(record.preempted_req_ids) for record in mine.trace)
    num_computed = sum(tokens.num_new for record in mine.trace for tokens in record.tokens.values())
    needed = sum(map(len, prompts())) + sum(n - 1 for n in QUESTIONS.values())
    tokenizer = model().get_tokenizer()
    first = mine.tokens["A"]
    ends = [i for i, token in enumerate(first) if token in tokenizer.all_special_ids]
    text = tokenizer.decode(first[: (ends or [len(first)])[0]])
    return Passed(
        "Token for token and step for step, your scheduler does what the engine's own does. With "
        f"blocks for only {SCARCE.limits.num_blocks * BLOCK_SIZE} tokens it took {len(mine.trace)} "
        f"steps. Requests lost their blocks {num_preempted} times, so {num_computed - needed} of "
        f"{num_computed} tokens were computed again. Priorities and an abort work, too. Asked for "
        f"the capital of France, the engine says: {text.strip()!r}",
        pictures.gantt(
            [name_of(i) for i in range(len(QUESTIONS))],
            {"yours": pictures.chart_of(mine.trace, len(QUESTIONS))},
            "Your scheduler at work, with too few blocks for all",
        ),
        "Requests as rows, steps as columns: prompts in chunks, answers, and lost blocks.",
    )
