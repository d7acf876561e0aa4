"""Answers of a given form: a JSON schema, a regular expression, a choice.

Before each token a grammar says which tokens may come next, with one bit for each token of the
vocabulary. Willard and Louf 2023, "Efficient Guided Generation for Large Language Models". The
grammars themselves are those of llguidance (https://github.com/guidance-ai/llguidance), which vLLM
uses as its backend "guidance". It is imported when the first request asks for a form: whoever asks
for none does not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from utils.engine.sampling_params import StructuredOutputsParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_CHARS = 1 << 16  # of a schema or a grammar
MAX_LEXER_STATES = 50_000  # of one answer, about a kilobyte each
# In the search for one mask: milliseconds. Where grammars are ambiguous, it would be seconds, and
# everybody's next token waits for it. Honest ones need a few hundred.
MAX_ITEMS = 10_000
NUM_CACHED = 32  # forms that are not compiled again
BITS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


class StructuredOutputGrammar:
    """What one answer may go on with.

    It has no history of its own: when it is asked, it reads the answer's tokens that it has not
    read yet. So nobody has to tell it about new tokens, accepted guesses, or preemption.

    Args:
        matcher: llguidance's, at the beginning of an answer.
    """

    def __init__(self, matcher: Any) -> None:
        self._matcher, self._num_read = matcher, 0

    def fork(self) -> StructuredOutputGrammar:
        """One for another answer. This one must not have read anything."""
        return StructuredOutputGrammar(self._matcher.deep_copy())

    def bitmask(self, output_token_ids: Sequence[int], guesses: list[int]) -> Tensor | None:
        """Which tokens may follow an answer so far, and guesses after it.

        A complete answer can only be followed by end-of-sequence. So can one of which the grammar
        has lost track, because following it would take too much time or memory (see `accepts`).

        Args:
            output_token_ids: all that this was called with before, and perhaps more.

        Returns:
            uint8 [ceil(vocab_size / 8)] on the CPU, a bit for each token, the lowest first. None:
            the guesses may not follow, so they will be rejected, and nobody asks what comes then.
        """
        self._read(output_token_ids)
        if self._matcher.validate_tokens(guesses) < len(guesses):
            return None
        self._matcher.consume_tokens(guesses)
        bits = self._matcher.compute_bitmask()
        self._matcher.rollback(len(guesses))
        return torch.frombuffer(bytearray(bits), dtype=torch.uint8)

    def accepts(self, output_token_ids: Sequence[int]) -> bool:
        """Whether an answer without its end-of-sequence token is complete."""
        self._read(output_token_ids)
        return bool(self._matcher.is_accepting())

    def _read(self, output_token_ids: Sequence[int]) -> None:
        self._matcher.consume_tokens(list(output_token_ids[self._num_read :]))
        self._num_read = len(output_token_ids)


def unpack_bitmask(bitmask: Tensor, vocab_size: int) -> Tensor:
    """From bits [..., ceil(vocab_size / 8)] to bool [..., vocab_size], on the same device."""
    bits = bitmask[..., None] & BITS.to(bitmask.device)
    return bits.flatten(-2)[..., :vocab_size] != 0


class StructuredOutputManager:
    """Compiles forms to grammars, for one vocabulary.

    May be called from several threads at once. A form of a few lines can take long to compile, or
    much memory: llguidance has limits of its own, and the server's users are on its own machine.

    Args:
        tokenizer: of Hugging Face, a fast one.
        vocab_size: the model's. It may have more tokens than the tokenizer.
        eos_token_ids: what ends an answer.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self.tokenizer, self.vocab_size, self.eos_token_ids = tokenizer, vocab_size, eos_token_ids
        self._compiled = lru_cache(NUM_CACHED)(self._compile)

    def grammar_init(self, params: StructuredOutputsParams) -> StructuredOutputGrammar:
        """A grammar for one answer.

        Raises:
            ValueError: the form is not valid, too large, or not supported; or it needs what this
                tokenizer, or this environment, does not have. The message says which.
        """
        try:
            import llguidance.hf  # noqa: F401
        except ImportError as error:
            raise ValueError(
                "structured_outputs needs the package llguidance, which is not installed: "
                "pip install llguidance"
            ) from error
        if not self.eos_token_ids:
            raise ValueError("structured_outputs needs a model with an end-of-sequence token.")
        kind, text = params.kind_and_text()
        if len(text) > MAX_CHARS:
            raise ValueError(
                f"structured_outputs.{kind} has {len(text):,} characters. At most "
                f"{MAX_CHARS:,} are taken."
            )
        return self._compiled(kind, text, params.disable_any_whitespace).fork()

    @cached_property
    def _ll_tokenizer(self) -> Any:
        import llguidance.hf

        size = max(self.vocab_size, len(self.tokenizer))
        try:
            return llguidance.hf.from_tokenizer(self.tokenizer, size, list(self.eos_token_ids))
        except Exception as error:  # of several kinds, and none of them documented
            raise ValueError(f"structured_outputs and this tokenizer: {error}.") from error

    def _compile(self, kind: str, text: str, no_whitespace: bool) -> StructuredOutputGrammar:
        from llguidance import LLMatcher, grammar_from

        form: Any = "lark" if kind == "grammar" else kind
        options: Any = {"whitespace_flexible": not no_whitespace}
        try:
            if kind in ("json", "json_object"):  # "lenient" would ignore what is not supported
                grammar = LLMatcher.grammar_from_json_schema(text, options, {"lenient": False})
            else:
                grammar = grammar_from(form, text)
        except ValueError as error:
            raise _refusal(kind, str(error)) from error
        matcher = compile_grammar(self._ll_tokenizer, grammar)
        if matcher.is_error():
            raise _refusal(kind, matcher.get_error())
        return StructuredOutputGrammar(matcher)


def compile_grammar(tokenizer: Any, grammar: str) -> Any:
    """llguidance's matcher, at the beginning of an answer. It says itself what is wrong with it."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_lexer_states=MAX_LEXER_STATES, step_max_items=MAX_ITEMS, verbose_errors=False
    )
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    matcher.compute_bitmask()  # that nothing at all fits is found only here
    return matcher


def _refusal(kind: str, reason: str) -> ValueError:
    words = " ".join(reason.removesuffix("<non-verbose/>").split())
    return ValueError(f"structured_outputs.{kind} cannot be used: {words}")
