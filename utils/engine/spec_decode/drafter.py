"""Speculative decoding: who guesses, how many tokens, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from utils.engine.attention.paged_kv_cache import PagedKVCache
from utils.engine.config.engine import EngineConfig
from utils.engine.config.model import ModelConfig
from utils.engine.config.speculative import SpeculativeConfig, TokenProposer
from utils.engine.core.sched.output import ModelRunnerOutput, SchedulerOutput
from utils.engine.distributed.executor import ModelWorkers
from utils.engine.kernels.fused_layers import FusedLayers, fused_layers
from utils.engine.kernels.packed_linear import pack_linears
from utils.engine.metrics import SpecDecodingStats
from utils.engine.models.llama import DEFAULT_OPS, LlamaForCausalLM
from utils.engine.models.weights import load_model
from utils.engine.request import Request
from utils.engine.spec_decode.draft import NO_DRAFT, Draft
from utils.engine.spec_decode.draft_model import DraftModelProposer
from utils.engine.spec_decode.draft_vocabulary import read_draft_vocabulary
from utils.engine.spec_decode.medusa import MedusaHeads, MedusaProposer
from utils.engine.spec_decode.ngram_proposer import NgramProposer

TRUST = (2.0, 1.4)  # tested and accepted guesses of a request that has not guessed yet
MEMORY = 0.9  # what older guesses count for, after each verification
PROBE_EVERY = 16  # tokens; a request that guesses no more tries it again


class Proposer(Protocol):
    """Guesses tokens for all requests of a step.

    Attributes:
        uses_slots: whether its guesses have keys and values, in the slots that follow a request's.
    """

    uses_slots: bool

    def draft(
        self,
        wanted: Sequence[tuple[Request, int]],
        output: SchedulerOutput,
        last_hidden: dict[str, Tensor],
    ) -> list[Draft]:
        """Guess what comes next.

        Args:
            wanted: the requests of the step, and how many tokens to guess for each, at most.
            output: what was scheduled in the step, and is computed now.
            last_hidden: [hidden], by request id, what each one's last token was sampled from.

        Returns:
            A draft for each request.
        """


class TextProposer:
    """Lets a `TokenProposer`, which sees one request's tokens only, guess for all requests."""

    uses_slots = False

    def __init__(self, proposer: TokenProposer) -> None:
        self.proposer = proposer

    def draft(
        self,
        wanted: Sequence[tuple[Request, int]],
        output: SchedulerOutput,
        last_hidden: dict[str, Tensor],
    ) -> list[Draft]:
        """See `Proposer`."""
        return [
            Draft(list(self.proposer.propose(request.all_token_ids, n))[:n]) if n else NO_DRAFT
            for request, n in wanted
        ]


def expected_tokens(acceptance_rate: float, num_speculative_tokens: int) -> float:
    """Tokens per verification of k guesses, each accepted with probability a if those before it
    were: 1 + a + a^2 + ... + a^k. Leviathan et al. 2023, equation 1."""
    return sum(acceptance_rate**i for i in range(num_speculative_tokens + 1))


def choose_num_speculative_tokens(
    acceptance_rate: float, max_num_speculative_tokens: int, draft_token_cost: float
) -> int:
    """The k that gives the most tokens per time, from 0 to the most allowed.

    Args:
        draft_token_cost: what a guess costs, relative to a step without any.
    """
    return max(
        range(max_num_speculative_tokens + 1),
        key=lambda k: expected_tokens(acceptance_rate, k) / (1 + k * draft_token_cost),
    )


class Drafter:
    """Asks the proposer for guesses after each step, and keeps account of what came of them."""

    def __init__(self, config: SpeculativeConfig, proposer: Proposer) -> None:
        self.config, self.proposer = config, proposer
        self.stats = SpecDecodingStats()
        # Of each request's guesses of late: how many were put to the test, and how many accepted.
        self._of_late: WeakKeyDictionary[Request, tuple[float, float]] = WeakKeyDictionary()

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots beyond a request's tokens that the proposer writes to."""
        return self.config.num_speculative_tokens if self.proposer.uses_slots else 0

    def observe(
        self, requests: Mapping[str, Request], output: SchedulerOutput, result: ModelRunnerOutput
    ) -> None:
        """Note how many of the guesses that a step verified were accepted.

        Args:
            requests: by id.
        """
        for scheduled in output.scheduled_requests:
            request = requests[scheduled.request_id]
            if num_draft := len(scheduled.spec_token_ids):
                # Besides the accepted ones, verification brings one token more.
                num_accepted = len(result.sampled_token_ids.get(scheduled.request_id, ())) - 1
                self.stats.observe_draft(num_draft, num_accepted)
                # Those after the first rejected one have not been put to the test.
                tested, accepted = self._of_late.get(request, TRUST)
                self._of_late[request] = (
                    MEMORY * tested + min(num_draft, num_accepted + 1),
                    MEMORY * accepted + num_accepted,
                )

    def propose(
        self, requests: Sequence[Request], output: SchedulerOutput, last_hidden: dict[str, Tensor]
    ) -> None:
        """Give the requests their guesses for the next step.

        Args:
            requests: that were scheduled in this step, and go on.
            output, last_hidden: see `Proposer`.
        """
        wanted = [(request, self._num_tokens(request)) for request in requests]
        drafts = self.proposer.draft(wanted, output, last_hidden)
        for (request, _), draft in zip(wanted, drafts, strict=True):
            request.draft = draft

    def _num_tokens(self, request: Request) -> int:
        """How many tokens to guess for a request."""
        if request.num_computed_tokens < request.num_tokens - 1 or request.forks:
            return 0  # its prompt is not computed yet
        # Verification gives one token more than was guessed, and that one may be the last.
        room = request.max_num_tokens - request.num_tokens - 1
        most = self.config.num_speculative_tokens
        if self.config.adaptive:
            tested, accepted = self._of_late.get(request, TRUST)
            most = choose_num_speculative_tokens(
                accepted / tested, most, self.config.draft_token_cost
            )
            if most == 0 and len(request.output_token_ids) % PROBE_EVERY == 0:
                most = 1
        return max(0, min(most, room))


def make_proposer(config: EngineConfig, target: LlamaForCausalLM | ModelWorkers) -> Proposer:
    """The proposer that `config.speculative_config` describes.

    Raises:
        ValueError: draft model or heads cannot be read, or do not go with the target.
    """
    here = target if isinstance(target, LlamaForCausalLM) else None  # not in other processes
    spec = config.speculative_config
    assert spec is not None
    if spec.method == "draft_model":
        assert spec.model is not None
        shape = ModelConfig.from_pretrained(spec.model)
        if shape.vocab_size != target.config.vocab_size:
            raise ValueError(
                f"The draft model {spec.model} has a vocabulary of {shape.vocab_size} tokens, the "
                f"target one of {target.config.vocab_size}. They must share their tokenizer."
            )
        # Where the target takes the fast path, so does the draft model.
        packed = here is not None and bool(here.model.packed_weights)
        ops = here.ops if here is not None and packed else DEFAULT_OPS
        model = load_model(spec.model, shape, config.dtype, config.device, ops)
        token_ids = read_draft_vocabulary(spec.model, shape.vocab_size)
        if packed:
            pack_linears(model)
        if here is not None and isinstance(here.all_layers, FusedLayers):
            model.all_layers = fused_layers(model)
        memory = PagedKVCache.for_engine(model.config, config)
        return DraftModelProposer(model, memory, token_ids, config.seed)
    if spec.method == "medusa":
        assert spec.model is not None
        if here is None:
            raise ValueError(
                "Medusa heads use the model's hidden states and its output embedding, and these "
                "are on other ranks: leave out tensor_parallel_size and pipeline_parallel_size, or "
                "guess by another method."
            )
        heads = MedusaHeads.from_pretrained(spec.model, target.config.hidden_size)
        in_a_row = len(spec.tree_widths or ()) or spec.num_speculative_tokens
        if in_a_row > len(heads.blocks):
            raise ValueError(
                f"{in_a_row} guesses in a row need as many Medusa heads, and {spec.model} holds "
                f"{len(heads.blocks)}. Ask for fewer."
            )
        return MedusaProposer(heads, here.lm_head, spec.tree_widths)
    ngram = NgramProposer(spec.prompt_lookup_min, spec.prompt_lookup_max)
    return TextProposer(spec.proposer or ngram)
