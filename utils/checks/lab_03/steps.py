"""One step of the engine: who leaves, who comes in. The first half of exercise 6."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Stage, mistake
from utils.checks.lab_03.buddies import PlainBuddy
from utils.checks.lab_03.first_fit import PlainFirstFit
from utils.checks.lab_03.kinds import Request, Running

MOST = 1200  # requests


class FromTheTop(PlainFirstFit):
    """A third rule of placement: an engine must not care where a chunk comes to lie."""

    def chunk_size(self, num_tokens: int) -> int:
        return super().chunk_size(num_tokens) + 2

    def chosen(self, fitting: list[tuple[int, int]], size: int) -> int:
        return fitting[-1][0] + fitting[-1][1] - size


MEMORIES: dict[str, Callable[[int], PlainFirstFit]] = {
    "first fit": PlainFirstFit,
    "buddies": PlainBuddy,
    "from the top, 2 slots more": FromTheTop,
}


class Facade:
    """A memory with the methods that an engine may call, and no others."""

    def __init__(self, memory: PlainFirstFit) -> None:
        self.place, self.free, self.chunk_size = memory.place, memory.free, memory.chunk_size


@dataclass(frozen=True)
class Story:
    memory: str
    num_slots: int
    requests: tuple[Request, ...]
    gaps: tuple[int, ...]  # steps between two calls; more than 1 only while nobody ends
    late: int  # so many of the requests begin to wait one by one, before each later call
    times: int  # for a crowd: the requests, so many times

    def __str__(self) -> str:
        told = "; ".join(f"{p}, {o}, {a}" for p, o, a in self.requests) or "none"
        told += f"; all of them {self.times} times" if self.times > 1 else ""
        told += f"; the last {self.late} one by one, each before a later call" if self.late else ""
        return (
            f"memory of {self.num_slots} slots, {self.memory}; requests (prompt_len, output_len, "
            f"asked): {told}"
        )


def draw_story(c: Choices) -> Story:
    crowd = c.rarely(15)
    num_slots = 20_000 if crowd else c.pick((8, 16, c.size(4, 300)))

    def request() -> Request:
        prompt_len, output_len = c.size(1, 3 if crowd else max(1, num_slots // 3)), c.size(1, 9)
        return Request(prompt_len, output_len, prompt_len + output_len - 1 + c.integer(0, 3))

    return Story(
        c.pick(tuple(MEMORIES)),
        num_slots,
        tuple(c.some(request, 0, 10)),
        tuple(c.some(lambda: c.pick((1, 1, 2, 5)), 0, 40)),
        c.integer(1, 5) if c.rarely(3) else 0,
        c.integer(1, 600) if crowd else 1,
    )


def play(stage: Stage, advance: Any, story: Story) -> None:
    memory = MEMORIES[story.memory](story.num_slots)
    running: list[Running] = []
    requests = (story.requests * story.times)[:MOST]
    late = deque(requests[max(0, len(requests) - story.late) :])
    waiting = deque(requests[: len(requests) - len(late)])
    now = 0
    for gap in (0, *story.gaps):
        ends = [r.first_step + r.request.output_len for r in running]
        now += min([gap, *(max(1, end - now) for end in ends)])
        stage.now(f"step {now}")
        got = _called(stage, advance, Facade(memory), running, waiting, now)
        stage.see("returns", got)
        stage.see("waiting", list(waiting))
        stage.see("running", sorted(running, key=lambda r: r[2]))
        stage.see("memory", sorted(memory.chunks.items()))
        if late:
            waiting.append(late.popleft())
        elif not (running or waiting):
            return


def _called(stage: Stage, advance: Any, *args: Any) -> Any:
    """Its arguments are there to be changed, so a function without any is told to the stage."""
    return stage.do(lambda: advance(*args))


def right_step_but(change: str = "") -> Callable[..., None]:
    """A right answer, but for one thing."""

    def advance(memory: Any, running: Any, waiting: Any, now: int) -> None:
        def leave() -> None:
            for r in list(running):
                if now - r.first_step >= r.request.output_len - (change == "one early"):
                    if change != "no free":
                        memory.free(r.start)
                    running.remove(r)

        if change != "leave last":
            leave()
        for request in list(waiting):
            start = memory.place(request.asked)
            if start is None and change == "overtake":
                continue
            if (not start) if change == "slot 0" else start is None:
                break
            waiting.remove(request) if change == "overtake" else waiting.popleft()
            size = request.asked if change == "asked" else memory.chunk_size(request.asked)
            running.append(Running(request, 0 if change == "step 0" else now, start, size))
            if change == "one":
                break
        if change == "leave last":
            leave()

    return advance


right_step = right_step_but()

ADVANCE = Contract(
    inputs=draw_story,
    judge=InLockstep(play, right_step),
    passed="",
    clauses={
        "returns": Clause(
            "`advance` returns {got}; it changes `running` and `waiting`, and returns {expected}."
        ),
        "waiting": Clause("Who waits is wrong: {got}; expected {expected}."),
        "running": Clause("Who runs is wrong: {got}; expected {expected}."),
        "memory": Clause(
            "The chunks in memory (start, size) are {got}; expected {expected}.",
            "Whoever leaves gives its chunk back with `memory.free`.",
        ),
    },
    mistakes=(
        mistake(
            "Those who end must leave first: their memory is what the next ones wait for.",
            "First free, then place.",
            right_step_but("leave last"),
        ),
        mistake(
            "A request leaves one step too early. It came in at `first_step` with its prompt, "
            "and is there for `output_len` steps.",
            "`first_step + output_len <= now`.",
            right_step_but("one early"),
        ),
        mistake(
            "Somebody overtakes: if the first in line finds no place, all wait.",
            "`break`.",
            right_step_but("overtake"),
        ),
        mistake(
            "Slot 0 is a place like any other.",
            "`if start is None`, not `if not start`.",
            right_step_but("slot 0"),
        ),
        mistake("Only one comes in; others find a place, too.", "A loop.", right_step_but("one")),
        mistake(
            "The chunk may be larger than what was asked for.",
            "`memory.chunk_size(request.asked)`.",
            right_step_but("asked"),
        ),
        mistake(
            "`first_step` is the step in which a request comes in.",
            "`now`.",
            right_step_but("step 0"),
        ),
        mistake(
            "Whoever leaves must give its chunk back.",
            "`memory.free(r.start)`.",
            right_step_but("no free"),
        ),
    ),
    examples=100,
)
