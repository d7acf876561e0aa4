"""Requests without a model, and functions of them, for the checks of lab 06."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.kit.contracts.faults import attempt
from utils.engine.request import Request, RequestStatus, SamplingParams

EOS = 2
_TOKENS = list(range(1000, 1000 + (1 << 17)))


@functools.cache
def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens)


def bare_request(
    name: str,
    num_prompt: int,
    num_answer: int = 0,
    *,
    computed: int = 0,
    max_tokens: int = 64,
    arrival: float = 0.0,
    priority: int = 0,
    status: RequestStatus = RequestStatus.WAITING,
) -> Request:
    """A request of the engine's own class, whose tokens are made up."""
    request = Request(
        request_id=name,
        prompt_token_ids=_TOKENS[:num_prompt],
        sampling_params=_params(max_tokens),
        max_num_tokens=num_prompt + max_tokens,
        eos_token_ids=(EOS,),
        priority=priority,
        arrival_time=arrival,
        status=status,
        num_computed_tokens=computed,
        output_token_ids=_TOKENS[:num_answer],
    )
    request.all_token_ids += request.output_token_ids
    return request


@dataclass(frozen=True)
class Bare:
    """A request in numbers; `priority` and `arrival` say nothing of its place in a list."""

    num_prompt: int
    num_answer: int
    computed: int
    priority: int = 0
    arrival: float = 0.0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_answer

    @property
    def lacking(self) -> int:
        return self.num_tokens - self.computed

    def __str__(self) -> str:
        answer = f" and {self.num_answer} of its answer" if self.num_answer else ""
        return f"prompt of {self.num_prompt}{answer}, {self.computed} computed"

    def made(self, name: str, status: RequestStatus = RequestStatus.WAITING) -> Request:
        return bare_request(
            name,
            self.num_prompt,
            self.num_answer,
            computed=self.computed,
            arrival=self.arrival,
            priority=self.priority,
            status=status,
        )


def draw_bare(c: Choices, high: int = 3000, started: bool = False) -> Bare:
    """New ones, decodes, chunks, and those that compute their answer again."""
    num_prompt, num_answer = c.size(1, high), c.pick((0, 1, 0, 3, 10))
    most = num_prompt + num_answer - 1
    computed = c.pick((0, most, most, num_prompt, c.integer(0, most)))
    computed = min(computed, most)
    if started and not computed:
        num_prompt, computed = num_prompt + 1, 1
    return Bare(num_prompt, num_answer, computed, c.pick((0, 0, 1, -2)), 1.5 * c.integer(0, 9))


def name_of(number: int) -> str:
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def names(requests: Any) -> list[str]:
    """Requests as their names, and anything else as what it is."""
    return [getattr(request, "request_id", repr(request)) for request in requests]


def state(request: Request) -> dict[str, Any]:
    """All that a request holds; lists are copied."""
    return {k: list(v) if isinstance(v, list) else v for k, v in vars(request).items()}


@dataclass(frozen=True)
class Arrival:
    """A request comes; then there are some steps; then some of all requests are aborted."""

    num_prompt: int
    num_answer: int
    priority: int
    stops: bool  # its answer ends with EOS, not because it is long enough
    num_steps: int
    aborted: tuple[int, ...]


@dataclass(frozen=True)
class Story:
    """Requests for a small machine. A second scheduler beside it must not be disturbed."""

    max_num_seqs: int
    budget: int
    num_blocks: int
    block_size: int
    arrivals: tuple[Arrival, ...]
    times: tuple[float, ...]
    has_twin: bool

    def __str__(self) -> str:
        parts = [
            f"max_num_seqs {self.max_num_seqs}, max_num_batched_tokens {self.budget}, "
            f"{self.num_blocks} blocks of {self.block_size} tokens"
            + (", a second scheduler beside it" if self.has_twin else "")
        ]
        steps = 0
        for i, a in enumerate(self.arrivals):
            when = f" before step {steps + 1}" if steps else ""
            rank = f", priority {a.priority}" if a.priority else ""
            early = i and self.times[i] < max(self.times[:i])
            rank += f", arrived at {self.times[i]:g} s" if early else ""
            ends = " with EOS" if a.stops else ""
            sizes = f"prompt {a.num_prompt}, answer {a.num_answer}{ends}{rank}"
            parts.append(f"{name_of(i)} comes{when}: {sizes}")
            steps += a.num_steps
            if a.aborted:
                who = " and ".join(name_of(number) for number in a.aborted)
                parts.append(f"{who} aborted before step {steps + 1}")
        return "; ".join(parts if len(parts) < 16 else [*parts[:3], "...", *parts[-11:]])


def draw_story(c: Choices) -> Story:
    """Room for all, or hardly for one; both limits tight; many small requests, or long ones."""
    many, large = c.rarely(30), c.rarely(30)
    # Blocks for all, or for one and a little more. "urgent": after some small requests comes one
    # that is long and important, and pushes others out; "beside": so does a long answer, while
    # another one is in the middle of its prompt.
    kind = c.pick(("enough", "few", "enough", "few", "urgent", "beside"))
    crowd = kind in ("urgent", "beside")
    sizes = {"urgent": (8, 4, 16), "beside": (1, 2, 4)}
    block_size = c.pick(sizes.get(kind, (4, 4, 4, 1, 16)))
    max_num_seqs = c.integer(1, 90) if many and not crowd else c.integer(1, 5)
    more = c.integer(0, 6) if kind == "beside" else c.pick((8, c.integer(0, 12)))
    if kind == "urgent":
        more = block_size + c.integer(0, 2 * block_size)
    longest = 4000 if large else block_size * (3 if many or c.rarely(2) else 7)

    def arrival() -> Arrival:
        num_prompt = c.integer(1, 4) if crowd or not c.rarely(3) else c.integer(1, longest)
        num_steps = 0 if crowd or (many and c.rarely(2)) else c.integer(0, 2)
        aborted = c.some(lambda: c.integer(0, 9), 1, 3) if c.rarely(20 if crowd else 6) else []
        return Arrival(
            num_prompt,
            c.integer(1, 8) + 5 * crowd,
            c.pick((0, 0, 0, 1, -1, -100)),
            c.rarely(4),
            num_steps,
            tuple(aborted),
        )

    most = 5 if crowd else 90 if many else 8
    arrivals = c.some(arrival, 2 if crowd else 1, most)
    if crowd:
        arrivals[-1] = replace(arrivals[-1], num_steps=c.integer(1, 2))
        if kind == "beside":
            arrivals.append(Arrival(c.integer(1, 4), 12, -200, False, c.integer(0, 2), ()))
        blocks = c.integer(3, 7) * (12 // block_size if kind == "beside" else 1)
        num_prompt = block_size * blocks + c.integer(0, block_size - 1)
        aborted = (c.integer(0, 9), c.integer(0, 9)) if c.rarely(2) else ()
        arrivals.append(Arrival(num_prompt, 1, -150, False, c.integer(1, 6), aborted))
        max_num_seqs = max(max_num_seqs, len(arrivals))
    for i, a in enumerate(arrivals):
        known = tuple(dict.fromkeys(number % (i + 1) for number in a.aborted))
        arrivals[i] = replace(a, aborted=known)
    times = [100 + 0.01 * i for i in range(len(arrivals))]
    needs = [-(-(a.num_prompt + a.num_answer) // block_size) for a in arrivals]
    extra = {"urgent": 0, "beside": c.integer(0, 4)}.get(kind, c.integer(0, 3))
    num_blocks = sum(needs) if kind == "enough" else max(needs) + extra
    return Story(
        max_num_seqs,
        max_num_seqs + more + 1500 * large,
        num_blocks,
        block_size,
        tuple(arrivals),
        tuple(c.shuffled(times) if c.rarely(6) else times),
        c.rarely(10),
    )


def ask(
    stage: Stage, function: Any, make: Callable[[], tuple[Any, ...]], judge: Callable[[Any], Any]
) -> None:
    """Call a function of requests twice. It must change nothing, and say the same again.

    Args:
        make: the arguments, made anew for each call
        judge: judges what is returned, and gives it back in plain names and numbers
    """
    first = None
    for number in range(2):
        args = make()
        lists = [(arg, list(arg)) for arg in args if isinstance(arg, list)]
        requests = [r for r in chain(args, *(old for _, old in lists)) if isinstance(r, Request)]
        before = [state(request) for request in requests]
        got = attempt(function, *args)
        if isinstance(got, Raised):
            stage.blame("again" if number else "raises", "no error", got)
        plain = judge(got)
        if number and plain != first:
            stage.blame("again", first, plain)
        first = plain
        if any(names(now) != names(old) for now, old in lists):
            stage.blame("changes", [names(old) for _, old in lists], [names(n) for n, _ in lists])
        for request, old in zip(requests, before, strict=True):
            if state(request) != old:
                stage.blame("changes", "the requests as before", f"{request.request_id} is changed")
