"""How many tokens of each prompt are found in a cache with room for everything: exercise 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.lab_13.prompts import common, draw_prompts, wrong_counts

Request = tuple[str | None, list[int]]
SALTS: tuple[tuple[str | None, ...], ...] = (
    (None,),
    (None, "x"),
    (None, "None"),
    ("x", "y"),
    (None, "x", "y"),
    ("x", "X"),
    ("1", "11"),
    (None, "0", "x", "x "),
    ("a long name, number 1", "a long name, number 2"),
)


def draw_requests(c: Choices) -> Given:
    block_size, salts = c.pick((2, 1, 3, 4, 16)), c.pick(SALTS)
    prompts = [] if c.rarely(30) else draw_prompts(c, block_size, longest=80 * block_size)
    return Given([(c.pick(salts), prompt) for prompt in prompts], block_size)


def _found(
    requests: list[Request],
    size: int,
    *,
    salt: Callable[[Any], Any] = lambda salt: salt,
    public: bool = False,
    left: int = 1,
) -> list[int]:
    """Brute force, with switches for known mistakes: tokens shared, before they are rounded."""
    shared = []
    for i, (mine, prompt) in enumerate(requests):
        earlier = [p for s, p in requests[:i] if salt(s) == salt(mine) or (public and s is None)]
        longest = max((common(prompt, p) for p in earlier), default=0)
        shared.append(min(longest, len(prompt) - left))
    return shared


def _rounded(**switches: Any) -> Callable[[list[Request], int], list[int]]:
    return lambda requests, block_size: [
        n // block_size * block_size for n in _found(requests, block_size, **switches)
    ]


found_tokens = _rounded()


def _wrong(expected: Any, got: Any, given: Given) -> Fault | None:
    requests, block_size = given.args
    return wrong_counts(expected, got, [p for _, p in requests], block_size)


def _without_chain(requests: list[Request], size: int) -> list[int]:
    seen: set[Any] = set()
    found = []
    for salt, p in requests:
        blocks = [(salt, *p[i : i + size]) for i in range(0, len(p) - size + 1, size)]
        count = 0
        while count < min(len(blocks), (len(p) - 1) // size) and blocks[count] in seen:
            count += 1
        found.append(count * size)
        seen.update(blocks)
    return found


_ROUND = "First `min(shared, len(prompt) - 1)`, then `// block_size * block_size`."
_SALT = "Compare with earlier requests of the *same* salt only. None is a salt like any other."

PREDICT_CACHED_TOKENS = Contract(
    inputs=draw_requests,
    judge=Returns(found_tokens, wrong=_wrong),
    examples=300,
    tell=lambda given: f"block_size {given.args[1]}, requests (salt, tokens): {given.args[0]}",
    passed="Right on 300 lists of requests, with and without salts, as brute force finds them.",
    clauses={
        "returns": Clause(
            "The prediction is wrong. {says}",
            "Longest prefix shared with an earlier request of the same salt, at most all tokens "
            "but one, in full blocks.",
        ),
        "changes": Clause("Your function changes the requests it was given."),
    },
    mistakes=(
        mistake(
            "The salt is ignored: a tenant finds what another tenant has sent.",
            _SALT,
            _rounded(salt=lambda salt: 0),
        ),
        mistake(
            'No salt is taken for the word "None". A tenant can have that name.',
            _SALT,
            _rounded(salt=str),
        ),
        mistake(
            "Requests without a salt find nothing. They share with each other.",
            _SALT,
            lambda requests, size: [
                n if salt else 0
                for n, (salt, _) in zip(found_tokens(requests, size), requests, strict=True)
            ],
        ),
        mistake(
            "A request with a salt finds blocks of requests without one. A salt closes it off "
            "from everybody else.",
            _SALT,
            _rounded(public=True),
        ),
        mistake(
            "A prompt that is found as a whole leaves no token to compute. Without one, vLLM "
            "would have nothing to sample from.",
            _ROUND,
            _rounded(left=0),
        ),
        mistake(
            "The rounding comes too early. When the last token must be computed, its whole "
            "block is.",
            _ROUND,
            lambda requests, size: [
                min(n, len(p) - 1)
                for n, (_, p) in zip(_rounded(left=0)(requests, size), requests, strict=True)
            ],
        ),
        mistake("You count single tokens. Only full blocks are found.", _ROUND, _found),
        mistake(
            "You count blocks; expected tokens.",
            "Multiply by `block_size`.",
            lambda requests, size: [n // size for n in _found(requests, size)],
        ),
        mistake(
            "Blocks are compared without what comes before them. Equal tokens behind another "
            "prefix have other keys and values.",
            "Compare prefixes, from the first token on.",
            _without_chain,
        ),
        mistake(
            "The first request finds itself. Only *earlier* requests are in the cache.",
            "Look a request up first, then remember it.",
            lambda requests, size: [(len(p) - 1) // size * size for _, p in requests],
        ),
    ),
)
