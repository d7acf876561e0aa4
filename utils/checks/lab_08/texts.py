"""Texts in tokens, as drawn for exercise 4: pieces of characters, and tokens without text."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from utils.checks.kit.contracts import Choices
from utils.hub import load_tokenizer

INCOMPLETE = "\ufffd"
WORDS = (" sea", "blue", " is", " naïve", " 🎉", "🍕!", "今日は", " 12 €", ".", "\n\n", "  ",
         "👩‍👩‍👧", " a", "\t", "e\u0301", " \ufffd ")  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A prompt, the tokens of its answer, and how tokens are decoded.

    Args:
        tokens: the bytes of each token of a toy vocabulary; None: the real tokenizer's
        drops_first_space: as some tokenizers do at the beginning of a text
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    tokens: dict[int, bytes] | None = field(hash=False)
    drops_first_space: bool = False

    def decode(self, token_ids: Sequence[int]) -> str:
        if self.tokens is None:
            return real_decode(token_ids)
        text = b"".join(map(self.tokens.__getitem__, token_ids)).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.drops_first_space else text

    def true_texts(self) -> list[str]:
        """Brute force: the answer's text after each token, everything decoded anew."""
        before = len(self.decode(self.prompt))
        ends = range(len(self.answer) + 1)
        return [self.decode([*self.prompt, *self.answer[:end]])[before:] for end in ends]

    def __str__(self) -> str:
        drops = ", a tokenizer that drops the first space of a text" * self.drops_first_space
        told = (
            repr(self.decode(self.prompt))
            if len(self.prompt) < 20
            else f"{len(self.prompt)} tokens"
        )
        return f"the prompt {told}{drops}"

    def token(self, token_id: int) -> str:
        """A token as the bytes in it where it has no text of its own."""
        text = self.decode([token_id])
        if self.tokens is None:
            return repr(text) if INCOMPLETE not in text else f"a part of a character ({token_id})"
        data = self.tokens[token_id]
        if not data:
            return "a token without text"
        return repr(data.decode()) if INCOMPLETE not in text else f"the bytes {data.hex(' ')}"


@functools.cache
def _tokenizer() -> Any:
    return load_tokenizer()


def real_decode(token_ids: Sequence[int]) -> str:
    ids = [int(token_id) for token_id in token_ids]
    return str(_tokenizer().backend_tokenizer.decode(ids, skip_special_tokens=True))


def toy_text(c: Choices, drops: bool) -> Text:
    numbers = itertools.count(c.pick((1, 70_000)))
    tokens: dict[int, bytes] = {}

    def spelled(least: int, most: int, odd: tuple[bytes, ...]) -> list[int]:
        ids = []
        for word in c.some(lambda: c.pick(WORDS).encode(), least, most):
            cuts = sorted({c.integer(0, len(word)) for _ in range(c.integer(0, 3))})
            parts = [word[a:b] for a, b in itertools.pairwise((0, *cuts, len(word))) if b > a]
            if odd and c.rarely(4):
                place, run = c.integer(0, len(parts)), c.pick((1, 1, 8))
                parts[place:place] = [c.pick(odd)] * run
            for part in parts:
                ids.append(next(numbers))
                tokens[ids[-1]] = part
        return ids

    prompt = [next(numbers)] * (not c.rarely(10))
    tokens.update(dict.fromkeys(prompt, b"The"))
    prompt += spelled(0, 12, ())
    for _ in range(c.integer(0, 4)):  # of a prompt's last six tokens, one at least has text
        prompt.append(next(numbers))
        tokens[prompt[-1]] = b""
    answer = spelled(1, 16, (b"", b"", b"\x9f", b"\xf0\x9f", b" "))
    if c.rarely(3) and len(answer) > 1:
        answer += answer[: c.integer(0, 8)]  # ids that come again
    return Text(tuple(prompt), tuple(answer), tokens, drops)


def real_text(c: Choices) -> Text:
    encode = functools.partial(_tokenizer().encode, add_special_tokens=False)
    ids = encode("".join(c.some(lambda: c.pick(WORDS), 1, 12)))
    if c.rarely(2):
        ids.insert(c.integer(0, len(ids)), _tokenizer().eos_token_id)
    return Text(tuple(encode(c.pick(("The prompt:", "今日は"))), ), tuple(ids), None)  # fmt: skip


def long_text(kind: str, num_prompt: int, num_answer: int) -> Text:
    emoji = "🎉".encode()
    pieces = {"words": [b" sea"], "special": [b" sea", b" is", b""],
              "emoji": [emoji[:1], emoji[1:2], emoji[2:3], emoji[3:]]}[kind]  # fmt: skip
    tokens = dict(enumerate([b"The", *pieces]))
    answer = [1 + place % len(pieces) for place in range(num_answer)]
    return Text((0,) * num_prompt, tuple(answer), tokens)
