"""Pairs of blocks that are easily confused, and what lab 05 says of them: exercise 1."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Stage, mistake

HASHES: dict[str, Callable[[bytes], bytes]] = {
    "SHA-256": lambda data: hashlib.sha256(data).digest(),
    "xxHash, 16 bytes": xxhash.xxh3_128_digest,
    "SHA-512": lambda data: hashlib.sha512(data).digest(),
    "BLAKE2, 4 bytes": lambda data: hashlib.blake2b(data, digest_size=4).digest(),
}
KINDS = (
    "parent",
    "token",
    "extra",
    "order",
    "digits",
    "first",
    "same",
    "length",
    "left out",
    "salts joined",
    "moved",
)
TOKENS = (1, 23, 5, 255, 256, 300, 0, 55_300, 65_535, 65_536, 99_999, 131_072, 200_000)
WORDS = ("ada", "bob", "", "a", "None", "ü", "7", "\x00\x00", "a', 'b")
SEPARATORS = ("", ",", "|", " ", "/", ":", ";", "-", "_", "\n", "\0", "', '", '", "', "','", '","')
Extra = tuple[str, ...] | None


@dataclass(frozen=True)
class Block:
    parent: bytes | None
    tokens: tuple[int, ...]
    extra: Extra = None
    left_out: bool = False  # whether the argument `extra_keys` is

    def __str__(self) -> str:
        parent = "None" if self.parent is None else _short(self.parent)
        tokens = str(list(self.tokens[:12])).replace("]", ", ...]" * (len(self.tokens) > 12) or "]")
        extra = "" if self.left_out else f", extra_keys {self.extra}"
        return f"(parent {parent}, tokens {tokens}{extra})"


@dataclass(frozen=True)
class Pair:
    kind: str
    one: Block
    other: Block
    hash_name: str
    sequence: type = list  # of the tokens

    def __str__(self) -> str:
        name = "" if self.hash_name == "SHA-256" else f"; hash_function = {self.hash_name}"
        return f"{self.one}  and  {self.other}{name}"


def _short(digest: bytes) -> str:
    return digest.hex() if len(digest) <= 6 else f"{digest[:2].hex()}...{digest[-2:].hex()}"


def draw(c: Choices) -> Pair:
    kind, name = c.pick(KINDS), c.pick(("SHA-256", "SHA-256", *HASHES))
    parent = HASHES[name](bytes([c.integer(0, 9)])) if c.rarely(2) or kind == "parent" else None
    count = c.size(2, 1200) if c.rarely(6) else c.integer(2, 5)
    tokens = [c.pick(TOKENS) if i < 6 else i for i in range(count)]
    extra: Extra = (c.pick(WORDS),) if c.rarely(3) else None
    at = c.pick((0, count - 1, c.integer(0, count - 1)))
    other_parent, other, other_extra = parent, list(tokens), extra
    if kind == "parent":
        assert parent is not None
        place = c.pick((0, len(parent) - 1, c.integer(0, len(parent) - 1)))
        changed = (parent[place] + c.pick((1, 128))) % 256
        other_parent = parent[:place] + bytes([changed]) + parent[place + 1 :]
    elif kind == "first":
        parent, other_parent = None, HASHES[name](bytes([c.integer(0, 9)]))
        if name.startswith("BLAKE2"):  # a parent that could be taken for a token
            other_parent = (5).to_bytes(4, c.pick(("little", "big")))
            tokens = [5, *other]
    elif kind == "token":
        other[at] = c.pick((tokens[at] + 1, tokens[at] ^ 256, tokens[at] ^ 65_536, 150_000))
    elif kind == "order":
        other = _rearranged(c, tokens)
    elif kind == "digits":
        tokens, other = _cut_twice(c)
    elif kind == "length":
        other.append(c.pick((0, tokens[-1])))
    elif kind == "extra":
        extra, other_extra = c.pick(WORDS[:2]), c.pick(WORDS[1:])  # type: ignore[assignment]
        extra = None if c.rarely(2) else (str(extra),)
        other_extra = (str(other_extra), *(["ada"] if c.rarely(4) else []))
    elif kind == "salts joined":
        by = c.pick(SEPARATORS)
        extra, other_extra = c.pick(
            ((("ab", "c"), ("a", "bc")), (("a", "b"), (f"a{by}b",)), (("a", "b"), ("b", "a")))
        )
    elif kind == "moved":
        tokens, other, extra, other_extra = _token_as_salt(c, tokens)
    one, two = Block(parent, tuple(tokens), extra), Block(other_parent, tuple(other), other_extra)
    if kind == "left out":
        one, two = Block(parent, one.tokens, None, True), Block(parent, one.tokens)
    elif one == two and kind != "same":
        two = Block(other_parent, (*other[:-1], other[-1] + 1), other_extra)
    return Pair(kind, one, two, name, c.pick((list, tuple)))


def _rearranged(c: Choices, tokens: list[int]) -> list[int]:
    """The same tokens in another order, or others that have something in common with them."""
    a, b = sorted((*tokens[:2], 7))[1:]
    rest = tokens[2:]
    tokens[:] = [a + 1, b + 2, *rest]
    how = c.pick(("swapped", "reversed", "sum", "repeated", "xor"))
    if how == "repeated":
        tokens[:] = [a, a, b + 1, *rest]
    return {
        "swapped": [b + 2, a + 1, *rest],
        "reversed": tokens[::-1],
        "sum": [a, b + 3, *rest],
        "repeated": [a, b + 1, b + 1, *rest],
        "xor": [(a + 1) ^ 8, (b + 2) ^ 8, *rest],
    }[how]


def _cut_twice(c: Choices) -> tuple[list[int], list[int]]:
    """Digits written one behind the other, cut in two places: decimal, hex, and bytes."""
    base, most = c.pick(((10, 6), (16, 4), (256, 2)))
    count = c.integer(3, 2 * most - 1)
    digits = [1 + (i + c.integer(0, 5)) % 8 for i in range(count)]

    last_first = -1 if not c.rarely(2) else 1

    def value(part: list[int]) -> int:
        return sum(digit * base**i for i, digit in enumerate(part[::last_first]))

    low = max(1, count - most)
    cuts = low, c.integer(low + 1, min(most, count - 1))
    one, other = ([value(digits[:cut]), value(digits[cut:])] for cut in cuts)
    return one, other


def _token_as_salt(c: Choices, tokens: list[int]) -> tuple[list[int], list[int], Extra, Extra]:
    """The last token, or its last digit, is a salt instead."""
    last = c.pick((2, 35, 77))
    how = c.pick(("digit", "text", "little", "big"))
    if how == "digit":
        return [*tokens, last], [*tokens, last * 10 + 4], ("46",), ("6",)
    text = str(last) if how == "text" else last.to_bytes(4, how).decode()  # type: ignore[arg-type]
    return [*tokens, last], tokens, None, (text,)


class Spy:
    """A hash function that remembers what it answered."""

    def __init__(self, function: Callable[[bytes], bytes]) -> None:
        self.function, self.answers = function, set[bytes]()

    def __call__(self, data: bytes) -> bytes:
        answer = self.function(data)
        self.answers.add(answer)
        return answer


def play(stage: Stage, function: Any, pair: Pair) -> None:
    """Hash both blocks; the same or not?"""
    spy = Spy(HASHES[pair.hash_name])
    digests = []
    for block in (pair.one, pair.other):
        extra = [] if block.left_out else [block.extra]
        got = stage.do(function, spy, block.parent, pair.sequence(block.tokens), *extra)
        stage.see("bytes", "bytes" if isinstance(got, bytes) else got)
        stage.see("called", "`hash_function` is called" if spy.answers else "it never is")
        from_spy = got in spy.answers
        stage.see("returned", "what it returned" if from_spy else f"{len(got)} other bytes")
        digests.append(got)
    one = pair.one
    other_spy = Spy(lambda data: hashlib.md5(data).digest())
    again = stage.do(function, other_spy, one.parent, pair.sequence(one.tokens), one.extra)
    stage.see("another function", "its own" if again in other_spy.answers else "another's")
    stage.see(pair.kind, f"{'the same' if digests[0] == digests[1] else 'another'} hash")


def right_hash(
    hash_function: Callable[[bytes], bytes],
    parent: bytes | None,
    tokens: Sequence[int],
    extra_keys: Extra = None,
) -> bytes:
    """Everything as text: quotes, commas and brackets keep the parts apart."""
    return hash_function(repr((parent, list(tokens), extra_keys)).encode())


def _but(**changes: Callable[[Any], Any]) -> Callable[..., bytes]:
    """The right hash, with a part replaced before it enters."""

    def function(f: Any, parent: Any, tokens: Any, extra: Any = None) -> bytes:
        given = {"parent": parent, "tokens": tokens, "extra": extra}
        return right_hash(f, *(changes.get(k, lambda v: v)(v) for k, v in given.items()))

    return function


WIDTH = "A token id needs 4 bytes: vocabularies have more than 65,536 tokens."
HASH_BLOCK_TOKENS = Contract(
    inputs=draw,
    judge=InLockstep(play, right_hash),
    passed="300 pairs of blocks that are easily confused have different hashes, and the same block "
    "always has the same hash. So a hash stands for all tokens so far.",
    examples=300,
    clauses={
        "bytes": Clause(
            "Your function returned {got}; expected bytes.",
            "Return what `hash_function(...)` returns.",
        ),
        "called": Clause(
            "`hash_function` is never called.",
            "Bring all parts together in one `bytes` object, and return "
            "`hash_function(data)`. Python's `hash` differs between processes.",
        ),
        "returned": Clause(
            "The result is not what `hash_function` returned.",
            "Bring all parts together first, then call `hash_function` last.",
        ),
        "another function": Clause(
            "With another `hash_function`, the result is not what that one "
            "returned: something is kept from call to call.",
            "Call the `hash_function` that is given, each time.",
        ),
        "parent": Clause(
            "The hash ignores what came before, or a part of it: two blocks with "
            "equal tokens and different parents have the same hash. Their keys and "
            "values differ.",
            "All of `parent_block_hash` must enter.",
        ),
        "first": Clause(
            "A first block and a later block have the same hash.",
            "Without a parent, let a constant stand in its place: `NONE_HASH`.",
        ),
        "token": Clause(
            "Blocks that differ in one token have the same hash.",
            f"All tokens must enter, each as a whole. {WIDTH}",
        ),
        "order": Clause(
            "The order of the tokens does not matter to your hash, or different tokens "
            "have the same hash.",
            "No `sum`, no `sorted`, no `set`: position is part of the content.",
        ),
        "digits": Clause(
            "Two lists of tokens have the same hash: written one behind the other, "
            "without a separator, both are the same. As [1, 23] and [12, 3]: both are "
            "123.",
            "Give each token a fixed width, `token.to_bytes(4, 'little')`, or keep a separator.",
        ),
        "length": Clause(
            "A block and the same block with one token more have the same hash.",
            "All tokens must enter.",
        ),
        "extra": Clause(
            "`extra_keys` is ignored, or what is in it: two tenants share their blocks.",
            "Append, for example, `repr(extra_keys).encode()`.",
        ),
        "salts joined": Clause(
            "Different `extra_keys` have the same hash: joined, both are the same text.",
            "`repr(extra_keys)` keeps quotes and commas.",
        ),
        "moved": Clause(
            "A block with one token less and a salt has the same hash as one without: "
            "it is in doubt where the tokens end.",
            "`repr(extra_keys)` begins with what no token begins with.",
        ),
        "left out": Clause(
            "`extra_keys` left out and None are not the same.", "The default is None."
        ),
        "same": Clause(
            "The same block has two different hashes.",
            "Nothing but the arguments may enter: no counter, no `id`.",
        ),
    },
    mistakes=(
        mistake(
            "The order of the tokens does not matter to your hash.",
            "Position is part of the content.",
            _but(tokens=sorted),
        ),
        mistake(
            "Only the sum of the tokens enters: the order of the tokens does not matter, and "
            "different tokens have the same hash.",
            "Each token must enter.",
            _but(tokens=lambda t: [sum(t)]),
        ),
        mistake(
            "Only one byte of each token enters: token 5 and token 261 have the same hash.",
            WIDTH,
            _but(tokens=lambda t: [x % 256 for x in t]),
        ),
        mistake(
            "Only two bytes of each token enter: token 5 and token 65541 have the same hash.",
            WIDTH,
            _but(tokens=lambda t: [x % 65_536 for x in t]),
        ),
        mistake(
            "The last token does not enter: blocks that differ in their last token have the "
            "same hash.",
            "All tokens must enter.",
            _but(tokens=lambda t: list(t)[:-1]),
        ),
        mistake(
            "`extra_keys` is seen, but what is in it is ignored.",
            "Append, for example, `repr(extra_keys).encode()`.",
            _but(extra=bool),
        ),
        mistake(
            "`extra_keys` is ignored: two tenants share their blocks.",
            "Append, for example, `repr(extra_keys).encode()`.",
            _but(extra=lambda e: None),
        ),
        mistake(
            "`extra_keys` is ignored where there is a parent.",
            "The parts enter independently.",
            lambda f, p, t, e=None: right_hash(f, p, t, None if p else e),
        ),
    ),
)
