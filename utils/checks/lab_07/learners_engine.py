"""The engine with a learner's guesses and verification in it: greedy, then sampled."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.utils import logging

from utils.checks.kit.contracts import Contract, Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.near_ties import engine_oracle, same_but_for_a_tie
from utils.checks.kit.patience import watching
from utils.checks.kit.reference import chat_token_ids
from utils.checks.kit.runner import Mismatch, NotWritten, Passed, call
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_07.laws import Step, exact_law
from utils.checks.lab_07.many_steps import distributions, too_far
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.llm import LLM
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.sampling_params import SamplingParams
from utils.engine.spec_decode.ngram_proposer import NgramProposer
from utils.hub import load_tokenizer
from utils.timing import one_thread

PartsFactory = Callable[[], tuple[Any, Any]]  # proposer, rejection sampler
Proposes = Callable[[list[int], int, int, int], list[int]]
Keeps = Callable[[Sequence[int], Sequence[int]], list[int]]
LOOKUP = (2, 4)  # prompt_lookup_min and prompt_lookup_max of `my_parts`
NUM_SPECULATIVE_TOKENS = 4
MAX_TOKENS = 32
QUESTIONS = (
    "Count: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10. Now write these numbers again.",
    "What is the capital of France?",
)
EXERCISES = {"propose": 1, "greedy": 2, "is_accepted": 3, "recovered_probs": 4, "sample": 5}
SAMPLES = 800
CHECKED = 3  # tokens of each sampled answer that are compared with the exact law
# Every pair of tokens occurs in it, so there is always something to propose.
PROMPT = [0, 0, 1, 0, 2, 0, 3, 0, 4, 1, 1, 2, 1, 3, 1, 4, 2, 2, 3, 2, 4, 3, 3, 4, 4, 0]
TEMPERATURE = 2.0


def parts_of(make_parts: PartsFactory) -> tuple[Any, Any]:
    """A learner's proposer and rejection sampler; not the engine's own."""
    parts = call(make_parts)
    if not isinstance(parts, tuple) or len(parts) != 2:
        raise Mismatch("`my_parts` must return a pair: your proposer and your rejection sampler.")
    own = ((NgramProposer, ("propose",)), (RejectionSampler, ("greedy", "sample")))
    for part, (theirs, names) in zip(parts, own, strict=True):
        if any(getattr(type(part), n, None) is getattr(theirs, n) for n in names):
            raise Mismatch(
                "The engine's own parts would do the work.",
                look="Let `my_parts` return objects that call your functions, as the given cell "
                "does.",
            )
    return parts


def each_speaks_first(
    make_parts: PartsFactory, parts: tuple[Any, Any], contracts: Mapping[str, Contract]
) -> None:
    """Which of the exercises is not right yet?"""
    proposer, sampler = parts

    def check(name: str, answer: Any) -> None:
        try:
            contracts[name].check(answer)
        except Mismatch as wrong:
            wrong.headline = f"Exercise {EXERCISES[name]} is not right yet. {wrong.headline}"
            raise

    check("propose", lambda tokens, low, high, k: proposer.propose(tokens, k))
    check("greedy", lambda draft, target: sampler.greedy(draft, target))
    try:
        check("sample", lambda d, q, p, generator: sampler.sample(d, q, p, generator))
    except Mismatch:
        # Its own parts are not handed in. In the notebook they stand beside `my_parts`.
        beside = getattr(make_parts, "__globals__", {})
        for name in ("is_accepted", "recovered_probs"):
            with contextlib.suppress(NotWritten):
                if callable(beside.get(name)):
                    check(name, beside[name])
        raise


def run(make_parts: PartsFactory, followed: Proposes, kept: Keeps) -> Passed:
    """The engine, greedy and sampled; `followed` and `kept` say what is right."""

    def watched() -> Watched:
        proposer, sampler = call(make_parts)
        return Watched(proposer, sampler, followed, kept)

    with held_output(), watching():
        greedy = run_greedy(watched(), followed, kept)
        with one_thread():
            sampled = run_sampled(watched())
    return Passed(f"{greedy} {sampled.headline}", sampled.figure, sampled.alt)


class Watched:
    """The learner's parts in the engine. Each of their answers is compared with the right one.

    So a difference is shown where it begins, not by the text that comes of it.
    """

    def __init__(self, proposer: Any, sampler: Any, followed: Proposes, kept: Keeps) -> None:
        self._proposer, self._sampler = proposer, sampler
        self._followed, self._kept = followed, kept

    def propose(self, token_ids: list[int], num_speculative_tokens: int) -> list[int]:
        want = self._followed(token_ids, *LOOKUP, num_speculative_tokens)
        got = attempt(self._proposer.propose, list(token_ids), num_speculative_tokens)
        if got != want:
            asked = f"num_speculative_tokens {num_speculative_tokens}"
            raise _other("proposer", f"token_ids {list(token_ids)}, {asked}", want, got)
        return want

    def greedy(self, draft_token_ids: list[int], target_token_ids: list[int]) -> list[int]:
        want = self._kept(draft_token_ids, target_token_ids)
        got = attempt(self._sampler.greedy, list(draft_token_ids), list(target_token_ids))
        if got != want:
            given = f"draft_token_ids {draft_token_ids}, target_token_ids {target_token_ids}"
            raise _other("verification", given, want, got)
        return want

    def sample(
        self,
        draft_token_ids: list[int],
        draft_probs: Tensor | None,
        target_probs: Tensor,
        generator: torch.Generator,
    ) -> list[int]:
        step = Step(list(draft_token_ids), draft_probs, target_probs, 0)
        got = attempt(
            self._sampler.sample, list(draft_token_ids), draft_probs, target_probs, generator
        )
        possible = exact_law(step)
        if isinstance(got, Raised) or tuple(got) not in possible:
            want = [list(outcome) for outcome in sorted(possible)]
            raise _other("sampler", str(step), f"one of {want}", got)
        return [int(token) for token in got]


def _other(part: str, given: str, want: Any, got: Any) -> Mismatch:
    says = f"In the engine, your {part} gives another answer than its exercise asks for."
    return Mismatch(
        got.says if isinstance(got, Raised) else says,
        input=given,
        expected=f"`{want}`",
        got=f"`{got}`",
        look="Its own check passes. Is something kept from call to call, or from request to "
        "request?",
    )


# Greedy: the bundled model's text, and as many steps as predicted


@functools.cache
def model() -> LLM:
    # On the CPU, also where there is a GPU: that is where the learner draws random numbers.
    return LLM(dtype="float32", max_model_len=256, num_gpu_blocks_override=96, device="cpu")


class _Run(NamedTuple):
    """What came of the prompts, and how many steps each of them took."""

    answers: list[list[int]]
    texts: list[str]
    num_steps: list[int]


def _generate(prompts: Sequence[list[int]], parts: Any) -> _Run:
    llm = model()
    spec = parts and SpeculativeConfig("custom_class", NUM_SPECULATIVE_TOKENS, proposer=parts)
    changes: Any = {"speculative_config": spec}
    llm.llm_engine = llm.new_engine(changes=changes, rejection_sampler=parts)
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
    return prompts, _generate(prompts, None)


def predicted_steps(
    prompt: Sequence[int], answer: Sequence[int], followed: Proposes, kept: Keeps
) -> int:
    """How many steps an answer takes with guesses from the text so far, by brute force."""
    written, steps = 1, 1  # the prompt's step gives the first token
    while written < len(answer):
        text = [*prompt, *answer[:written]]
        draft = followed(text, *LOOKUP, NUM_SPECULATIVE_TOKENS)
        written += len(kept(draft, [*answer[written : written + len(draft)], -1]))
        steps += 1
    return steps


def run_greedy(parts: Watched, followed: Proposes, kept: Keeps) -> str:
    """The same text as without guesses, in as many steps as predicted."""
    prompts, plain = _plain()
    mine = _generate(prompts, parts)
    oracle = engine_oracle(model())
    # Several tokens at a time round otherwise than one: at a near tie either answer is right.
    right = [
        got if same_but_for_a_tie(oracle, prompt, got, usual) else usual
        for prompt, got, usual in zip(prompts, mine.answers, plain.answers, strict=True)
    ]
    for i, question in enumerate(QUESTIONS):
        steps = predicted_steps(prompts[i], right[i], followed, kept)
        if (mine.answers[i], mine.num_steps[i]) != (right[i], steps):
            raise Mismatch(
                "Each of your answers is right, but with your guesses the model says something "
                "else than without, or takes another number of steps than predicted.",
                input=question,
                expected=f"{plain.texts[i]!r} in {steps} steps",
                got=f"{mine.texts[i]!r} in {mine.num_steps[i]} steps",
            )
    before, after = (" and ".join(map(str, of.num_steps)) for of in (plain, mine))
    return (
        f"Your guesses at work: two answers that took {before} steps now take {after}, exactly as "
        "predicted, and the text is the same, token for token."
    )


# Sampled: a tiny model whose law is known


class _FiveTokens(TinyModel):
    vocab_size = 5


@functools.cache
def exact_answers() -> dict[tuple[int, ...], float]:
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


@functools.cache
def _tiny_llm() -> tuple[LLM, tempfile.TemporaryDirectory[str]]:
    """The tiny target in the engine, and the folder with the draft model, which lives as long."""
    folder = tempfile.TemporaryDirectory()
    logging.disable_progress_bar()  # of saving
    target, draft = _FiveTokens(), _FiveTokens()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # a draft that is like the target, but not equal
        for weight in draft.hf.parameters():
            weight += 0.15 * torch.randn(weight.shape, generator=generator)
    for tiny, part in ((target, "target"), (draft, "draft")):
        tiny.hf.save_pretrained(Path(folder.name, part))
        load_tokenizer().save_pretrained(Path(folder.name, part))
    llm = LLM(
        Path(folder.name, "target"),
        max_model_len=64,
        max_num_seqs=250,
        num_gpu_blocks_override=2000,
        device="cpu",
    )
    return llm, folder


def run_sampled(parts: Watched) -> Passed:
    """Thousands of sampled answers against the exact law, with n-grams and with a draft model."""
    llm, folder = _tiny_llm()
    params = SamplingParams(temperature=TEMPERATURE, max_tokens=CHECKED + 1, ignore_eos=True)
    rates = []
    for kind, spec in (
        ("n-gram proposer", SpeculativeConfig("custom_class", 3, proposer=parts)),
        ("draft model", SpeculativeConfig("draft_model", 3, model=Path(folder.name, "draft"))),
    ):
        changes: Any = {"speculative_config": spec}
        sampler: Any = parts
        llm.llm_engine = llm.new_engine(changes=changes, rejection_sampler=sampler)
        outputs = llm.generate([list(PROMPT)] * SAMPLES, params, use_tqdm=False)
        stats = llm.llm_engine.spec_decoding_stats
        assert stats is not None
        rates.append(f"{stats.acceptance_rate:.0%} with the {kind}")
        compared = compare_with_law(
            [tuple(output.outputs[0].token_ids)[:CHECKED] for output in outputs], kind
        )
    return Passed(
        f"{SAMPLES:,} sampled answers have the distribution that Hugging Face computes. "
        f"Guesses accepted: {' and '.join(rates)}.",
        compared.figure,
        compared.alt,
    )


def compare_with_law(answers: Sequence[tuple[int, ...]], kind: str) -> Passed:
    law = exact_answers()
    panels = []
    for place in range(CHECKED):
        came, expected = [0.0] * 5, [0.0] * 5
        for answer in answers:
            came[answer[place]] += 1 / SAMPLES
        for answer, p in law.items():
            expected[answer[place]] += p
        panels.append((f"token {place} of the answer", None, expected, came))
    figure = distributions(
        panels, f"{SAMPLES:,} sampled answers ({kind}), beside the exact probabilities"
    )
    alt = "For each token of the answer: the exact distribution beside the obtained one."
    if too_far(Counter(answers), {answer: SAMPLES * p for answer, p in law.items()}):
        raise Mismatch(
            f"Sampled with guesses ({kind}), the answers don't have the model's distribution, "
            "although your sampler is right step by step.",
            input=f"{SAMPLES:,} answers of a tiny model with 5 tokens, temperature {TEMPERATURE}",
            expected="the distribution that Hugging Face computes, answer by answer",
            look="Is something kept from call to call? Each request has its own generator.",
            figure=figure,
            alt=alt,
        )
    return Passed("", figure, alt)
