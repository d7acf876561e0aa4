"""How the user wants tokens to be chosen, and when to stop. vLLM's names, defaults and checks."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

MIN_TEMPERATURE = 1e-2  # as in vLLM: smaller ones would overflow the logits
GREEDY_BELOW = 1e-5
LARGEST_INT = 2**63 - 1  # that a tensor can hold
# What the form of an answer can be given as.
FORMS: dict[str, tuple[Any, str]] = {
    "json": (str | dict, "a dict or a text"),
    "regex": (str, "a text"),
    "grammar": (str, "a text"),
    "choice": (list, "a list of texts"),
    "json_object": (bool, "true"),
}


@dataclass
class StructuredOutputsParams:
    """The form that an answer must have: one of these, and no more. Names are vLLM's.

    Args:
        json: a JSON schema, as a dict or as text.
        regex: a regular expression for the whole answer.
        choice: all answers that there are.
        grammar: a context-free grammar in the syntax of Lark.
        json_object: True: any JSON object.
        disable_any_whitespace: no spaces and no line breaks between the parts of JSON.

    Raises:
        ValueError: there is none or more than one of them, or it is of the wrong type.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        self.kind_and_text()
        if not isinstance(self.disable_any_whitespace, bool):
            raise ValueError("structured_outputs.disable_any_whitespace must be true or false.")

    def kind_and_text(self) -> tuple[str, str]:
        """Which of them it is, and its text. A choice's is a JSON list."""
        given = {kind: v for kind in FORMS if (v := getattr(self, kind)) is not None}
        if len(given) != 1:
            raise ValueError(
                f"structured_outputs must have exactly one of {', '.join(FORMS)}. "
                f"It has {' and '.join(given) or 'none'}."
            )
        [(kind, value)] = given.items()
        expected_type, expected = FORMS[kind]
        if not isinstance(value, expected_type) or value in (False, []):
            raise ValueError(f"structured_outputs.{kind} must be {expected}, got {value!r:.60}.")
        value = {"type": "object"} if kind == "json_object" else value
        try:
            return kind, value if isinstance(value, str) else json.dumps(value)
        except (TypeError, RecursionError) as error:
            raise ValueError(f"structured_outputs.{kind} is no JSON: {error}.") from error


@dataclass
class SamplingParams:
    """How to choose tokens, and when to stop. Names, defaults and checks are vLLM's.

    Args:
        n: answers per prompt. They share the prompt's blocks (see `KVCacheManager.fork`).
        temperature: 0 is greedy; at most 2.
        top_p: keep the most probable tokens that sum to this probability, in (0, 1].
        top_k: keep this many most probable tokens; 0 or -1 keeps all.
        min_p: keep tokens at least this probable relative to the most probable, in [0, 1].
        seed: makes sampling repeatable, whatever else is in the batch, and whether tokens are
            guessed ahead or not. A drawn token costs a little more then (see `sample/draw.py`).
        stop: strings that end the answer; they are cut off.
        stop_token_ids: tokens that end the answer.
        ignore_eos: go on after the end-of-sequence token.
        max_tokens: the most tokens to generate; None: as many as fit.
        min_tokens: no end before that many tokens.
        logprobs: report this many most likely tokens at each step; -1: all; None: none.
        prompt_logprobs: the same for each token of the prompt but its first.
        structured_outputs: the form that the answer must have; None: any.

    Raises:
        ValueError: an argument is out of its range.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        self.stop_token_ids = list(dict.fromkeys(self.stop_token_ids or []))
        self.seed = None if self.seed == -1 else self.seed
        self.logprobs = int(self.logprobs) if isinstance(self.logprobs, bool) else self.logprobs
        self._check()
        self.top_k = min(self.top_k, LARGEST_INT)  # no vocabulary has more: it keeps all
        if self.temperature < GREEDY_BELOW:
            self.temperature, self.top_p, self.top_k, self.min_p = 0.0, 1.0, 0, 0.0
        else:
            self.temperature = max(self.temperature, MIN_TEMPERATURE)

    def _check(self) -> None:
        def require(condition: bool, name: str, expected: str) -> None:
            if not condition:
                raise ValueError(f"{name} must be {expected}, got {getattr(self, name)!r}.")

        def is_int(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool)

        for name in ("temperature", "top_p", "min_p"):
            value = getattr(self, name)
            require(is_int(value) or isinstance(value, float), name, "a number")
        require(is_int(self.n) and self.n >= 1, "n", "an integer of at least 1")
        require(
            self.n == 1 or self.temperature >= GREEDY_BELOW,
            "n",
            "1 for greedy sampling, where all answers would be the same",
        )
        require(math.isfinite(self.temperature), "temperature", "a finite number")
        require(0.0 <= self.temperature <= 2.0, "temperature", "in [0, 2]")
        require(0.0 < self.top_p <= 1.0, "top_p", "in (0, 1]")
        require(
            is_int(self.top_k) and self.top_k >= -1,
            "top_k",
            "an integer: 0 (keep all), or at least 1",
        )
        require(0.0 <= self.min_p <= 1.0, "min_p", "in [0, 1]")
        require(self.seed is None or is_int(self.seed), "seed", "an integer or None")
        # Each of n answers has a seed of its own, one more than the last one's.
        require(
            self.seed is None or -LARGEST_INT <= self.seed <= LARGEST_INT - self.n,
            "seed",
            "of at most 63 bits",
        )
        require(
            self.max_tokens is None or (is_int(self.max_tokens) and self.max_tokens >= 1),
            "max_tokens",
            "an integer of at least 1, or None",
        )
        require(is_int(self.min_tokens) and self.min_tokens >= 0, "min_tokens", "at least 0")
        require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens",
            f"at most max_tokens={self.max_tokens}",
        )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            require(
                count is None or (is_int(count) and count >= -1),
                name,
                "an integer of at least -1, or None",
            )
        require(
            isinstance(self.structured_outputs, StructuredOutputsParams | None),
            "structured_outputs",
            "StructuredOutputsParams, or None",
        )
        require(
            self.structured_outputs is None or not self.ignore_eos,
            "ignore_eos",
            "False with structured_outputs, whose end nothing can follow",
        )
        require(all(map(is_int, self.stop_token_ids or [])), "stop_token_ids", "a list of integers")
        require(
            all(isinstance(s, str) and s for s in self.stop or []),
            "stop",
            "a non-empty string or a list of them",
        )
