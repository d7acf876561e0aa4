"""The engine with a learner's guesses and verification in it: the last check of lab 07."""

from __future__ import annotations

import functools
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from transformers.utils import logging

from utils.checks.kit.reference import chat_token_ids
from utils.checks.kit.runner import Mismatch, Passed, call
from utils.checks.kit.tiny_model import TinyModel, one_thread
from utils.checks.lab_07 import pictures
from utils.checks.lab_07.proposals import accepted_by_brute_force, found_by_brute_force
from utils.checks.lab_07.sampling import LEVEL, chi_square_p
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.llm import LLM
from utils.engine.outputs import RequestOutput
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.sampling_params import SamplingParams
from utils.engine.spec_decode.ngram_proposer import NgramProposer
from utils.hub import load_tokenizer

Parts = tuple[Any, Any]  # proposer, rejection sampler
PartsFactory = Callable[[], Parts]
LOOKUP = (2, 4)  # prompt_lookup_min and prompt_lookup_max of `my_parts`
NUM_SPECULATIVE_TOKENS = 4
MAX_TOKENS = 32
QUESTIONS = (
    "Repeat this text word for word: The library opens at ten. The library closes at six.",
    "Count: 1, 2, 3, 4, 5, 6, 7, 8. Now write these numbers again.",
    "What is the capital of France?",
)
SAMPLES = 2000
CHECKED = 4  # tokens of each sampled answer that are compared with the exact law


# --- without a model -----------------------------------------------------------------------------


def rehearse(make_parts: PartsFactory) -> None:
    """Run every part once, so that one that is not written yet says so."""
    parts = call(make_parts)
    if not isinstance(parts, tuple) or len(parts) != 2:
        raise Mismatch("`my_parts` must return a pair: your proposer and your rejection sampler.")
    proposer, sampler = parts
    if type(proposer) is NgramProposer or type(sampler) is RejectionSampler:
        raise Mismatch(
            "The engine's own parts would do the work.",
            look="Let `my_parts` return objects that call your functions, as the cell above does.",
        )
    given = "a text of 5 tokens, and two guesses"
    call(proposer.propose, [1, 2, 3, 1, 2], 2, given=given)
    call(sampler.greedy, [1, 2], [1, 3, 4], given=given)
    # Equal distributions are accepted, far ones rejected: both ways through the sampler.
    for q in (None, torch.tensor([[0.0, 1.0], [0.0, 1.0]])):
        for row in ([0.0, 1.0], [1.0, 0.0]):
            target = torch.tensor([row] * 3)
            call(sampler.sample, [1, 1], q, target, torch.Generator().manual_seed(0), given=given)


# --- greedy, with the real model -----------------------------------------------------------------


@functools.cache
def model() -> LLM:
    # On the CPU, also where there is a GPU: that is where the learner draws random numbers.
    return LLM(dtype="float32", max_model_len=256, num_gpu_blocks_override=96, device="cpu")


class _Run(NamedTuple):
    """What came of the prompts, and how many steps each of them took."""

    answers: list[list[int]]
    texts: list[str]
    num_steps: list[int]


def _generate(llm: LLM, prompts: Sequence[list[int]], parts: Parts | None) -> _Run:
    proposer, sampler = parts or (None, None)
    spec = proposer and SpeculativeConfig("custom_class", NUM_SPECULATIVE_TOKENS, proposer=proposer)
    llm.llm_engine = llm.new_engine(changes={"speculative_config": spec}, rejection_sampler=sampler)
    llm.llm_engine.step_trace = []
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    steps = Counter(name for record in llm.llm_engine.step_trace for name in record.tokens)
    return _Run(
        [list(output.outputs[0].token_ids) for output in outputs],
        [output.outputs[0].text for output in outputs],
        [steps[output.request_id] for output in outputs],
    )


@functools.cache
def _plain() -> tuple[list[list[int]], _Run]:
    """The prompts, and what comes of them without guesses."""
    prompts = chat_token_ids(QUESTIONS)
    return prompts, _generate(model(), prompts, None)


def predicted_steps(prompt: Sequence[int], answer: Sequence[int]) -> int:
    """How many steps an answer takes with guesses from the text so far, by brute force."""
    written, steps = 1, 1  # the prompt's step gives the first token
    while written < len(answer):
        text = [*prompt, *answer[:written]]
        draft = found_by_brute_force(text, *LOOKUP, NUM_SPECULATIVE_TOKENS)
        target = list(answer[written : written + len(draft) + 1])
        written += len(accepted_by_brute_force(draft, target))
        steps += 1
    return steps


def run_greedy(make_parts: PartsFactory) -> str:
    """The same text as without guesses, in as many steps as predicted."""
    prompts, plain = _plain()
    given = f"three questions, greedy, {MAX_TOKENS} tokens at most; the first: {QUESTIONS[0]!r}"
    mine = call(_generate, model(), prompts, make_parts(), given=given)
    for i, (expected, got) in enumerate(zip(plain.answers, mine.answers, strict=True)):
        if got != expected:
            raise Mismatch(
                "With your guesses the model says something else than without.",
                input=QUESTIONS[i], expected=repr(plain.texts[i]), got=repr(mine.texts[i]),
                look="The check of exercise 2: a guess stays only if it is what the target says.",
            )  # fmt: skip
    expected_steps = [
        predicted_steps(prompt, answer)
        for prompt, answer in zip(prompts, plain.answers, strict=True)
    ]
    if mine.num_steps != expected_steps:
        more = sum(mine.num_steps) > sum(expected_steps)
        raise Mismatch(
            f"The text is right, but it takes {'more' if more else 'fewer'} steps than predicted.",
            input=given, expected=f"`{expected_steps}` steps", got=f"`{mine.num_steps}`",
            look="The checks of exercises 1 and 2: one of them has more to say.",
        )  # fmt: skip
    return (
        f"Greedy: token for token the text of plain decoding, in {mine.num_steps} steps in place "
        f"of {plain.num_steps}, exactly as predicted."
    )


# --- sampled, with a tiny model whose law is known -----------------------------------------------


class _FiveTokens(TinyModel):
    vocab_size = 5


# Every pair of tokens occurs in it, so there is always something to propose.
PROMPT = [0, 0, 1, 0, 2, 0, 3, 0, 4, 1, 1, 2, 1, 3, 1, 4, 2, 2, 3, 2, 4, 3, 3, 4, 4, 0]
TEMPERATURE = 2.0


@functools.cache
def _exact_law() -> dict[tuple[int, ...], float]:
    """The probability of each answer of `CHECKED` tokens: Hugging Face, over all of them."""
    tiny = _FiveTokens()
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(CHECKED):
        texts = torch.tensor([[*PROMPT, *answer] for answer in law])
        with torch.no_grad():
            logits = tiny.hf(texts, use_cache=False).logits[:, -1]
        probs = (logits / TEMPERATURE).softmax(-1).tolist()
        law = {
            (*answer, token): before * p
            for (answer, before), row in zip(law.items(), probs, strict=True)
            for token, p in enumerate(row)
        }
    return law


def _draft_weights(tiny: TinyModel) -> None:
    """A draft that is like the target, but not equal: the same weights with some noise."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in tiny.hf.parameters():
            weight += 0.15 * torch.randn(weight.shape, generator=generator)


@functools.cache
def _tiny_llm() -> tuple[LLM, tempfile.TemporaryDirectory[str]]:
    """The tiny target in the engine, and the folder with the draft model, which lives as long."""
    folder = tempfile.TemporaryDirectory()
    logging.disable_progress_bar()  # of saving
    target, draft = _FiveTokens(), _FiveTokens()
    _draft_weights(draft)
    for tiny, part in ((target, "target"), (draft, "draft")):
        tiny.hf.save_pretrained(Path(folder.name, part))
        load_tokenizer().save_pretrained(Path(folder.name, part))
    llm = LLM(
        Path(folder.name, "target"), max_model_len=64, max_num_seqs=250,
        num_gpu_blocks_override=2000, device="cpu",
    )  # fmt: skip
    return llm, folder


def _sampled(sampler: Any, spec: SpeculativeConfig) -> tuple[list[RequestOutput], float]:
    """Answers of the tiny model, and the part of the guesses that was accepted."""
    llm, _ = _tiny_llm()
    llm.llm_engine = llm.new_engine(changes={"speculative_config": spec}, rejection_sampler=sampler)
    params = SamplingParams(temperature=TEMPERATURE, max_tokens=CHECKED + 1, ignore_eos=True)
    outputs = llm.generate([list(PROMPT)] * SAMPLES, params, use_tqdm=False)
    stats = llm.llm_engine.spec_decoding_stats
    assert stats is not None
    return outputs, stats.acceptance_rate


def run_sampled(make_parts: PartsFactory) -> tuple[str, Figure]:
    """Thousands of sampled answers against the exact law, with n-grams and with a draft model."""
    proposer, sampler = make_parts()
    _, folder = _tiny_llm()
    words = []
    for kind, spec in (
        ("n-gram proposer", SpeculativeConfig("custom_class", 3, proposer=proposer)),
        ("draft model", SpeculativeConfig("draft_model", 3, model=Path(folder.name, "draft"))),
    ):
        given = f"{SAMPLES:,} sampled answers of a tiny model with 5 tokens; {kind}"
        outputs, rate = call(_sampled, sampler, spec, given=given)
        figure = _compare_with_law(outputs, kind)
        words.append(f"{rate:.0%} with the {kind}")
    return (
        f"Sampled: {SAMPLES:,} answers are distributed as Hugging Face's probabilities say. "
        f"Guesses accepted: {' and '.join(words)}.",
        figure,
    )


def _compare_with_law(outputs: Sequence[RequestOutput], kind: str) -> Figure:
    law = _exact_law()
    answers = [tuple(output.outputs[0].token_ids)[:CHECKED] for output in outputs]
    panels = []
    for place in range(CHECKED):
        came, expected = [0.0] * 5, [0.0] * 5
        for answer in answers:
            came[answer[place]] += 1 / SAMPLES
        for answer, p in law.items():
            expected[answer[place]] += p
        panels.append((f"token {place} of the answer", None, expected, came))
    figure = pictures.distributions(
        panels, f"{SAMPLES:,} sampled answers ({kind}), beside the exact probabilities"
    )
    counts = Counter(answers)
    # Rare answers go together, as the test asks for: at least 5 expected per cell.
    frequent = [answer for answer, p in law.items() if SAMPLES * p >= 5]
    expected_counts = [SAMPLES * law[answer] for answer in frequent]
    came_counts = [counts[answer] for answer in frequent]
    rest = SAMPLES - math.fsum(expected_counts)
    p_value = chi_square_p([*came_counts, SAMPLES - sum(came_counts)], [*expected_counts, rest])
    if p_value < LEVEL:
        raise Mismatch(
            f"Sampled with guesses ({kind}), the answers are distributed otherwise than the "
            "model's probabilities say.",
            input=f"{SAMPLES:,} answers of a tiny model with 5 tokens, temperature {TEMPERATURE}",
            expected="the distribution that Hugging Face computes, answer by answer",
            look="The check of exercise 5 says more.",
            figure=figure, alt="For each token: the exact and the obtained distribution.",
        )  # fmt: skip
    return figure


def run(make_parts: PartsFactory) -> Passed:
    """Greedy and sampled, one after the other."""
    greedy = run_greedy(make_parts)
    with one_thread():
        sampled, figure = run_sampled(make_parts)
    return Passed(
        f"{greedy} {sampled}", figure,
        "For each token of the answer: the exact distribution beside the obtained one.",
    )  # fmt: skip
