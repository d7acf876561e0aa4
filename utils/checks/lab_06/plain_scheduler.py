"""A scheduler of plain numbers: the oracle of lab 06. It shares no code with the engine's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Job:
    """One request, as numbers. `arrival` counts the requests; a lower `priority` goes first."""

    name: str
    num_prompt: int
    num_answer: int
    arrival: int
    priority: int = 0
    computed: int = 0
    answered: int = 0
    blocks: int = 0
    runs: bool = False
    done: bool = False

    @property
    def lacking(self) -> int:
        return self.num_prompt + self.answered - self.computed

    @property
    def rank(self) -> tuple[int, int]:
        return self.priority, self.arrival


@dataclass
class Plan:
    """One step: tokens by name, who lost its blocks (in order), who joins (in order)."""

    tokens: dict[str, int] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)


@dataclass
class PlainScheduler:
    """Continuous batching with chunked prefill and preemption by recompute."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int
    jobs: dict[str, Job] = field(default_factory=dict)

    def add(self, name: str, num_prompt: int, num_answer: int, priority: int = 0) -> Job:
        self.jobs[name] = Job(name, num_prompt, num_answer, len(self.jobs), priority)
        return self.jobs[name]

    def running(self) -> list[Job]:
        return sorted((j for j in self.jobs.values() if j.runs), key=lambda j: j.rank)

    def waiting(self) -> list[Job]:
        jobs = (j for j in self.jobs.values() if not j.runs and not j.done)
        return sorted(jobs, key=lambda j: j.rank)

    @property
    def free_blocks(self) -> int:
        return self.num_blocks - sum(j.blocks for j in self.jobs.values())

    def schedule(self) -> Plan:
        plan, budget = Plan(), self.max_num_batched_tokens
        line = self.running()
        for place, job in enumerate(line):
            if not job.runs:
                continue  # lost its blocks to one before it
            behind = sum(other.runs for other in line[place + 1 :])
            count = min(job.lacking, budget - behind)
            while job.runs and not self._take(job, count):
                victim = self.running()[-1]
                victim.runs, victim.blocks, victim.computed = False, 0, 0
                plan.preempted.append(victim.name)
            if job.runs:
                plan.tokens[job.name] = count
                budget -= count
        for job in self.waiting() if not plan.preempted else []:
            count = min(job.lacking, budget)
            if count == 0 or len(self.running()) == self.max_num_seqs:
                break
            if not self._take(job, count):
                break
            job.runs = True
            plan.tokens[job.name] = count
            plan.admitted.append(job.name)
            budget -= count
        return plan

    def finish(self, plan: Plan) -> list[str]:
        """Book a step; who gained a token."""
        gained = []
        for name, count in plan.tokens.items():
            job = self.jobs[name]
            job.computed += count
            if job.lacking == 0:
                job.answered += 1
                gained.append(name)
                if job.answered == job.num_answer:
                    self.drop(name)
        return gained

    def drop(self, name: str) -> None:
        """A request ends, by itself or because it was aborted."""
        job = self.jobs[name]
        job.runs, job.done, job.blocks = False, True, 0

    def _take(self, job: Job, count: int) -> bool:
        missing = math.ceil((job.computed + count) / self.block_size) - job.blocks
        if missing > self.free_blocks:
            return False
        job.blocks += max(0, missing)
        return True
