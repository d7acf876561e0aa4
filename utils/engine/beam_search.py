"""Beam search on forked requests: beams share the blocks of what they have in common.

It chooses as Hugging Face's `generate(num_beams=...)` does with its defaults, and returns what
vLLM's `LLM.beam_search` returns. (vLLM itself lets beams end differently.)
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from utils.engine.core.contiguous_manager import ContiguousKVCacheManager
from utils.engine.core.sched.output import SchedulerOutput
from utils.engine.output_processor import RequestState
from utils.engine.outputs import Logprob
from utils.engine.request import Request

if TYPE_CHECKING:
    from utils.engine.llm_engine import LLMEngine


@dataclass(frozen=True)
class BeamSearchParams:
    """How to search. vLLM's names.

    Args:
        beam_width: answers that are followed at a time, and returned in the end.
        max_tokens: the most tokens of an answer.
        ignore_eos: go on after the end-of-sequence token.
        length_penalty: an answer's score is its log probability divided by its number of tokens to
            this power. Above 0, it favours longer answers.

    Raises:
        ValueError: `beam_width` or `max_tokens` is not a positive integer.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")


@dataclass
class BeamSearchSequence:
    """An answer. `tokens` are the prompt's and the answer's, `text` is the answer's."""

    tokens: list[int]
    cum_logprob: float
    finish_reason: str | None = None  # "stop" or "length"
    text: str | None = None
    score: float = 0.0


@dataclass
class BeamSearchOutput:
    """The best answers to a prompt, the best of them first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


def beam_search(
    engine: LLMEngine, state: RequestState, params: BeamSearchParams
) -> BeamSearchOutput:
    """Search to the end. See `LLM.beam_search`."""
    output = BeamSearchOutput()
    for _ in beam_search_steps(engine, state, params, output):
        pass
    return output


def beam_search_steps(
    engine: LLMEngine, state: RequestState, params: BeamSearchParams, output: BeamSearchOutput
) -> Iterator[list[Request]]:
    """Search, and yield the living beams after each step. Their block tables can be looked at then.

    Args:
        engine: with a paged KV cache.
        state: from `engine.inputs`; it must not be queued.
        output: gets the answers in the end.

    Raises:
        ValueError: the KV cache has no room for the beams, or `beam_width` is too large.
    """
    request = state.request
    _check(engine, request, params)
    width, penalty = params.beam_width, params.length_penalty
    eos = () if params.ignore_eos else request.eos_token_ids
    num_prompt_tokens = request.num_tokens
    max_num_tokens = min(num_prompt_tokens + params.max_tokens, engine.config.max_model_len)
    num_candidates = max(2, 1 + len(eos)) * width  # enough for `width` that do not end
    # Of all beams together the best so many: none of them can be further down its own beam's list.
    request.sampling_params = replace(request.sampling_params, logprobs=num_candidates)
    beams, scores = [request], [0.0]
    finished: list[BeamSearchSequence] = []
    try:
        with engine.whole_steps:
            log_probs = [_prefill(engine, request)]
        yield beams
        while True:
            candidates = (
                (score + logprob.logprob, parent, token)
                for parent, score, of_beam in zip(beams, scores, log_probs, strict=True)
                for token, logprob in of_beam.items()
            )
            best = heapq.nlargest(num_candidates, candidates, key=itemgetter(0))
            running: list[tuple[Request, int, float]] = []  # parent, token, score
            for rank, (total, parent, token) in enumerate(best):
                num_tokens = parent.num_tokens + 1
                ends = token in eos
                if not ends and num_tokens < max_num_tokens:
                    running.append((parent, token, total))
                elif rank < width:  # those beyond were only kept to go on with
                    finished.append(
                        BeamSearchSequence(
                            [*parent.all_token_ids, token],
                            total,
                            "stop" if ends else "length",
                            score=total / (num_tokens - num_prompt_tokens) ** penalty,
                        )
                    )
            finished = sorted(finished, key=lambda sequence: -sequence.score)[:width]
            if not running:
                break
            scores = [score for _, _, score in running[:width]]
            # No beam can beat the finished ones any more, if its score stays what it is.
            length = running[0][0].num_tokens + 1 - num_prompt_tokens
            if len(finished) == width and scores[0] / length**penalty <= finished[-1].score:
                break
            with engine.whole_steps:
                beams[:] = _fork(engine, beams, running[:width])
                log_probs = _compute(engine, beams, [1] * len(beams))
            yield beams
    finally:  # also when nobody reads on, which may turn out in the midst of others' step
        engine.whole_steps.soon(partial(_free, engine, beams))
    tokenizer = engine.inputs.tokenizer
    for sequence in finished:
        sequence.text = tokenizer.decode(
            sequence.tokens[num_prompt_tokens:], skip_special_tokens=True
        )
    output.sequences = finished


def _free(engine: LLMEngine, beams: list[Request]) -> None:
    for beam in beams:
        engine.kv_cache_manager.free(beam)


def _check(engine: LLMEngine, request: Request, params: BeamSearchParams) -> None:
    if isinstance(engine.kv_cache_manager, ContiguousKVCacheManager):
        raise ValueError("Beam search needs a paged KV cache: create the LLM without one's own.")
    if params.beam_width > engine.config.max_num_seqs:
        raise ValueError(
            f"beam_width={params.beam_width} is more than max_num_seqs="
            f"{engine.config.max_num_seqs}, the most requests that run at a time."
        )
    block_size = engine.config.block_size
    num_shared = request.num_tokens // block_size  # the prompt's full blocks
    most = -(-(request.num_tokens + params.max_tokens) // block_size)
    needed = num_shared + params.beam_width * (most - num_shared)
    free = engine.kv_cache_manager.block_pool.get_num_free_blocks()
    if needed > free:
        raise ValueError(
            f"{params.beam_width} beams of {params.max_tokens} tokens may need {needed} blocks, "
            f"and {free} are free. Use fewer or shorter beams, or a larger KV cache."
        )


def _prefill(engine: LLMEngine, request: Request) -> dict[int, Logprob]:
    """Compute the prompt; the most probable tokens that may follow."""
    blocks, num_computed = engine.kv_cache_manager.get_computed_blocks(request)
    while True:
        size = min(request.num_tokens - num_computed, engine.config.max_num_batched_tokens)
        engine.kv_cache_manager.allocate_slots(request, size, blocks)
        request.num_computed_tokens = num_computed
        log_probs = _compute(engine, [request], [size])
        num_computed, blocks = num_computed + size, []
        if log_probs:
            return log_probs[0]


def _compute(engine: LLMEngine, beams: list[Request], sizes: list[int]) -> list[dict[int, Logprob]]:
    """Run a forward pass over the beams' next tokens: of each beam whose tokens are all computed
    now, the most probable ones that may follow."""
    scheduled = {beam.request_id: size for beam, size in zip(beams, sizes, strict=True)}
    output = SchedulerOutput.of(beams, scheduled, engine.kv_cache_manager)
    before = engine.steps[-1].executed if engine.steps else None  # others': it may fail
    result = engine.step_runner.submit(output, before).result().result
    for beam, size in zip(beams, sizes, strict=True):
        beam.num_computed_tokens += size
    return [logprobs[0] for logprobs in result.logprobs.values()]


def _fork(
    engine: LLMEngine, beams: list[Request], chosen: list[tuple[Request, int, float]]
) -> list[Request]:
    """Let the chosen beams live on, each with one more token; all others give their blocks back."""
    manager = engine.kv_cache_manager
    children = []
    for parent, token, _ in chosen:
        child = copy.copy(parent)
        child.request_id = engine.inputs.next_request_id()
        child.all_token_ids = [*parent.all_token_ids, token]
        manager.fork(parent, child)
        children.append(child)
    for beam in beams:
        manager.free(beam)
    for child in children:
        if manager.allocate_slots(child, 1) is None:
            raise RuntimeError("The KV cache has no room for the beams.")  # _check prevents it
    return children
