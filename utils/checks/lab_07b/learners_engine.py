"""The engine with a learner's EAGLE proposer, mask and walk in it: exercise 4 of lab 07b."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from utils.checks.kit.contracts.guards import held_output
from utils.checks.kit.lab.engine import not_the_engines, speaks_first
from utils.checks.kit.lab.lab import Check
from utils.checks.kit.near_ties import engine_oracle, same_but_for_a_tie
from utils.checks.kit.patience import patience_of, watching
from utils.checks.kit.reference import chat_token_ids
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_07b.given_proposer import proposer_with, trees_with
from utils.engine.attention.tree_attention import tree_attention_mask
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.llm import LLM
from utils.engine.llm_engine import LLMEngine
from utils.engine.request import Request
from utils.engine.sampling_params import SamplingParams
from utils.engine.spec_decode.draft import Draft
from utils.engine.spec_decode.eagle import EagleProposer
from utils.engine.spec_decode.llm_base_proposer import Part
from utils.engine.spec_decode.make_proposer import make_eagle
from utils.engine.spec_decode.tree import follow_tree
from utils.pipeline.drafts.distill import ensure_eagle
from utils.timing import one_thread

Parts = tuple[Any, Any, Any]  # tree_attention_mask, follow_tree, MyEagleProposer
Makes = Callable[..., Any]  # a proposer, from a config and a model
QUESTIONS = (
    "What is the capital of France?",
    "What does a cat like to eat?",
    "Where do whales live?",
)
NUM_SPECULATIVE_TOKENS = 4
TREE_WIDTHS = (2, 2, 1)
MAX_TOKENS = 24
PATIENCE = 1200  # ticks for all answers: about a minute of computing


def parts_of(make_parts: Callable[[], Parts]) -> Parts:
    """A learner's three parts; none of them the engine's own."""
    parts = call(make_parts)
    if not isinstance(parts, tuple) or len(parts) != 3:
        raise Mismatch(
            "`my_parts` must return three things: your mask, your walk, and your class.",
            look="`return tree_attention_mask, follow_tree, MyEagleProposer`, as the given cell "
            "does.",
        )
    not_the_engines(parts[0], tree_attention_mask, "tree_attention_mask")
    not_the_engines(parts[1], follow_tree, "follow_tree")
    not_the_engines(parts[2], EagleProposer, "MyEagleProposer")
    return parts


def each_speaks_first(parts: Parts, checks: Sequence[Check]) -> None:
    """Which of the exercises is not right yet?"""
    for check, part in zip(checks, parts, strict=True):
        speaks_first(check, part)


@functools.cache
def model() -> LLM:
    """Small blocks, short steps and two places: prompts come in pieces and share what they can."""
    return LLM(
        dtype="float32",
        device="cpu",
        max_model_len=128,
        block_size=8,
        num_gpu_blocks_override=48,
        max_num_seqs=2,
        max_num_batched_tokens=24,
    )


class OneByOne(EagleProposer):
    """The engine's own proposer, a request at a time as the learner's: so both round alike."""

    def guess(
        self,
        wanted: Sequence[tuple[Request, int]],
        parts: Sequence[Part],
        room: Sequence[int],
        active: list[int],
        hidden: Tensor,
    ) -> list[Draft]:
        """See `EagleProposer`."""
        drafts = super().guess(wanted, parts, room, [], hidden[:0])
        for row, i in enumerate(active):
            alone = super().guess(wanted, parts, room, [i], hidden[row : row + 1])
            drafts[i] = alone[i]
        return drafts


class Noted:
    """A proposer whose guesses are written down: after which text, and what is guessed."""

    uses_slots = True

    def __init__(self, proposer: EagleProposer) -> None:
        self._proposer = proposer
        self.guesses: list[tuple[list[int], list[int]]] = []

    def draft(
        self,
        wanted: Sequence[tuple[Request, int]],
        output: SchedulerOutput,
        hidden_states: dict[str, Tensor],
    ) -> list[Draft]:
        """See `Proposer`."""
        drafts = self._proposer.draft(wanted, output, hidden_states)
        for (request, _), draft in zip(wanted, drafts, strict=True):
            if draft.token_ids:
                self.guesses.append((list(request.all_token_ids), list(draft.token_ids)))
        return drafts


class Run(NamedTuple):
    """What came of the questions: their answers, and the engine afterwards."""

    answers: list[list[int]]
    engine: LLMEngine
    guesses: list[tuple[list[int], list[int]]]


def answers_with(makes: Makes | None, widths: tuple[int, ...] | None = None) -> Run:
    """Ask all questions, without guesses or with those of a proposer."""
    spec, llm = None, model()
    if makes is not None:
        folder = ensure_eagle()
        spec = SpeculativeConfig("eagle", NUM_SPECULATIVE_TOKENS, folder, tree_widths=widths)
    noted: list[Noted] = []

    def proposer(config: Any, target: Any) -> Noted:
        assert makes is not None
        noted.append(Noted(makes(config, target)))
        return noted[0]

    engine = llm.new_engine({"speculative_config": spec}, proposer=proposer)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    prompts = chat_token_ids(QUESTIONS)
    answers: list[list[int]] = [[] for _ in prompts]
    for i, prompt in enumerate(prompts):
        engine.add_request(str(i), prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            answers[int(output.request_id)] = list(output.outputs[0].token_ids)
    return Run(answers, engine, noted[0].guesses if noted else [])


@functools.cache
def without_guesses() -> list[list[int]]:
    """The answers that guesses must not change."""
    return answers_with(None).answers


@functools.cache
def the_engines_own() -> Run:
    """With the engine's own proposer."""
    return answers_with(functools.partial(make_eagle, proposer_class=OneByOne))


@one_thread()
def run(parts: Parts) -> str:
    """Chains, then trees: the same tokens as without guesses; of chains, the engine's guesses."""
    mask, follow, proposer_class = parts
    with held_output():
        ensure_eagle()  # to train it takes minutes, which aren't the learner's
    with held_output(), watching(), patience_of(PATIENCE):
        chains = call(answers_with, proposer_with(proposer_class), given="three questions")
        compare_guesses(chains, the_engines_own())
        compare_answers(chains, "chains")
        with trees_with(mask, follow):
            trees = call(
                answers_with,
                proposer_with(proposer_class),
                TREE_WIDTHS,
                given=f"three questions, with trees of {TREE_WIDTHS}",
            )
        compare_answers(trees, "trees")
    found = chains.engine.kv_cache_manager.prefix_cache_stats.hits
    assert found, "nothing was found in the prefix cache: its blocks are not put to the test"
    chain, tree = (one.engine.spec_decoding_stats for one in (chains, trees))
    assert chain is not None and tree is not None
    return (
        f"Your class guessed {chain.num_draft_tokens} tokens, each as the engine's own EAGLE "
        f"proposer does; {chain.num_accepted_tokens} were accepted. {found} tokens of prompts were "
        "found in the prefix cache, and their hidden states in your memory. With your mask and "
        f"your walk, trees gave {tree.mean_acceptance_length:.2f} tokens per pass, and "
        f"chains {chain.mean_acceptance_length:.2f}. All answers are as without guesses, token for "
        "token."
    )


def compare_guesses(mine: Run, theirs: Run) -> None:
    """The same guesses after the same texts, as far as the texts are the same."""
    words = model().get_tokenizer().decode
    for (text, got), (same_text, want) in zip(mine.guesses, theirs.guesses, strict=False):
        if text != same_text:
            break  # the answers differ by then, and are compared next
        if got != want:
            raise Mismatch(
                "In the engine, your class guesses something else than the engine's own EAGLE "
                "proposer.",
                input=f"the text that ends with {words(text[-12:])!r}",
                expected=f"{words(want)!r}, tokens {want}",
                got=f"{words(got)!r}, tokens {got}",
                look="Its own check passes. Is something kept from call to call, or from request "
                "to request?",
            )


def compare_answers(run: Run, with_what: str) -> None:
    """Token for token, but for near ties."""
    oracle, words = engine_oracle(model()), model().get_tokenizer().decode
    prompts = chat_token_ids(QUESTIONS)
    pairs = zip(QUESTIONS, prompts, run.answers, without_guesses(), strict=True)
    for question, prompt, got, usual in pairs:
        if not same_but_for_a_tie(oracle, prompt, got, usual):
            raise Mismatch(
                f"With your {with_what}, the model says something else than without guesses.",
                input=question,
                expected=repr(words(usual)),
                got=repr(words(got)),
                look="Each of your parts passes its own check. Is something kept from call to "
                "call?",
            )
