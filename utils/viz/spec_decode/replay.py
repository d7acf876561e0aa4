"""Answers that are known: what a draft would have guessed in them, and what an engine needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import mean

import torch

from utils.engine import LLM, LLMEngine, SamplingParams, SpeculativeConfig
from utils.engine.spec_decode.draft_model import DraftModelProposer
from utils.engine.spec_decode.draft_vocabulary import named
from utils.viz.spec_decode.clock import decode_steps, run, seconds_per_token
from utils.viz.spec_decode.prices import PassPrices, priced_race

WRONG = -1  # no token's number


@dataclass(frozen=True)
class KnownAnswer:
    """A greedy answer of the target, and what a draft guesses in it.

    Args:
        prompt: its tokens.
        answer: the target's tokens.
        guesses: at each place of the answer, the token that the draft chooses if it has read the
            answer up to there. Up to its first wrong guess, a draft makes just these.
    """

    prompt: list[int]
    answer: list[int]
    guesses: list[int]

    @property
    def hits(self) -> list[bool]:
        """Whether the guess at each place is right."""
        return [guess == token for guess, token in zip(self.guesses, self.answer, strict=True)]


def known_answers(
    llm: LLM, drafter: DraftModelProposer, prompts: Sequence[list[int]], max_tokens: int
) -> list[KnownAnswer]:
    """Let the target answer each prompt alone, greedily, and the draft guess along."""
    known = []
    for prompt in prompts:
        [answer], _ = run(llm, [prompt], max_tokens=max_tokens)
        known.append(KnownAnswer(prompt, answer, guesses_along(drafter, prompt, answer)))
    return known


@torch.inference_mode()
def guesses_along(drafter: DraftModelProposer, prompt: list[int], answer: list[int]) -> list[int]:
    """The draft's favorite at each place of the answer, in a single pass over prompt and answer."""
    ids = torch.tensor(prompt + answer)
    hidden = drafter.model(ids, torch.arange(len(ids)))[len(prompt) - 1 : -1]
    favorites: list[int] = named(drafter.head(hidden).argmax(dim=-1), drafter.token_ids).tolist()
    return favorites


def shuffle_hits(known: Sequence[KnownAnswer], rng: Random) -> list[KnownAnswer]:
    """The same answers with as many right guesses in all, at places drawn at random."""
    hits = [hit for one in known for hit in one.hits]
    rng.shuffle(hits)
    left = iter(hits)
    return [
        replace(one, guesses=[token if next(left) else WRONG for token in one.answer])
        for one in known
    ]


def count_tokens_per_pass(llm: LLM, known: Sequence[KnownAnswer], spec: SpeculativeConfig) -> float:
    """Tokens per pass of an engine that guesses, one request at a time, without prompts' passes.

    Raises:
        AssertionError: an answer is not the known one.
    """
    num_passes = num_tokens = 0
    for one in known:
        [written], engine = run(llm, [one.prompt], spec, max_tokens=len(one.answer))
        assert written == one.answer, "guesses changed an answer"
        num_passes += len(decode_steps(engine))
        num_tokens += len(one.answer) - 1  # the first comes from the prompt's pass
    return num_tokens / num_passes


def weights_per_guess(drafter: DraftModelProposer) -> int:
    """How many weights a draft model reads to make a guess: of its layers, and of its head."""
    config = drafter.model.config
    rows = config.vocab_size if drafter.token_ids is None else len(drafter.token_ids)
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads  # q and o, k and v
    in_layer = heads * config.head_dim + 3 * config.intermediate_size
    return (config.num_hidden_layers * in_layer + rows) * config.hidden_size


def race_over(
    llm: LLM,
    known: Sequence[KnownAnswer],
    methods: Mapping[str, SpeculativeConfig],
    sizes: Sequence[int],
    batch: int = 1,
) -> tuple[dict[str, LLMEngine], PassPrices]:
    """Engines that guess by these methods, and "none", side by side (see `priced_race`).

    Args:
        sizes: the tokens of the passes for the price list. They follow as many tokens as an
            answer's tokens do on average.
        batch: requests at a time. Only steps with so many stay in the engines' traces.

    Returns:
        By method: the engine. And the prices of passes, timed in turns with the engines' steps.

    Raises:
        AssertionError: an answer is not the known one.
    """
    before = round(mean(len(one.prompt) + len(one.answer) / 2 for one in known))
    longest = max(len(one.answer) for one in known)
    params = SamplingParams(temperature=0, max_tokens=longest, ignore_eos=True)
    prices = PassPrices(llm, sizes, before)
    prompts = [one.prompt for one in known]
    engines, written = priced_race(llm, prompts, methods, batch, params, prices)
    for method, answers in written.items():
        assert answers == [one.answer for one in known], f"{method} changed an answer"
    return engines, prices


def times_as_fast(engines: Mapping[str, LLMEngine], method: str) -> float:
    """How many times as fast as without guesses, by the seconds per token of decode steps."""
    return seconds_per_token(engines["none"]) / seconds_per_token(engines[method])
