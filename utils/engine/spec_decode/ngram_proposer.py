"""Guesses copied from the text itself. In vLLM: `v1/spec_decode/ngram_proposer.py`."""

from __future__ import annotations


class NgramProposer:
    """Copies what followed when the last tokens occurred before. It needs no model.

    Saxena 2023, "Prompt Lookup Decoding".

    Args:
        prompt_lookup_min: shortest n-gram to look for.
        prompt_lookup_max: longest n-gram to look for; the longest found counts.
    """

    def __init__(self, prompt_lookup_min: int = 2, prompt_lookup_max: int = 4) -> None:
        self.prompt_lookup_min, self.prompt_lookup_max = prompt_lookup_min, prompt_lookup_max

    def propose(self, token_ids: list[int], num_speculative_tokens: int) -> list[int]:
        """The tokens after the first place where the last n tokens stand, but for the end itself.

        n is as large as possible. Where nothing is found, nothing is guessed.
        """
        num_tokens = len(token_ids)
        longest = min(self.prompt_lookup_max, num_tokens - 1)
        for n in range(longest, self.prompt_lookup_min - 1, -1):
            ngram, first = token_ids[-n:], token_ids[-n]
            begin = -1
            while True:
                try:  # C finds the first token of the n-gram faster than Python compares all
                    begin = token_ids.index(first, begin + 1, num_tokens - n)
                except ValueError:
                    break
                if token_ids[begin : begin + n] == ngram:
                    return token_ids[begin + n : begin + n + num_speculative_tokens]
        return []
