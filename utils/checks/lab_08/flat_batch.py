"""What lab 08 says of the flat batch of a step: exercise 2."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure

from utils.checks.kit.runner import Mismatch, Passed, call, describe
from utils.checks.lab_08 import pictures
from utils.checks.lab_08.pictures import Inputs
from utils.checks.lab_08.smallest_case import Fault, judge


@dataclass
class BareRequest:
    """What of a request matters here. The names are those of the engine's `Request`."""

    request_id: str
    all_token_ids: list[int]
    num_computed_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


class Part(NamedTuple):
    """A request's share in a step."""

    num_tokens: int
    num_computed: int
    num_scheduled: int

    @property
    def is_complete(self) -> bool:
        return self.num_computed + self.num_scheduled == self.num_tokens


class Step(NamedTuple):
    """What a step computes; the requests are called A, B, C, D."""

    parts: tuple[Part, ...]

    @property
    def names(self) -> list[str]:
        return [chr(ord("A") + i) for i in range(len(self.parts))]

    def tokens(self, i: int) -> list[int]:
        """The tokens of request A are 11, 12, ...; those of B 21, 22, ..."""
        return [10 * (i + 1) + 1 + place for place in range(self.parts[i].num_tokens)]

    @property
    def owners(self) -> list[str]:
        return [name for name, part in zip(self.names, self.parts, strict=True)
                for _ in range(part.num_scheduled)]  # fmt: skip


def _steps() -> list[Step]:
    steps = [
        ((1, 0, 1),),
        ((3, 0, 3),),  # a whole prompt
        ((4, 3, 1),),  # a token of an answer
        ((6, 0, 2),),  # the first chunk of a prompt
        ((6, 2, 2),),
        ((6, 4, 2),),  # the last chunk
        ((5, 4, 1), (3, 0, 3)),
        ((3, 0, 3), (5, 4, 1)),
        ((7, 4, 3), (6, 0, 3)),  # a cached prefix; a chunk
        ((5, 4, 1), (8, 7, 1), (4, 3, 1)),
        ((8, 0, 3), (6, 5, 1), (4, 0, 4), (9, 4, 4)),
    ]
    dice = random.Random(8)
    for _ in range(40):
        parts = []
        for _ in range(dice.randint(1, 4)):
            num_tokens = dice.randint(1, 9)
            computed = dice.randint(0, num_tokens - 1)
            parts.append((num_tokens, computed, dice.randint(1, num_tokens - computed)))
        steps.append(tuple(parts))
    return [Step(tuple(Part(*part) for part in parts)) for parts in steps]


def right_inputs(step: Step) -> Inputs:
    """The oracle: for each row of the batch, whose token it is and where it stands."""
    rows = [
        (i, place)
        for i, part in enumerate(step.parts)
        for place in range(part.num_computed, part.num_computed + part.num_scheduled)
    ]
    return (
        [step.tokens(i)[place] for i, place in rows],
        [place for _, place in rows],
        [row for row, (i, place) in enumerate(rows) if place == step.parts[i].num_tokens - 1],
    )


def _told(step: Step) -> str:
    return "; ".join(
        f"request {name}: tokens {step.tokens(i)}, {part.num_computed} computed, "
        f"{part.num_scheduled} scheduled"
        for i, (name, part) in enumerate(zip(step.names, step.parts, strict=True))
    )


def _faults() -> list[Fault]:
    def with_(
        ids: Callable[[Step], list[int]] | None = None,
        positions: Callable[[Step], list[int]] | None = None,
        rows: Callable[[Step], list[int]] | None = None,
    ) -> Callable[[Step], Inputs]:
        def wrong(step: Step) -> Inputs:
            right = right_inputs(step)
            return (
                ids(step) if ids else right[0],
                positions(step) if positions else right[1],
                rows(step) if rows else right[2],
            )

        return wrong

    def per_part(rule: Callable[[Part], Sequence[int]]) -> Callable[[Step], list[int]]:
        return lambda step: [x for part in step.parts for x in rule(part)]

    def ends(step: Step) -> list[int]:
        total, found = 0, []
        for part in step.parts:
            total += part.num_scheduled
            found.append(total)
        return found

    def from_zero(step: Step) -> list[int]:
        return [x for i, p in enumerate(step.parts) for x in step.tokens(i)[: p.num_scheduled]]

    def newest(step: Step) -> list[int]:
        return [x for i, p in enumerate(step.parts) for x in step.tokens(i)[-p.num_scheduled :]]

    def complete(step: Step, rows: list[int]) -> list[int]:
        return [row for row, part in zip(rows, step.parts, strict=True) if part.is_complete]

    def own_rows(step: Step) -> list[int]:
        return complete(step, [part.num_scheduled - 1 for part in step.parts])

    restart = per_part(lambda p: range(p.num_scheduled))
    after_newest = per_part(lambda p: range(p.num_tokens - p.num_scheduled, p.num_tokens))
    positions_look = (
        "The first scheduled token of a request stands at position `num_computed_tokens`."
    )
    ids_look = "`request.all_token_ids[start : start + num_scheduled]`, from `start = "
    ids_look += "request.num_computed_tokens`."
    rows_look = (
        "When a request's tokens are all in the batch, its last row is `len(input_ids) - 1`, right "
        "after you added them."
    )
    return [
        Fault(with_(positions=restart),
              "Positions restart at 0 in each chunk. After a cached prefix, or an earlier chunk, "
              "the model would take the tokens for the beginning of the text.", positions_look),
        Fault(with_(ids=from_zero, positions=restart),
              "Every chunk starts at the request's first token. The tokens that are computed "
              "already are computed again, and the others never.", ids_look),
        Fault(with_(ids=from_zero),
              "The positions are right, but the tokens are those from the beginning of the "
              "request.", ids_look),
        Fault(with_(positions=lambda step: list(range(len(step.owners)))),
              "Positions count the rows of the batch. Each request has its own positions.",
              positions_look),
        Fault(with_(ids=newest, positions=after_newest),
              "You take the newest tokens of each request. In a chunk, the next tokens are those "
              "after `num_computed_tokens`.", ids_look),
        Fault(with_(ids=newest),
              "You take the newest tokens of each request. In a chunk, the next tokens are those "
              "after `num_computed_tokens`.", ids_look),
        Fault(with_(positions=per_part(
                  lambda p: range(p.num_computed + 1, p.num_computed + p.num_scheduled + 1))),
              "All positions are one too large. The first token of a text stands at position 0.",
              positions_look),
        Fault(with_(rows=lambda step: [end - 1 for end in ends(step)]),
              "A token is sampled from a chunk that is not the end of its prompt. The user would "
              "get an answer to half a question.",
              "Sample only where `num_computed_tokens + num_scheduled == num_tokens`."),
        Fault(with_(rows=lambda step: complete(step, ends(step))),
              "`logits_indices` points one row too far: to the next request's first row, or beyond "
              "the batch.", rows_look),
        Fault(with_(rows=own_rows),
              "`logits_indices` counts from each request's own first row. The rows of all requests "
              "lie one behind the other in one batch.", rows_look),
        Fault(with_(rows=lambda step: complete(step, [0, *ends(step)[:-1]])),
              "You sample from each request's first row. Only its last token has seen all the "
              "others.", rows_look),
        Fault(with_(rows=lambda step: list(range(len(step.owners)))),
              "You sample from every row. Only the last token of a request says what comes next.",
              rows_look),
        Fault(with_(rows=lambda step: [
                  row for row, p in zip([e - 1 for e in ends(step)], step.parts, strict=True)
                  if p.num_scheduled == 1]),
              "Only decode steps are sampled. The last chunk of a prompt gives the first token of "
              "the answer.",
              "Not the number of scheduled tokens decides, but whether all tokens are computed "
              "now."),
        Fault(with_(rows=lambda step: [
                  row for row, p in zip([e - 1 for e in ends(step)], step.parts, strict=True)
                  if p.num_scheduled == p.num_tokens or p.num_computed == p.num_tokens - 1]),
              "Prompts in chunks never get a first token: the last chunk completes them, too.",
              "Sample where `num_computed_tokens + num_scheduled == num_tokens`."),
    ]  # fmt: skip


def _as_inputs(got: Any, given: str) -> Inputs:
    if not isinstance(got, tuple | list) or len(got) != 3:
        raise Mismatch(
            f"Your function returned {describe(got)}; expected three lists: input_ids, positions, "
            "logits_indices.",
            input=given,
        )  # fmt: skip
    lists = [part.tolist() if isinstance(part, torch.Tensor) else part for part in got]
    for name, part in zip(("input_ids", "positions", "logits_indices"), lists, strict=True):
        flat = isinstance(part, list | range) and all(isinstance(x, int) for x in part)
        if not flat:
            raise Mismatch(
                f"`{name}` is not a flat list of ints: all requests lie one behind the other.",
                input=given, got=describe(part),
                look="`input_ids += [...]` adds the elements; `append` would add a list.",
            )  # fmt: skip
    return list(lists[0]), list(lists[1]), list(lists[2])


def judge_prepare_inputs(function: Callable[..., Any]) -> Passed:
    """Check `prepare_inputs(requests, num_scheduled_tokens)` on small steps, then random ones."""
    steps = _steps()

    def ask(step: Step) -> Inputs:
        requests = [
            BareRequest(name, step.tokens(i), part.num_computed)
            for i, (name, part) in enumerate(zip(step.names, step.parts, strict=True))
        ]
        # The dict's order is not that of the requests.
        scheduled = {
            r.request_id: p.num_scheduled
            for r, p in reversed(list(zip(requests, step.parts, strict=True)))
        }
        given = _told(step)
        inputs = _as_inputs(call(function, requests, dict(scheduled), given=given), given)
        for i, (request, part) in enumerate(zip(requests, step.parts, strict=True)):
            if (request.all_token_ids, request.num_computed_tokens) != (
                step.tokens(i),
                part.num_computed,
            ):
                raise Mismatch(
                    "Your function changes a request. Nothing is computed yet: the step may still "
                    "fail.",
                    input=given, look="Only read. Exercise 3 does the bookkeeping.",
                )  # fmt: skip
        return inputs

    def show(inputs: Inputs) -> str:
        return "\n".join(
            f"{name}: {values}"
            for name, values in zip(("input_ids", "positions", "logits_indices"), inputs,
                                    strict=True)
        )  # fmt: skip

    def picture(step: Step, want: Inputs, got: Inputs) -> tuple[Figure, str]:
        alt = "Each row of the batch: its token, its position, and whether a token is sampled."
        return pictures.flat_batch(step.owners, want, got), alt

    judge(
        steps, ask, right_inputs, _told, _faults(),
        ("This is not the flat batch of the step.",
         "Per request, in the order given: its tokens from `num_computed_tokens` on, as many as "
         "scheduled, and their positions."),
        show, picture,
    )  # fmt: skip
    example = steps[10]
    return Passed(
        f"{len(steps)} steps: whole prompts, chunks, cached prefixes and answers, alone and "
        "together. Each token at its place, and sampled only where a request has caught up.",
        pictures.flat_batch(example.owners, right_inputs(example)),
        "A step of four requests: each row's token and position, and where tokens are sampled.",
    )
