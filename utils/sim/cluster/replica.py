"""One simulated replica: continuous batching with chunked prefill, on a clock of its own.

Steps are those of vLLM's scheduler under FCFS: every decoding request gets one token, and what is
left of the budget goes to the waiting prompts in order of arrival. Steps of nothing but decoding
are all alike until a request ends or arrives, so they are taken at one go.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Sequence

from utils.routing.lru_blocks import LruBlocks
from utils.routing.prefix_index import KVIndex
from utils.sim.cluster.replica_config import ReplicaConfig

NEVER = math.inf


class SimReplica:
    """Takes requests, and says when their first and last tokens came.

    Its attributes `index`, `num_running`, `num_waiting` and `waiting_tokens` are what a router sees
    (`utils.routing.policies.Replica`).

    Args:
        index: its number in the cluster.
        config: what it can do.
        first_token: written to: by request number, the time of its first token.
        finished: the same for the last token.
        cached_tokens: the same for tokens found in the cache, if that is known only when the
            prefill begins (`config.blocks_after_prefill`).
        listener: with the same option, told what is stored and evicted when a prefill ends.
    """

    __slots__ = (
        "_constants",
        "_context",
        "_decoding",
        "_ending",
        "_run_start",
        "_step_seconds",
        "_step_tokens",
        "_steps",
        "_storing",
        "_waiting",
        "busy",
        "cache",
        "cached_tokens",
        "config",
        "end",
        "finished",
        "first_token",
        "index",
        "listener",
        "num_running",
        "num_waiting",
        "waiting_tokens",
    )

    def __init__(
        self,
        index: int,
        config: ReplicaConfig,
        first_token: list[float],
        finished: list[float],
        cached_tokens: list[int] | None = None,
        listener: KVIndex | None = None,
    ) -> None:
        self.index, self.config = index, config
        self.first_token, self.finished = first_token, finished
        self.cached_tokens, self.listener = cached_tokens, listener
        cost = config.cost
        self._constants = (
            cost.per_step,
            cost.per_token,
            cost.per_pair,
            cost.per_context_token,
            config.max_num_batched_tokens,
            config.max_num_seqs,
        )
        self.cache = LruBlocks(config.num_blocks)
        self.num_running = self.num_waiting = self.waiting_tokens = 0
        self.busy = 0.0  # seconds in which a step ran
        self.end = NEVER  # when the present run of steps ends; NEVER: idle
        # Each: request, next token, prompt length, answer, and whether it is still to be looked up.
        self._waiting: deque[list[int]] = deque()
        self._storing: dict[int, Sequence[Hashable]] = {}  # blocks that no prefill has stored yet
        self._decoding: list[tuple[int, int, int]] = []  # heap of (last step, request, context)
        self._context = 0  # tokens of K and V that the decoding requests read in a step
        self._steps = 0  # steps up to the end of the present run
        self._run_start = self._step_seconds = 0.0  # of a run of decoding steps
        self._ending: list[tuple[int, int, int]] = []  # prompts that the present step completes
        self._step_tokens = 0  # prompt tokens that it computes

    def submit(
        self, now: float, request: int, names: Sequence[Hashable], num_tokens: int, output_len: int
    ) -> tuple[int, list[Hashable]]:
        """A request arrives. Its blocks are looked up and given out at once.

        With `config.blocks_after_prefill`, they are given out when its prefill has ended, and they
        are looked up again when it begins.

        Returns:
            tokens found in the cache, at most all but one, and the names of evicted blocks.
        """
        evicted: list[Hashable] = []
        if self.config.blocks_after_prefill:
            found = self.cache.match(names)
            self._storing[request] = names
        else:
            found, evicted = self.cache.use(names)
        cached = min(found * self.config.block_size, num_tokens - 1)
        late = int(self.config.blocks_after_prefill)
        self._waiting.append([request, cached, num_tokens, output_len, late])
        self.num_waiting += 1
        self.waiting_tokens += num_tokens - cached
        if self.end == NEVER:
            self._start(now)
        elif self._step_seconds:  # decoding only: the prompt joins after the step that runs now
            begun = math.ceil((now - self._run_start) / self._step_seconds) or 1
            end = self._run_start + begun * self._step_seconds
            if end < self.end:
                planned = round((self.end - self._run_start) / self._step_seconds)
                self._steps -= planned - begun
                self.busy -= self.end - end
                self.end = end
        return cached, evicted

    def advance(self, now: float) -> None:
        """Finish all steps that end at `now` or before."""
        while self.end <= now:
            end = self.end
            self.waiting_tokens -= self._step_tokens
            self.num_waiting -= len(self._ending)
            for request, context, output_len in self._ending:
                self.first_token[request] = end
                if self._storing:
                    self._store(self._storing.pop(request))
                if output_len > 1:
                    heapq.heappush(self._decoding, (self._steps + output_len - 1, request, context))
                    self._context += context
                    self.num_running += 1
                else:
                    self.finished[request] = end
            decoding = self._decoding
            while decoding and decoding[0][0] <= self._steps:
                _, request, context = heapq.heappop(decoding)
                self._context -= context
                self.num_running -= 1
                self.finished[request] = end
            self._start(end)

    def whole_waiting_tokens(self) -> int:
        """Prompt tokens of all requests without a first token, computed and cached ones too."""
        ending = sum(context - output_len // 2 for _, context, output_len in self._ending)
        return ending + sum(row[2] for row in self._waiting)

    def unfinished(self) -> list[int]:
        """Numbers of the requests that are here."""
        return [
            *(row[0] for row in self._waiting),
            *(row[1] for row in self._decoding),
            *(row[0] for row in self._ending),
        ]

    def _store(self, names: Sequence[Hashable]) -> None:
        evicted = self.cache.add(names)
        if self.listener is not None:
            self.listener.stored(self.index, names)
            self.listener.removed(self.index, evicted)

    def _look_up(self, row: list[int]) -> None:
        """Once more, when a prefill begins: what others have stored since is found, too."""
        request, before, num_tokens, _, _ = row
        found = self.cache.match(self._storing[request]) * self.config.block_size
        cached = min(found, num_tokens - 1)
        row[1], row[4] = cached, 0
        self.waiting_tokens += before - cached
        if self.cached_tokens is not None:
            self.cached_tokens[request] = cached

    def _start(self, now: float) -> None:
        """Plan the next step, or a run of equal ones."""
        per_step, per_token, per_pair, per_context_token, max_tokens, max_seqs = self._constants
        running, waiting = self.num_running, self._waiting
        seconds = per_step + running * per_token + self._context * per_context_token
        self._step_tokens = 0
        if not waiting or running >= max_seqs:
            self._ending = []
            if not running:
                self.end, self._step_seconds = NEVER, 0.0
                return
            count = self._decoding[0][0] - self._steps
            self._run_start = now
            self._step_seconds = seconds
            self._steps += count
            seconds *= count
        else:
            self._ending = ending = []
            self._step_seconds = 0.0
            self._steps += 1
            budget = left = max_tokens - running
            seats = max_seqs - running
            while waiting and left and seats:
                row = waiting[0]
                if row[4]:
                    self._look_up(row)
                request, start, num_tokens, output_len, _ = row
                new = num_tokens - start
                if new <= left:
                    waiting.popleft()
                    seats -= 1
                    # On average, half of the answer is there to be read.
                    ending.append((request, num_tokens + output_len // 2, output_len))
                else:
                    new = left
                    row[1] = start + new
                seconds += new * (per_token + per_pair * (start + new / 2))
                left -= new
            self._step_tokens = budget - left
        self.busy += seconds
        self.end = now + seconds
