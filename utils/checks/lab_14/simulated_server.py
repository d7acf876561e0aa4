"""A server whose steps take as long as a line says: where an admission rule is tried."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

from utils.checks.lab_14.kinds import Load


@dataclass(frozen=True)
class StepSeconds:
    """How long a step of so many tokens takes: a line."""

    fixed: float
    per_token: float

    def __call__(self, num_tokens: int) -> float:
        return self.fixed + self.per_token * num_tokens


@dataclass
class Job:
    """A request in the server."""

    number: int
    came: float
    prompt_left: int
    answer_left: int
    first_token: float | None = None


class Server:
    """Chunked prefill, first come first served: answers take one token each, prompts the rest."""

    def __init__(self, max_num_batched_tokens: int, step_seconds: StepSeconds) -> None:
        self.budget, self.step_seconds = max_num_batched_tokens, step_seconds
        self.now, self.end = 0.0, math.inf  # of the running step; inf: none
        self.jobs: list[Job] = []
        self.done: list[Job] = []
        self._prompts: list[tuple[Job, int]] = []  # in the running step, with their tokens
        self._answers: list[Job] = []

    def advance(self, until: float) -> None:
        """Finish all steps that end by then."""
        while self.jobs or self.end < math.inf:
            if self.end == math.inf:
                self._begin()
            if self.end > until:
                break
            self._finish()
        self.now = max(self.now, until) if until < math.inf else self.now

    def admit(self, job: Job) -> None:
        self.jobs.append(job)

    def load(self) -> Load:
        """As the learner's rule sees it."""
        given = {job.number: tokens for job, tokens in self._prompts}
        left = [job.prompt_left - given.get(job.number, 0) for job in self.jobs]
        waiting = tuple(tokens for tokens in left if tokens)
        seconds_left = 0.0 if self.end == math.inf else self.end - self.now
        return Load(waiting, len(left) - len(waiting), seconds_left, self.budget, self.step_seconds)

    def with_short_answers(self) -> Server:
        """A copy in which each answer ends with its next token."""
        other = copy.deepcopy(self)
        for job in other.jobs:
            job.answer_left = 1
        return other

    def _begin(self) -> None:
        self._answers = [job for job in self.jobs if not job.prompt_left][: self.budget]
        room, self._prompts = self.budget - len(self._answers), []
        for job in self.jobs:
            if tokens := min(room, job.prompt_left):
                self._prompts.append((job, tokens))
                room -= tokens
        self.end = self.now + self.step_seconds(self.budget - room)

    def _finish(self) -> None:
        self.now, self.end = self.end, math.inf
        for job, tokens in self._prompts:
            job.prompt_left -= tokens
            if not job.prompt_left:
                job.first_token = self.now
                job.answer_left -= 1
        for job in self._answers:
            job.answer_left -= 1
        over = [job for job in self.jobs if not job.prompt_left and job.answer_left < 1]
        self.done += over
        self.jobs = [job for job in self.jobs if job not in over]
        self._prompts, self._answers = [], []
