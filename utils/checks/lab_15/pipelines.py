"""Exercise 8: how long the stages of a pipeline stand idle."""

from __future__ import annotations

from collections.abc import Sequence

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake


def draw_pipeline(c: Choices) -> Given:
    """Stages that take equally long, or do not; few micro-batches, or many."""
    times = (1.0, 2.0, 3.0, 0.5)
    stages = c.some(lambda: c.pick(times), 1, 6)
    if c.rarely(3):
        stages = [stages[0]] * len(stages)
    return Given(stages, c.size(1, 12))


def idle_share(stage_seconds: Sequence[float], num_micro_batches: int) -> float:
    """By the clock: in each half of a second, who works?"""
    tick, now, busy = 0.5, 0, 0
    left = [0] * len(stage_seconds)  # ticks that the micro-batch in hand still takes
    waiting = [num_micro_batches, *[0] * (len(stage_seconds) - 1)]
    done = 0
    while done < num_micro_batches:
        for stage, seconds in enumerate(stage_seconds):
            if not left[stage] and waiting[stage]:
                waiting[stage] -= 1
                left[stage] = round(seconds / tick)
        finished = []
        for stage in range(len(left)):
            if left[stage]:
                busy += 1
                left[stage] -= 1
                if not left[stage]:
                    finished.append(stage)
        now += 1
        for stage in finished:
            if stage + 1 == len(left):
                done += 1
            else:
                waiting[stage + 1] += 1
    return 1 - busy / (now * len(stage_seconds))


def _share(end: float, stages: Sequence[float], num: int) -> float:
    return 1 - num * sum(stages) / (end * len(stages))


def _no_overlap(stages: Sequence[float], num: int) -> float:
    return _share(num * sum(stages), stages, num)


def _formula(stages: Sequence[float], num: int) -> float:
    return (len(stages) - 1) / (num + len(stages) - 1)


def _busy(stages: Sequence[float], num: int) -> float:
    return 1 - idle_share(stages, num)


def _never_waits_for_the_stage(stages: Sequence[float], num: int) -> float:
    """A stage takes a micro-batch as soon as it comes, also while it works on another one."""
    return _share(sum(stages) + (num - 1) * stages[0], stages, num)


def _rounds(stages: Sequence[float], num: int) -> float:
    """All stages change hands at the same time."""
    return _share((num + len(stages) - 1) * max(stages), stages, num)


def _one_less(stages: Sequence[float], num: int) -> float:
    return (len(stages) - 1) / num


def _of_the_last(stages: Sequence[float], num: int) -> float:
    end = sum(stages) + (num - 1) * max(stages)
    return 1 - num * stages[-1] / end


def _seconds(stages: Sequence[float], num: int) -> float:
    return (sum(stages) + (num - 1) * max(stages)) * len(stages) - num * sum(stages)


PIPELINE = Contract(
    inputs=draw_pipeline,
    judge=Returns(idle_share, atol=1e-9),
    passed=lambda answer: (
        f"Right, also where stages differ. Four equal stages: idle "
        f"{answer([1.0] * 4, 1):.0%} of the time with 1 micro-batch, {answer([1.0] * 4, 4):.0%} "
        f"with 4, {answer([1.0] * 4, 16):.0%} with 16."
    ),
    clauses={
        "returns": Clause(
            "The share is wrong. {says}",
            "A stage begins when the stage before is "
            "done with this micro-batch, and it is done with the one before.",
        )
    },
    mistakes=(
        mistake(
            "Nothing overlaps: each micro-batch waits until the one before has left the last "
            "stage.",
            "A stage is free as soon as it has passed its micro-batch on.",
            _no_overlap,
        ),
        mistake(
            "(p - 1) / (m + p - 1) holds where all stages take equally long.",
            "Compute when each stage ends each micro-batch.",
            _formula,
        ),
        mistake("That is the share of the time in which the stages work.", "1 minus that.", _busy),
        mistake(
            "A stage works on two micro-batches at the same time.",
            "`max` of two ends: this "
            "micro-batch in the stage before, the one before in this stage.",
            _never_waits_for_the_stage,
        ),
        mistake(
            "You let all stages wait for the slowest in every round. A fast one passes on when "
            "it is done.",
            "Compute when each stage ends each micro-batch.",
            _rounds,
        ),
        mistake(
            "The end is too early: the last micro-batch must pass all stages, too.",
            "`m + p - 1` steps, where stages are equal.",
            _one_less,
        ),
        mistake(
            "You look at the last stage only. The share is of all stages' time.",
            "`1 - work / (stages * end)`.",
            _of_the_last,
        ),
        mistake(
            "These are seconds, not a share.", "Divide by `len(stage_seconds) * end`.", _seconds
        ),
    ),
)
