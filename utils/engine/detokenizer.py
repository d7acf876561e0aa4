"""Text from tokens, one token at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# How many prompt tokens to decode along with the answer's first token.
CONTEXT_TOKENS = 6
INCOMPLETE = "\ufffd"  # what a decoder writes for bytes that are no whole character (yet)


class IncrementalDetokenizer:
    """Turns a growing list of tokens into growing text that never ends in half a character.

    Two things forbid decoding tokens one by one. A character may span several tokens (an emoji
    is 4 bytes). And some tokenizers decode a token differently at the start of a text (a leading
    space is dropped). So we decode each new token together with the few before it, and take what
    the text has gained; while it ends in an incomplete character, we wait.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_token_ids: list[int]) -> None:
        self.text = ""
        # What `tokenizer.decode` calls in the end. Its own preparations take longer than decoding.
        self._backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._ids = prompt_token_ids[-CONTEXT_TOKENS:]  # from where we decode
        self._num_read = len(self._ids)  # of these, how many are already in the text
        self._read = self._decode(self._ids)

    def append(self, token_id: int) -> str:
        """Add one token; return the text it completes, which may be empty."""
        self._ids.append(token_id)
        decoded = self._decode(self._ids)
        if len(decoded) <= len(self._read) or decoded.endswith(INCOMPLETE):
            return ""
        gained = decoded[len(self._read) :]
        self.text += gained
        self._ids = self._ids[self._num_read :]
        self._num_read = len(self._ids)
        self._read = self._decode(self._ids)
        return gained

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=True)
