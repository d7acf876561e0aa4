"""An interrupt may come at any line. It waits for the end of the step; a second one cuts through.

Afterwards nothing is missing, and answers are right. The oracle is an engine that was never
interrupted.
"""

from __future__ import annotations

import gc
import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.engine.tiny_engines import tiny_eagle, tiny_llama, tiny_medusa, tiny_speaker
from tests.scale import sized
from utils.engine import (
    LLM,
    BeamSearchParams,
    SamplingParams,
    Scheduler,
    SchedulerOutput,
    StructuredOutputsParams,
)
from utils.engine.beam_search import BeamSearchOutput, beam_search_steps
from utils.engine.kv_transfer.pool_connector import PoolConnector
from utils.engine.kv_transfer.store import MemoryStore

ENGINE = str(Path("utils", "engine"))
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
# Together they need more than the blocks that there are, and some begin alike.
PROMPTS = [[3, 4, 5, 6, 7, 8, 9, 10, 11], [3, 4, 5, 6, 7, 8, 9, 10, 12, 1], [7, 8], [3, 4, 5, 6, 1]]
SMALL = {
    "block_size": 2,
    "num_gpu_blocks_override": 24,
    "max_model_len": 48,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8,
    "device": "cpu",
}
SAMPLES = 20  # interrupted lines a case, once and twice
SIGNALS = sized(20, 100)  # a case, of those that are interrupted by real ones
BEAMS = BeamSearchParams(3, 7, ignore_eos=True)


def generate(llm: LLM) -> Any:
    return [o.outputs[0].token_ids for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def fill_in(llm: LLM) -> Any:
    form = StructuredOutputsParams(regex="( ?w[0-9]+)+")
    params = replace(GREEDY, ignore_eos=False, structured_outputs=form)
    return [o.outputs[0].token_ids for o in llm.generate(PROMPTS, params, use_tqdm=False)]


def search(llm: LLM) -> Any:
    found = llm.beam_search(PROMPTS[:2], BEAMS)
    return [sequence.tokens for output in found for sequence in output.sequences]


CASES: dict[str, tuple[dict[str, Any], Callable[[LLM], Any]]] = {
    "recomputed": ({"num_gpu_blocks_override": 26}, generate),
    "swapped": ({"swap_space": 1e-4}, generate),
    "async": ({"swap_space": 1e-4, "async_scheduling": True}, generate),
    "tree": (
        {
            "speculative_config": {
                "method": "medusa",
                "num_speculative_tokens": 6,
                "tree_widths": (2, 2),
            }
        },
        generate,
    ),
    "draft model": (
        {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3}},
        generate,
    ),
    "eagle": ({"speculative_config": {"method": "eagle", "num_speculative_tokens": 3}}, generate),
    "connector": ({}, generate),
    "form": ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, fill_in),
    "beams": ({"num_gpu_blocks_override": 60}, search),
}


@pytest.fixture(scope="module")
def folder(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tiny")
    tiny_eagle(path / "eagle", tiny_llama(path, seed=3))
    tiny_llama(path / "draft", seed=4, layers=1)
    tiny_medusa(path / "heads", 2)
    tiny_speaker(path / "speaker", model_path)
    return path


def engine(folder: Path, case: str) -> LLM:
    options = SMALL | CASES[case][0]
    if speculative := options.pop("speculative_config", None):
        models = {"draft_model": "draft", "medusa": "heads", "eagle": "eagle"}
        name = models.get(speculative["method"])
        options["speculative_config"] = speculative | {"model": name and folder / name}
    if case == "connector":
        options["kv_connector"] = PoolConnector(MemoryStore())
    return LLM(folder / "speaker" if case == "form" else folder, **options)


class Interrupt:
    """Counts the executed lines of the engine; interrupts it at one of them, so many times."""

    def __init__(self, at: int = -1, times: int = 1) -> None:
        self.at, self.times, self.count, self.where = at, times, 0, ""

    def __enter__(self) -> Interrupt:
        self.usual = signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, self.where
        signal.signal(signal.SIGINT, self.usual)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if ENGINE in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                for _ in range(self.times):
                    signal.raise_signal(signal.SIGINT)
        return self._line


def assert_whole(llm: LLM, where: str) -> None:
    """No block is missing, no request is left, and nothing waits to be copied."""
    core = llm.llm_engine
    manager, scheduler = core.kv_cache_manager, core.scheduler
    pool = manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks, where
    free = sorted(block.block_id for block in pool.free_block_queue)
    assert free == list(range(pool.num_gpu_blocks)), where
    assert all(block.ref_cnt == 0 for block in pool.blocks), where
    assert manager.swap_space.num_free_blocks == manager.swap_space.num_cpu_blocks, where
    assert not manager.req_to_blocks and not manager.num_cached_block, where
    assert not any(vars(manager._pending).values()), where
    assert not scheduler.waiting and not scheduler.running and not core.requests, where
    assert not any(vars(core.output_processor).values()), where


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("case", CASES)
def test_interrupted_at_any_line(folder: Path, case: str, times: int) -> None:
    run = CASES[case][1]
    llm = engine(folder, case)
    right = run(engine(folder, case))
    assert run(llm) == right and llm.reset_prefix_cache()
    with Interrupt() as whole:
        run(llm)
    assert_whole(llm, "")
    rng = random.Random(case)
    width = whole.count // SAMPLES
    assert width > 10
    for number in range(SAMPLES):
        at = number * width + rng.randrange(width) + 1
        with pytest.raises(KeyboardInterrupt), Interrupt(at, times) as interrupt:
            run(llm)
            raise KeyboardInterrupt  # more was cached this time, and there were fewer lines
        assert_whole(llm, interrupt.where)
        if number % 2:
            llm.reset_prefix_cache()  # else what was computed before is used
        assert run(llm) == right, interrupt.where
        assert_whole(llm, interrupt.where)


class Endless(Scheduler):
    """A learner's scheduler that never returns, until it is mended."""

    mended = False

    def schedule(self) -> SchedulerOutput:
        if self.waiting and not self.mended:
            self.waiting.popleft()  # its books are in disorder, too
        while not self.mended:
            time.sleep(0.001)
        return super().schedule()


def test_a_second_interrupt_ends_what_never_ends(folder: Path, interrupts) -> None:
    llm = LLM(folder, **SMALL)
    right = generate(llm)
    llm.llm_engine = llm.new_engine(scheduler_cls=Endless)
    interrupts(0.1)
    interrupts(0.4)
    begin = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        generate(llm)
    assert time.perf_counter() - begin > 0.3  # not at the first one
    assert_whole(llm, "")
    llm.llm_engine.scheduler.mended = True
    assert generate(llm) == right


def test_an_interrupt_waits_for_the_end_of_the_step(folder: Path) -> None:
    """The tokens of that step are there, and those who are not interrupted go on with them."""
    llm = LLM(folder, **SMALL)
    right = generate(llm)
    llm.llm_engine = engine = llm.new_engine()
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, GREEDY)
    states = list(engine.output_processor.request_states.values())
    for _ in range(6):
        engine.step()
    before = sum(len(state.output_token_ids) for state in states)
    execute = engine.executor.execute_model
    with Interrupt(), pytest.MonkeyPatch.context() as patch:

        def interrupted(output: SchedulerOutput) -> Any:
            signal.raise_signal(signal.SIGINT)
            return execute(output)

        patch.setattr(engine.executor, "execute_model", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    assert sum(len(state.output_token_ids) for state in states) > before
    assert engine.has_unfinished_requests()
    while engine.has_unfinished_requests():
        engine.step()
    assert [state.output_token_ids for state in states] == right


@pytest.fixture
def interrupts() -> Iterator[Callable[[float], None]]:
    """Sends a SIGINT to this process in so many seconds."""
    timers = []

    def send(seconds: float) -> None:
        timer = threading.Timer(seconds, signal.raise_signal, (signal.SIGINT,))
        timers.append(timer)
        timer.start()

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield send
    for timer in timers:
        timer.cancel()
        timer.join()
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("case", ["swapped", "form", "beams", "async"])
def test_interrupted_at_any_time(folder: Path, case: str, interrupts) -> None:
    """By a real signal, which can come between two bytecodes."""
    run = CASES[case][1]
    llm = engine(folder, case)
    right = run(llm)
    begin = time.perf_counter()
    run(llm)
    seconds = time.perf_counter() - begin
    rng = random.Random(0)
    for _ in range(SIGNALS):
        try:
            interrupts(rng.random() * seconds)
            run(llm)
            time.sleep(2 * seconds)
        except KeyboardInterrupt:
            pass
        assert_whole(llm, "")
        assert run(llm) == right


def half_read(llm: LLM, what: str) -> None:
    """Leave something half-read in a circle, as tracebacks and a notebook's `Out` make them."""
    if what == "stream":
        begun: Iterator[Any] = llm.stream([7, 8, 9], GREEDY)
    else:
        [request] = llm.llm_engine.inputs.from_prompts([[7, 8, 9]], GREEDY)
        begun = beam_search_steps(llm.llm_engine, request, BEAMS, BeamSearchOutput())
    next(begun)
    circle: list[Any] = [begun]
    circle.append(circle)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["", "in another thread"])
@pytest.mark.parametrize("what", ["stream", "beams"])
@pytest.mark.parametrize("case", ["recomputed", "beams", "async"])
def test_what_is_half_read_may_be_collected_at_any_time(
    folder: Path, case: str, what: str, elsewhere: bool
) -> None:
    """Python's garbage collector ends it in the midst of a step of others."""
    run = CASES[case][1]
    llm = engine(folder, case)
    core = llm.llm_engine
    compute, right = core.executor.execute_model, run(llm)
    gc.collect()
    gc.freeze()  # there is little to look at then
    gc.disable()
    try:
        for at in range(8):
            half_read(llm, what)
            steps = itertools.count()

            def collecting(output: Any, steps: Any = steps, at: int = at) -> Any:
                if next(steps) == at:
                    thread = threading.Thread(target=gc.collect)
                    (thread.start if elsewhere else gc.collect)()
                    if elsewhere:
                        thread.join()
                return compute(output)

            core.executor.execute_model = collecting
            assert run(llm) == right
            assert next(steps) > at
            assert_whole(llm, "")
    finally:
        gc.enable()
        gc.unfreeze()


def test_who_was_forgotten_is_told(folder: Path) -> None:
    """A stream that is read on after another cell was interrupted must not look finished."""
    llm = engine(folder, "recomputed")
    right = generate(llm)
    stream = llm.stream([7, 8, 9], GREEDY)
    next(stream)
    runner = llm.llm_engine.executor

    def breaks(output: SchedulerOutput) -> None:
        raise KeyboardInterrupt  # as a second interrupt would

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runner, "execute_model", breaks)
        generate(llm)
    with pytest.raises(RuntimeError, match="step was broken off"):
        list(stream)
    assert_whole(llm, "")
    assert generate(llm) == right


def test_a_search_that_ends_early_promises_nothing(folder: Path) -> None:
    """A block is findable when it is computed: not when beams have chosen its last token."""
    options = SMALL | {"num_gpu_blocks_override": 200}
    llm, alone = LLM(folder, **options), LLM(folder, **options, enable_prefix_caching=False)
    for seed in range(8):
        rng = random.Random(seed)
        prompt = [rng.randrange(3, 13) for _ in range(6)]
        for penalty in (0.2, 1.0):
            [output] = llm.beam_search([prompt], BeamSearchParams(3, 12, length_penalty=penalty))
            longer = [
                [*s.tokens[: len(prompt) + n], 5]
                for s in output.sequences
                for n in range(1, len(s.tokens) - len(prompt) + 1)
            ]
            got = llm.generate(longer, GREEDY, use_tqdm=False)
            want = alone.generate(longer, GREEDY, use_tqdm=False)
            assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in want]
