"""The engine with a learner's loop in it, beside the course's engine: exercise 9."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.utils import logging

from utils.checks.kit.contracts import Clause, Contract, InLockstep, Raised, Stage
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_08.given_parts import EngineBase
from utils.checks.lab_08.loop.stories import Abort, Add, Step, Story, draw
from utils.engine.llm import LLM
from utils.engine.llm_engine import LLMEngine
from utils.engine.outputs import RequestOutput
from utils.engine.request import Request
from utils.engine.sampling_params import SamplingParams
from utils.hub import load_tokenizer

EngineFactory = Callable[..., EngineBase]
EOS = 5  # a token that the tiny model does choose now and then
MOST_STEPS = 300


@functools.cache
def tiny_llm() -> LLM:
    """The engine on a model of a few thousand random weights."""
    tiny = TinyModel()
    tiny.hf.generation_config.eos_token_id = EOS
    logging.disable_progress_bar()  # of saving
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny.hf.save_pretrained(folder)
        load_tokenizer().save_pretrained(folder)
        return LLM(
            folder,
            max_model_len=48,
            block_size=4,
            num_gpu_blocks_override=64,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            device="cpu",
        )


def play(stage: Stage, make_engine: Callable[..., LLMEngine], story: Story) -> None:
    """Event by event; after each one, all that a user or the next step could notice."""
    engine = stage.do(make_engine, tiny_llm(), **story.changes)
    if not isinstance(engine, LLMEngine):
        stage.blame("made", "an engine", engine)
    seen: dict[int, tuple[str, Request]] = {}  # all requests that ever came
    lines: list[str] = []
    for event in (*story.events, *[Step()] * MOST_STEPS):
        if len(lines) >= len(story.events) and not engine.has_unfinished_requests():
            return
        lines.append(str(event))
        shown = lines if len(lines) <= 9 else ["...", *lines[-8:]]
        stage.now("\n".join(shown))
        if isinstance(event, Add):
            params = SamplingParams(**dict(event.settings))
            stage.see("add", stage.call(engine, "add_request", event.name, [*event.prompt], params))
        elif isinstance(event, Abort):
            got = stage.call(engine, "abort_requests", list(event.names))
            stage.see("abort", got if isinstance(got, Raised) else "done")
        elif event.breaks:
            stage.see("fails", stage.do(_broken_step(engine, event)))
            stage.see("left", sorted(engine.requests), _names)
        else:
            _step(stage, engine)
        for name, request in engine.requests.items():
            seen[id(request)] = name, request
        _state(stage, engine, seen)
    stage.see("ends", engine.has_unfinished_requests())


def _step(stage: Stage, engine: LLMEngine) -> None:
    calls, execute = [0], engine.executor.execute_model

    def counted(*args: Any) -> Any:
        calls[0] += 1
        return execute(*args)

    live = dict(engine.requests)
    engine.executor.execute_model = counted  # type: ignore[assignment, method-assign]
    outputs = stage.call(engine, "step")
    engine.executor.execute_model = execute  # type: ignore[method-assign]
    if isinstance(outputs, Raised):
        stage.blame("raises", "a list of RequestOutput", outputs)
    if not isinstance(outputs, list) or not all(isinstance(o, RequestOutput) for o in outputs):
        stage.blame("form", "a list of RequestOutput", outputs)
    stage.see("calls", calls[0], str)
    outputs.sort(key=lambda output: output.request_id)  # their order is free
    stage.see("who", [output.request_id for output in outputs], _names)
    for output in outputs:
        request, answer = live[output.request_id], output.outputs[0]
        stage.see("cached", output.num_cached_tokens, str)
        stage.see("tokens", list(answer.token_ids))
        stage.see("end", (answer.finish_reason, answer.stop_reason), str)
        # How much is held back while a stop string may come is not the loop's.
        if output.finished or not request.sampling_params.stop:
            stage.see("text", answer.text, repr)


def _broken_step(engine: LLMEngine, event: Step) -> Callable[[], str]:
    """A step in which something raises an error, and what comes of the error."""
    books = "update" if isinstance(engine, EngineBase) else "_process"
    owner, name = {
        "model": (engine.executor, "execute_model"),
        "books": (engine, books),
        "schedule": (engine.scheduler, "schedule"),
    }[event.breaks]
    works, error = getattr(owner, name), event.error("out of memory")

    def breaks(*args: Any) -> Any:
        if event.breaks == "schedule":
            works(*args)
        raise error

    def step() -> str:
        setattr(owner, name, breaks)
        try:
            engine.step()
        except BaseException as raised:
            if raised is error:
                return "the same error"
            raise
        finally:
            setattr(owner, name, works)
        return "no error"

    return step


def _state(stage: Stage, engine: LLMEngine, seen: dict[int, tuple[str, Request]]) -> None:
    stage.see("requests", sorted(engine.requests), _names)
    scheduler, blocks = engine.scheduler, engine.kv_cache_manager.usage
    for name in ("running", "waiting"):
        stage.see(name, [r.request_id for r in getattr(scheduler, name)], _names)
    stage.see("blocks", round(blocks * engine.config.num_gpu_blocks), str)
    for name, request in seen.values():
        stage.see("computed", f"{request.num_computed_tokens} of {name}")
        stage.see("status", f"{getattr(request.status, 'name', request.status)} of {name}")


def _names(names: list[str]) -> str:
    return ", ".join(names) or "nobody"


def courses_engine(llm: LLM, **changes: Any) -> LLMEngine:
    return llm.new_engine(changes=changes)


class Remembering(InLockstep):
    """Keeps the last story that went wrong."""

    wrong_story: Story | None = None

    def fault(self, answer: Any, case: Any, expected: Any) -> Any:
        found = super().fault(answer, case, expected)
        self.wrong_story = case if found else self.wrong_story
        return found


FREE = "`self.free(request)` for each finished or aborted request, and for no other."
FAILED = (
    "`except BaseException:`, around all of the step, `schedule` included: abort all of "
    "`self.requests`, `self.forget_contents()`, then `raise`."
)
TOKEN = "An output for each request with a token in the dict of `execute_model`, and no other."

LOOP = Contract(
    inputs=draw,
    judge=Remembering(play, courses_engine),
    passed="",
    clauses={
        "made": Clause(
            "`my_engine` must return an object of your class, which extends `EngineBase`.",
            "The cell above does: `return MyLLMEngine(...)`.",
        ),
        "add": Clause(
            "`add_request` does {got}; expected {expected}. Is something left of an "
            "earlier request?",
            "`del self.requests[request.request_id]`.",
        ),
        "abort": Clause("`abort_requests` fails.", "Unknown and finished ids are ignored."),
        "fails": Clause(
            "A step broke off with an error, and the caller gets {got}. He believes "
            "that all is well, and calls again.",
            FAILED,
        ),
        "left": Clause(
            "After the step broke off, its requests are still there: {got}. What was "
            "promised to them was never computed. (An interrupt is a BaseException, "
            "not an Exception.)",
            FAILED,
        ),
        "form": Clause(
            "`step` returned {got}; expected a list of RequestOutput.",
            "`self.output(request)` makes one. `return` the list, also when it is empty.",
        ),
        "calls": Clause(
            "The model is called {got} times in this step; expected {expected}.",
            "Once, and not at all when nothing was scheduled.",
        ),
        "who": Clause(
            "`step` returns outputs of {got}; a new token came for {expected}. Users "
            "want to read while the answer grows, and to hear when it ends.",
            TOKEN,
        ),
        "tokens": Clause(
            "The request has other tokens than in the course's engine.",
            "`self.output` after `self.update`, which comes once per scheduled request and step.",
        ),
        "end": Clause(
            "The request ends otherwise than in the course's engine.",
            "`self.output` after `self.update`.",
        ),
        "text": Clause(
            "The tokens are right, and the request's text is another one.",
            "`self.output` after `self.update`.",
        ),
        "cached": Clause(
            "The request found {got} tokens in the prefix cache; expected {expected}. "
            "After a step that broke off, contents were promised and never computed; "
            "else they are there to be found.",
            "`self.forget_contents()` when a step fails, and only then.",
        ),
        "requests": Clause(
            "`self.requests` holds {got}; expected {expected}. Who is over must go, "
            "or its id can never be used again, and the memory fills up; all others "
            "stay.",
            "`del self.requests[request.request_id]`.",
        ),
        "running": Clause(
            "The scheduler's list `running` holds {got}; expected {expected}. Who is "
            "over would be computed on and on.",
            FREE,
        ),
        "waiting": Clause(
            "The scheduler's list `waiting` holds {got}; expected {expected}. Who is "
            "dropped must not wait any longer.",
            FREE,
        ),
        "blocks": Clause("{got} blocks are held; expected {expected}.", FREE),
        "computed": Clause(
            "`num_computed_tokens` is wrong: {got}; expected {expected}.",
            "`self.update` once for *every* scheduled request, also for those that "
            "got no token: then with None.",
        ),
        "status": Clause(
            "A request's status is wrong: {got}; expected {expected}.",
            "`request.status = RequestStatus.FINISHED_ABORTED`, of those that are "
            "dropped, and only of these.",
        ),
        "ends": Clause("The requests never end."),
    },
    examples=70,
)
