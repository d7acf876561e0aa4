"""The paper's experiment with a learner's parts, beside the course's simulator: exercise 7.

arXiv 2309.06180, figure 2. The trace and the simulator are those of notebook 03.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.patience import TimeUp, limit, patience_of
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.lab_03.kinds import Request, Running
from utils.checks.lab_03.picture import plot_shares
from utils.checks.lab_03.roomy import Bag, Roomy
from utils.sim.memory import GIB, MODEL_SHAPES, kv_bytes_per_token
from utils.sim.memory_policies import STATES, Contiguous, MemoryUsage, Paged
from utils.sim.memory_waste import simulate
from utils.sim.traces import sharegpt_like_lengths

NUM_SLOTS = int(12 * GIB // kv_bytes_per_token(MODEL_SHAPES["OPT-13B"]))
NUM_REQUESTS = 400
SAMPLE_EVERY = 100
PATIENCE = 1200  # ticks for all runs together: a minute of computing
FULL = 0.8  # of the time; the last requests run in a memory that empties
BLOCK_SIZE = 16
FIRST_FIT_ROW, ROOM_ROW = "Oracle, first fit", "Oracle, with room made"
POLICIES = {
    "Orca (Max)": Contiguous("max"),
    "Orca (Pow2)": Contiguous("pow2"),
    "Orca (Oracle)": Contiguous("oracle"),
    FIRST_FIT_ROW: Contiguous("oracle", "first_fit"),
}
BLOCKS_ROW = f"blocks of {BLOCK_SIZE}"
Sample = tuple[int, dict[str, int]]  # step, slots in each state


@dataclass(frozen=True)
class Parts:
    """All that lab 03 builds."""

    count_states: Callable[..., dict[str, int]]
    first_fit: Callable[[int], Any]
    buddy: Callable[[int], Any]
    block_memory: Callable[[int, int], Any]
    make_room: Callable[..., Any]
    advance: Callable[..., None]


def run_chunks(
    memory: Any,
    policy: Contiguous,
    trace: Sequence[tuple[int, int]],
    advance: Callable[..., None],
    count_states: Callable[..., dict[str, int]],
) -> list[Sample]:
    """The trace in one memory; steps in which nothing comes or goes are jumped over."""
    running: list[Running] = []
    waiting = deque(Request(p, o, policy.num_reserved(p, o)) for p, o in trace)
    samples: list[Sample] = []
    now = 0
    while True:
        memory.now = now
        call(advance, memory, running, waiting, now)
        if not running:
            return samples
        ends = min(r.first_step + r.request.output_len for r in running)
        looks = range(-(-now // SAMPLE_EVERY) * SAMPLE_EVERY, ends, SAMPLE_EVERY)
        if looks:
            holes = call(memory.holes)
            need = call(memory.chunk_size, waiting[0].asked) if waiting else None
            for step in looks:
                samples.append((step, call(count_states, list(running), list(holes), need, step)))
        now = ends


def run_blocks(memory: Any, trace: Sequence[tuple[int, int]]) -> list[Sample]:
    """Step by step, with the preemptions of `utils.sim.memory_waste`."""
    final = {i: p + o - 1 for i, (p, o) in enumerate(trace)}
    tokens = {i: p for i, (p, _) in enumerate(trace)}
    running: list[int] = []
    waiting = deque(final)
    samples: list[Sample] = []
    step = 0
    while True:
        for i in [i for i in running if tokens[i] == final[i]]:
            call(memory.free, i)
            running.remove(i)
        for i in running:
            tokens[i] += 1
        place = 0
        while place < len(running):
            if call(memory.hold, running[place], tokens[running[place]]):
                place += 1
            else:
                waiting.appendleft(running.pop())
                call(memory.free, waiting[0])
        while waiting and call(memory.hold, waiting[0], tokens[waiting[0]]):
            running.append(waiting.popleft())
        if not running:
            return samples
        if step % SAMPLE_EVERY == 0:
            lengths = {i: final[i] for i in running}
            samples.append((step, call(memory.count_states, lengths)))
        step += 1


def by_the_course(usage: MemoryUsage) -> list[Sample]:
    columns = [getattr(usage, state).tolist() for state in STATES]
    return [
        (step, dict(zip(STATES, row, strict=True)))
        for step, *row in zip(usage.steps.tolist(), *columns, strict=True)
    ]


def compare(name: str, yours: Sequence[Sample], expected: Sequence[Sample]) -> None:
    """Raise `Mismatch` at the first step in which the slots' states differ."""
    for mine, right in zip(yours, expected, strict=False):
        if mine != right:
            raise Mismatch(
                "Your parts are right in small memories, but not in the paper's experiment.",
                input=f"{name}, {NUM_SLOTS:,} slots, step {right[0]}",
                expected=f"step {right[0]}: {right[1]}",
                got=f"step {mine[0]}: {mine[1]}",
                look="What in your parts holds for small numbers only?",
            )
    if len(yours) != len(expected):
        raise Mismatch(
            "The experiment does not end when it should.",
            input=name,
            expected=f"{len(expected) * SAMPLE_EVERY:,} steps, or somewhat fewer",
            got=f"{len(yours) * SAMPLE_EVERY:,}",
        )


def mean_shares(samples: Sequence[Sample]) -> dict[str, float]:
    """The mean share of each state while the memory is in full use."""
    last = FULL * samples[-1][0]
    chosen = [states for step, states in samples if step <= last]
    return {s: float(np.mean([states[s] for states in chosen])) / NUM_SLOTS for s in STATES}


def experiment(
    parts: Parts, course_advance: Callable[..., None], painted: Callable[..., dict[str, int]]
) -> tuple[dict[str, dict[str, float]], float]:
    """Shares by policy, and the tokens copied per request to make room.

    Args:
        course_advance, painted: right answers to exercises 6 and 1.

    Raises:
        Mismatch: anything differs from the course's simulator.
    """
    prompts, outputs = sharegpt_like_lengths(NUM_REQUESTS, seed=0)
    trace = list(zip(prompts.tolist(), outputs.tolist(), strict=True))
    shares: dict[str, dict[str, float]] = {}

    def judged(name: str, yours: Sequence[Sample], expected: Sequence[Sample]) -> None:
        compare(name, yours, expected)
        shares[name] = mean_shares(yours)

    def course(policy: Contiguous | Paged) -> list[Sample]:
        usage = simulate(policy, prompts, outputs, NUM_SLOTS, sample_every=SAMPLE_EVERY)
        return by_the_course(usage)

    for name, policy in POLICIES.items():
        memory = call(
            parts.first_fit if policy.placement == "first_fit" else parts.buddy, NUM_SLOTS
        )
        yours = run_chunks(memory, policy, trace, parts.advance, parts.count_states)
        judged(name, yours, course(policy))
    exactly = POLICIES[FIRST_FIT_ROW]
    roomy = Roomy(NUM_SLOTS, parts.make_room, trace)
    yours = run_chunks(roomy, exactly, trace, parts.advance, parts.count_states)
    judged(ROOM_ROW, yours, run_chunks(Bag(NUM_SLOTS), exactly, trace, course_advance, painted))
    yours = run_blocks(call(parts.block_memory, NUM_SLOTS, BLOCK_SIZE), trace)
    judged(BLOCKS_ROW, yours, course(Paged(BLOCK_SIZE)))
    return shares, roomy.copied / NUM_REQUESTS


def against_the_course(
    parts: Parts, course_advance: Callable[..., None], painted: Callable[..., dict[str, int]]
) -> Passed:
    """Words and a picture of success, or `Mismatch`."""
    try:
        with held_output(), patience_of(PATIENCE), limit():
            shares, copied = experiment(parts, course_advance, painted)
    except TimeUp:
        raise Mismatch(
            "In the paper's experiment your parts do not come to an end.",
            input=f"{NUM_REQUESTS} requests in {NUM_SLOTS:,} slots",
            look="Each of them is right in small memories. Which becomes slow in a large one?",
        ) from None
    used = {name: f"{share['used']:.1%}" for name, share in shares.items()}
    words = (
        f"Your parts run the paper's experiment, and agree with the course's simulator slot for "
        f"slot. Tokens fill {used['Orca (Max)']} of the memory with Orca (Max), "
        f"{used['Orca (Oracle)']} with an oracle and buddies, {used[FIRST_FIT_ROW]} with first "
        f"fit, {used[ROOM_ROW]} if your `make_room` moves chunks ({copied:.0f} tokens copied per "
        f"request), and {used[BLOCKS_ROW]} with blocks."
    )
    figure, alt = plot_shares(shares)
    return Passed(words, figure, alt)
