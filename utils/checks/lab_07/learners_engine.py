"""The engine with a learner's guesses and verification in it: the last check of lab 07."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from utils.checks.kit.contracts import Contract, Raised
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.near_ties import engine_oracle, same_but_for_a_tie
from utils.checks.kit.patience import watching
from utils.checks.kit.reference import chat_token_ids
from utils.checks.kit.runner import Mismatch, NotWritten, Passed, call
from utils.checks.lab_07.one_token import IS_ACCEPTED, RECOVERED_PROBS
from utils.checks.lab_07.proposals import followed, proposals
from utils.checks.lab_07.sampled_engine import run_sampled
from utils.checks.lab_07.sampler.laws import Step, exact_law
from utils.checks.lab_07.sampler.sampling import REJECTION_SAMPLE
from utils.checks.lab_07.verification import VERIFY_GREEDY, kept
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.llm import LLM
from utils.engine.sample.rejection_sampler import RejectionSampler
from utils.engine.sampling_params import SamplingParams
from utils.engine.spec_decode.ngram_proposer import NgramProposer
from utils.timing import one_thread

PartsFactory = Callable[[], tuple[Any, Any]]  # proposer, rejection sampler
LOOKUP = (2, 4)  # prompt_lookup_min and prompt_lookup_max of `my_parts`
NUM_SPECULATIVE_TOKENS = 4
MAX_TOKENS = 32
QUESTIONS = (
    "Repeat this text word for word: The library opens at ten. The library closes at six.",
    "Count: 1, 2, 3, 4, 5, 6, 7, 8. Now write these numbers again.",
    "What is the capital of France?",
)
PROPOSER = proposals(LOOKUP)


def run(make_parts: PartsFactory) -> Passed:
    """Each part by its own exercise's check; then the engine, greedy and sampled."""
    parts = call(make_parts)
    if not isinstance(parts, tuple) or len(parts) != 2:
        raise Mismatch("`my_parts` must return a pair: your proposer and your rejection sampler.")
    own = ((NgramProposer, ("propose",)), (RejectionSampler, ("greedy", "sample")))
    for part, (theirs, names) in zip(parts, own, strict=True):
        if any(getattr(type(part), n, None) is getattr(theirs, n) for n in names):
            raise Mismatch(
                "The engine's own parts would do the work.",
                look="Let `my_parts` return objects that call your functions, as the cell above "
                "does.",
            )
    _check_parts(make_parts, *parts)
    with held_output(), watching():
        greedy = run_greedy(_Watched(*call(make_parts)))
        with one_thread():
            watched = _Watched(*call(make_parts))
            sampled, figure = run_sampled(watched, watched)
    return Passed(
        f"{greedy} {sampled}",
        figure,
        "For each token of the answer: the exact distribution beside the obtained one.",
    )


def _check_parts(make_parts: PartsFactory, proposer: Any, sampler: Any) -> None:
    """Which of the exercises is not right yet?"""
    _check(1, PROPOSER, lambda tokens, low, high, k: proposer.propose(tokens, k))
    _check(2, VERIFY_GREEDY, lambda draft, target: sampler.greedy(draft, target))
    try:
        _check(5, REJECTION_SAMPLE, lambda d, q, p, generator: sampler.sample(d, q, p, generator))
    except Mismatch:
        # Its own parts are not handed in. In the notebook they stand beside `my_parts`.
        beside = getattr(make_parts, "__globals__", {})
        for number, name, contract in (
            (3, "is_accepted", IS_ACCEPTED),
            (4, "recovered_probs", RECOVERED_PROBS),
        ):
            with contextlib.suppress(NotWritten):
                if callable(beside.get(name)):
                    _check(number, contract, beside[name])
        raise


def _check(number: int, contract: Contract, answer: Any) -> None:
    try:
        contract.check(answer)
    except Mismatch as wrong:
        wrong.headline = f"Exercise {number} is not right yet. {wrong.headline}"
        raise


class _Watched:
    """The learner's parts in the engine. Each of their answers is compared with the right one.

    So a difference is shown where it begins, not by the text that comes of it.
    """

    def __init__(self, proposer: Any, sampler: Any) -> None:
        self._proposer, self._sampler = proposer, sampler

    def propose(self, token_ids: list[int], num_speculative_tokens: int) -> list[int]:
        def wrong(text: list[int]) -> tuple[Any, list[int]] | None:
            want = followed(text, *LOOKUP, num_speculative_tokens)
            got = attempt(self._proposer.propose, list(text), num_speculative_tokens)
            return None if got == want else (got, want)

        if found := wrong(token_ids):
            text, (got, want) = _smallest(list(token_ids), found, wrong)
            asked = f"num_speculative_tokens {num_speculative_tokens}"
            raise _other("proposer", f"token_ids {text}, {asked}", want, got)
        return followed(token_ids, *LOOKUP, num_speculative_tokens)

    def greedy(self, draft_token_ids: list[int], target_token_ids: list[int]) -> list[int]:
        want = kept(draft_token_ids, target_token_ids)
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
        possible = sorted(exact_law(step))
        if isinstance(got, Raised) or tuple(got) not in possible:
            raise _other("sampler", str(step), f"one of {[list(o) for o in possible]}", got)
        return [int(token) for token in got]


def _other(part: str, given: str, want: Any, got: Any) -> Mismatch:
    says = got.says if isinstance(got, Raised) else f"In the engine, your {part} answers otherwise "
    says += "" if isinstance(got, Raised) else "than its exercise asks for."
    return Mismatch(
        says,
        input=given,
        expected=f"`{want}`",
        got=f"`{got}`",
        look="Its own check passes. Is something kept from call to call, from request to request?",
    )


def _smallest(
    text: list[int], found: Any, wrong: Callable[[list[int]], Any]
) -> tuple[list[int], Any]:
    """Strike out pieces of a text, as long as the answer stays wrong."""
    size = len(text) // 2
    while size:
        for start in range(0, len(text), size):
            shorter = text[:start] + text[start + size :]
            if still := wrong(shorter):
                text, found = shorter, still
                break
        else:
            size //= 2
    return text, found


@functools.cache
def model() -> LLM:
    # On the CPU, also where there is a GPU: that is where the learner draws random numbers.
    return LLM(dtype="float32", max_model_len=256, num_gpu_blocks_override=96, device="cpu")


class _Run(NamedTuple):
    """What came of the prompts, and how many steps each of them took."""

    answers: list[list[int]]
    texts: list[str]
    num_steps: list[int]


def _generate(llm: LLM, prompts: Sequence[list[int]], parts: _Watched | None) -> _Run:
    spec = parts and SpeculativeConfig("custom_class", NUM_SPECULATIVE_TOKENS, proposer=parts)
    changes: Any = {"speculative_config": spec}
    sampler: Any = parts
    llm.llm_engine = llm.new_engine(changes=changes, rejection_sampler=sampler)
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
        draft = followed(text, *LOOKUP, NUM_SPECULATIVE_TOKENS)
        written += len(kept(draft, [*answer[written : written + len(draft)], -1]))
        steps += 1
    return steps


def run_greedy(parts: _Watched) -> str:
    """The same text as without guesses, in as many steps as predicted."""
    prompts, plain = _plain()
    mine = _generate(model(), prompts, parts)
    oracle = engine_oracle(model())
    # Several tokens at a time round otherwise than one: at a near tie either answer is right.
    right = [
        got if same_but_for_a_tie(oracle, prompt, got, usual) else usual
        for prompt, got, usual in zip(prompts, mine.answers, plain.answers, strict=True)
    ]
    steps = [predicted_steps(*pair) for pair in zip(prompts, right, strict=True)]
    for i, question in enumerate(QUESTIONS):
        if (mine.answers[i], mine.num_steps[i]) != (right[i], steps[i]):
            raise Mismatch(
                "With your guesses the model says something else than without, or takes another "
                "number of steps than predicted, although each of your answers was right.",
                input=question,
                expected=f"{plain.texts[i]!r} in {steps[i]} steps",
                got=f"{mine.texts[i]!r} in {mine.num_steps[i]} steps",
            )
    return (
        f"Greedy: token for token the text of plain decoding, in {mine.num_steps} steps in place "
        f"of {plain.num_steps}, exactly as predicted."
    )
