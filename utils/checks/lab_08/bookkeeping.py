"""What lab 08 says of the bookkeeping after a step: exercise 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_08.smallest_case import Fault, judge
from utils.engine.request import RequestStatus
from utils.engine.sampling_params import SamplingParams

EOS, OTHER_EOS, STOP, WORD = 2, 3, 7, 9
RUNNING, STOPPED = RequestStatus.RUNNING, RequestStatus.FINISHED_STOPPED
LENGTH = RequestStatus.FINISHED_LENGTH_CAPPED
NAMES = ("num_computed_tokens", "output_token_ids", "all_token_ids", "status", "stop_reason")


@dataclass
class BareRequest:
    """What of a request matters here. The names are those of the engine's `Request`."""

    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    max_num_tokens: int
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    eos_token_ids: tuple[int, ...] = (EOS, OTHER_EOS)
    status: RequestStatus = RUNNING
    stop_reason: int | str | None = None

    def __post_init__(self) -> None:
        self.all_token_ids = [*self.prompt_token_ids, *self.output_token_ids]

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def stop_token_ids(self) -> list[int]:
        return self.sampling_params.stop_token_ids or []


@dataclass(frozen=True)
class Update:
    """A request before a step, and what the step gave it."""

    num_scheduled: int
    token_id: int | None
    num_output: int = 0  # tokens of the answer so far
    num_prompt: int = 3
    num_computed: int | None = None  # None: all but the newest token
    max_tokens: int | None = 8
    max_model_len: int = 100
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @property
    def computed(self) -> int:
        if self.num_computed is not None:
            return self.num_computed
        return self.num_prompt + self.num_output - self.num_scheduled

    @property
    def max_num_tokens(self) -> int:
        return min(self.max_model_len, self.num_prompt + (self.max_tokens or self.max_model_len))

    def request(self) -> BareRequest:
        params = SamplingParams(
            max_tokens=self.max_tokens, min_tokens=self.min_tokens,
            stop_token_ids=list(self.stop_token_ids), ignore_eos=self.ignore_eos,
        )  # fmt: skip
        return BareRequest(
            list(range(100, 100 + self.num_prompt)), params, self.max_num_tokens,
            [WORD] * self.num_output, self.computed,
        )  # fmt: skip

    def told(self) -> str:
        words = [f"a prompt of {self.num_prompt} tokens, an answer of {self.num_output} so far"]
        words.append(f"{self.computed} computed, {self.num_scheduled} scheduled now")
        words.append(f"`max_num_tokens` {self.max_num_tokens}")
        if self.min_tokens:
            words.append(f"`min_tokens` {self.min_tokens}")
        if self.stop_token_ids:
            words.append(f"`stop_token_ids` {list(self.stop_token_ids)}")
        if self.ignore_eos:
            words.append("`ignore_eos`")
        came = "no token is sampled"
        if self.token_id is not None:
            kind = " (EOS)" if self.token_id in (EOS, OTHER_EOS) else ""
            came = f"token {self.token_id}{kind} is sampled"
        return f"{', '.join(words)}; {came}"


State = tuple[int, list[int], list[int], Any, Any]  # in the order of NAMES


def _state(case: Update, computed: int, new: list[int], status: Any, reason: Any) -> State:
    request = case.request()
    return (computed, [*request.output_token_ids, *new], [*request.all_token_ids, *new], status,
            reason)  # fmt: skip


def right_state(case: Update) -> State:
    """The oracle: what must be known of the request after the step."""
    computed = case.computed + case.num_scheduled
    if case.token_id is None:
        return _state(case, computed, [], RUNNING, None)
    place = case.num_output + 1  # the how-manieth token of the answer
    may_end = place > case.min_tokens
    status, reason = RUNNING, None
    if case.num_prompt + place == case.max_num_tokens:
        status = LENGTH
    if may_end and case.token_id in case.stop_token_ids:
        status, reason = STOPPED, case.token_id
    if may_end and case.token_id in (EOS, OTHER_EOS) and not case.ignore_eos:
        status, reason = STOPPED, None
    return _state(case, computed, [case.token_id], status, reason)


CASES = (
    Update(3, WORD),  # the prompt's step
    Update(1, WORD, num_output=2),
    Update(2, None, num_computed=0, num_prompt=6),  # a chunk
    Update(2, None, num_computed=2, num_prompt=6),
    Update(2, WORD, num_computed=4, num_prompt=6),
    Update(1, EOS, num_output=2),
    Update(1, OTHER_EOS, num_output=2),
    Update(3, EOS),  # an empty answer
    Update(1, EOS, num_output=2, ignore_eos=True),
    Update(1, STOP, num_output=2),
    Update(1, STOP, num_output=2, stop_token_ids=(STOP,)),
    Update(1, STOP, num_output=2, stop_token_ids=(5, STOP), ignore_eos=True),
    Update(1, EOS, num_output=2, stop_token_ids=(EOS,), ignore_eos=True),
    Update(1, WORD, num_output=6),  # one is left
    Update(1, WORD, num_output=7),
    Update(3, WORD, max_tokens=1),
    Update(1, WORD, num_output=4, max_model_len=8),
    Update(1, WORD, num_output=3, max_model_len=8),
    Update(1, WORD, num_output=20, max_tokens=None),
    Update(1, WORD, num_output=96, max_tokens=None),
    Update(1, EOS, num_output=7),  # the end, in both ways
    Update(1, STOP, num_output=7, stop_token_ids=(STOP,)),
    Update(1, EOS, num_output=1, min_tokens=3),
    Update(1, EOS, num_output=2, min_tokens=3),
    Update(1, EOS, num_output=3, min_tokens=3),
    Update(1, STOP, num_output=2, min_tokens=3, stop_token_ids=(STOP,)),
    Update(1, STOP, num_output=3, min_tokens=3, stop_token_ids=(STOP,)),
    Update(1, WORD, num_output=4, min_tokens=8, max_model_len=8),
    Update(2, WORD, num_output=4, num_computed=5),  # computed again after a preemption
    Update(3, None, num_output=4, num_computed=0),
)


def _faults() -> list[Fault]:
    def but(**changes: Callable[[Update, State], Any]) -> Callable[[Update], State]:
        def wrong(case: Update) -> State:
            state = dict(zip(NAMES, right_state(case), strict=True))
            right = right_state(case)
            state |= {name: change(case, right) for name, change in changes.items()}
            return tuple(state.values())

        return wrong

    def as_if(**changes: Any) -> Callable[[Update], State]:
        """As if the request had asked for something else."""

        def wrong(case: Update) -> State:
            values = {k: v(case) if callable(v) else v for k, v in changes.items()}
            other = right_state(replace(case, **values))
            return (*right_state(case)[:3], *other[3:])

        return wrong

    def on_last(case: Update) -> bool:
        return case.num_prompt + case.num_output + 1 == case.max_num_tokens

    def only(case: Update, rule: Callable[[Update], bool], yes: Any, no: Any) -> Any:
        return yes if rule(case) else no

    def longer(case: Update) -> State:
        """The answer may be `extra` tokens longer than it should."""
        right = right_state(case)
        return (*right[:3], RUNNING, None) if right[3] == LENGTH else right

    def shorter(case: Update) -> State:
        right = right_state(case)
        near = case.num_prompt + case.num_output + 2 >= case.max_num_tokens
        if right[3] == RUNNING and case.token_id is not None and near:
            return (*right[:3], LENGTH, None)
        return right

    def no_model_len(case: Update) -> State:
        right = right_state(case)
        if right[3] == LENGTH and case.num_output + 1 != case.max_tokens:
            return (*right[:3], RUNNING, None)
        return right

    def length_first(case: Update) -> State:
        right = right_state(case)
        return (*right[:3], LENGTH, None) if on_last(case) else right

    def min_over_length(case: Update) -> State:
        right = right_state(case)
        if right[3] == LENGTH and case.num_output + 1 <= case.min_tokens:
            return (*right[:3], RUNNING, None)
        return right

    def no_min_for(kind: tuple[int, ...]) -> Callable[[Update], int]:
        return lambda c: 0 if c.token_id in kind else c.min_tokens

    eos = (EOS, OTHER_EOS)
    ended = "The limit is reached when `num_tokens`, the new token included, is `max_num_tokens`."
    early = "Compare before or after appending, but not in between: the first `min_tokens` tokens "
    early += "never end the answer, the one after them may."
    computed = "`request.num_computed_tokens += num_scheduled_tokens`, in every case, first of all."
    both = "`output_token_ids` and `all_token_ids` are two lists. Append to both."
    return [
        Fault(but(num_computed_tokens=lambda c, s: c.computed if c.token_id is None else s[0]),
              "A chunk without a new token is not counted as computed: it would be computed again "
              "and again.", computed),
        Fault(but(num_computed_tokens=lambda c, s: c.computed),
              "`num_computed_tokens` does not move. The next step would compute the same tokens "
              "again.", computed),
        Fault(but(num_computed_tokens=lambda c, s: len(s[2])),
              "The newest token is counted as computed. It was sampled, but it has not been "
              "through the model: its keys and values do not exist.", computed),
        Fault(but(num_computed_tokens=lambda c, s: s[0] + (c.token_id is not None)),
              "The newest token is counted as computed. It was sampled, but it has not been "
              "through the model: its keys and values do not exist.", computed),
        Fault(but(num_computed_tokens=lambda c, s: c.computed + 1),
              "`num_computed_tokens` grows by 1 in each step. In a chunk of a prompt it grows by "
              "`num_scheduled_tokens`.", computed),
        Fault(but(all_token_ids=lambda c, s: c.request().all_token_ids),
              "The new token is not in `all_token_ids`. The next step would compute nothing new.",
              both),
        Fault(but(output_token_ids=lambda c, s: c.request().output_token_ids),
              "The new token is not in `output_token_ids`: the user would never see it.", both),
        Fault(as_if(ignore_eos=False),
              "`ignore_eos` is ignored.", "`request.sampling_params.ignore_eos`."),
        Fault(as_if(stop_token_ids=lambda c: () if c.ignore_eos else c.stop_token_ids),
              "`ignore_eos` switches off the stop tokens, too. It is about EOS only.",
              "Two questions: is it EOS, and EOS counts? Is it a stop token?"),
        Fault(as_if(ignore_eos=True),
              "The answer goes on after EOS.", "`token_id in request.eos_token_ids`."),
        Fault(but(status=lambda c, s: only(c, lambda c: c.token_id == OTHER_EOS, RUNNING, s[3])),
              "Only the first EOS token ends the answer. A model may have several: "
              "`eos_token_ids`.", "`token_id in request.eos_token_ids`."),
        Fault(as_if(stop_token_ids=()),
              "The answer goes on after a stop token.",
              "`token_id in request.sampling_params.stop_token_ids`."),
        Fault(but(stop_reason=lambda c, s: None),
              "The user cannot tell which stop token it was.",
              "Put the token into `request.stop_reason`."),
        Fault(but(stop_reason=lambda c, s: c.token_id if s[3] == STOPPED else None),
              "`stop_reason` is set for EOS. It says which of the user's own stop tokens it was; "
              "for EOS it stays None.", "Set it only for stop tokens."),
        Fault(longer, "The length limit never ends the answer.", ended),
        Fault(shorter,
              "The answer ends one token early: the limit itself is still allowed.", ended),
        Fault(no_model_len,
              "Only `max_tokens` ends the answer. The model's own limit does as well, also when "
              "`max_tokens` is None.", ended),
        Fault(length_first,
              "When EOS or a stop token comes as the very last token, the answer is complete: it "
              "was stopped, not cut off.", "Ask for EOS and stop tokens first, for the length "
              "last."),
        Fault(min_over_length,
              "`min_tokens` lifts the length limit. There is no place for more tokens.",
              "The length limit holds always. `min_tokens` is about EOS and stop tokens."),
        Fault(as_if(min_tokens=0),
              "`min_tokens` is ignored: the answer ends earlier than the user wants.", early),
        Fault(as_if(min_tokens=no_min_for((STOP,))),
              "`min_tokens` is ignored for stop tokens.", early),
        Fault(as_if(min_tokens=no_min_for(eos)), "`min_tokens` is ignored for EOS.", early),
        Fault(as_if(min_tokens=lambda c: max(0, c.min_tokens - 1)),
              "`min_tokens` is one off: the last of the first `min_tokens` tokens ends the "
              "answer.", early),
        Fault(as_if(min_tokens=lambda c: c.min_tokens + (c.min_tokens > 0)),
              "`min_tokens` is one off: the token after the first `min_tokens` may end the "
              "answer.", early),
    ]  # fmt: skip


def judge_update_request(function: Callable[..., None]) -> str:
    """Check `update_request(request, num_scheduled_tokens, token_id)`."""

    def ask(case: Update) -> State:
        request, given = case.request(), case.told()
        call(function, request, case.num_scheduled, case.token_id, given=given)
        if [*request.prompt_token_ids] != case.request().prompt_token_ids:
            raise Mismatch(
                "Your function changes `prompt_token_ids`. The prompt stays the prompt.",
                input=given, look="Append to `output_token_ids` and `all_token_ids`.",
            )  # fmt: skip
        return (
            request.num_computed_tokens, request.output_token_ids, request.all_token_ids,
            request.status, request.stop_reason,
        )  # fmt: skip

    def show(state: State) -> str:
        values = [v.name if isinstance(v, RequestStatus) else v for v in state]
        return "\n".join(
            f"{name}: {_short(value)}" for name, value in zip(NAMES, values, strict=True)
        )

    judge(
        CASES, ask, right_state, Update.told, _faults(),
        ("The request is not in the right state after the step.",
         "Compare the lines of both, one by one."),
        show,
    )  # fmt: skip
    return (
        f"Right in {len(CASES)} situations: chunks, answers that grow, and every way to end. "
        "What was sampled last counts as a token, and not as computed."
    )


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 10:
        return f"{len(value)} tokens, the last is {value[-1]}"
    return str(value)
