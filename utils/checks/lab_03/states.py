"""What every slot of the memory is for: exercise 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Once, Returns, mistake
from utils.checks.kit.contracts.differences import shown
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_03.kinds import Request, Running
from utils.sim.memory_policies import STATES

Holes = Sequence[tuple[int, int]]


def draw_memory(c: Choices) -> Given:
    now = c.pick((0, 5, 1000)) + c.integer(0, 3)
    start = 0
    holes: list[tuple[int, int]] = []
    running: list[Running] = []

    def piece() -> None:
        nonlocal start
        size = c.size(1, 2000)
        if c.rarely(2):
            holes.append((start, size))
        else:
            prompt_len, output_len = c.size(1, 300), c.size(1, 300)
            asked = prompt_len + output_len - 1 + (c.size(0, 2000) if c.rarely(2) else 0)
            request = Request(prompt_len, output_len, asked)
            if running and c.rarely(3):  # two may ask for the same
                request = c.pick(running).request
            size = request.asked + (c.size(0, 300) if c.rarely(2) else 0)
            last = request.output_len - 1
            age = c.pick((0, last, c.integer(0, last)))
            running.append(Running(request, now - age, start, size))
        start += size

    c.some(piece, 0, 6)
    need = None
    if not c.rarely(5):
        sizes = [size for _, size in holes] or [1]
        need = max(1, c.pick(sizes) + c.pick((0, 1, -1))) if c.rarely(2) else c.size(1, 2000)
    if c.rarely(4):  # in another order
        running.reverse()
        holes.reverse()
    wrap: Any = c.pick((list, list, tuple, Once))
    return Given(wrap(running), wrap(holes), need, now)


def painted(running: Iterable[Running], holes: Holes, need: int | None, now: int) -> dict[str, int]:
    """Slot by slot: each gets the name of its state, then the names are counted."""
    row: list[str] = []
    for r in running:
        final = r.request.prompt_len + r.request.output_len - 1
        slots = ["external"] * r.size
        slots[: r.request.asked] = ["internal"] * r.request.asked
        slots[:final] = ["reserved"] * final
        held = r.request.prompt_len + now - r.first_step
        slots[:held] = ["used"] * held
        row += slots
    for _, size in holes:
        row += ["external" if need is not None and size < need else "free"] * size
    count = Counter(row)
    return {state: count[state] for state in STATES}


def _count(change: str = "") -> Callable[..., dict[str, int]]:
    """A right answer, but for one thing."""

    def count(
        running: Iterable[Running], holes: Holes, need: int | None, now: int
    ) -> dict[str, int]:
        found = dict.fromkeys(STATES, 0)
        for (prompt, output, asked), first_step, _, size in running:
            held = prompt + now - first_step + (change == "age + 1")
            held = prompt if change == "prompt only" else held
            final = prompt + output - (change != "last token")
            found["used"] += held
            found["reserved"] += (asked if change == "all reserved" else final) - held
            found["internal"] += 0 if change == "all reserved" else asked - final
            rounding = "internal" if change == "textbook" else "external"
            found[rounding] += size - asked
        for _, size in holes:
            enough = need is None or size >= need + (change == "exact")
            if change == "nobody" and need is None:
                enough = False
            if change == "never":
                enough = True
            found["free" if enough else "external"] += size
        if change == "only what is there":
            return {state: slots for state, slots in found.items() if slots}
        return found

    return count


def _together(running: Any, holes: Any, need: Any, now: int) -> dict[str, int]:
    """Are all holes together enough?"""
    holes = list(holes)
    found = _count()(running, holes, None, now)
    if need is not None and found["free"] < need:
        found["external"] += found["free"]
        found["free"] = 0
    return found


def _passed(answer: Callable[..., dict[str, int]]) -> str:
    """Words of success, or `Mismatch` if a later call changes what an earlier one returned."""
    first = call(answer, [], [(0, 3)], None, 0)
    kept = dict(first)
    call(answer, [], [(0, 5)], 8, 0)
    if first != kept:
        raise Mismatch(
            "The second call changes the dictionary that the first one returned.",
            input="one hole of 3 slots, need None; then one hole of 5 slots, need 8",
            expected=f"still {kept}",
            got=str(first),
            look="Begin each call with a dictionary of its own.",
        )
    return "Right: every slot is counted once, by the paper's rule."


COUNT_STATES = Contract(
    inputs=draw_memory,
    judge=Returns(painted),
    passed=_passed,
    clauses={
        "returns": Clause(
            "Slots are counted wrongly. {says}",
            "Of a chunk, from its first slot on: used, reserved, internal, external. Of a hole, "
            "all is free, or all is external.",
        ),
        "again": Clause(
            "Something is read twice that can be read only once.", "One loop for each argument."
        ),
    },
    mistakes=(
        mistake(
            "The last token that a request writes is never fed back, so it takes no slot.",
            "A request ends with `prompt_len + output_len - 1` tokens.",
            _count("last token"),
        ),
        mistake(
            "Slots behind those that were asked for are internal fragmentation in textbooks. "
            "The paper counts them as external.",
            "`size - asked` is external.",
            _count("textbook"),
        ),
        mistake(
            "A hole that is exactly large enough is not lost: it is free.",
            "`size >= need`.",
            _count("exact"),
        ),
        mistake(
            "If nobody waits, no hole is too small.",
            "`need is None`: all holes are free.",
            _count("nobody"),
        ),
        mistake(
            "Holes that are too small for the next in line are external fragmentation.",
            "Compare each hole with `need`.",
            _count("never"),
        ),
        mistake(
            "The next in line needs its slots in *one* piece: look at each hole by itself.",
            "Compare each hole with `need`.",
            _together,
        ),
        mistake(
            "A request holds its prompt in the step in which it came in, and one token more in "
            "each step behind.",
            "`prompt_len + now - first_step`.",
            _count("age + 1"),
            _count("prompt only"),
        ),
        mistake(
            "What a request never fills is internal fragmentation, not reserved.",
            "Reserved ends where the request ends.",
            _count("all reserved"),
        ),
        mistake(
            "All five states must be in the dictionary, also with 0 slots.",
            "Begin with a dictionary of five zeros.",
            _count("only what is there"),
        ),
    ),
    tell=lambda given: (
        f"now {given.args[3]}, need {given.args[2]}, holes {list(given.args[1])}, running: "
        + ("; ".join(shown(r).strip("`") for r in given.args[0]) or "none")
    ),
)
