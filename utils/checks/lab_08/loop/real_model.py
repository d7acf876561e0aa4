"""The learner's engine on the real model: the last part of the last check of lab 08."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit import reference
from utils.checks.kit.contracts import Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_08 import pictures
from utils.checks.lab_08.given_parts import EngineBase
from utils.checks.lab_08.loop.play import EngineFactory
from utils.checks.lab_08.pictures import Cell
from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.llm import LLM
from utils.engine.outputs import CompletionOutput, RequestOutput
from utils.engine.sampling_params import SamplingParams

ARRIVALS = {"A": 0, "B": 0, "C": 5}  # by name: the step before which the request comes
ABORTED = "D"  # comes with B, and is dropped
ABORT_AT = 4
CHUNK = 32
MOST_STEPS = 200
PARTS = "Small models passed, and so did exercises 1 to 5. What is tied to their sizes?"


@functools.cache
def model() -> LLM:
    """The model, loaded once."""
    return LLM(dtype="float32", max_model_len=256, num_gpu_blocks_override=64)


def _greedy(**settings: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=reference.MAX_TOKENS, **settings)


def _ask(function: Callable[..., Any], *args: Any, given: str, **named: Any) -> Any:
    got = attempt(function, *args, **named)
    if isinstance(got, Raised):
        raise Mismatch(got.says, input=given, look=got.look)
    return got


class _Recorder:
    """Keeps what the scheduler of an engine decided, step by step."""

    def __init__(self, engine: EngineBase) -> None:
        self.steps: list[tuple[SchedulerOutput, set[str]]] = []
        self._schedule, self._engine = engine.scheduler.schedule, engine
        engine.scheduler.schedule = self.schedule  # type: ignore[method-assign]

    def schedule(self) -> SchedulerOutput:
        output = self._schedule()
        waiting = {request.request_id for request in self._engine.scheduler.waiting}
        self.steps.append((output, waiting))
        return output


def run(make_engine: EngineFactory) -> tuple[str, Figure]:
    """Real text, with arrivals in mid-run, an abort, chunks and streaming: as Hugging Face's."""
    engine = make_engine(model(), max_num_batched_tokens=CHUNK, max_num_seqs=3)
    recorder = _Recorder(engine)
    prompts = dict(zip(ARRIVALS, reference.reference_prompts(), strict=True))
    prompts[ABORTED] = prompts["B"]
    given = (
        f"three questions, C comes before step {ARRIVALS['C'] + 1}; a fourth, {ABORTED}, is "
        f"dropped before step {ABORT_AT + 1}; at most {CHUNK} tokens per step"
    )
    streams: dict[str, list[RequestOutput]] = {name: [] for name in prompts}
    for step in range(MOST_STEPS):
        for name, when in (*ARRIVALS.items(), (ABORTED, 0)):
            if when == step:
                _ask(engine.add_request, name, prompts[name], _greedy(), given=given)
        if step == ABORT_AT:
            _ask(engine.abort_requests, [ABORTED], given=given)
        for output in _ask(engine.step, given=given):
            streams[output.request_id].append(output)
        if step > max(ARRIVALS.values()) and not engine.has_unfinished_requests():
            break
    _judge_streams(streams, given)
    expected = reference.hf_greedy([prompts[name] for name in ARRIVALS])
    tokenizer = model().get_tokenizer()
    texts = {}
    for name, tokens in zip(ARRIVALS, expected, strict=True):
        answer = streams[name][-1].outputs[0] if streams[name] else CompletionOutput(0, "", [])
        texts[name] = answer.text
        same = reference.is_hf_greedy(prompts[name], answer.token_ids, tokens)
        right = list(answer.token_ids) if same else tokens  # which differ at a near tie at most
        text = tokenizer.decode(right, skip_special_tokens=True).rstrip("\ufffd")
        if not same or answer.text != text:
            kind = "text, for the same tokens," if same else "answer"
            raise Mismatch(
                f"Request {name} has another {kind} than Hugging Face's `generate`.",
                input=given,
                expected=repr(tokenizer.decode(right)),
                got=repr(answer.text),
                look=PARTS,
            )
    stopped = _stop_string(make_engine, prompts["B"], texts["B"])
    _generate(make_engine, list(prompts.values())[:3], expected)
    words = (
        f"token for token what Hugging Face's `generate` gives, though C came in mid-run and "
        f"{ABORTED} was dropped. The engine says: {texts['A'].strip()!r}. With a stop string: "
        f"{stopped!r}"
    )
    return words, _chart(recorder.steps, prompts)


def _judge_streams(streams: dict[str, list[RequestOutput]], given: str) -> None:
    for name, outputs in streams.items():
        before = ""
        for output in outputs:
            text = output.outputs[0].text
            if not text.startswith(before) or text.endswith("\ufffd"):
                raise Mismatch(
                    f"The text of request {name} does not only grow.",
                    input=given,
                    expected=f"it begins with {before!r}",
                    got=repr(text),
                    look=PARTS,
                )
            before = text


def _stop_string(make_engine: EngineFactory, prompt: str, text: str) -> str:
    """Ask for an end in the middle of the known answer, at a string that spans tokens."""
    middle = len(text) // 2
    stop = text[middle - 3 : middle + 4]
    wanted = text[: text.find(stop)]
    given = f"the prompt of B with stop={stop!r}"
    engine = make_engine(model())
    _ask(engine.add_request, "B", prompt, _greedy(stop=stop), given=given)
    outputs: list[list[RequestOutput]] = []
    while engine.has_unfinished_requests() and len(outputs) < MOST_STEPS:
        outputs.append(_ask(engine.step, given=given))
    answers = [output.outputs[0] for step in outputs for output in step]
    shown = [answer.text for answer in answers if not wanted.startswith(answer.text)]
    if shown or not answers or (answers[-1].text, answers[-1].stop_reason) != (wanted, stop):
        got = (
            f"{shown[0]!r} was shown" if shown else [(a.text, a.stop_reason) for a in answers[-1:]]
        )
        raise Mismatch(
            "A stop string does not end the answer as it should.",
            input=given,
            expected=f"{wanted!r}, stop_reason {stop!r}",
            got=str(got),
            look=PARTS,
        )
    return wanted


def _generate(
    make_engine: EngineFactory, prompts: Sequence[str], expected: Sequence[list[int]]
) -> None:
    """`LLM.generate` calls the learner's loop."""
    llm = model()
    llm.llm_engine = make_engine(llm)
    given = "`llm.generate(prompts)`, with your engine in the LLM"
    try:
        outputs = _ask(llm.generate, list(prompts), _greedy(), use_tqdm=False, given=given)
    finally:
        llm.llm_engine = llm.new_engine()
    for prompt, output, tokens in zip(prompts, outputs, expected, strict=True):
        if not reference.is_hf_greedy(prompt, output.outputs[0].token_ids, tokens):
            raise Mismatch("`generate` gives other tokens than your loop did before.", input=given)


def _chart(steps: Sequence[tuple[SchedulerOutput, set[str]]], prompts: dict[str, str]) -> Figure:
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
    return pictures.rows_of_cells(
        rows, "Tokens computed: C comes in mid-run, D is dropped", "step", first=1
    )
