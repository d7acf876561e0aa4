"""What lab 06 says of static batches, of the choice of a step's tokens, and of chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from utils.checks.kit.runner import Mismatch, Passed, call, describe
from utils.checks.lab_06 import pictures

# Exercise 1


class _Batches(NamedTuple):
    """Requests that are batched in the order of the lists."""

    prompt_lens: list[int]
    output_lens: list[int]
    batch_size: int


def _waste(case: _Batches) -> tuple[int, int]:
    """Brute force: draw every place of every batch, and count."""
    padding = idle = 0
    for begin in range(0, len(case.prompt_lens), case.batch_size):
        prompts = case.prompt_lens[begin : begin + case.batch_size]
        outputs = case.output_lens[begin : begin + case.batch_size]
        for prompt, output in zip(prompts, outputs, strict=True):
            padding += sum(place >= prompt for place in range(max(prompts)))
            idle += sum(place >= output for place in range(max(outputs)))
    return padding, idle


def judge_batch_waste(function: Callable[..., Any]) -> Passed:
    """Check `batch_waste(prompt_lens, output_lens, batch_size)`."""
    cases = [
        _Batches([3], [2], 1),
        _Batches([3, 5], [2, 2], 2),
        _Batches([4, 4], [1, 6], 2),
        _Batches([3, 5, 2], [4, 1, 6], 3),
        _Batches([3, 5, 9, 8], [2, 4, 7, 1], 2),
        _Batches([9, 2, 3], [5, 1, 4], 2),
        _Batches([6, 2, 7, 1, 4, 9, 3, 5], [3, 8, 2, 2, 9, 1, 5, 2], 3),
    ]
    answers = []
    for case in cases:
        got = call(function, *case, given=_told_batches(case))
        if not isinstance(got, tuple | list) or len(got) != 2:
            raise Mismatch(
                f"Your function returned {describe(got)}; expected a pair: places of padding, and "
                "idle places.",
                input=_told_batches(case), look="`return padding, idle`.",
            )  # fmt: skip
        answers.append(tuple(got))
    for case, got in zip(cases, answers, strict=True):
        if got == _waste(case):
            continue
        says, look = "One of the two counts is wrong.", ""
        if got[0] == _waste(case)[0]:
            says = "The padding is right, the number of idle places is wrong."
        elif got[1] == _waste(case)[1]:
            says = "The idle places are right, the padding is wrong."
        for words, where, wrong in _WASTE_BUGS:
            if all(wrong(c) == answer for c, answer in zip(cases, answers, strict=True)):
                says, look = words, where
                break
        raise Mismatch(
            says, input=_told_batches(case), look=look,
            expected=_told_waste(_waste(case)), got=_told_waste(got),
            figure=pictures.static_batches(*case),
            alt="Each slot of each batch: padding, prompt, answer, idle places.",
        )  # fmt: skip
    last = cases[-1]
    useful = sum(last.prompt_lens) + sum(last.output_lens)
    share = useful / (useful + sum(_waste(last)))
    return Passed(
        f"Right on {len(cases)} lists of requests. In the last of them, drawn below, {share:.0%} "
        "of the places do useful work.",
        pictures.static_batches(*last),
        "Each slot of each batch: padding, prompt, answer, idle places.",
    )


def _told_waste(counts: tuple[int, int]) -> str:
    return f"{counts[0]} places of padding, {counts[1]} idle"


def _told_batches(case: _Batches) -> str:
    return f"prompts {case.prompt_lens}, answers {case.output_lens}, batch_size {case.batch_size}"


def _per_batch(
    rule: Callable[[list[int], list[int]], tuple[int, int]], keep_last: bool = True
) -> Callable[[_Batches], tuple[int, int]]:
    def total(case: _Batches) -> tuple[int, int]:
        parts = []
        for begin in range(0, len(case.prompt_lens), case.batch_size):
            part = slice(begin, begin + case.batch_size)
            if keep_last or begin + case.batch_size <= len(case.prompt_lens):
                parts.append(rule(case.prompt_lens[part], case.output_lens[part]))
        return sum(p for p, _ in parts), sum(i for _, i in parts)

    return total


def _spare(lens: Sequence[int]) -> int:
    return len(lens) * max(lens) - sum(lens)


_WASTE_BUGS: list[tuple[str, str, Callable[[_Batches], Any]]] = [
    ("The longest of *all* requests is taken. A batch only waits for its own.",
     "Cut the lists into batches first: `prompt_lens[i : i + batch_size]`.",
     lambda c: (_spare(c.prompt_lens), _spare(c.output_lens))),
    ("The two counts are swapped.", "`return padding, idle`.",
     lambda c: _waste(c)[::-1]),
    ("The last batch is forgotten when it is smaller than the others.",
     "`range(0, len(prompt_lens), batch_size)` begins a batch for what is left, too.",
     _per_batch(lambda p, o: (_spare(p), _spare(o)), keep_last=False)),
    ("The last batch is counted with `batch_size` slots, but it has fewer requests.",
     "`len(prompts) * max(prompts) - sum(prompts)`, with the prompts of this batch.",
     lambda c: _per_batch(lambda p, o: (c.batch_size * max(p) - sum(p),
                                        c.batch_size * max(o) - sum(o)))(c)),
    ("Idle places are counted from the longest prompt plus answer. After the prefill, all slots "
     "start their answers at the same step.",
     "Idle: `max(outputs) - output`, whatever the prompts.",
     _per_batch(lambda p, o: (_spare(p), _spare([a + b for a, b in zip(p, o, strict=True)])))),
    ("All places are counted, useful ones included.",
     "Subtract what is useful: `sum(prompts)` and `sum(outputs)`.",
     _per_batch(lambda p, o: (len(p) * max(p), len(o) * max(o)))),
    ("Requests are compared with the shortest, not with the longest: those that are longer than "
     "the shortest are the ones that do useful work.", "`max(prompts)`, `max(outputs)`.",
     _per_batch(lambda p, o: (sum(p) - len(p) * min(p), sum(o) - len(o) * min(o)))),
]  # fmt: skip

# Exercise 2


@dataclass(frozen=True)
class BareRequest:
    """What the choice of tokens asks of a request."""

    request_id: str
    num_tokens: int
    num_computed_tokens: int = 0
    num_prompt_tokens: int = 0

    @property
    def lacking(self) -> int:
        return self.num_tokens - self.num_computed_tokens


class _Choice(NamedTuple):
    """A step that is to be planned."""

    running: list[BareRequest]
    waiting: list[BareRequest]
    max_num_seqs: int
    max_num_batched_tokens: int


def _choice(running: str, waiting: str, max_num_seqs: int, budget: int) -> _Choice:
    """From a short notation: "A5/4 B9/8" is A with 5 tokens, of which 4 are computed."""

    def requests(text: str) -> list[BareRequest]:
        found = []
        for word in text.split():
            tokens, _, computed = word[1:].partition("/")
            found.append(BareRequest(word[0], int(tokens), int(computed or 0), int(tokens) - 1))
        return found

    return _Choice(requests(running), requests(waiting), max_num_seqs, budget)


def _chosen(case: _Choice) -> dict[str, int]:
    """By definition: of all beginnings of the waiting line, the longest that keeps both limits."""
    fixed = {r.request_id: r.lacking for r in case.running}
    best = fixed
    for count in range(len(case.waiting) + 1):
        plan = fixed | {r.request_id: r.lacking for r in case.waiting[:count]}
        if len(plan) <= case.max_num_seqs and sum(plan.values()) <= case.max_num_batched_tokens:
            best = plan
    return best


def judge_choose_tokens(function: Callable[..., dict[str, int]]) -> Passed:
    """Check `choose_tokens(running, waiting, max_num_seqs, max_num_batched_tokens)`."""
    cases = [
        _choice("", "", 4, 8),
        _choice("", "A3", 4, 8),
        _choice("A4/3", "", 4, 8),
        _choice("A4/3", "B3", 4, 8),
        _choice("A4/3 B7/6", "C3 D3", 4, 8),
        _choice("A4/3 B7/6", "C3 D3 E2", 4, 10),
        _choice("A4/3", "B3 C4", 4, 8),
        _choice("A4/3", "B8 C2", 4, 8),
        _choice("A4/3 B7/6", "C2 D2 E2", 4, 16),
        _choice("A4/3 B7/6", "C2", 2, 16),
        _choice("", "A5 B2 C4 D1", 3, 9),
        _choice("A4/3 B7/6 C3/2", "D4 E1", 6, 4),
        _choice("A9/8", "B6 C1 D2 E1", 4, 12),
    ]
    for case in cases:
        before = _told_choice(case)
        lists = list(case.running), list(case.waiting)
        got = call(function, *lists, *case[2:], given=before)
        if lists != (case.running, case.waiting):
            raise Mismatch(
                "Your function changes the lists it is given. Here you only choose; whoever called "
                "moves the requests.", input=before,
                look="Go through `waiting` with a `for` loop in place of `waiting.pop(0)`.",
            )  # fmt: skip
        want = _chosen(case)
        if got == want:
            continue
        says, look = _wrong_choice(case, got, want)
        figure = None
        if isinstance(got, dict):
            figure = pictures.budget(
                [("expected", want), ("yours", {str(name): _count(n) for name, n in got.items()})],
                [r.request_id for r in case.running], case.max_num_batched_tokens,
                "Whose tokens are in the step", want,
            )  # fmt: skip
        raise Mismatch(
            says, input=before, expected=f"`{want}`", got=describe(got), look=look, figure=figure,
            alt="The tokens of the step, expected and yours, against the budget.",
        )  # fmt: skip
    shown = cases[5]
    return Passed(
        f"Right in {len(cases)} situations: decodes first, then prompts in the order of arrival, "
        "within both limits.",
        pictures.budget(
            [("yours", _chosen(shown))], [r.request_id for r in shown.running],
            shown.max_num_batched_tokens, "Decodes and prompts share one step",
        ),
        "The tokens of one step, request by request, against the budget.",
    )  # fmt: skip


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _told_choice(case: _Choice) -> str:
    def line(requests: Sequence[BareRequest]) -> str:
        each = (f"{r.request_id} ({r.lacking} of {r.num_tokens} to compute)" for r in requests)
        return ", ".join(each) or "nobody"

    return (
        f"running: {line(case.running)}; waiting: {line(case.waiting)}; max_num_seqs "
        f"{case.max_num_seqs}, max_num_batched_tokens {case.max_num_batched_tokens}"
    )


def _wrong_choice(case: _Choice, got: Any, want: dict[str, int]) -> tuple[str, str]:
    """What is wrong with a choice, and where to look."""
    known = {r.request_id: r for r in (*case.running, *case.waiting)}
    if not isinstance(got, dict) or not all(name in known for name in got):
        return (
            f"Your function returned {describe(got)}; expected a dict from request id to a number "
            "of tokens.",
            "`num_scheduled_tokens[request.request_id] = ...`",
        )
    running = [r.request_id for r in case.running]
    served = [r.request_id for r in case.waiting if r.request_id in got]
    for name, count in got.items():
        request, lacking = known[name], known[name].lacking
        if not isinstance(count, int):
            return f"The number of tokens of {name} is {describe(count)}; expected an int.", ""
        if count == 0:
            return (
                f"{name} is in the dict with 0 tokens. Leave it out: it has no part in the step.",
                "",
            )
        if count == request.num_tokens != lacking:
            return (
                f"{name} is decoding, and counted with its whole prompt: {count} tokens, of which "
                f"{request.num_computed_tokens} are computed already.",
                "`request.num_tokens - request.num_computed_tokens`.",
            )
        if count < lacking:
            return (
                f"{name} gets {count} of its {lacking} tokens. Here a prompt goes whole or not at "
                "all; parts come in exercise 3.",
                "Compare what it lacks with what is left of the budget, then take it or stop.",
            )
        if count > lacking:
            return f"{name} gets {count} tokens, but only {lacking} are to be computed.", ""
    if missing := [name for name in running if name not in got]:
        if served:
            return (
                f"{served[0]} is served before {missing[0]}, which is running already and gets "
                "nothing. A request that waits must not hold up those that run.",
                "Two loops: first over `running`, then over `waiting`.",
            )
        return f"{missing[0]} is running, but gets no token in this step.", "Loop over `running`."
    if len(got) > case.max_num_seqs:
        return (
            f"{len(got)} requests would run at a time; max_num_seqs is {case.max_num_seqs}.",
            "Those that run already count: `len(running)` plus those that you let in.",
        )
    if sum(got.values()) > case.max_num_batched_tokens:
        return (
            f"{sum(got.values())} tokens are in the step; the budget is "
            f"{case.max_num_batched_tokens}.",
            "Lower the budget with each request that you take, the running ones included.",
        )
    for place, name in enumerate(served):
        if name != case.waiting[place].request_id:
            ahead = case.waiting[place].request_id
            return (
                f"{name} overtakes {ahead}. With first come, first served, nobody is let in before "
                "one that came earlier. Otherwise a long prompt may wait for ever.",
                "Leave the loop at the first that does not fit: `break`, not `continue`.",
            )
    left_out = next(name for name in want if name not in got)
    return (
        f"{left_out} is left out, though both limits have room for it.",
        "Exactly full is not too full: `<=`. And go on after the first that fits.",
    )


# Exercise 3


class _Chunk(NamedTuple):
    """A request, and what is left of a step's budget when it is its turn."""

    request: BareRequest
    budget: int
    num_running_after: int


def _chunked(case: _Chunk) -> tuple[int, bool]:
    """Token by token: what is computed, and whether it brought the request up to date."""
    room, computed = case.budget, case.request.num_computed_tokens
    while room > case.num_running_after and computed < case.request.num_tokens:
        room, computed = room - 1, computed + 1
    return computed - case.request.num_computed_tokens, computed == case.request.num_tokens


def judge_next_chunk(function: Callable[..., tuple[int, bool]]) -> Passed:
    """Check `next_chunk(request, budget, num_running_after)`."""
    cases = [
        _Chunk(BareRequest("A", prompt + answer, computed, prompt), budget, after)
        for prompt, answer, computed, budget, after in (
            (3, 0, 0, 8, 0), (8, 0, 0, 8, 0), (20, 0, 0, 8, 0), (20, 0, 8, 8, 0), (20, 0, 16, 8, 0),
            (20, 1, 20, 8, 0), (20, 1, 20, 1, 0), (20, 0, 0, 8, 3), (20, 0, 16, 8, 4),
            (20, 0, 15, 8, 4), (20, 3, 22, 6, 5), (6, 4, 0, 8, 0), (6, 4, 6, 3, 0),
            (6, 4, 0, 16, 2), (6, 4, 8, 9, 1),
        )
    ]  # fmt: skip
    answers = []
    for case in cases:
        got = call(function, *case, given=_told_chunk(case))
        if not isinstance(got, tuple | list) or len(got) != 2 or not isinstance(got[0], int):
            raise Mismatch(
                f"Your function returned {describe(got)}; expected a pair: how many tokens, and "
                "whether a new token will be sampled.",
                input=_told_chunk(case), look="`return num_new_tokens, is_complete`.",
            )  # fmt: skip
        answers.append((int(got[0]), bool(got[1])))
    for case, got in zip(cases, answers, strict=True):
        want = _chunked(case)
        if got == want:
            continue
        says, look = _wrong_chunk(case, got, want)
        for words, where, wrong in _CHUNK_BUGS:
            if all(wrong(c) == answer for c, answer in zip(cases, answers, strict=True)):
                says, look = words, where
                break
        raise Mismatch(
            says, input=_told_chunk(case), look=look,
            expected=f"{want[0]} tokens, and {'a' if want[1] else 'no'} new token is sampled",
            got=f"{got[0]} tokens, and {'a' if got[1] else 'no'} new token is sampled",
            figure=pictures.budget(
                [(name, {"A": max(0, n), "those after it": case.num_running_after})
                 for name, n in (("expected", want[0]), ("yours", got[0]))],
                ["those after it"], case.budget, "What A takes of the budget",
                {"A": want[0], "those after it": case.num_running_after},
            ),
            alt="The part of the budget that the request takes, expected and yours.",
        )  # fmt: skip
    return _chunks_in_action(function)


def _told_chunk(case: _Chunk) -> str:
    request = case.request
    answer = request.num_tokens - request.num_prompt_tokens
    return (
        f"a request with a prompt of {request.num_prompt_tokens} tokens"
        + (f" and {answer} of its answer" if answer else "")
        + f", {request.num_computed_tokens} computed; budget {case.budget}, "
        f"num_running_after {case.num_running_after}"
    )


def _wrong_chunk(case: _Chunk, got: tuple[int, bool], want: tuple[int, bool]) -> tuple[str, str]:
    if got[0] > case.request.lacking:
        return f"Only {case.request.lacking} tokens are left to compute.", ""
    if got[0] > case.budget:
        return f"The chunk of {got[0]} tokens is larger than the budget of {case.budget}.", ""
    if got[0] != want[0]:
        return "The number of tokens is wrong.", "The smaller of two numbers: `min(...)`."
    if got[1]:
        return (
            "A token is sampled though not all tokens are computed. The model would continue in "
            "the middle of the text.",
            "Only when this chunk is all that the request lacks.",
        )  # fmt: skip
    return "All tokens are computed, and no new one is sampled. The request would stand still.", ""


_MIN = "`min(request.num_tokens - request.num_computed_tokens, budget - num_running_after)`."


def _bug(
    tokens: Callable[[_Chunk], int], sampled: Callable[[_Chunk, int], bool] | None = None
) -> Callable[[_Chunk], tuple[int, bool]]:
    def wrong(case: _Chunk) -> tuple[int, bool]:
        count = tokens(case)
        if sampled is None:
            return count, count == case.request.lacking
        return count, sampled(case, count)

    return wrong


def _right(case: _Chunk) -> int:
    return _chunked(case)[0]


_CHUNK_BUGS: list[tuple[str, str, Callable[[_Chunk], Any]]] = [
    ("The chunk leaves nothing for the running requests that come after. Their answers would stand "
     "still until the prompt is computed.", f"Leave each of them one token: {_MIN}",
     _bug(lambda c: min(c.request.lacking, c.budget))),
    ("The prompt is not cut: the chunk may be larger than the budget.", _MIN,
     _bug(lambda c: c.request.lacking)),
    ("What is computed already is counted again.", _MIN,
     _bug(lambda c: min(c.request.num_tokens, c.budget - c.num_running_after))),
    ("A token is sampled after every chunk. Before the prompt is complete, the model would "
     "continue in the middle of the text.", "Only when this chunk is all that the request lacks.",
     _bug(_right, lambda c, n: True)),
    ("A token is sampled as soon as the *prompt* is computed. A request that lost its blocks must "
     "compute its answer so far again, too, before it goes on.",
     "Compare with `num_tokens`, not with `num_prompt_tokens`.",
     _bug(_right, lambda c, n: c.request.num_computed_tokens + n >= c.request.num_prompt_tokens)),
    ("The first token of the answer comes a step too late. The chunk that completes the prompt "
     "gives its logits already.", "Look at what is computed *after* this step.",
     _bug(_right, lambda c, n: c.request.num_computed_tokens >= c.request.num_prompt_tokens)),
    ("Only the prompt is looked at. The tokens of the answer must be computed as well, and after a "
     "preemption all of them again.", "`num_tokens` counts both.",
     _bug(lambda c: min(c.request.num_prompt_tokens - c.request.num_computed_tokens,
                        c.budget - c.num_running_after)
          if c.request.num_computed_tokens < c.request.num_prompt_tokens
          else min(1, c.budget - c.num_running_after))),
    ("`num_running_after` is taken from the request's tokens. It belongs to the budget.", _MIN,
     _bug(lambda c: min(c.request.lacking - c.num_running_after, c.budget))),
    ("One token of the budget stays unused.", _MIN,
     _bug(lambda c: min(c.request.lacking, c.budget - c.num_running_after - 1))),
]  # fmt: skip


def _chunks_in_action(function: Callable[..., tuple[int, bool]]) -> Passed:
    """A long prompt among three answers, step by step, with the learner's function."""
    rows: list[tuple[str, dict[str, int]]] = []
    prompt = BareRequest("P", 18, 0, 18)
    complete = False
    while not complete:
        count, complete = call(function, prompt, 8 - 2, 1)
        rows.append((f"step {len(rows) + 1}", {"A": 1, "B": 1, "P": count, "C": 1}))
        prompt = replace(prompt, num_computed_tokens=prompt.num_computed_tokens + count)
    return Passed(
        "Chunks fill the budget, leave a token for each request that follows, and a token is "
        f"sampled when all are computed. Below, a prompt of 18 tokens, P, takes {len(rows)} steps "
        "beside three answers, and none of these has to pause.",
        pictures.budget(
            rows, ["A", "B", "C"], 8, "A long prompt in chunks: no answer has to pause"
        ),
        "Step by step, the chunks of a prompt between the decodes of three requests.",
    )
