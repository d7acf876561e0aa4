"""Text from tokens, one token at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# How many prompt tokens to decode along with the answer's first token, at least.
CONTEXT_TOKENS = 6
INCOMPLETE = "\ufffd"  # what a decoder writes for bytes that are no whole character (yet)
MAX_HALF = 3  # a character has up to 4 bytes, and a token at least one, so a half has 3 tokens


class IncrementalDetokenizer:
    """Turns a growing list of tokens into growing text that never ends in half a character.

    Two things forbid decoding tokens one by one. A character may span several tokens (an emoji
    is 4 bytes). And some tokenizers decode a token differently at the start of a text (a leading
    space is dropped). So we decode each new token together with the few before it, and take what
    the text has gained; while it ends in an incomplete character, we wait.

    The few before it must begin with a whole character. Llama 2 and Mistral write rare characters
    as single bytes, and their decoder makes replacement characters of a whole row of bytes when
    its first byte is missing, also of the characters behind it that are complete.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_token_ids: list[int]) -> None:
        self.text = ""
        # What `tokenizer.decode` calls in the end. Its own preparations take longer than decoding.
        self._backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._ids = self._context(prompt_token_ids)  # from where we decode
        self._num_read = self._num_whole()  # of these, how many need not be read any more
        self._read = self._decode(self._ids[: self._num_read])
        # What the prompt's last tokens look like that end inside a character. The answer may
        # complete it; all else of them is the prompt's, and not shown.
        self._half = self._decode(self._ids[self._num_read :])

    def append(self, token_id: int) -> str:
        """Add one token; return the text it completes, which may be empty."""
        self._ids.append(token_id)
        decoded = self._decode(self._ids)
        if len(decoded) <= len(self._read) or decoded.endswith(INCOMPLETE):
            return ""
        if decoded.startswith(self._read):
            gained = decoded[len(self._read) :]
        else:  # bytes that never became a character have spoiled the whole row before them
            gained = self._decode(self._ids[self._num_read :])
        if self._half:
            completed = not gained.startswith(self._half)
            gained = gained.removeprefix(self._half.rstrip(INCOMPLETE) if completed else self._half)
            self._half = ""
        self.text += gained
        self._ids = self._ids[self._num_read :]
        self._num_read = len(self._ids)
        self._read = self._decode(self._ids)
        return gained

    def _context(self, prompt_token_ids: list[int]) -> list[int]:
        """The prompt's last tokens, so many that they do not begin inside a character."""
        count = CONTEXT_TOKENS
        while True:
            ids = prompt_token_ids[-count:]
            if count >= len(prompt_token_ids) or not self._decode(ids).startswith(INCOMPLETE):
                return ids
            count *= 2

    def _num_whole(self) -> int:
        """How many tokens to take so that they do not end inside a character."""
        for num_waiting in range(min(MAX_HALF, len(self._ids)) + 1):
            count = len(self._ids) - num_waiting
            if not self._decode(self._ids[:count]).endswith(INCOMPLETE):
                return count
        return len(self._ids)  # no half character: the prompt ends in replacement characters

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=True)
