"""Chains of block hashes that are equal, or differ in one place: exercise 6."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.engine.core.kv_cache_utils import BlockHash

Block = tuple[int, tuple[int, ...], tuple[str, ...] | None]  # digest, tokens, extra keys
KINDS = ("equal", "tokens", "extra", "digest", "gone", "no hash", "siblings", "equal")
PARTS = ("digest", "parent", "token_ids", "extra_keys")
FRAMES = 1000  # Python's default; some kernels raise it
SLOW_S = 30e-6  # a hash takes 0.3 microseconds, a walk through 3,000 blocks at least 100


@dataclass(frozen=True)
class Chains:
    """Two chains: the second is the first with one thing changed."""

    kind: str
    one: tuple[Block, ...]
    place: int  # what is changed, counted from the end: 0 is the block itself
    change: int

    @property
    def other(self) -> tuple[Block, ...]:
        at = len(self.one) - 1 - self.place
        digest, tokens, extra = self.one[at]
        if self.kind == "tokens":
            last = tokens[-1]
            ends = (last + 1,), (last + 65_536,), (last, 0), ()
            tokens = (*tokens[:-1], *ends[self.change])
        elif self.kind == "extra":
            extra = ((*(extra or ()), "bob"), ("ada", "bob"), ("",), ("bob",))[self.change]
        elif self.kind == "digest":
            digest += 1
        elif self.kind == "gone":
            return self.one[1:]
        return (*self.one[:at], (digest, tokens, extra), *self.one[at + 1 :])

    def __str__(self) -> str:
        return (
            f"{_blocks(self.one)}  and  {_object(self.change)}" if self.kind == "no hash" else
            f"{_blocks(self.one)}  and  {_blocks(self.other)}"
            + (", behind the same parent object" if self.kind == "siblings" else "")
        )  # fmt: skip


def _blocks(blocks: tuple[Block, ...]) -> str:
    def words(block: Block) -> str:
        digest, tokens, extra = block
        salt = f", salt {extra}" if extra is not None else ""
        return f"{' '.join(map(str, tokens)) or 'no tokens'} (digest {digest}{salt})"

    some = [words(block) for block in blocks]
    return " | ".join(some if len(some) <= 5 else [*some[:2], f"... {len(some)} blocks", some[-1]])


def draw(c: Choices) -> Chains:
    kind = c.pick(KINDS)
    length = c.pick((1500, 3000)) if c.rarely(16) else c.integer(1, 5)
    length = max(length, 2) if kind in ("gone", "siblings") else length
    start, digests = c.pick((1, 300, 70_000)), c.integer(1, 2)
    salt = c.pick((None, ("ada",), ("ada", "x")))
    one = tuple(
        (i % digests, (start + i, start + i % 3), salt if i == 0 else None) for i in range(length)
    )
    place = 0 if kind == "siblings" else c.pick((0, 1, length - 1, c.integer(0, length - 1)))
    return Chains(kind, one, min(place, length - 1), c.integer(0, 3))


def _chain(key_class: Any, blocks: tuple[Block, ...], parent: Any = None) -> Any:
    """Every part is made anew, so that nothing is equal because it is the same object."""
    for digest, tokens, extra in blocks:
        salt = None if extra is None else tuple("".join(list(word)) for word in extra)
        parent = key_class(sha256(b"%d" % digest).digest(), parent, tuple([*tokens]), salt)
    return parent


def _object(number: int, key: Any = None) -> Any:
    """Something that is no BlockHash."""
    if key is None:
        return ("None", "its digest", "a tuple of its parts", "a copy of another class")[number]
    parts = {name: getattr(key, name, None) for name in PARTS}
    return (None, parts["digest"], tuple(parts.values()), SimpleNamespace(**parts))[number]


def play(stage: Stage, key_class: Any, chains: Chains) -> None:
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(min(limit, FRAMES))
        _compare(stage, key_class, chains)
    finally:
        sys.setrecursionlimit(limit)


def _compare(stage: Stage, key_class: Any, chains: Chains) -> None:
    one = stage.do(lambda: _chain(key_class, chains.one))
    stage.see("new", one if isinstance(one, Raised) else "a hash")
    if chains.kind == "no hash":
        other = _object(chains.change, one)
    elif chains.kind == "siblings":
        other = _chain(key_class, ((7, (7,), None),), one.parent)
    else:
        other = stage.do(lambda: _chain(key_class, chains.other))
    where = min(chains.place, 2) if chains.kind in ("tokens", "extra", "digest") else ""
    clause = f"{chains.kind} {where}".strip()
    for _ in range(2):
        for left, right in ((one, other), (other, one)):
            stage.see(clause, _truth(stage, lambda a, b: a == b, left, right), _equal)
        stage.see("not equal", _truth(stage, lambda a, b: a != b, one, other))
    if chains.kind == "equal":
        stage.see("itself", _truth(stage, lambda a, b: a == b, one, one), _equal)
        alike = stage.do(lambda: hash(one) == hash(other))
        stage.see("hash", alike, lambda same: "the same number" if same else "different numbers")
    if chains.kind != "no hash":
        found = stage.do(lambda: {one: "it"}.get(other, "nothing"))
        stage.see("dictionary", found, lambda found: f"the dictionary finds {found}")
    _judge_hash(stage, key_class, one, len(chains.one))


def _judge_hash(stage: Stage, key_class: Any, one: Any, length: int) -> None:
    """Does the number tell hashes apart, and is it found without walking back?"""
    many = [_chain(key_class, ((i, (i, 9), None),)) for i in range(8)]
    numbers = stage.do(lambda: {hash(key) for key in many})
    stage.see("alike", numbers if isinstance(numbers, Raised) else len(numbers) > 1)
    behind = ((20, (5,), None), (30, (5, 9), None))
    asked = [_chain(key_class, ((i, (i, 9), None), *((i + n, *rest) for n, *rest in behind)))
             for i in range(8)]  # fmt: skip
    numbers = stage.do(lambda: {hash(key) for key in asked})
    stage.see("alike behind", numbers if isinstance(numbers, Raised) else len(numbers) > 1)
    if length > 1000:
        slow = stage.do(_seconds, one)
        stage.see("slow", slow if isinstance(slow, Raised) else bool(slow > SLOW_S))


def _seconds(key: Any) -> float:
    """What a hash takes, at best: other programs may take their turns in between."""
    best = float("inf")
    for _ in range(9):
        start = time.perf_counter()
        hash(key)
        best = min(best, time.perf_counter() - start)
        if best <= SLOW_S:
            break
    return best


def _truth(stage: Stage, function: Any, *pair: Any) -> Any:
    return stage.do(lambda: bool(function(*pair)))


def _equal(same: Any) -> str:
    return "equal" if same else "not equal"


class Key:
    """A right hash, for mistakes to change one thing of."""

    def __init__(self, digest: Any, parent: Any, token_ids: Any, extra_keys: Any = None) -> None:
        self.digest, self.parent = digest, parent
        self.token_ids, self.extra_keys = token_ids, extra_keys

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.path() == other.path()

    def own(self) -> Any:
        return self.digest, self.token_ids, self.extra_keys

    def path(self) -> list[Any]:
        here: Any = self
        parts = []
        while here is not None:
            parts.append(here.own())
            here = here.parent
        return parts


def but(**changes: Any) -> type[Key]:
    """The right hash with another method."""
    kept = {"__hash__": Key.__hash__} if "__eq__" in changes else {}
    return type("Changed", (Key,), {"__module__": __name__, **kept, **changes})


def _by(part: Any) -> type[Key]:
    return but(__eq__=lambda s, o: isinstance(o, Key) and part(s) == part(o))


def _up_to_shorter(one: Key, other: Any) -> bool:
    pairs = zip(one.path(), other.path(), strict=False) if isinstance(other, Key) else [(0, 1)]
    return all(a == b for a, b in pairs)


BACK = "Walk back until there is no parent: `a, b = a.parent, b.parent`."
PLACES = {0: "", 1: " Here the block before differs.", 2: " Here a block further back differs."}
CLAUSES = {
    "new": Clause("`BlockHash(digest, parent, token_ids, extra_keys)` makes no hash."),
    "equal": Clause("Two hashes of the same contents are not equal: nothing would ever be found.",
                    "Compare what is in the two, not whether they are one object."),
    "itself": Clause("A hash is not equal to itself."),
    "gone": Clause("A first block equals a later one: the two chains are not equally long.",
                   "If one of the two has no parent left, both must have none."),
    "siblings": Clause("Two blocks with the same parent are equal, though they differ themselves.",
                       "Compare the two blocks first, then their parents."),
    "no hash": Clause("Something that is no BlockHash is not equal to one.",
                      "`isinstance(other, BlockHash)` first."),
    "not equal": Clause("`!=` is not the opposite of `==`.", "Leave `__ne__` to Python."),
    "hash": Clause("Two equal hashes have different `hash(...)`: a dictionary would not find one "
                   "by the other.", "`__hash__` returns `hash(self.digest)`."),
    "dictionary": Clause("{got}; expected: {expected}.", "`__hash__` returns `hash(self.digest)`."),
    "alike": Clause("All hashes have the same `hash(...)`: the dictionary would compare each with "
                    "each.", "`__hash__` returns `hash(self.digest)`."),
    "alike behind": Clause("The same tokens behind different blocks have the same `hash(...)`: one "
                           "question, asked behind a thousand prompts, is one number.",
                           "`__hash__` returns `hash(self.digest)`."),
    "slow": Clause("`hash(...)` takes longer for a long prompt: it walks back to the beginning.",
                   "The digest stands for everything before: `hash(self.digest)`."),
} | {
    f"{kind} {place}": Clause(says + PLACES[place], look + (f" {BACK}" if place else ""))
    for place in PLACES
    for kind, says, look in (
        ("tokens", "Different tokens count as equal. Two prompts whose digests collide get each "
         "other's keys and values.", "Compare `token_ids`."),
        ("extra", "Different salts count as equal: with a collision, a tenant finds another "
         "tenant's blocks.", "Compare `extra_keys`, too."),
        ("digest", "Different digests count as equal.", "Compare `digest`, too."),
    )
}  # fmt: skip

BLOCK_HASH = Contract(
    inputs=draw,
    judge=InLockstep(play, BlockHash),
    passed="Collisions are seen through, however far back the difference lies, and prompts of "
    "3,000 blocks are compared without trouble.",
    clauses=CLAUSES,
    mistakes=(
        mistake("The digest alone decides. Two prompts whose digests collide get each other's keys "
                "and values.", "Compare `token_ids` and `extra_keys`, in this block and in all "
                "before it.", _by(lambda key: key.digest)),
        mistake("Only the block's own contents are compared. The blocks before it differ, so the "
                "keys and values do, too.",
                "Compare the parents as well, all the way to the beginning.",
                _by(lambda key: key.own())),
        mistake("The comparison stops at the parent. A block before the parent may differ.", BACK,
                _by(lambda key: (key.path()[:2], min(2, len(key.path()))))),
        mistake("The salts are not compared: with a collision, a tenant finds another tenant's "
                "blocks.", "Compare `extra_keys`, too.",
                _by(lambda key: [part[:2] for part in key.path()])),
        mistake("Only this block's salt is compared. It stands in the first block of the request.",
                BACK, _by(lambda key: (key.extra_keys, [part[:2] for part in key.path()]))),
        mistake("The comparison ends with the shorter chain: a first block equals a later one.",
                "If one of the two has no parent left, both must have none.",
                but(__eq__=_up_to_shorter)),
        mistake("A long prompt breaks your comparison: `==` on the parents calls `__eq__` again, "
                "once per block, and Python stops after about 1,000 calls (RecursionError).", BACK,
                but(__eq__=lambda s, o: isinstance(o, Key) and s.own() == o.own()
                    and s.parent == o.parent)),
        mistake("Parents are compared by `is`: two requests make two objects of the same contents.",
                BACK, but(__eq__=lambda s, o: isinstance(o, Key) and s.own() == o.own()
                          and s.parent is o.parent)),
    ),
)  # fmt: skip
