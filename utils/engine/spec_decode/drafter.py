"""Speculative decoding: who guesses, how many tokens, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from utils.engine.config.speculative import SpeculativeConfig, TokenProposer
from utils.engine.core.sched.output import ModelRunnerOutput, SchedulerOutput
from utils.engine.metrics import SpecDecodingStats
from utils.engine.request import Request
from utils.engine.spec_decode.draft import NO_DRAFT, Draft

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
        hidden_states: dict[str, Tensor],
    ) -> list[Draft]:
        """Guess what comes next.

        Args:
            wanted: the requests of the step, and how many tokens to guess for each, at most.
            output: what was scheduled in the step, and is computed now.
            hidden_states: [n, hidden], by request id: of each one's tokens that were computed in
                the step and stay; the newest token was sampled from the last row. Empty where the
                model is in other processes.

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
        hidden_states: dict[str, Tensor],
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
        self, requests: Sequence[Request], output: SchedulerOutput, hidden_states: dict[str, Tensor]
    ) -> None:
        """Give the requests their guesses for the next step.

        Args:
            requests: that were scheduled in this step. Those that are finished get none.
            output, hidden_states: see `Proposer`.
        """
        wanted = [(request, self._num_tokens(request)) for request in requests]
        drafts = self.proposer.draft(wanted, output, hidden_states)
        for (request, _), draft in zip(wanted, drafts, strict=True):
            request.draft = draft

    def _num_tokens(self, request: Request) -> int:
        """How many tokens to guess for a request."""
        if request.num_computed_tokens < request.num_tokens - 1 or request.forks:
            return 0  # its prompt is not computed yet
        if request.is_finished:
            return 0
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
