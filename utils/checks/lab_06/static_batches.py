"""What lab 06 says of static batches: exercise 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Number
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.kit.runner import Passed
from utils.checks.lab_06 import pictures

ALT = "Each slot of each batch: padding, prompt, answer, idle places."
Rule = Callable[[Sequence[int], Sequence[int], int], Any]


def draw(c: Choices) -> Given:
    """Any number of requests, batches that are exactly full, one that holds them all, nobody."""
    lens = c.some(lambda: (c.size(1, 5000), c.size(1, 5000)), 1, 10)
    if c.rarely(8):
        lens = lens * c.integer(2, 50)
    if c.rarely(20):
        lens = []
    batch_size = c.pick((c.size(1, 300), c.integer(1, 4), max(1, len(lens))))
    return Given([prompt for prompt, _ in lens], [answer for _, answer in lens], batch_size)


def waste(
    prompt_lens: Sequence[int], output_lens: Sequence[int], batch_size: int
) -> tuple[int, int]:
    """Request by request: what each lacks to the longest of those in its batch."""

    def spare(lens: Sequence[int]) -> int:
        batch_of = [number // batch_size for number in range(len(lens))]
        longest: dict[int, int] = {}
        for batch, length in zip(batch_of, lens, strict=True):
            longest[batch] = max(longest.get(batch, 0), length)
        return sum(longest[batch] - length for batch, length in zip(batch_of, lens, strict=True))

    return spare(prompt_lens), spare(output_lens)


def _wrong(expected: tuple[int, int], got: Any, given: Given) -> Fault | None:
    pair = isinstance(got, tuple | list) and len(got) == 2
    if not pair or not all(isinstance(number, Number) for number in got):
        return Fault("pair", "", expected, got)
    padding, idle = got[0] == expected[0], got[1] == expected[1]
    if padding and idle:
        return None
    clause = "idle" if padding else "padding" if idle else "both"
    told = [f"{p} places of padding, {i} idle" for p, i in (expected, got)]
    return Fault(
        clause,
        "",
        expected,
        tuple(got),
        words=(told[0], told[1]),
        picture=partial(_picture, *given.args),
    )


def _picture(
    prompt_lens: list[int], output_lens: list[int], batch_size: int
) -> tuple[Figure | None, str]:
    if len(prompt_lens) > 12 or sum(prompt_lens) + sum(output_lens) > 200:
        return None, ""
    return pictures.static_batches(prompt_lens, output_lens, batch_size), ALT


def _passed(answer: Any) -> Passed:
    last = [6, 2, 7, 1, 4, 9, 3, 5], [3, 8, 2, 2, 9, 1, 5, 2], 3
    useful = sum(last[0]) + sum(last[1])
    share = useful / (useful + sum(answer(*last)))
    return Passed(
        f"Right on 150 lists of requests. By your count, {share:.0%} of the places that are drawn "
        "below do useful work.",
        pictures.static_batches(*last),
        ALT,
    )


def _spare(lens: Sequence[int], slots: int = 0) -> int:
    return (slots or len(lens)) * max(lens, default=0) - sum(lens)


def _per_batch(
    rule: Callable[[Sequence[int], Sequence[int]], tuple[int, int]], keep_last: bool = True
) -> Rule:
    def total(prompts: Sequence[int], outputs: Sequence[int], size: int) -> tuple[int, int]:
        end = len(prompts) if keep_last else len(prompts) // size * size
        parts = [
            rule(prompts[i : min(end, i + size)], outputs[i : min(end, i + size)])
            for i in range(0, end, size)
        ]
        return sum(p for p, _ in parts), sum(i for _, i in parts)

    return total


def _full_slots(prompts: Sequence[int], outputs: Sequence[int], size: int) -> Any:
    return _per_batch(lambda p, o: (_spare(p, size), _spare(o, size)))(prompts, outputs, size)


BATCH_WASTE = Contract(
    inputs=draw,
    judge=Returns(waste, wrong=_wrong),
    passed=_passed,
    clauses={
        "pair": Clause(
            "Your function returned {got}; expected a pair: places of padding, and idle places.",
            "`return padding, idle`.",
        ),
        "padding": Clause(
            "The idle places are right, the padding is wrong.",
            "A prompt is filled up to the longest prompt of its own batch.",
        ),
        "idle": Clause(
            "The padding is right, the number of idle places is wrong.",
            "A place is idle from the end of its answer to that of the longest in its batch.",
        ),
        "both": Clause(
            "Both counts are wrong.",
            "Cut the lists into batches first: `prompt_lens[i : i + batch_size]`. Each "
            "batch fills its prompts and its answers up to its own longest one.",
        ),
    },
    mistakes=(
        mistake(
            "The longest of *all* requests is taken. A batch only waits for its own.",
            "Cut the lists into batches first: `prompt_lens[i : i + batch_size]`.",
            lambda p, o, b: (_spare(p), _spare(o)),
            lambda p, o, b: tuple(len(x) * max(x) - sum(x) for x in (p, o)),
        ),
        mistake(
            "The two counts are swapped.",
            "`return padding, idle`.",
            lambda p, o, b: waste(p, o, b)[::-1],
        ),
        mistake(
            "The last batch is forgotten when it is smaller than the others.",
            "`range(0, len(prompt_lens), batch_size)` begins a batch for what is left, too.",
            _per_batch(lambda p, o: (_spare(p), _spare(o)), keep_last=False),
        ),
        mistake(
            "The last batch is counted with `batch_size` slots, but it has fewer requests.",
            "`len(prompts) * max(prompts) - sum(prompts)`, with the prompts of this batch.",
            _full_slots,
        ),
        mistake(
            "Idle places are counted from the longest prompt plus answer. After the prefill, "
            "all slots start their answers at the same step.",
            "Idle: `max(outputs) - output`, whatever the prompts.",
            _per_batch(
                lambda p, o: (_spare(p), _spare([a + b for a, b in zip(p, o, strict=True)]))
            ),
        ),
        mistake(
            "All places are counted, useful ones included.",
            "Subtract what is useful: `sum(prompts)` and `sum(outputs)`.",
            _per_batch(lambda p, o: (len(p) * max(p), len(o) * max(o))),
        ),
        mistake(
            "Requests are compared with the shortest, not with the longest: those that are "
            "longer than the shortest are the ones that do useful work.",
            "`max(prompts)`, `max(outputs)`.",
            _per_batch(lambda p, o: (sum(p) - len(p) * min(p), sum(o) - len(o) * min(o))),
        ),
        mistake(
            "The requests are sorted first. They are batched in the order of the lists.",
            "Cut the lists as they come.",
            lambda p, o, b: waste(sorted(p), sorted(o), b),
            lambda p, o, b: waste(sorted(p, reverse=True), sorted(o, reverse=True), b),
        ),
    ),
)
