"""What tokens in and out take on this machine, step by step, and what a checkpoint is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from safetensors import safe_open

from utils.engine import LLM, SamplingParams
from utils.engine.core.step_record import StepRecord
from utils.engine.run_requests import answer
from utils.vllm.session import VllmSession


@dataclass(frozen=True)
class Step:
    """One step of an engine: how many tokens of each request it computed, and its seconds."""

    tokens: list[int]
    seconds: float


@dataclass(frozen=True)
class Steps:
    """All steps of a run, in their order."""

    steps: list[Step]

    @property
    def seconds(self) -> float:
        """Of all steps together."""
        return sum(step.seconds for step in self.steps)

    @property
    def longest(self) -> float:
        """Seconds of the longest step."""
        return max(step.seconds for step in self.steps)

    @property
    def per_token_in(self) -> float:
        """Seconds per token of the steps that read prompts.

        Raises:
            ValueError: no step reads more than one token of a request.
        """
        reading = [step for step in self.steps if max(step.tokens) > 1]
        if not reading:
            raise ValueError("No step reads a prompt of more than one token.")
        return sum(s.seconds for s in reading) / sum(sum(s.tokens) for s in reading)

    @property
    def decode_step(self) -> float:
        """Median seconds of a step in which every request gets one token.

        Raises:
            ValueError: there is no such step.
        """
        writing = [step.seconds for step in self.steps if max(step.tokens) == 1]
        if not writing:
            raise ValueError("In no step does every request get just one token.")
        return median(writing)


def run_steps(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    num_out: int,
    known: Sequence[int] | None = None,
    **changes: Any,
) -> Steps:
    """Run prompts on a new engine of the same model, greedily, and record each step.

    Args:
        prompts: token ids.
        num_out: tokens that every request gets; an end of text doesn't stop it.
        known: a prompt that the engine answers before, so that it is in the prefix cache.
        changes: fields of the engine's configuration that differ from the LLM's.
    """
    engine = llm.new_engine(changes=changes)
    params = SamplingParams(temperature=0, max_tokens=num_out, ignore_eos=True)
    if known is not None:
        answer(engine, engine.inputs.from_prompts([list(known)], params), False)
    trace: list[StepRecord] = []
    engine.step_trace = trace
    answer(engine, engine.inputs.from_prompts([list(p) for p in prompts], params), False)
    return Steps(
        [
            Step([part.num_new for part in step.tokens.values()], step.end - step.start)
            for step in trace
        ]
    )


def vllm_step_seconds(
    session: VllmSession, prompts: Sequence[Sequence[int]], num_out: int = 33, rounds: int = 3
) -> float:
    """Seconds of a decode step in vLLM: many tokens out, minus one token out, by the steps between.

    Args:
        session: with an engine that has started.
        prompts: token ids; all at once.
        num_out: tokens out of the longer run, at least 2.
        rounds: of each run the fastest counts.
    """
    if num_out < 2:
        raise ValueError(f"num_out must be at least 2, got {num_out}.")
    one, many = (
        min(session.generate(prompts, max_tokens=n, ignore_eos=True).seconds for _ in range(rounds))
        for n in (1, num_out)
    )
    return (many - one) / (num_out - 1)


def checkpoint_parts(folder: Path) -> dict[str, int]:
    """Bytes of a 4-bit checkpoint: tables that stay in 16 bits, packed weights, and the rest."""
    parts = {"embedding and output": 0, "4-bit weights": 0, "scales and the rest": 0}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                part = "4-bit weights" if name.endswith("qweight") else "scales and the rest"
                part = "embedding and output" if "embed" in name or "lm_head" in name else part
                parts[part] += tensors.get_tensor(name).nbytes
    return parts
