"""The engine with a learner's loop in it: the last check of lab 08."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers.utils import logging

from utils.checks.kit.runner import Mismatch, call
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_08.given_parts import EngineBase
from utils.engine.llm import LLM
from utils.engine.llm_engine import LLMEngine
from utils.engine.outputs import RequestOutput
from utils.engine.request import RequestStatus
from utils.engine.sampling_params import SamplingParams
from utils.hub import load_tokenizer

EngineFactory = Callable[..., EngineBase]
EOS = 5  # a token that the tiny model does choose now and then


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
            folder, max_model_len=48, block_size=4, num_gpu_blocks_override=64, max_num_seqs=4,
            max_num_batched_tokens=64, device="cpu",
        )  # fmt: skip


def made(make_engine: EngineFactory, llm: LLM, **changes: Any) -> EngineBase:
    """The learner's engine."""
    engine = call(make_engine, llm, **changes)
    if not isinstance(engine, EngineBase):
        raise Mismatch(
            "`my_engine` must return an object of your class, which extends `EngineBase`.",
            look="The cell above does: `return MyLLMEngine(llm, parts, **changes)`.",
        )
    return engine


def greedy(**settings: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, **{"max_tokens": 6, **settings})


# --- two engines side by side --------------------------------------------------------------------


class Seen(NamedTuple):
    """An answer as the user sees it."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None

    def __str__(self) -> str:
        end = "goes on" if self.finish_reason is None else f"finished: {self.finish_reason}"
        reason = "" if self.stop_reason is None else f" ({self.stop_reason!r})"
        return f"tokens {self.token_ids}, {end}{reason}"


def _seen(output: RequestOutput) -> Seen:
    answer = output.outputs[0]
    return Seen(list(answer.token_ids), answer.text, answer.finish_reason, answer.stop_reason)


class Duel:
    """The learner's engine and the course's, which get the same requests and take the same steps.

    Args:
        make_engine: makes the learner's.
        words: the story in words.
        changes: fields of `EngineConfig`.
    """

    def __init__(self, make_engine: EngineFactory, words: str, **changes: Any) -> None:
        llm = tiny_llm()
        self.mine = made(make_engine, llm, **changes)
        self.reference: LLMEngine = llm.new_engine(changes=changes)
        self.lines = [words]

    @property
    def given(self) -> str:
        """What happened so far; the last few lines of it."""
        shown = self.lines if len(self.lines) <= 9 else [self.lines[0], "...", *self.lines[-7:]]
        return "\n".join(shown)

    def add(self, name: str, prompt: Sequence[int], params: SamplingParams) -> None:
        limits = f"max_tokens {params.max_tokens}"
        self.lines.append(f"request {name} comes: tokens {list(prompt)}, {limits}")
        call(self.mine.add_request, name, list(prompt), params, given=self.given)
        self.reference.add_request(name, list(prompt), params)

    def abort(self, *names: str) -> None:
        self.lines.append(f"abort_requests({list(names)})")
        dropped = {name: self.mine.requests.get(name) for name in names}
        call(self.mine.abort_requests, list(names), given=self.given)
        self.reference.abort_requests(list(names))
        for name, request in dropped.items():
            if request is not None and request.status != RequestStatus.FINISHED_ABORTED:
                raise Mismatch(
                    "An aborted request does not know it: its status says "
                    f"{request.status.name}.",
                    input=self.given, got=f"request {name}",
                    look="`request.status = RequestStatus.FINISHED_ABORTED`.",
                )  # fmt: skip
        self.compare_state("after the abort")

    def step(self) -> dict[str, Seen]:
        self.lines.append("step()")
        outputs = call(self.mine.step, given=self.given)
        wanted = {output.request_id: _seen(output) for output in self.reference.step()}
        self.compare_outputs(outputs, wanted)
        self.compare_state("after the step")
        return wanted

    def finish(self) -> None:
        for _ in range(500):
            if not self.reference.has_unfinished_requests():
                return
            self.step()
        raise AssertionError("the story does not end")

    def compare_outputs(self, outputs: Any, wanted: dict[str, Seen]) -> None:
        if not isinstance(outputs, list) or not all(isinstance(o, RequestOutput) for o in outputs):
            raise Mismatch(
                f"`step` returned a {type(outputs).__name__}; expected a list of RequestOutput.",
                input=self.given, look="`self.output(request)` makes one. `return` the list, also "
                "when it is empty.",
            )  # fmt: skip
        names = [output.request_id for output in outputs]
        expected = f"outputs of {', '.join(wanted) or 'nobody'}"
        got = f"outputs of {', '.join(names) or 'nobody'}"
        details: dict[str, Any] = dict(input=self.given, expected=expected, got=got)
        if extra := [name for name in names if name not in wanted]:
            raise Mismatch(
                f"Request {extra[0]} is returned, and it got no new token in this step.",
                **details, look="Only a request with a token in the dict of `execute_model`.",
            )  # fmt: skip
        if len(set(names)) < len(names):
            raise Mismatch("A request is returned twice in one step.", **details)
        if missing := [name for name in wanted if name not in names]:
            if wanted[missing[0]].finish_reason:
                says = f"Request {missing[0]} is finished, and its last output is not returned. "
                says += "The user would wait forever."
            else:
                says = f"Request {missing[0]} got a new token, and is not returned. Users want to "
                says += "read while the answer grows."
            raise Mismatch(says, **details, look="An output for every request that got a token, "
                           "finished or not.")  # fmt: skip
        for output in outputs:
            mine, want = _seen(output), wanted[output.request_id]
            if mine != want:
                raise _other_answer(output.request_id, mine, want, self.given)

    def compare_state(self, when: str) -> None:
        mine, reference = self.mine, self.reference
        unfinished = reference._requests
        for name, request in list(mine.requests.items()):
            if name not in unfinished:
                raise Mismatch(
                    f"Request {name} is over, and still in `self.requests` {when}. Its id can "
                    "never be used again, and a server that runs for weeks fills its memory.",
                    input=self.given, look="`del self.requests[request.request_id]`.",
                )  # fmt: skip
            right = unfinished[name].num_computed_tokens
            if request.num_computed_tokens != right:
                raise Mismatch(
                    f"`num_computed_tokens` of request {name} is wrong {when}.", input=self.given,
                    expected=f"{right}", got=f"{request.num_computed_tokens}",
                    look="`self.update` once for *every* scheduled request, also for those that "
                    "got no token: then with None.",
                )  # fmt: skip
        if lost := [name for name in unfinished if name not in mine.requests]:
            raise Mismatch(
                f"Request {lost[0]} is not finished, and gone from `self.requests` {when}.",
                input=self.given, look="Only finished and aborted requests go.",
            )  # fmt: skip
        for what in ("running", "waiting"):
            got = [r.request_id for r in getattr(mine.scheduler, what)]
            want = [r.request_id for r in getattr(reference.scheduler, what)]
            if got != want:
                held = [name for name in got if name not in unfinished]
                says = f"The scheduler's list `{what}` is wrong {when}."
                if held:
                    says = f"Request {held[0]} is over, and the scheduler still has it among those "
                    says += f"{what}: it would be computed on and on."
                raise Mismatch(
                    says, input=self.given, expected=f"{what}: {want}", got=f"{what}: {got}",
                    look="`self.free(request)` for each finished or aborted request, and for no "
                    "other.",
                )  # fmt: skip
        blocks = mine.kv_cache_manager.usage, reference.kv_cache_manager.usage
        if blocks[0] != blocks[1]:
            total = mine.config.num_gpu_blocks
            raise Mismatch(
                f"{'Blocks are still held' if blocks[0] > blocks[1] else 'Blocks are missing'} "
                f"{when}.",
                input=self.given, expected=f"{round(blocks[1] * total)} blocks in use",
                got=f"{round(blocks[0] * total)}", look="`self.free(request)`.",
            )  # fmt: skip


def _other_answer(name: str, mine: Seen, want: Seen, given: str) -> Mismatch:
    says, look = f"Request {name} has another answer than in the course's engine.", ""
    if mine.token_ids == want.token_ids and mine.finish_reason != want.finish_reason:
        says, look = f"Request {name} ends otherwise.", "The check of exercise 3."
    elif mine.token_ids == want.token_ids:
        says, look = f"The text of request {name} is another one.", "Exercises 4 and 5."
    elif len(mine.token_ids) > len(want.token_ids):
        says = f"Request {name} got a token too many."
        look = "`self.update` once per scheduled request and step."
    else:
        look = "Did the step run with exactly what `schedule()` returned? Then exercises 2 and 3."
    return Mismatch(says, input=given, expected=f"{want}\ntext {want.text!r}",
                    got=f"{mine}\ntext {mine.text!r}", look=look)  # fmt: skip


# --- stories -------------------------------------------------------------------------------------


def rehearse(make_engine: EngineFactory) -> None:
    """One short request, so that a part that is not written yet says so."""
    duel = Duel(make_engine, "an engine without requests")
    duel.step()
    duel = Duel(make_engine, "one request")
    duel.add("A", [9, 8, 7], greedy(max_tokens=1, stop="x"))
    duel.finish()


def one_after_another(make_engine: EngineFactory) -> None:
    duel = Duel(make_engine, "a request that is answered token by token")
    duel.add("A", [9, 8, 7, 6, 9], greedy(ignore_eos=True))
    duel.finish()
    duel.add("A", [3, 4], greedy(ignore_eos=True))  # the id is free again
    duel.finish()


def arrivals(make_engine: EngineFactory) -> None:
    duel = Duel(make_engine, "requests that come in mid-run, two run at a time", max_num_seqs=2)
    duel.add("A", [9, 8, 7], greedy(ignore_eos=True))
    duel.step()
    duel.add("B", [4, 4, 4, 4], greedy(max_tokens=2, ignore_eos=True))
    duel.add("C", [9, 9], greedy(max_tokens=3, ignore_eos=True))
    duel.finish()


def chunks(make_engine: EngineFactory) -> None:
    duel = Duel(make_engine, "prompts in chunks of 4 tokens", max_num_batched_tokens=4)
    duel.add("A", list(range(6, 16)), greedy(max_tokens=3, ignore_eos=True))
    duel.add("B", [9, 9, 8, 8, 7], greedy(max_tokens=3, ignore_eos=True))
    duel.finish()


def aborts(make_engine: EngineFactory) -> None:
    duel = Duel(make_engine, "requests that are dropped", max_num_seqs=2)
    for name, token in zip("ABC", (9, 8, 7), strict=True):
        duel.add(name, [token] * 5, greedy(ignore_eos=True))
    duel.step()
    duel.abort("A")
    duel.step()
    duel.abort("nobody")
    duel.add("D", [7] * 9, greedy(max_tokens=2, ignore_eos=True))
    duel.add("E", [6] * 9, greedy(max_tokens=2, ignore_eos=True))
    duel.abort("E", "B")
    duel.finish()
    duel.abort("C")  # long finished
    duel.add("A", [9] * 5, greedy(max_tokens=2, ignore_eos=True))
    duel.abort("A")  # still waiting
    duel.step()


def failures(make_engine: EngineFactory) -> None:
    """A step breaks off in the middle, once by an error, once because the user interrupts it."""
    for error in (RuntimeError("out of memory"), KeyboardInterrupt()):
        _fail(make_engine, error)


def _fail(make_engine: EngineFactory, error: BaseException) -> None:
    name = type(error).__name__
    duel = Duel(make_engine, f"the forward pass breaks off with {name}")
    prompt = list(range(6, 16))
    duel.add("A", prompt, greedy(ignore_eos=True))
    duel.add("B", [9] * 5, greedy(ignore_eos=True))
    mine = duel.mine
    works = mine.runner.execute_model

    def breaks(*_: Any) -> Any:
        raise error

    mine.runner.execute_model = breaks  # type: ignore[assignment, method-assign]
    duel.lines.append("step(): breaks off")
    try:
        mine.step()
    except BaseException as raised:
        if raised is not error:
            if isinstance(raised, Exception):  # it is the learner's own: say where it is
                call(_reraise, raised, given=duel.given)
            raise
    else:
        raise Mismatch(
            f"`step` swallows the {name}. The caller believes that all is well, and calls again.",
            input=duel.given, look="`raise`, at the end of the `except` block.",
        )  # fmt: skip
    mine.runner.execute_model = works  # type: ignore[method-assign]
    if mine.requests or mine.scheduler.has_unfinished_requests():
        kind = "an interrupt is a BaseException, not an Exception" if name != "RuntimeError" else ""
        raise Mismatch(
            "After the step broke off, its requests are still there: what was promised to them was "
            f"never computed{'; ' + kind if kind else ''}.",
            input=duel.given, expected="no requests",
            got=f"requests {sorted(mine.requests)}, running "
            f"{[r.request_id for r in mine.scheduler.running]}",
            look="`except BaseException:` abort all of `self.requests`, then forget, then `raise`.",
        )  # fmt: skip
    if mine.kv_cache_manager.usage:
        raise Mismatch("After the step broke off, blocks are still held.", input=duel.given,
                       look="`self.abort_requests(list(self.requests))`.")  # fmt: skip
    duel.reference.forget_everything()
    duel.add("A", prompt, greedy(ignore_eos=True))
    output = call(mine.step, given=duel.given)
    found = output[0].num_cached_tokens if output else 0
    if found:
        raise Mismatch(
            f"The next request finds {found} tokens in the prefix cache that were never computed: "
            "the blocks were promised their contents, and then the step broke off.",
            input=duel.given, expected="0 tokens found", got=f"{found}",
            look="`self.forget_contents()`.",
        )  # fmt: skip
    duel.compare_outputs(output, {o.request_id: _seen(o) for o in duel.reference.step()})
    duel.finish()


def _reraise(error: Exception) -> None:
    raise error


def refusals(make_engine: EngineFactory) -> None:
    """Parameters that are changed to nonsense after they were checked once."""
    engine = made(make_engine, tiny_llm())
    params = greedy()
    params.top_p = 0.0
    try:
        engine.add_request("A", [9, 8], params)
    except ValueError:
        if not engine.has_unfinished_requests():
            return
    raise Mismatch(
        "A request with `top_p=0.0` gets into the engine.", expected="a ValueError, nothing queued",
        look="The check of exercise 1.",
    )  # fmt: skip


def random_stories(make_engine: EngineFactory, count: int = 12) -> int:
    """Requests come, go and are dropped at random, with little memory. Returns the steps taken."""
    steps = 0
    for seed in range(count):
        dice = random.Random(seed)
        changes = {
            "num_gpu_blocks": dice.choice([12, 16, 40]), "max_num_seqs": dice.choice([2, 3, 4]),
            "max_num_batched_tokens": dice.choice([4, 7, 64]),
            "enable_prefix_caching": dice.random() < 0.7,
        }  # fmt: skip
        duel = Duel(make_engine, f"random requests, story {seed}: {changes}", **changes)
        common = [dice.randrange(6, 32) for _ in range(9)]
        number = 0
        for _ in range(20):
            while number < 12 and dice.random() < 0.5:
                length = dice.randint(1, 12)
                prompt = [*common[: dice.randint(0, 9)], *(dice.randrange(6, 32)
                          for _ in range(length))]  # fmt: skip
                duel.add(f"R{number}", prompt, _random_params(dice))
                number += 1
            if dice.random() < 0.1 and number:
                duel.abort(f"R{dice.randrange(number)}")
            duel.step()
            steps += 1
        duel.finish()
    return steps


def _random_params(dice: random.Random) -> SamplingParams:
    max_tokens = dice.randint(1, 12)
    settings: dict[str, Any] = {
        "max_tokens": max_tokens,
        "ignore_eos": dice.random() < 0.5,
        "min_tokens": dice.choice([0, 0, min(3, max_tokens)]),
        "stop_token_ids": dice.choice([None, [7, 11], [20]]),
    }
    if dice.random() < 0.5:
        return greedy(**settings)
    return SamplingParams(temperature=1.5, seed=dice.randrange(100), **settings)


STORIES = (rehearse, one_after_another, arrivals, chunks, aborts, failures, refusals)
