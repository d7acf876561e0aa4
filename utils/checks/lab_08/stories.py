"""What happens to a learner's engine on a tiny model: the stories of exercise 9."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils import logging

from utils.checks.kit.contracts import Choices, Raised
from utils.checks.kit.lab.story import InStep, LinedStory
from utils.checks.kit.patience import TimeUp
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_08 import answers
from utils.checks.lab_08.given_parts import EngineBase, Parts
from utils.engine.llm import LLM
from utils.engine.llm_engine import LLMEngine
from utils.engine.outputs import RequestOutput
from utils.engine.request import Request
from utils.engine.sampling_params import SamplingParams
from utils.hub import load_tokenizer

COMMON = (9, 8, 7, 6, 12, 20, 31, 6, 15)  # prompts begin with some of these
EOS = 5  # a token that the tiny model does choose now and then
MOST_STEPS = 300
LINES_TOLD = 9
MOST_TOKENS = 20  # of an answer
RIGHT = Parts(
    answers.check_sampling_params,
    answers.prepare_inputs,
    answers.update_request,
    answers.Detokenizer,
    answers.text_to_show,
)
WHERE = {
    "execute_model": "the forward pass",
    "schedule": "`schedule`, at its end,",
    "update": "`update` of {}",
    "output": "`output` of {}",
    "free": "the first `free`",
}


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


def right_engine(llm: LLM, **changes: Any) -> EngineBase:
    return answers.MyLLMEngine(llm, RIGHT, **changes)


@dataclass(frozen=True)
class Setting:
    """How an engine is made. `least`: tokens that prompts and answers have at least."""

    changes: dict[str, Any]
    least: int

    def __str__(self) -> str:
        return "an engine with " + ", ".join(f"{k}={v}" for k, v in self.changes.items())


class EngineStory(LinedStory):
    """Requests come, go, are dropped and come again; memory is short; steps fail. After each event
    all that a user or the next step could notice is looked at."""

    kinds = ("step", "add", "abort", "fails", "add", "step", "add", "step", "add")
    most = 28

    @classmethod
    def judge(cls, right: Any) -> Remembering:
        return Remembering(cls.events, right)

    @classmethod
    def draw_setting(cls, c: Choices) -> Setting:
        least = c.pick((0, 7))  # with long ones memory runs short
        changes = {
            "num_gpu_blocks": c.pick((40, 12, 12)),
            "max_num_seqs": c.pick((4, 1, 2, 3)),
            "max_num_batched_tokens": c.pick((64, 4, 7)),
            "enable_prefix_caching": not c.rarely(4),
        }
        return Setting(changes, least)

    @staticmethod
    def draw_step(c: Choices, setting: Setting) -> tuple[()]:
        return ()

    @staticmethod
    def draw_add(c: Choices, setting: Setting) -> tuple[str, list[int], dict[str, Any]]:
        name = f"R{c.integer(0, 7)}"
        own = c.some(lambda: c.integer(6, 31), setting.least, 11)
        prompt = [*COMMON[: c.integer(0, 9)], *own, 9]
        max_tokens, seed = (
            c.integer(1 + setting.least, MOST_TOKENS),
            c.pick((None, None, c.integer(0, 9))),
        )
        params = {
            "max_tokens": max_tokens,
            "ignore_eos": c.pick((True, False)),
            "min_tokens": c.pick((0, 0, min(3, max_tokens))),
            "stop_token_ids": c.pick((None, [7, 11], [20])),
            "stop": c.pick((None, ["#"], ["&", "$%"])),
            "temperature": 0.0 if seed is None else 1.5,
            "seed": seed,
        }
        return name, prompt, params

    @staticmethod
    def draw_abort(c: Choices, setting: Setting) -> tuple[list[str]]:
        return (c.some(lambda: f"R{c.integer(0, 7)}", 0, 3),)

    @staticmethod
    def draw_fails(c: Choices, setting: Setting) -> tuple[str, int, type[BaseException]]:
        return c.pick(tuple(WHERE)), c.integer(0, 3), c.pick((RuntimeError, KeyboardInterrupt))

    def say(self, line: str) -> None:
        """Of a long story, the setting and the end."""
        super().say(line)
        if len(self.lines) > LINES_TOLD:
            first, *rest = self.lines
            self.stage.now("\n".join([first, "...", *rest[1 - LINES_TOLD :]]))

    def start(self, answer: Any) -> None:
        given = (RIGHT,) if isinstance(answer, type) else ()  # a known mistake is a class
        self.engine: Any = self.stage.do(answer, tiny_llm(), *given, **self.setting.changes)
        if not isinstance(self.engine, LLMEngine):
            self.stage.blame("made", "an engine", self.engine)
        self.ever: dict[int, tuple[str, Request]] = {}  # all requests that ever came
        self.failed: set[int] = set()  # of these, the ones that a failed step may have ended

    def end(self) -> Iterator[None]:
        for _ in range(MOST_STEPS):
            if not self.engine.has_unfinished_requests():
                return
            self.do_step()
            yield
        self.stage.see("ends", self.engine.has_unfinished_requests())

    def do_add(self, name: str, prompt: list[int], params: dict[str, Any]) -> None:
        told = ", ".join(f"{k}={v!r}" for k, v in params.items() if v)
        self.say(f"request {name} comes: tokens {prompt}, {told}")
        got = self.stage.call(self.engine, "add_request", name, prompt, SamplingParams(**params))
        self.stage.see("add", got)
        self.look()

    def do_abort(self, names: list[str]) -> None:
        self.say(f"abort_requests({names})")
        self.see("abort", self.stage.call(self.engine, "abort_requests", list(names)))
        self.look()

    def do_step(self) -> None:
        self.say("step()")
        engine, stage = self.engine, self.stage
        calls, execute = [0], engine.executor.execute_model

        def counted(*args: Any) -> Any:
            calls[0] += 1
            return execute(*args)

        live = dict(engine.requests)
        engine.executor.execute_model = counted
        outputs = stage.call(engine, "step")
        engine.executor.execute_model = execute
        if isinstance(outputs, Raised):
            stage.blame("raises", "a list of RequestOutput", outputs)
        if not isinstance(outputs, list) or not all(isinstance(o, RequestOutput) for o in outputs):
            stage.blame("form", "a list of RequestOutput", outputs)
        stage.see("calls", calls[0], str)
        outputs = sorted(outputs, key=lambda output: output.request_id)  # their order is free
        stage.see("who", [output.request_id for output in outputs], listed)
        for output in outputs:
            request, answer = live[output.request_id], output.outputs[0]
            stage.see("cached", f"{output.num_cached_tokens} tokens for {output.request_id}")
            stage.see("tokens", list(answer.token_ids))
            stage.see("end", (answer.finish_reason, answer.stop_reason), str)
            # How much is held back while a stop string may come isn't the loop's.
            if output.finished or not request.sampling_params.stop:
                stage.see("text", answer.text, repr)
        self.look()

    def do_fails(self, where: str, which: int, kind: type[BaseException]) -> None:
        """A step in which something raises an error, once. Where it isn't reached, it is a step
        like others; `free` is waited for."""
        names = list(self.engine.requests) or ["nobody"]
        name, waits = names[which % len(names)], where == "free"
        happens = f"in which {WHERE[where].format(name)} raises {kind.__name__}"
        self.say(f"step(){', and more of them,' * waits} {happens}")
        live = {id(request) for request in self.engine.requests.values()}
        for _ in range(MOST_TOKENS if waits else 1):
            step = failing_step(self.engine, where, name, kind("out of memory"))
            got = self.stage.do(step)
            if got != "no error" or not self.engine.has_unfinished_requests():
                break
        self.stage.see("fails", got)
        if got == "the same error":
            self.failed |= live
            self.stage.see("left", sorted(self.engine.requests), listed)
        self.look()

    def look(self) -> None:
        """The books after an event."""
        engine, stage = self.engine, self.stage
        self.ever |= {id(r): (name, r) for name, r in engine.requests.items()}
        stage.see("requests", sorted(engine.requests), listed)
        scheduler, blocks = engine.scheduler, engine.kv_cache_manager.usage
        for name in ("running", "waiting"):
            stage.see(name, [r.request_id for r in getattr(scheduler, name)], listed)
        stage.see("blocks", round(blocks * engine.config.num_gpu_blocks), str)
        for name, request in self.ever.values():
            over = id(request) in self.failed and engine.requests.get(name) is not request
            if not over:
                stage.see("found", f"{request.num_cached_tokens} tokens for {name}")
                stage.see("computed", f"{request.num_computed_tokens} for {name}")
            status = getattr(request.status, "name", request.status)
            ended = over and str(status).startswith("FINISHED")
            stage.see("status", f"{'FINISHED' if ended else status} for {name}")


def failing_step(engine: Any, where: str, name: str, error: BaseException) -> Callable[[], str]:
    """A step in which something raises an error once, and what comes of it."""
    owner = {"execute_model": engine.executor, "schedule": engine.scheduler}.get(where, engine)
    works, raised = getattr(owner, where), [False]
    before = {n: len(request.output_token_ids) for n, request in engine.requests.items()}

    def is_due(args: Sequence[Any]) -> bool:
        if raised[0] or owner is not engine:
            return not raised[0]
        request = args[0]
        gained = len(request.output_token_ids) > before.get(name, 0)
        return where == "free" or (request.request_id == name and (where == "update" or gained))

    def fails(*args: Any) -> Any:
        if not is_due(args):
            return works(*args)
        if where == "schedule":
            works(*args)
        raised[0] = True
        raise error

    def step() -> str:
        setattr(owner, where, fails)
        try:
            engine.step()
        except BaseException as came:
            if came is error:
                return "the same error"
            if raised[0] and not isinstance(came, TimeUp):
                return f"another error, {type(came).__name__}: {came}"
            raise
        finally:
            setattr(owner, where, works)
        return "no error"

    return step


def listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nobody"


class Remembering(InStep):
    """Keeps the last story that went wrong."""

    wrong_story: Any = None

    def fault(self, answer: Any, case: Any, expected: Any) -> Any:
        found = super().fault(answer, case, expected)
        self.wrong_story = case if found else self.wrong_story
        return found
