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
WORDS = (
    " sea",
    "blue",
    " is",
    " naïve",
    " 🎉",
    "🍕!",
    "今日は",
    " 12 €",
    ".",
    "\n\n",
    "  ",
    "👩‍👩‍👧",
    " a",
    "\t",
    "e\u0301",
    " \ufffd ",
)

HIGH_BYTES = bytes(range(0x80, 0x100))


@dataclass(frozen=True)
class Text:
    """A prompt, the tokens of its answer, and how tokens are decoded.

    Args:
        tokens: the bytes of each token of a toy vocabulary; None: the real tokenizer's
        drops_first_space: as some tokenizers do at the beginning of a text
        rows: rare characters are written as single bytes. If a row of them is not whole
            characters from its first byte to its last, all of it is decoded to replacement marks,
            one for each byte: the rule of Llama 2's and Mistral's tokenizers.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    tokens: dict[int, bytes] | None = field(hash=False)
    drops_first_space: bool = False
    rows: bool = False

    def decode(self, token_ids: Sequence[int]) -> str:
        if self.tokens is None:
            return real_decode(token_ids)
        parts = [self.tokens[token_id] for token_id in token_ids]
        if self.rows:
            text = "".join(
                _decode_row(b"".join(row)) if single else b"".join(row).decode()
                for single, row in itertools.groupby(filter(None, parts), _is_single_byte)
            )
        else:
            text = b"".join(parts).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.drops_first_space else text

    def true_texts(self) -> list[str]:
        """Brute force: the answer's text after each token, everything decoded anew.

        A half character spoils what was right in its row, until it is whole: so it is put behind
        the text that was there before it.
        """
        before = len(self.decode(self.prompt))
        ends = range(len(self.answer) + 1)
        texts = [self.decode([*self.prompt, *self.answer[:end]])[before:] for end in ends]
        whole = ""
        for place, text in enumerate(texts if self.rows else ()):
            if text.endswith(INCOMPLETE):
                texts[place] = whole + INCOMPLETE
            else:
                whole = text
        return texts

    def __str__(self) -> str:
        drops = ", a tokenizer that drops the first space of a text" * self.drops_first_space
        drops += ", a tokenizer that writes rare characters as single bytes" * self.rows
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


def _is_single_byte(part: bytes) -> bool:
    return len(part) == 1 and part[0] >= 0x80


def _decode_row(row: bytes) -> str:
    try:
        return row.decode()
    except UnicodeDecodeError:
        return INCOMPLETE * len(row)


def toy_text(c: Choices, drops: bool) -> Text:
    rows = c.pick((False, False, True))
    numbers = itertools.count(c.pick((1, 70_000)))
    tokens: dict[int, bytes] = {}

    def spelled(least: int, most: int, odd: tuple[bytes, ...], begin: str = "") -> list[int]:
        ids = []
        for word in [begin.encode(), *c.some(lambda: c.pick(WORDS).encode(), least, most)]:
            cuts = sorted({c.integer(0, len(word)) for _ in range(c.integer(0, 3))})
            if rows:  # around each byte of what is not ASCII
                cuts = [i for i in range(1, len(word)) if max(word[i - 1 : i + 1]) >= 0x80]
            parts = [word[a:b] for a, b in itertools.pairwise((0, *cuts, len(word))) if b > a]
            if odd and c.rarely(4):
                place, run = c.integer(0, len(parts)), c.pick((1, 1, 8))
                parts[place:place] = [c.pick(odd)] * run
            for part in parts:
                ids.append(next(numbers))
                tokens[ids[-1]] = part
        return ids

    prompt = [next(numbers)] * (not c.rarely(10))
    tokens.update(dict.fromkeys(prompt, c.pick((b"The", b"The", "\ufffd!".encode()))))
    prompt += spelled(0, 12, ())
    emoji = c.pick(("", "🎉", "👩‍👩‍👧")) if rows else ""  # a row from the prompt into the answer
    prompt += spelled(0, 0, (), emoji * c.integer(0, 12))
    for _ in range(c.integer(0, 4)):  # of a prompt's last six tokens, one at least has text
        prompt.append(next(numbers))
        tokens[prompt[-1]] = b""
    # In a row, what is wrong would spoil what was shown.
    odd = (b"",) if rows else (b"", b"", b"\x9f", b"\xf0\x9f", b" ")
    answer = spelled(1, 16, odd, emoji)
    if c.rarely(3) and len(answer) > 1:
        again = answer[: c.integer(0, 8)]  # ids that come again
        while rows and again and not tokens[again[-1]].strip(HIGH_BYTES):
            again.pop()  # not to end inside a character
        answer += again
    return Text(tuple(prompt), tuple(answer), tokens, drops, rows)


def real_text(c: Choices) -> Text:
    encode = functools.partial(_tokenizer().encode, add_special_tokens=False)
    ids = encode("".join(c.some(lambda: c.pick(WORDS), 1, 12)))
    if c.rarely(2):
        ids.insert(c.integer(0, len(ids)), _tokenizer().eos_token_id)
    return Text(tuple(encode(c.pick(("The prompt:", "今日は")))), tuple(ids), None)


def long_text(kind: str, num_prompt: int, num_answer: int) -> Text:
    """A long prompt, or a long answer. "inside": the prompt's last six begin inside a character."""
    emoji = [bytes([byte]) for byte in "🎉".encode()]
    pieces = {
        "words": [b" sea"],
        "special": [b" sea", b" is", b""],
        "emoji": emoji,
        "inside": emoji,
    }[kind]
    tokens = dict(enumerate([b"The", *pieces]))
    answer = [1 + place % len(pieces) for place in range(num_answer)]
    prompt = [0] * num_prompt + [1, 2, 3, 4, 1, 2, 3, 4] * (kind == "inside")
    return Text(tuple(prompt), tuple(answer), tokens, rows=kind == "inside")
