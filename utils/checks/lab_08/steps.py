"""The engine's own requests in single steps: exercises 2 and 3 of lab 08."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.lab.story import LinedStory
from utils.checks.lab_08 import picture
from utils.checks.lab_08.picture import Inputs
from utils.engine.request import Request, RequestStatus
from utils.engine.sampling_params import SamplingParams

LISTS = ("input_ids", "positions", "logits_indices")


def running_request(
    request_id: str,
    prompt: Sequence[int],
    output: Sequence[int] = (),
    num_computed_tokens: int = 0,
    max_num_tokens: int = 10**6,
    eos_token_ids: Sequence[int] = (),
    **params: Any,
) -> Request:
    """A request in the middle of its work. `params`: of its `SamplingParams`."""
    request = Request(
        request_id, list(prompt), SamplingParams(**params), max_num_tokens, tuple(eos_token_ids)
    )
    request.output_token_ids += output
    request.all_token_ids += output
    request.num_computed_tokens = num_computed_tokens
    request.status = RequestStatus.RUNNING
    return request


def state(request: Request) -> dict[str, Any]:
    """All that exercise 3 may change, or must not."""
    return {
        "num_computed_tokens": request.num_computed_tokens,
        "output_token_ids": list(request.output_token_ids),
        "all_token_ids": list(request.all_token_ids),
        "status": getattr(request.status, "name", repr(request.status)),
        "stop_reason": request.stop_reason,
        "prompt_token_ids": list(request.prompt_token_ids),
        "max_num_tokens": request.max_num_tokens,
        "eos_token_ids": tuple(request.eos_token_ids),
        "sampling_params": repr(request.sampling_params),
    }


def some_tokens(token_ids: Sequence[int]) -> str:
    """Token ids in words, also where there are many."""
    if len(token_ids) <= 12:
        return str(list(token_ids))
    return f"[{str(list(token_ids[:3]))[1:-1]}, ..., {len(token_ids)} in all]"


# Exercise 2


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
            f"request {self.request_id}: all_token_ids {some_tokens(self.token_ids)}, "
            f"{self.num_computed} computed, {self.num_scheduled} scheduled"
        )


@dataclass(frozen=True)
class Batch:
    """What a step computes.

    Args:
        order: of the dict, whose order isn't that of the requests
        kind: what the requests come in
    """

    parts: tuple[Part, ...]
    order: tuple[int, ...] = ()
    kind: type = list

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts))

    @property
    def owners(self) -> list[str]:
        return [part.request_id for part in self.parts for _ in range(part.num_scheduled)]

    def arguments(self) -> tuple[Sequence[Request], dict[str, int]]:
        scheduled = [(p.request_id, p.num_scheduled) for p in self.parts]
        order = self.order or range(len(scheduled))
        return self.kind(p.request() for p in self.parts), dict(scheduled[i] for i in order)


def draw_batch(c: Choices) -> Batch:
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
    return Batch(tuple(parts), tuple(order), c.pick((list, tuple)))


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


OTHER = Batch((Part("A", (91, 92, 93, 94), 4, 1, 2), Part("Z", (95, 96), 1, 1, 1)))


def play_batch(stage: Stage, function: Callable[..., Any], batch: Batch) -> None:
    """Two calls with the same requests, since a step that failed is tried again; and one between
    them with others, which mustn't disturb what came before."""
    requests, scheduled = batch.arguments()
    before, want = [state(r) for r in requests], row_by_row(*batch.arguments())
    results = []
    for _ in range(2):
        got = stage.do(function, requests, scheduled)
        if isinstance(got, Raised):
            stage.blame("raises", "three lists", got)
        if [state(r) for r in requests] != before:
            stage.blame("only read", "requests as before", "another state")
        inputs = _as_inputs(stage, got)
        for name, expected, yours in zip(LISTS, want, inputs, strict=True):
            if expected != yours:
                stage.blame(name, want, inputs, _show, _picture(batch))
        if any(mine is r.all_token_ids for mine in got for r in requests):
            stage.blame("shares", "lists of its own", "a request's `all_token_ids`")
        stage.do(function, *OTHER.arguments())
        results.append(got)
        if any(_as_inputs(stage, earlier) != want for earlier in results):
            stage.blame("earlier", want, _as_inputs(stage, results[0]), _show)


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


def _picture(batch: Batch) -> Callable[[Any, Any], tuple[Figure | None, str]]:
    alt = "Each row of the batch: its token, its position, and whether a token is sampled."
    few = len(batch.owners) <= 40
    return lambda want, got: (picture.flat_batch(batch.owners, want, got) if few else None, alt)


# Exercise 3

RUNNING = RequestStatus.RUNNING
TOKENS = (9, 2, 3, 7, 0)  # words, and what may be EOS or a stop token; 0 is a token like any other


@dataclass(frozen=True)
class Start:
    """A request before the first of its steps. `room`: so many tokens fit."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    num_computed: int
    room: int
    eos: tuple[int, ...]
    params: dict[str, Any]

    @property
    def max_num_tokens(self) -> int:
        return len(self.prompt) + len(self.output) + self.room

    def request(self) -> Request:
        return running_request(
            "A",
            self.prompt,
            self.output,
            self.num_computed,
            self.max_num_tokens,
            self.eos,
            **self.params,
        )

    def __str__(self) -> str:
        more = {"eos_token_ids": list(self.eos)} | self.params
        told = "".join(f", {name} {value}" for name, value in more.items() if value)
        return (
            f"a prompt of {some_tokens(self.prompt)}, an answer of {some_tokens(self.output)} so "
            f"far, {self.num_computed} computed, max_num_tokens {self.max_num_tokens}{told}"
        )


class Books(LinedStory):
    """A request and its steps: chunks, answers, tokens computed again, and every way to end."""

    kinds = ("step",)
    most = 6

    @classmethod
    def draw_setting(cls, c: Choices) -> Start:
        def tokens(low: int) -> tuple[int, ...]:
            length, first = c.size(low, 300, small=3), c.pick(TOKENS)
            return (first,) * length if length > 6 else tuple(c.pick(TOKENS) for _ in range(length))

        prompt, output = tokens(1), tokens(0)
        last, so_far = len(prompt) + len(output) - 1, len(output)
        max_tokens = c.pick((None, so_far + c.integer(1, 4)))
        least = c.pick((0, 0, so_far + c.integer(0, 3), c.integer(0, so_far)))
        params = {
            "max_tokens": max_tokens,
            "min_tokens": least if max_tokens is None else min(least, max_tokens),
            "stop_token_ids": c.pick(([], [7], [5, 7], [2], [0, 3])),
            "ignore_eos": c.pick((False, True)),
        }
        computed, room = c.pick((last, c.integer(0, last))), c.pick((100, c.integer(1, 4)))
        return Start(
            prompt, output, computed, room, c.pick(((2,), (2, 3), (), (0,), (7, 70_000))), params
        )

    @staticmethod
    def draw_step(c: Choices, setting: Start) -> tuple[int, int | None]:
        return c.size(1, 300, small=3), c.pick((*TOKENS, None, 70_000))

    def start(self, answer: Any) -> None:
        self.function, self.request = answer, self.setting.request()

    def do_step(self, count: int, token_id: int | None) -> None:
        """Nothing happens if the request is over, or has nothing left to compute."""
        left = self.request.num_tokens - self.request.num_computed_tokens
        if left <= 0 or self.request.status != RUNNING:
            return
        count = min(count, left) if token_id is None else left
        self.say(f"update_request(request, {count}, {token_id})")
        got = self.stage.do(self.function, self.request, count, token_id)
        if isinstance(got, Raised):
            self.stage.blame("raises", "no error", got)
        for name, value in state(self.request).items():
            self.stage.see(name, value, lambda v: some_tokens(v) if type(v) is list else str(v))
