"""What lab 08 says of the flat batch of a step: exercise 2."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.kit.runner import Passed
from utils.checks.lab_08 import pictures
from utils.checks.lab_08.pictures import Inputs
from utils.checks.lab_08.requests import running_request, some_tokens, state
from utils.engine.request import Request

LISTS = ("input_ids", "positions", "logits_indices")


@dataclass(frozen=True)
class Part:
    """A request's share in a step."""

    request_id: str
    token_ids: tuple[int, ...]
    num_prompt: int
    num_computed: int
    num_scheduled: int

    def request(self) -> Request:
        prompt, output = self.token_ids[: self.num_prompt], self.token_ids[self.num_prompt :]
        return running_request(self.request_id, prompt, output, self.num_computed)

    def __str__(self) -> str:
        return (
            f"request {self.request_id}: tokens {some_tokens(self.token_ids)}, "
            f"{self.num_computed} computed, {self.num_scheduled} scheduled"
        )


@dataclass(frozen=True)
class Step:
    """What a step computes.

    Args:
        order: of the dict, whose order is not that of the requests
        kind: what the requests come in
    """

    parts: tuple[Part, ...]
    order: tuple[int, ...]
    kind: type = list

    def __str__(self) -> str:
        return "; ".join(map(str, self.parts))

    @property
    def owners(self) -> list[str]:
        return [part.request_id for part in self.parts for _ in range(part.num_scheduled)]

    def arguments(self) -> tuple[Sequence[Request], dict[str, int]]:
        scheduled = [(p.request_id, p.num_scheduled) for p in self.parts]
        return self.kind(p.request() for p in self.parts), dict(scheduled[i] for i in self.order)


def draw(c: Choices) -> Step:
    """Prompts, chunks, cached prefixes, answers; some long; ids that repeat, and large ones."""
    numbers = itertools.count(1)

    def part() -> Part:
        number = next(numbers)
        length = c.size(1, 5000, small=8)
        computed = length - 1 if c.rarely(3) else c.integer(0, length - 1)
        left = length - computed
        scheduled = left if c.rarely(2) else c.integer(1, left)
        prompt = length if c.rarely(2) else c.integer(1, length)
        first = c.pick((10 * number + 1, 65_530 + number))
        ids = tuple(range(first, first + length))
        if c.rarely(4):
            ids = tuple(7 + place % 2 for place in range(length))
        return Part(chr(64 + number), ids, prompt, computed, scheduled)

    parts = c.some(part, 1, 6)
    order = c.shuffled(range(len(parts)))[::-1]  # the simplest is the other way round
    return Step(tuple(parts), tuple(order), c.pick((list, tuple)))


def row_by_row(requests: Sequence[Request], scheduled: dict[str, int]) -> Inputs:
    """The oracle: for each row of the batch, whose token it is and where it stands."""
    rows = [
        (request, place)
        for request in requests
        for place in range(
            request.num_computed_tokens, request.num_computed_tokens + scheduled[request.request_id]
        )
    ]
    return (
        [request.all_token_ids[place] for request, place in rows],
        [place for _, place in rows],
        [row for row, (request, place) in enumerate(rows) if place == request.num_tokens - 1],
    )


def play(stage: Stage, function: Callable[..., Any], step: Step) -> None:
    """Two calls with the same requests, since a step that failed is tried again."""
    requests, scheduled = step.arguments()
    before, want = [state(r) for r in requests], row_by_row(*step.arguments())
    for _ in range(2):
        got = stage.do(function, requests, scheduled)
        if isinstance(got, Raised):
            stage.blame("raises", "three lists", got)
        if [state(r) for r in requests] != before:
            stage.blame("only read", "requests as before", "another state")
        inputs = _as_inputs(stage, got)
        for name, expected, yours in zip(LISTS, want, inputs, strict=True):
            if expected != yours:
                stage.blame(name, want, inputs, _show, _picture(step))
        if any(mine is r.all_token_ids for mine in got for r in requests):
            stage.blame("shares", "lists of its own", "a request's `all_token_ids`")


def _as_inputs(stage: Stage, got: Any) -> Inputs:
    if not isinstance(got, tuple | list) or len(got) != 3:
        stage.blame("form", "input_ids, positions, logits_indices", got)
    lists = []
    for name, part in zip(LISTS, got, strict=True):
        values = part.tolist() if hasattr(part, "tolist") else part
        try:
            if not isinstance(values, list | tuple | range):
                raise TypeError
            lists.append([operator.index(value) for value in values])
        except TypeError:
            stage.blame("flat", f"`{name}`: a flat list of ints", values)
    return lists[0], lists[1], lists[2]


def _show(inputs: Inputs) -> str:
    return "\n".join(f"{n}: {some_tokens(v)}" for n, v in zip(LISTS, inputs, strict=True))


def _picture(step: Step) -> Callable[[Any, Any], tuple[Figure | None, str]]:
    alt = "Each row of the batch: its token, its position, and whether a token is sampled."
    few = len(step.owners) <= 40
    return lambda want, got: (pictures.flat_batch(step.owners, want, got) if few else None, alt)


Rule = Callable[[Request, int, int, int], Any]  # request, start, end, rows before it


def with_rules(
    ids: Rule | None = None,
    positions: Rule | None = None,
    row: Rule | None = None,
    sampled: Rule | None = None,
    every_row: bool = False,
) -> Callable[..., Inputs]:
    """The right answer with another rule for the tokens, positions, rows, or who is sampled."""

    def lay_out(requests: Sequence[Request], scheduled: dict[str, int]) -> Inputs:
        inputs: Inputs = ([], [], [])
        for r in requests:
            at = (
                r,
                r.num_computed_tokens,
                r.num_computed_tokens + scheduled[r.request_id],
                len(inputs[0]),
            )
            inputs[0].extend(ids(*at) if ids else r.all_token_ids[at[1] : at[2]])
            inputs[1].extend(positions(*at) if positions else range(at[1], at[2]))
            if sampled(*at) if sampled else at[2] == r.num_tokens:
                inputs[2].append(row(*at) if row else at[3] + at[2] - at[1] - 1)
        return (*inputs[:2], list(range(len(inputs[0])))) if every_row else inputs

    return lay_out


POSITIONS = "The first scheduled token of a request stands at position `num_computed_tokens`."
IDS = (
    "`request.all_token_ids[start : start + num_scheduled]`, from `start = "
    "request.num_computed_tokens`."
)
ROWS = (
    "When a request's tokens are all in the batch, its last row is `len(input_ids) - 1`, right "
    "after you added them."
)
COMPLETE = "Sample where `num_computed_tokens + num_scheduled == num_tokens`."


def _passed(answer: Callable[..., Any]) -> Passed:
    shares = ((8, 0, 3), (6, 5, 1), (4, 0, 4), (9, 4, 4))
    parts = [
        Part("ABCD"[i], tuple(range(10 * i + 11, 10 * i + 11 + n)), n, computed, scheduled)
        for i, (n, computed, scheduled) in enumerate(shares)
    ]
    step = Step(tuple(parts), (3, 2, 1, 0))
    return Passed(
        "Right for whole prompts, chunks, cached prefixes and answers, alone and together. Each "
        "token at its place, and sampled only where a request has caught up.",
        pictures.flat_batch(step.owners, row_by_row(*step.arguments())),
        "A step of four requests: each row's token and position, and where tokens are sampled.",
    )


PREPARE_INPUTS = Contract(
    inputs=draw,
    judge=InLockstep(play, row_by_row),
    passed=_passed,
    clauses={
        "form": Clause("Your function returned {got}; expected three lists: {expected}."),
        "flat": Clause(
            "Not a flat list of ints: all requests lie one behind the other.",
            "`input_ids += [...]` adds the elements; `append` would add a list.",
        ),
        "only read": Clause(
            "Your function changes a request. Nothing is computed yet: the step may still fail.",
            "Only read. Exercise 3 does the bookkeeping.",
        ),
        "shares": Clause(
            "You return a request's own list. Who adds to one changes the other.",
            "A slice is a new list.",
        ),
        "input_ids": Clause(
            "These are not the tokens of the step.", "Per request, in the order given: " + IDS
        ),
        "positions": Clause("These are not the positions of the step's tokens.", POSITIONS),
        "logits_indices": Clause("These are not the rows to sample from.", COMPLETE),
    },
    mistakes=(
        mistake(
            "Positions restart at 0 in each chunk. After a cached prefix, or an earlier chunk, "
            "the model would take the tokens for the beginning of the text.",
            POSITIONS,
            with_rules(positions=lambda r, s, e, b: range(e - s)),
        ),
        mistake(
            "Every chunk starts at the request's first token. What is computed already is "
            "computed again, and the other tokens never.",
            IDS,
            with_rules(lambda r, s, e, b: r.all_token_ids[: e - s]),
            with_rules(
                lambda r, s, e, b: r.all_token_ids[: e - s], lambda r, s, e, b: range(e - s)
            ),
        ),
        mistake(
            "Positions count the rows of the batch. Each request has its own.",
            POSITIONS,
            with_rules(positions=lambda r, s, e, b: range(b, b + e - s)),
        ),
        mistake(
            "You take the newest tokens of each request. In a chunk, the next tokens are those "
            "after `num_computed_tokens`.",
            IDS,
            with_rules(lambda r, s, e, b: r.all_token_ids[s - e :]),
            with_rules(
                lambda r, s, e, b: r.all_token_ids[s - e :],
                lambda r, s, e, b: range(r.num_tokens + s - e, r.num_tokens),
            ),
        ),
        mistake(
            "A token is sampled from a chunk that is not the end of its prompt. The user would "
            "get an answer to half a question.",
            COMPLETE,
            with_rules(sampled=lambda r, s, e, b: True),
        ),
        mistake(
            "`logits_indices` points one row too far: to the next request's first row, or "
            "beyond the batch.",
            ROWS,
            with_rules(row=lambda r, s, e, b: b + e - s),
        ),
        mistake(
            "`logits_indices` counts from each request's own first row. The rows of all "
            "requests lie one behind the other in one batch.",
            ROWS,
            with_rules(row=lambda r, s, e, b: e - s - 1),
        ),
        mistake(
            "You sample from every row. Only the last token of a request says what comes next.",
            ROWS,
            with_rules(every_row=True),
        ),
        mistake(
            "Only decode steps are sampled. The last chunk of a prompt gives the first token "
            "of the answer.",
            COMPLETE,
            with_rules(sampled=lambda r, s, e, b: e - s == 1),
        ),
        mistake(
            "Prompts in chunks never get a first token: the last chunk completes them, too.",
            COMPLETE,
            with_rules(sampled=lambda r, s, e, b: (s == 0 or e - s == 1) and e == r.num_tokens),
        ),
    ),
)
