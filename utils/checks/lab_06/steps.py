"""What static batches waste, and the tokens of a step: what is drawn, and what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Number
from typing import Any

from matplotlib.figure import Figure

from utils.checks.kit.contracts import Choices, Fault, Given
from utils.checks.kit.pictures.blocks import count as counted
from utils.checks.kit.runner import Passed
from utils.checks.lab_06 import pictures
from utils.checks.lab_06.bare import BareRequest, bare_request, draw_request, name_of, names

TOLD = 8  # requests in a sentence


def pair_of(got: Any) -> tuple[Any, Any] | None:
    """Two values, as a tuple, a list or an array."""
    got = got.tolist() if hasattr(got, "tolist") else got
    if not isinstance(got, tuple | list) or len(got) != 2:
        return None
    one, two = (x.item() if hasattr(x, "item") else x for x in got)
    return one, two


# Exercise 1: what static batches waste


def draw_batches(c: Choices) -> Given:
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
    """Request by request: what each lacks to the longest in its batch."""

    def spare(lens: Sequence[int]) -> int:
        longest: dict[int, int] = {}
        for number, length in enumerate(lens):
            batch = number // batch_size
            longest[batch] = max(longest.get(batch, 0), length)
        return sum(longest[number // batch_size] - length for number, length in enumerate(lens))

    return spare(prompt_lens), spare(output_lens)


def wrong_waste(expected: tuple[int, int], got: Any, given: Given) -> Fault | None:
    pair = pair_of(got)
    if pair is None or not all(isinstance(number, Number) for number in pair):
        return Fault("pair", "", expected, got)
    padding, idle = pair[0] == expected[0], pair[1] == expected[1]
    if padding and idle:
        return None
    want, came = (f"{p} places of padding, {i} idle" for p, i in (expected, pair))

    def picture() -> tuple[Figure | None, str]:
        prompts, outputs, _ = given.args
        if len(prompts) > 12 or sum(prompts) + sum(outputs) > 200:
            return None, ""
        return pictures.static_batches(*given.args), ALT_OF_BATCHES

    clause = "idle" if padding else "padding" if idle else "both"
    return Fault(clause, "", expected, pair, words=(want, came), picture=picture)


ALT_OF_BATCHES = "Each slot of each batch: padding, prompt, answer, idle places."


def praise_waste(answer: Any) -> Passed:
    last = [6, 2, 7, 1, 4, 9, 3, 5], [3, 8, 2, 2, 9, 1, 5, 2], 3
    useful = sum(last[0]) + sum(last[1])
    share = useful / (useful + sum(pair_of(answer(*last)) or ()))
    words = f"Right. By your count, only {share:.0%} of the places in the picture do useful work."
    return Passed(words, pictures.static_batches(*last), ALT_OF_BATCHES)


# Exercise 2: the tokens of a step, with whole prompts


def draw_step(c: Choices) -> Given:
    """Limits that fit exactly, or by one not; long lines; requests that lack only a part."""
    high, most = (12, 70) if c.rarely(15) else (3000, 5)
    numbers = iter(range(1000))

    def request(started: bool) -> BareRequest:
        return draw_request(c, name_of(next(numbers)), high, started)

    running = c.some(lambda: request(True), 0, most)
    waiting = c.some(lambda: request(False), 0, most + 1)
    fitting, least = c.integer(0, len(waiting)), sum(r.lacking for r in running)
    needed = least + sum(r.lacking for r in waiting[:fitting])
    budget = max(1, least, needed + c.pick((0, 0, -1, 1, c.size(0, 4000))))
    seqs = c.pick((fitting, len(waiting), c.integer(0, len(waiting) + 2), 300))
    return Given(running, waiting, max(1, len(running) + seqs), budget)


def longest_beginning(
    running: Sequence[Any], waiting: Sequence[Any], max_num_seqs: int, budget: int
) -> dict[str, int]:
    """By definition: of all beginnings of the waiting line, the longest that keeps both limits."""
    plans = [[*running, *waiting[:count]] for count in range(len(waiting) + 1)]
    fitting = [
        {request.request_id: request.lacking for request in plan}
        for plan in plans
        if len(plan) <= max_num_seqs and sum(request.lacking for request in plan) <= budget
    ]
    return max(fitting, key=len)


def wrong_step(want: dict[str, int], got: Any, given: Given) -> Fault | None:
    running, waiting, max_num_seqs, budget = given.args
    lacking = {request.request_id: request.lacking for request in (*running, *waiting)}
    if not isinstance(got, Mapping) or not all(name in lacking for name in got):
        return Fault("dict", "", want, got)
    if odd := {n: count for n, count in got.items() if not isinstance(count, Integral)}:
        return Fault("whole numbers", "", {name: lacking[name] for name in odd}, odd)
    got = {name: int(count) for name, count in got.items()}

    def fault(clause: str, expected: Any, came: Any) -> Fault:
        draw = partial(draw_plans, want, got, names(running), budget)
        return Fault(clause, "", expected, got, words=(str(expected), str(came)), picture=draw)

    if zero := [name for name, count in got.items() if count == 0]:
        return fault("zero", f"no {zero[0]} in the dict", f"{zero[0]}: 0 tokens")
    for name, count in got.items():
        if count != lacking[name]:
            return fault(
                "lacking", *(f"{name}: {counted(n, 'token')}" for n in (lacking[name], got[name]))
            )
    served = [name for name in names(waiting) if name in got]
    if missing := [name for name in names(running) if name not in got]:
        return fault(
            "before" if served else "running", f"with {missing[0]}", f"without {missing[0]}"
        )
    if len(got) > max_num_seqs:
        return fault("seqs", f"at most {max_num_seqs} requests", f"{len(got)} requests")
    if sum(got.values()) > budget:
        return fault("budget", f"at most {budget} tokens", f"{sum(got.values())} tokens")
    first = names(waiting)[: len(served)]
    if served != first:
        return fault("overtakes", ", ".join(first[:TOLD]), ", ".join(served[:TOLD]))
    if missing := [name for name in want if name not in got]:
        return fault("left out", f"with {missing[0]}", f"without {missing[0]}")
    return None


def draw_plans(
    want: dict[str, int], got: dict[str, int], decodes: list[str], budget: int
) -> tuple[Figure | None, str]:
    if len(want) > TOLD or len(got) > TOLD:
        return None, ""
    plans, title = {"expected": want, "yours": got}, "Whose tokens are in the step"
    alt = "The tokens of the step, expected and yours, against the budget."
    return pictures.budget(plans, decodes, budget, title, want), alt


def tell_step(given: Given) -> str:
    running, waiting, max_num_seqs, budget = given.args

    def line(requests: Sequence[Any]) -> str:
        each = [f"{r.request_id} (lacks {r.lacking} of {r.num_tokens} tokens)" for r in requests]
        return ", ".join(each[:TOLD] + ["..."] * (len(each) > TOLD)) or "nobody"

    limits = f"max_num_seqs {max_num_seqs}, max_num_batched_tokens {budget}"
    return f"running: {line(running)}; waiting: {line(waiting)}; {limits}"


def praise_step(answer: Any) -> Passed:
    running = [bare_request(n, k, 1, num_computed_tokens=k) for n, k in (("A", 3), ("B", 6))]
    waiting = [bare_request(name, k) for name, k in (("C", 3), ("D", 3), ("E", 2))]
    return Passed(
        "Right. Decodes come first, then prompts in the order of arrival, within both limits.",
        pictures.budget(
            {"yours": answer(running, waiting, 4, 10)},
            ["A", "B"],
            10,
            "Decodes and prompts share one step",
        ),
        "The tokens of one step, request by request, against the budget.",
    )


# Exercise 3: chunks of a prompt


def draw_chunk(c: Choices) -> Given:
    """Budgets far too small, just too small, exact, and more than enough."""
    request, after = draw_request(c), c.size(0, 300)
    exact = request.lacking + c.pick((0, 0, -1, 1))
    free = c.pick((c.size(1, 3000), exact, exact + after))
    return Given(request, after + max(1, free), after)


def in_reach(request: BareRequest, budget: int, num_running_after: int) -> tuple[int, bool]:
    """In ranges: the tokens in reach of the budget, and whether the last one is among them."""
    reach = range(request.num_computed_tokens, request.num_computed_tokens + budget)
    reach = reach[: len(reach) - num_running_after]
    text = range(request.num_tokens)
    return len(reach[: len(text) - reach.start]), text[-1] in reach


def wrong_chunk(want: tuple[int, bool], got: Any, given: Given) -> Fault | None:
    request, budget, after = given.args
    pair = pair_of(got)
    if pair is None or not isinstance(pair[0], Integral) or pair[1] not in (True, False):
        return Fault("pair", "", want, got)
    came = int(pair[0]), bool(pair[1])
    if came == want:
        return None
    clause = "tokens"
    if came[0] == want[0]:
        clause = "sampled" if came[1] else "not sampled"
    elif came[0] > request.lacking:
        clause = "too many"
    elif came[0] > budget:
        clause = "beyond the budget"
    words = [
        f"{n} tokens, and {'a' if new else 'no'} new token is sampled" for n, new in (want, came)
    ]

    def picture() -> tuple[Figure | None, str]:
        if budget > 60 or came[0] > 60:
            return None, ""
        rest = {"those after it": after}
        rows = {"expected": {"A": want[0]} | rest, "yours": {"A": max(0, came[0])} | rest}
        title = "What A takes of the budget"
        alt = "The part of the budget that the request takes, expected and yours."
        return pictures.budget(rows, list(rest), budget, title, rows["expected"]), alt

    return Fault(clause, "", want, came, words=(words[0], words[1]), picture=picture)


def tell_chunk(given: Given) -> str:
    request, budget, after = given.args
    prompt, answer = len(request.prompt_token_ids), len(request.output_token_ids)
    text = f"a prompt of {prompt} tokens" + (f" and {answer} of its answer" if answer else "")
    computed = request.num_computed_tokens
    return f"A: {text}, {computed} computed; budget {budget}, num_running_after {after}"


def praise_chunk(answer: Callable[..., Any]) -> Passed:
    """A long prompt among three answers, step by step, with the learner's function."""
    rows: dict[str, dict[str, int]] = {}
    prompt, complete = bare_request("P", 18), False
    while not complete:
        count, complete = answer(prompt, 8 - 2, 1)
        rows[f"step {len(rows) + 1}"] = {"A": 1, "B": 1, "P": int(count), "C": 1}
        prompt.num_computed_tokens += int(count)
    title = "A long prompt in chunks: no answer has to pause"
    return Passed(
        "Right. A chunk fills the budget, leaves a token for each request behind it, and the last "
        f"chunk samples a token. In the picture, the prompt P of 18 tokens takes {len(rows)} steps "
        "beside three answers, and none of these has to pause.",
        pictures.budget(rows, ["A", "B", "C"], 8, title),
        "Step by step, the chunks of a prompt between the decodes of three requests.",
    )
