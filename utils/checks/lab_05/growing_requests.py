"""Requests that grow, and are hashed block by block: exercise 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.engine.request import Request
from utils.sim.prompt_cache import bare_request

SALTS = (None, "ada", "", "bob", " ", "None", "0")


@dataclass(frozen=True)
class Growth:
    """Requests of which each has tokens and a salt, and blocks that were hashed before; each step
    appends tokens to one of them, and has it hashed."""

    block_size: int
    starts: tuple[tuple[int, int, str | None], ...]  # tokens, blocks hashed, salt
    steps: tuple[tuple[int, int], ...]  # which request, how many more tokens

    def __str__(self) -> str:
        return f"block_size {self.block_size}"


def draw(c: Choices) -> Growth:
    block_size = c.size(1, 40, 3)
    long = c.rarely(8)

    def start() -> tuple[int, int, str | None]:
        num_tokens = c.integer(0, block_size * (150 if long else 6))
        return num_tokens, c.integer(0, num_tokens // block_size), c.pick(SALTS)

    starts = c.some(start, 1, 2)
    more = 3 * block_size

    def step() -> tuple[int, int]:
        return c.integer(0, len(starts) - 1), c.pick((0, 1, block_size, c.integer(0, more)))

    return Growth(block_size, tuple(starts), tuple(c.some(step, 1, 5)))


class Link:
    """What exercise 2 calls a hash; it can be read."""

    def __init__(self, name: str, parent: Any, token_ids: Any, extra_keys: Any) -> None:
        self.name, self.parent, self.extra_keys = name, parent, extra_keys
        self.token_ids = list(token_ids) if isinstance(token_ids, list | tuple) else token_ids
        self.digest = name.encode()

    def __repr__(self) -> str:
        return self.name


class Recorder:
    """The function `hash_block` of one request: remembers what it was called with."""

    def __init__(self, name: str, known: int) -> None:
        self.name, self.known, self.links = name, known, list[Link]()

    def __call__(self, parent: Any, token_ids: Any, extra_keys: Any) -> Link:
        link = Link(f"{self.name}{self.known + len(self.links)}", parent, token_ids, extra_keys)
        self.links.append(link)
        return link


def token(index: int, which: int) -> int:
    """Tokens of a request, all different, some beyond 65,535."""
    return index + 1 + (which + index % 3) * 70_000


def play(stage: Stage, function: Any, growth: Growth) -> None:
    size, requests = growth.block_size, []
    for number, (count, hashed, salt) in enumerate(growth.starts):
        request = bare_request(number, [token(i, number) for i in range(count)], salt)
        request.block_hashes = [Link(f"h{i}", None, (), None) for i in range(hashed)]  # type: ignore[misc]
        requests.append(request)
    for which, more in growth.steps:
        request = requests[which]
        for _ in range(more):  # as an answer's tokens do: the prompt stays as it was
            request.all_token_ids.append(token(request.num_tokens, which))
        known = len(request.block_hashes)
        name = f"request {which}: " if len(requests) > 1 else ""
        salt = f", cache_salt {request.cache_salt!r}" if request.cache_salt is not None else ""
        stage.step(f"{name}{request.num_tokens} tokens, {known} of its blocks hashed{salt}")
        _hash(stage, function, request, size)


def _hash(stage: Stage, function: Any, request: Request, size: int) -> None:
    known, recorder = list(request.block_hashes), Recorder("h", len(request.block_hashes))
    before = {k: list(v) if isinstance(v, list) else v for k, v in vars(request).items()}
    got = stage.do(function, request, size, recorder)
    if isinstance(got, Raised):
        stage.see("returned", got)
    changed = [name for name, value in before.items() if getattr(request, name) != value]
    stage.see("request", " and ".join(f"`{name}` is changed" for name in changed) or "as before")
    links = isinstance(got, list) and all(link in recorder.links for link in got)
    stage.see("returned", "a list of what `hash_block` returned" if links else got)
    stage.see("count", len(got), lambda n: f"{n} new hashes")
    names: dict[Any, str] = {id(link): f"h{i}" for i, link in enumerate(known)} | {id(None): "None"}
    for number, link in enumerate(got, len(known)):
        place = f"block {number}: "
        stage.see("tokens", link.token_ids, lambda v, p=place: f"{p}{str(v)[:60]}")  # type: ignore[misc]
        parent = names.get(id(link.parent), "another one")
        stage.see("parent", parent, lambda v, p=place: f"{p}{v} as its parent")  # type: ignore[misc]
        salted = "salt" if not number else "salt later"
        stage.see(salted, repr(link.extra_keys), lambda v, p=place: f"{p}extra_keys {v}")  # type: ignore[misc]
        names[id(link)] = f"h{number}"
    stage.see("calls", len(recorder.links), lambda n: f"`hash_block` is called {n} times")
    request.block_hashes += got
    got.clear()  # the caller may use its list again


def right_hasher(request: Any, block_size: int, hash_block: Callable[..., Any]) -> list[Any]:
    """From the tokens that are left, cut off one block after another."""
    chain, rest = list(request.block_hashes[-1:]), list(request.all_token_ids)
    first = len(request.block_hashes)
    del rest[: first * block_size]
    new: list[Any] = []
    while len(rest) >= block_size:
        salt = request.cache_salt if first + len(new) == 0 else None
        keys = (salt,) if salt else None
        chain.append(hash_block((chain or [None])[-1], rest[:block_size], keys))
        new.append(chain[-1])
        del rest[:block_size]
    return new


def variant(
    *,
    begin: Callable[[Any], int] = lambda r: len(r.block_hashes),
    more: int = 0,
    parent: str = "before",
    salted: Callable[[int, int], bool] = lambda i, n: i == 0,
    salt: Callable[[Any], Any] = lambda s: (s,) if s else None,
    tokens: str = "all_token_ids",
    new_only: bool = False,
    prefix: bool = False,
) -> Callable[..., list[Any]]:
    """The hasher with one switch per known mistake. Serves to recognise, never as oracle."""

    def hasher(request: Any, size: int, hash_block: Callable[..., Any]) -> list[Any]:
        ids: Sequence[int] = getattr(request, tokens)
        first, new = begin(request), list[Any]()
        last = request.block_hashes[-1] if request.block_hashes and parent != "new" else None
        for i in range(first, (len(ids) + more) // size):
            above = last if parent in ("before", "new") else None
            part = ids[0 if prefix else i * size : (i + 1) * size]
            keys = salt(request.cache_salt) if salted(i, len(new)) else None
            last = hash_block(above, part, keys)
            new.append(last)
        return new[len(request.block_hashes) :] if new_only else new

    return hasher


SALT = "`extra_keys = (request.cache_salt,)` for the request's first block, else None."
CHAIN = (
    "The parent of the first *new* block is `request.block_hashes[-1]`, if there is one; then each "
    "hash is the parent of the next."
)
REQUEST_BLOCK_HASHER = Contract(
    inputs=draw,
    judge=InLockstep(play, right_hasher),
    passed="Full blocks only, each hashed once, each chained to the one before, also while two "
    "requests grow. The salt enters the first block of a request, and no other.",
    examples=200,
    clauses={
        "returned": Clause(
            "Your function returned {got}; expected a list of hashes that "
            "`hash_block` returned in this call."
        ),
        "request": Clause(
            "Your function changes the request: {got}. The engine appends what you "
            "return, so each hash would be there twice.",
            "Collect the new hashes in a list of your own.",
        ),
        "count": Clause(
            "{got}; expected {expected}.",
            "From block `len(request.block_hashes)` on, up to, but without, block "
            "`num_tokens // block_size`. All tokens count: `all_token_ids`.",
        ),
        "tokens": Clause(
            "A block has the wrong tokens.",
            "Block i holds the tokens `[i * block_size : (i + 1) * block_size]` of "
            "`all_token_ids`, as a list.",
        ),
        "parent": Clause(
            "A block has the wrong parent. It must be the hash of the block before.", CHAIN
        ),
        "salt": Clause(
            "The first block's `extra_keys` are wrong. A salt enters as "
            "`(cache_salt,)`; without one, or with the empty string, it is None.",
            SALT,
        ),
        "salt later": Clause(
            "A later block has a salt of its own. It is enough in the request's "
            "first block; in another, a request that grows would get other "
            "hashes than one that has all tokens at once.",
            "The first block of the *request* takes the salt, not the first new "
            "block of each call.",
        ),
        "calls": Clause(
            "`hash_block` is called more often than there are new blocks.",
            "The engine calls this after each new token: hash only what is new.",
        ),
    },
    mistakes=(
        mistake(
            "A partial block gets a hash, as if it were full. Its next token would change what "
            "it holds.",
            "Only full blocks: `num_tokens // block_size` of them.",
            lambda r, s, h: variant(more=s - 1)(r, s, h),
        ),
        mistake(
            "The last full block is missing.",
            "The last full block may end with the last token, and that one counts.",
            variant(more=-1),
        ),
        mistake(
            "Blocks that have a hash already are hashed again.",
            "Begin with block `len(request.block_hashes)`.",
            variant(begin=lambda r: 0),
            variant(begin=lambda r: 0, parent="new"),
        ),
        mistake(
            "Blocks that have a hash already are hashed again, and thrown away.",
            "The engine calls this after each new token: hash only what is new.",
            variant(begin=lambda r: 0, parent="new", new_only=True),
        ),
        mistake(
            "A block has no parent: the chain is broken, and the block would be found behind "
            "any other prefix.",
            CHAIN,
            variant(parent="none"),
            variant(parent="new"),
        ),
        mistake(
            "Each hash takes in the whole prompt up to its block: n blocks cost n² work. The "
            "parent's hash stands for all that came before.",
            "`hash_block(parent, the tokens of this block only, extra_keys)`.",
            variant(prefix=True),
            variant(prefix=True, parent="none"),
        ),
        mistake(
            "The salt is ignored: two tenants find each other's blocks.",
            SALT,
            variant(salt=lambda s: None),
        ),
        mistake(
            "The empty string is no salt, and None is none.",
            SALT,
            variant(salt=lambda s: None if s is None else (s,)),
            variant(salt=lambda s: (s,)),
        ),
        mistake(
            "Only the prompt is hashed. A request grows: `all_token_ids` are the prompt and "
            "all tokens that came after.",
            "`request.all_token_ids`.",
            variant(tokens="prompt_token_ids"),
        ),
        mistake(
            "The salt comes with the first *new* block of each call. A request that grows gets "
            "other hashes than one that has all tokens at once: it would never find its own "
            "blocks.",
            "Only block 0 of the request takes the salt.",
            variant(salted=lambda i, n: n == 0),
        ),
    ),
)
