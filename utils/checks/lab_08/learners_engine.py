"""The last check of lab 08: the learner's engine in stories, and then on the real model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit import reference
from utils.checks.kit.contracts import Contract, Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.lab.engine import as_hugging_face, speaks_first
from utils.checks.kit.lab.lab import Check
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.runner import Mismatch, Passed
from utils.checks.lab_08 import picture
from utils.checks.lab_08.given_parts import EngineBase, Parts
from utils.checks.lab_08.picture import Cell
from utils.checks.lab_08.stories import RIGHT, Remembering, tiny_llm
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.llm import LLM
from utils.engine.outputs import CompletionOutput, RequestOutput
from utils.engine.sampling_params import SamplingParams
from utils.timing import one_thread

EngineFactory = Callable[..., EngineBase]
PATIENCE = 1200  # ticks for a call on the real model: about a minute of computing
ARRIVALS = {"A": 0, "B": 0, "C": 5}  # by name: the step before which the request comes
DROPPED = "D"  # comes with B, and is dropped
DROPPED_AT = 4
CHUNK = 32
MOST_STEPS = 200
SIZES = "The tiny model of the stories passed, and so did exercises 1 to 5. What depends on sizes?"


@one_thread()
def judge(make_engine: EngineFactory, loop: Contract, checks: Sequence[Check]) -> Passed:
    """The parts by their own checks, the loop in stories, and at last the real model."""
    if isinstance(make_engine, type):
        raise Mismatch("Pass `my_engine`, which puts your parts into your class, not the class.")
    with held_output(), watching():
        made = attempt(make_engine, tiny_llm())
        if not isinstance(made, EngineBase):
            says = "`my_engine` must return an object of your class, which extends `EngineBase`."
            raise Mismatch(getattr(made, "says", says), look=getattr(made, "look", ""))
        for check, part in zip(checks, made.parts, strict=True):
            speaks_first(check, part)
        judge_loop(make_engine, loop)
    with held_output(), watching(), patience_of(PATIENCE):
        words, figure = on_the_real_model(make_engine)
    return Passed(
        "Your loop passed 60 random stories with little memory, dropped requests and steps that "
        f"fail: after each event nothing was lost and nothing left behind. {words}",
        figure,
        "Requests as rows, steps as columns: prompts in chunks, answers, and who waits.",
    )


def judge_loop(make_engine: EngineFactory, loop: Contract) -> None:
    """The loop, with the learner's parts; a part without which all goes right is named."""
    try:
        loop.check(make_engine)
    except Mismatch as wrong:
        lockstep = loop.judge
        assert isinstance(lockstep, Remembering)
        story = lockstep.wrong_story
        for number, name in enumerate(Parts._fields, start=1):
            with patience_of(2):
                other = with_right_part(make_engine, name)
                fault = lockstep.fault(other, story, lockstep.expect(story))
            if fault is None:
                wrong.headline = (
                    f"Your part of exercise {number} passes its own check, but here it goes wrong; "
                    f"with the course's part instead, all is right. {wrong.headline}"
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


@functools.cache
def model() -> LLM:
    """The model, loaded once."""
    return LLM(dtype="float32", max_model_len=256, num_gpu_blocks_override=64)


def greedily(**settings: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=reference.MAX_TOKENS, **settings)


def ask(function: Callable[..., Any], *args: Any, given: str, **named: Any) -> Any:
    got = attempt(function, *args, **named)
    if isinstance(got, Raised):
        raise Mismatch(got.says, input=given, look=got.look)
    return got


class Recorder:
    """Keeps what the scheduler of an engine decided, step by step, and who waited."""

    def __init__(self, engine: EngineBase) -> None:
        self.steps: list[tuple[SchedulerOutput, set[str]]] = []
        self._schedule, self._engine = engine.scheduler.schedule, engine
        engine.scheduler.schedule = self.schedule  # type: ignore[method-assign]

    def schedule(self) -> SchedulerOutput:
        output = self._schedule()
        waiting = {request.request_id for request in self._engine.scheduler.waiting}
        self.steps.append((output, waiting))
        return output


def on_the_real_model(make_engine: EngineFactory) -> tuple[str, Figure]:
    """Real text as Hugging Face's: from `generate`, then with arrivals in mid-run, chunks and a
    dropped request, then with a stop string."""
    llm = model()
    llm.llm_engine = make_engine(llm)
    try:
        as_hugging_face(llm, SIZES)
    finally:
        llm.llm_engine = llm.new_engine()
    engine = make_engine(llm, max_num_batched_tokens=CHUNK, max_num_seqs=3)
    recorder = Recorder(engine)
    prompts = dict(zip(ARRIVALS, reference.reference_prompts(), strict=True))
    prompts[DROPPED] = prompts["B"]
    given = (
        f"three questions, of which C comes before step {ARRIVALS['C'] + 1}; a fourth, {DROPPED}, "
        f"is dropped before step {DROPPED_AT + 1}; at most {CHUNK} tokens per step"
    )
    streams: dict[str, list[RequestOutput]] = {name: [] for name in prompts}
    for step in range(MOST_STEPS):
        for name, when in (*ARRIVALS.items(), (DROPPED, 0)):
            if when == step:
                ask(engine.add_request, name, prompts[name], greedily(), given=given)
        if step == DROPPED_AT:
            ask(engine.abort_requests, [DROPPED], given=given)
        for output in ask(engine.step, given=given):
            streams[output.request_id].append(output)
        if step > max(ARRIVALS.values()) and not engine.has_unfinished_requests():
            break
    texts = judge_streams(streams, prompts, given)
    stopped = stop_string(make_engine, prompts["B"], texts["B"])
    words = (
        "With the real model, your engine gives token for token what Hugging Face's `generate` "
        f"gives, though C came in mid-run and {DROPPED} was dropped. It says: "
        f"{texts['A'].strip()!r} And with a stop string: {stopped!r}"
    )
    return words, chart(recorder.steps, prompts)


def judge_streams(
    streams: dict[str, list[RequestOutput]], prompts: dict[str, str], given: str
) -> dict[str, str]:
    """Texts that only grow, and end as Hugging Face's. Returns them by name."""
    tokenizer, texts = model().get_tokenizer(), {}
    for name, outputs in streams.items():
        before = ""
        for output in outputs:
            text = output.outputs[0].text
            if not text.startswith(before) or text.endswith("\ufffd"):
                raise Mismatch(
                    f"The text of request {name} doesn't only grow.",
                    input=given,
                    expected=f"it begins with {before!r}",
                    got=repr(text),
                    look=SIZES,
                )
            before = text
    expected = reference.hf_greedy([prompts[name] for name in ARRIVALS])
    for name, tokens in zip(ARRIVALS, expected, strict=True):
        answer = streams[name][-1].outputs[0] if streams[name] else CompletionOutput(0, "", [])
        texts[name] = answer.text
        same = reference.is_hf_greedy(prompts[name], answer.token_ids, tokens)
        right = list(answer.token_ids) if same else tokens  # which differ at a near tie at most
        text = tokenizer.decode(right, skip_special_tokens=True).rstrip("\ufffd")
        if not same or answer.text != text:
            kind = "The tokens of request {} are right, but its text isn't."
            raise Mismatch(
                (kind if same else "Request {} gets another answer than from Hugging Face.").format(
                    name
                ),
                input=given,
                expected=repr(tokenizer.decode(right)),
                got=repr(answer.text),
                look=SIZES,
            )
    return texts


def stop_string(make_engine: EngineFactory, prompt: str, text: str) -> str:
    """Ask for an end in the middle of the known answer, at a string that spans tokens."""
    middle = len(text) // 2
    stop = text[middle - 3 : middle + 4]
    wanted = text[: text.find(stop)]
    given = f"the prompt of B with stop={stop!r}"
    engine = make_engine(model())
    ask(engine.add_request, "B", prompt, greedily(stop=stop), given=given)
    outputs: list[list[RequestOutput]] = []
    while engine.has_unfinished_requests() and len(outputs) < MOST_STEPS:
        outputs.append(ask(engine.step, given=given))
    answers = [output.outputs[0] for step in outputs for output in step]
    shown = [answer.text for answer in answers if not wanted.startswith(answer.text)]
    if shown or not answers or (answers[-1].text, answers[-1].stop_reason) != (wanted, stop):
        got = (
            f"{shown[0]!r} was shown" if shown else [(a.text, a.stop_reason) for a in answers[-1:]]
        )
        raise Mismatch(
            "A stop string doesn't end the answer as it should.",
            input=given,
            expected=f"{wanted!r}, stop_reason {stop!r}",
            got=str(got),
            look=SIZES,
        )
    return wanted


def chart(steps: Sequence[tuple[SchedulerOutput, set[str]]], prompts: dict[str, str]) -> Figure:
    tokenizer = model().get_tokenizer()
    lengths = {name: len(tokenizer.encode(prompt)) for name, prompt in prompts.items()}
    rows = []
    for name in prompts:
        cells = []
        for output, waiting in steps:
            if name in output.num_scheduled_tokens:
                [computed] = [
                    r.num_computed_tokens for r in output.scheduled_requests if r.request_id == name
                ]
                kind = "prompt" if computed < lengths[name] else "answer"
                cells.append(Cell(str(output.num_scheduled_tokens[name]), kind))
            else:
                cells.append(Cell("", "waits" if name in waiting else None))
        rows.append((f"request {name}", cells))
    title = "Each step computes some tokens of some requests: C comes in mid-run, D is dropped"
    return picture.rows_of_cells(rows, title, "step", first=1)
