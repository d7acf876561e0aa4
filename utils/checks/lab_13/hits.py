"""What lab 13 says of predicted hits: exercise 1."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from utils.checks.kit.prefix_pictures import prompts as found_blocks
from utils.checks.kit.runner import Mismatch, call, describe
from utils.sim.prompt_cache import find_cached_tokens

Request = tuple[str | None, list[int]]
Rule = Callable[["Salted"], list[int]]


class Salted(NamedTuple):
    """Requests that are sent one after another, to a cache with room for everything."""

    block_size: int
    requests: list[Request]


def ints(got: Any, count: int, given: str) -> list[int]:
    """Refuse anything but a list of `count` ints."""
    if got is None:
        raise Mismatch("Your function returned None. Is the `return` missing?", input=given)
    if not isinstance(got, list) or len(got) != count or any(type(n) is not int for n in got):
        raise Mismatch(
            f"Your function returned {describe(got)}; expected a list of {count} ints, one per "
            "prompt.",
            input=given,
        )
    return got


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same


def _per_request(rule: Callable[[list[Request], Request, int], int]) -> Rule:
    return lambda case: [
        rule(case.requests[:i], request, case.block_size) for i, request in enumerate(case.requests)
    ]


def _best(earlier: list[Request], request: Request, *, salted: bool = True) -> int:
    own = [p for salt, p in earlier if salt == request[0] or not salted]
    return max((_common(request[1], p) for p in own), default=0)


def _anywhere(earlier: list[Request], request: Request, size: int) -> int:
    salt, p = request
    blocks = {tuple(e[i : i + size]) for s, e in earlier if s == salt
              for i in range(0, len(e) - size + 1, size)}  # fmt: skip
    count = 0
    while count < (len(p) - 1) // size and tuple(p[count * size :][:size]) in blocks:
        count += 1
    return count * size


def _one_of(earlier: list[Request], r: Request, size: int, which: slice) -> int:
    return min(_best(earlier[which], r), len(r[1]) - 1) // size * size


_ROUND = "First `min(shared, len(prompt) - 1)`, then `// block_size * block_size`."
_SALT = "Compare with earlier requests of the *same* salt only. None is a salt like any other."
HIT_BUGS: list[tuple[Rule, str, str]] = [
    (_per_request(lambda e, r, s: min(_best(e, r, salted=False), len(r[1]) - 1) // s * s),
     "The salt is ignored: a tenant finds what another tenant has sent.", _SALT),
    (_per_request(lambda e, r, s: min(max((_common(r[1], p) for salt, p in e
                                           if str(salt) == str(r[0])), default=0),
                                      len(r[1]) - 1) // s * s),
     "No salt is taken for the word \"None\". A tenant can have that name.", _SALT),
    (_per_request(lambda e, r, s: 0 if r[0] is None else
                  min(_best(e, r), len(r[1]) - 1) // s * s),
     "Requests without a salt find nothing. They share with each other.", _SALT),
    (_per_request(lambda e, r, s: min(max((_common(r[1], p) for salt, p in e
                                           if salt is None or salt == r[0]), default=0),
                                      len(r[1]) - 1) // s * s),
     "A request with a salt finds blocks of requests without one. A salt closes it off from "
     "everybody else.", _SALT),
    (_per_request(lambda e, r, s: _best(e, r) // s * s),
     "A prompt that is found as a whole leaves no token to compute. Without one, vLLM would have "
     "nothing to sample from.", _ROUND),
    (_per_request(lambda e, r, s: min(_best(e, r) // s * s, len(r[1]) - 1)),
     "The rounding comes too early. When the last token must be computed, its whole block is.",
     _ROUND),
    (_per_request(lambda e, r, s: min(_best(e, r), len(r[1]) - 1)),
     "You count single tokens. Only full blocks are found.", _ROUND),
    (_per_request(lambda e, r, s: min(-(-_best(e, r) // s) * s, (len(r[1]) - 1) // s * s)),
     "You round up. A block that is equal only in part is not found.", _ROUND),
    (_per_request(lambda e, r, s: min(_best(e, r), len(r[1]) - 1) // s),
     "You count blocks; expected tokens.", "Multiply by `block_size`."),
    (_per_request(lambda e, r, s: _one_of(e, r, s, slice(-1, None))),
     "Only the request just before is searched. The cache keeps all earlier ones.",
     "Compare with every earlier request."),
    (_per_request(lambda e, r, s: _one_of(e, r, s, slice(0, 1))),
     "Only the very first request is searched. The cache keeps all earlier ones.",
     "Compare with every earlier request."),
    (_per_request(_anywhere),
     "Blocks are compared without what comes before them. Equal tokens behind another prefix have "
     "other keys and values.", "Compare prefixes, from the first token on."),
    (_per_request(lambda e, r, s: max(0, _best(e, r) // s * s - s)),
     "One block too few: the last found block is always left out. That is needed only when nothing "
     "else would be left to compute.", _ROUND),
    (lambda c: [(len(p) - 1) // c.block_size * c.block_size for _, p in c.requests],
     "The first request finds itself. Only *earlier* requests are in the cache.",
     "Look a request up first, then remember it."),
]  # fmt: skip


def judge_predict_cached_tokens(function: Callable[..., list[int]]) -> str:
    """Check `predict_cached_tokens(requests, block_size)` against the engine's block manager."""
    a, b, c = [1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]
    plain = [
        Salted(4, [(None, [*a, 5]), (None, [*a, 5])]),
        Salted(4, [(None, [*a, 5]), (None, [*a, 6, 7])]),
        Salted(4, [(None, [1, 2, 3]), (None, [1, 2, 3])]),
        Salted(4, [(None, a + b), (None, a + b)]),
        Salted(4, [("x", [*a, 5]), ("y", [*a, 5])]),
        Salted(4, [("x", [*a, 5]), (None, [*a, 5]), ("x", [*a, 5]), (None, [*a, 7])]),
        Salted(4, [(None, [*a, 5]), ("x", [*a, 5]), ("x", [*a, 5])]),
        Salted(4, [(None, [*a, 5]), ("None", [*a, 5])]),
        Salted(4, [(None, a + b + c), (None, a + c + c), (None, a + b + c + [1])]),
        Salted(4, [(None, c + b), (None, a + b), (None, a + c)]),
        Salted(4, [("x", c + b), ("x", a + b + a), ("x", c + b + [1]), ("x", a + b + [1])]),
        Salted(4, [(None, [*a, 5, 6]), (None, [*a, 5, 6, 7, 8, 9])]),
        Salted(2, [("x", a + b), ("y", a + c), ("x", [1, 2, 9, 9]), ("x", a), ("y", a + b)]),
        Salted(1, [("x", a), ("x", a), ("x", [1, 2, 5])]),
    ]
    dice = random.Random(13)
    cases = [*plain, *(_random_requests(dice) for _ in range(20))]
    answers = [_ask_salted(function, case) for case in cases]
    for case, got in zip(cases, answers, strict=True):
        prompts, salts = [p for _, p in case.requests], [salt for salt, _ in case.requests]
        want = find_cached_tokens(prompts, case.block_size, salts=salts)
        if got == want:
            continue
        says, look = "The prediction is wrong.", "Longest prefix shared with an earlier request of "
        look += "the same salt, at most all tokens but one, in full blocks."
        for wrong, words, where in HIT_BUGS:
            if all(wrong(c) == answer for c, answer in zip(cases, answers, strict=True)):
                says, look = words, where
                break
        raise Mismatch(
            says, input=_told(case), expected=f"`{want}`", got=f"`{got}`", look=look,
            figure=found_blocks(prompts, case.block_size, want, got),
            alt="Each prompt in blocks: which are found, and which you predicted.",
        )  # fmt: skip
    return (
        f"Right on {len(cases)} lists of requests, with and without salts; the engine's own block "
        "manager counts the same."
    )


def _told(case: Salted) -> str:
    return f"block_size {case.block_size}, requests (salt, tokens): {case.requests}"


def _ask_salted(function: Callable[..., list[int]], case: Salted) -> list[int]:
    requests = [(salt, list(prompt)) for salt, prompt in case.requests]
    got = call(function, requests, case.block_size, given=_told(case))
    if requests != case.requests:
        raise Mismatch("Your function changes the requests it was given.", input=_told(case))
    return ints(got, len(requests), _told(case))


def _random_requests(dice: random.Random) -> Salted:
    size = dice.choice((2, 4))
    stems = [[dice.randrange(4) for _ in range(20)] for _ in range(2)]
    return Salted(size, [
        (dice.choice((None, "x", "y")), dice.choice(stems)[: dice.randint(1, 18)] + [7] *
         dice.randint(0, 3))
        for _ in range(8)
    ])  # fmt: skip
