"""What lab 08 says of the bookkeeping after a step: exercise 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.lab_08.requests import running_request, some_tokens, state
from utils.engine.request import Request, RequestStatus

RUNNING, STOPPED = RequestStatus.RUNNING, RequestStatus.FINISHED_STOPPED
LENGTH = RequestStatus.FINISHED_LENGTH_CAPPED
TOKENS = (9, 2, 3, 7, 0)  # words, and what may be EOS or a stop token; 0 is a token like any other


@dataclass(frozen=True)
class Start:
    """A request before the first of its steps."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    num_computed: int
    room: int  # so many tokens fit
    max_tokens: int | None
    min_tokens: int
    eos: tuple[int, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool

    def request(self) -> Request:
        return running_request(
            "A",
            self.prompt,
            self.output,
            self.num_computed,
            len(self.prompt) + len(self.output) + self.room,
            self.eos,
            stop_token_ids=list(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
        )

    def __str__(self) -> str:
        words = [
            f"a prompt of {some_tokens(self.prompt)}, an answer of "
            f"{some_tokens(self.output)} so far, {self.num_computed} computed",
            f"`max_num_tokens` {len(self.prompt) + len(self.output) + self.room}",
        ]
        words += [f"EOS {list(self.eos)}"] if self.eos else []
        words += [f"`ignore_eos` {self.ignore_eos}"] if self.ignore_eos else []
        words += [f"`min_tokens` {self.min_tokens}"] if self.min_tokens else []
        words += [f"`stop_token_ids` {list(self.stop_token_ids)}"] if self.stop_token_ids else []
        return ", ".join(words)


@dataclass(frozen=True)
class Story:
    """One or two requests, and their steps: whose, how many tokens, the new one or None."""

    starts: tuple[Start, ...]
    steps: tuple[tuple[int, int, int | None], ...]

    def __str__(self) -> str:
        return "; and ".join(map(str, self.starts))


def draw(c: Choices) -> Story:
    """Chunks, answers, tokens computed again; every way to end; limits far and near."""

    def tokens(low: int, high: int) -> tuple[int, ...]:
        length, first = c.size(low, high, small=3), c.pick(TOKENS)
        return (first,) * length if length > 6 else tuple(c.pick(TOKENS) for _ in range(length))

    def start() -> Start:
        prompt, output = tokens(1, 300), tokens(0, 300)
        last = len(prompt) + len(output) - 1
        max_tokens = c.pick((None, len(output) + c.integer(1, 4)))
        least = c.pick((0, 0, len(output) + c.integer(0, 3), c.integer(0, len(output))))
        return Start(
            prompt,
            output,
            c.pick((last, c.integer(0, last))),
            c.pick((100, c.integer(1, 4))),
            max_tokens,
            least if max_tokens is None else min(least, max_tokens),
            c.pick(((2,), (2, 3), (), (0,), (7, 70_000))),
            c.pick(((), (7,), (5, 7), (2,), (0, 3))),
            c.pick((False, True)),
        )

    def step() -> tuple[int, int, int | None]:
        return c.integer(0, 1), c.size(1, 300, small=3), c.pick((*TOKENS, None, 70_000))

    return Story(tuple(c.some(start, 1, 2)), tuple(c.some(step, 1, 6)))


def play(stage: Stage, function: Callable[..., Any], story: Story) -> None:
    """Step by step; who is finished, or has nothing left to compute, is left out."""
    requests = [start.request() for start in story.starts]
    for which, count, token_id in story.steps:
        request = requests[which % len(requests)]
        left = request.num_tokens - request.num_computed_tokens
        if left <= 0 or request.status != RUNNING:
            continue
        count = min(count, left) if token_id is None else left
        came = "no token is sampled" if token_id is None else f"token {token_id} is sampled"
        who = f" of request {which % len(requests) + 1}" if len(requests) > 1 else ""
        stage.step(f"{count} tokens{who} were scheduled; {came}")
        got = stage.do(function, request, count, token_id)
        if isinstance(got, Raised):
            stage.blame("raises", "no error", got)
        for each in requests:
            for name, value in state(each).items():
                stage.see(name, value, lambda v: some_tokens(v) if type(v) is list else str(v))


Rule = Callable[[Request, int], bool]


def with_rules(
    computed: Callable[[Request, int, int | None], int] = lambda r, count, t: count,
    is_eos: Rule = lambda r, t: t in r.eos_token_ids and not r.sampling_params.ignore_eos,
    is_stop: Rule = lambda r, t: t in r.stop_token_ids,
    early: Rule = lambda r, t: len(r.output_token_ids) <= r.sampling_params.min_tokens,
    full: Rule = lambda r, t: r.num_tokens >= r.max_num_tokens,
    reason: Callable[[bool, int], int | None] = lambda eos, t: None if eos else t,
    length_first: bool = False,
) -> Callable[..., None]:
    """The right answer, with the rules of a wrong one where they are given.

    They are asked when the token is in the lists. `early`: this token may not end the answer.
    """

    def update(r: Request, num_scheduled_tokens: int, token_id: int | None) -> None:
        r.num_computed_tokens += computed(r, num_scheduled_tokens, token_id)
        if token_id is None:
            return
        r.output_token_ids.append(token_id)
        r.all_token_ids.append(token_id)
        eos, stop = is_eos(r, token_id), is_stop(r, token_id)
        if full(r, token_id):
            r.status = LENGTH
        if (eos or stop) and not early(r, token_id) and not (length_first and r.status == LENGTH):
            r.status, r.stop_reason = STOPPED, reason(eos, token_id)

    return update


ENDED = "The limit is reached when `num_tokens`, the new token included, is `max_num_tokens`."
COMPUTED = "`request.num_computed_tokens += num_scheduled_tokens`, in every case, first of all."
GUARDED = ("prompt_token_ids", "max_num_tokens", "eos_token_ids", "sampling_params")
BOTH = "`output_token_ids` and `all_token_ids` are two lists. Append to both."
EARLY = (
    "Ask before appending: `len(request.output_token_ids) >= min_tokens`. The first "
    "`min_tokens` tokens never end the answer by EOS or a stop token; the next one may."
)
NEWEST = (
    "The newest token is counted as computed. It was sampled, but it has not been through "
    "the model: its keys and values do not exist."
)

UPDATE_REQUEST = Contract(
    inputs=draw,
    judge=InLockstep(play, with_rules()),
    passed="Right for chunks, answers that grow, and every way to end, step after step. What was "
    "sampled last counts as a token, and not as computed.",
    clauses={
        "num_computed_tokens": Clause(
            "`num_computed_tokens` is {got} after the step; expected {expected}.", COMPUTED
        ),
        "output_token_ids": Clause("`output_token_ids` is wrong after the step. {says}", BOTH),
        "all_token_ids": Clause("`all_token_ids` is wrong after the step. {says}", BOTH),
        "status": Clause(
            "The status is {got} after the step; expected {expected}.",
            "Which of the three ways to end holds first? " + ENDED,
        ),
        "stop_reason": Clause(
            "`stop_reason` is {got}; expected {expected}.",
            "It is the user's own stop token that ended the answer, else None.",
        ),
    }
    | {
        name: Clause(
            f"Your function changes `{name}`. It stays what it was.",
            "Append to `output_token_ids` and `all_token_ids` only.",
        )
        for name in GUARDED
    },
    mistakes=(
        mistake(
            "A chunk without a new token is not counted as computed: it would be computed "
            "again and again.",
            COMPUTED,
            with_rules(lambda r, n, t: 0 if t is None else n),
        ),
        mistake(
            NEWEST,
            COMPUTED,
            with_rules(lambda r, n, t: n + (t is not None)),
            with_rules(
                lambda r, n, t: n if t is None else r.num_tokens + 1 - r.num_computed_tokens
            ),
        ),
        mistake(
            "`ignore_eos` is ignored.",
            "`request.sampling_params.ignore_eos`.",
            with_rules(is_eos=lambda r, t: t in r.eos_token_ids),
        ),
        mistake(
            "`ignore_eos` switches off the stop tokens, too. It is about EOS only.",
            "Two questions: is it EOS, and EOS counts? Is it a stop token?",
            with_rules(
                is_stop=lambda r, t: t in r.stop_token_ids and not r.sampling_params.ignore_eos
            ),
        ),
        mistake(
            "The answer goes on after EOS.",
            "`token_id in request.eos_token_ids`.",
            with_rules(is_eos=lambda r, t: False),
        ),
        mistake(
            "The answer goes on after a stop token.",
            "`token_id in request.sampling_params.stop_token_ids`.",
            with_rules(is_stop=lambda r, t: False),
        ),
        mistake(
            "`stop_reason` is set for EOS. It says which of the user's own stop tokens it was; "
            "for EOS it stays None.",
            "Set it only for stop tokens.",
            with_rules(reason=lambda eos, t: t),
        ),
        mistake(
            "The length limit never ends the answer.", ENDED, with_rules(full=lambda r, t: False)
        ),
        mistake(
            "Only `max_tokens` ends the answer. The model's own limit does so, too: "
            "`max_num_tokens` is the smaller one.",
            ENDED,
            with_rules(full=lambda r, t: len(r.output_token_ids) == r.sampling_params.max_tokens),
        ),
        mistake(
            "EOS or a stop token at the very end: it was stopped, not cut off.",
            "The first that holds counts: EOS, then stop tokens, the length last.",
            with_rules(length_first=True),
        ),
        mistake(
            "`min_tokens` lifts the length limit. There is no place for more tokens.",
            "The length limit holds always. `min_tokens` is about EOS and stop tokens.",
            with_rules(
                full=lambda r, t: (
                    r.num_tokens >= r.max_num_tokens
                    and len(r.output_token_ids) > r.sampling_params.min_tokens
                )
            ),
        ),
        mistake(
            "`min_tokens` is ignored: the answer ends earlier than the user wants.",
            EARLY,
            with_rules(early=lambda r, t: False),
        ),
        mistake(
            "`min_tokens` is one off: the last of the first `min_tokens` tokens ends the answer.",
            EARLY,
            with_rules(early=lambda r, t: len(r.output_token_ids) < r.sampling_params.min_tokens),
        ),
    ),
    examples=300,
)
