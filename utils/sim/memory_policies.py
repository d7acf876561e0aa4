"""How KV memory is given out, and in which of five states its slots are.

Every slot is in one of five states; the first four are those of the PagedAttention paper
(arXiv 2309.06180, section 3.1 and figure 3):

- used: holds keys and values of a token;
- reserved: will hold a token of the request that owns it, but does not yet;
- internal fragmentation: owned by a request that will end before it gets there;
- external fragmentation: lost by the placement. Either the chunk is larger than what the request
  asked for (the buddy system rounds up; textbooks on operating systems would say internal), or the
  slot is free, but in a piece too small for the next request;
- free: in a piece that is large enough for the next request, or no request is left to come.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from utils.sim.allocators import BuddyAllocator, FirstFitAllocator, next_power_of_two

STATES = ("used", "reserved", "internal", "external", "free")


@dataclass(frozen=True)
class Contiguous:
    """One chunk per request, taken when it is admitted.

    Attributes:
        reserve: slots asked for. "max": `max_model_len`. "pow2": the prompt, and the output length
            rounded up to a power of two, at most `max_model_len` in all. "oracle": what the request
            will need. These are Orca (Max), Orca (Pow2) and Orca (Oracle) of arXiv 2309.06180,
            section 6.1.
        placement: how a place is found for them.
        max_model_len: tokens that the longest request may have.

    Raises:
        ValueError: an argument is none of these.
    """

    reserve: Literal["max", "pow2", "oracle"]
    placement: Literal["first_fit", "buddy"] = "buddy"
    max_model_len: int = 2048

    def __post_init__(self) -> None:
        if self.reserve not in ("max", "pow2", "oracle"):
            raise ValueError(f'reserve must be "max", "pow2" or "oracle", not {self.reserve!r}')
        if self.placement not in ("first_fit", "buddy"):
            raise ValueError(f'placement must be "first_fit" or "buddy", not {self.placement!r}')
        if self.max_model_len < 1:
            raise ValueError(f"max_model_len must be at least 1, not {self.max_model_len}")

    def num_reserved(self, prompt_len: int, output_len: int) -> int:
        """Slots that a request asks for."""
        if self.reserve == "max":
            return self.max_model_len
        if self.reserve == "pow2":
            return min(prompt_len + next_power_of_two(output_len), self.max_model_len)
        return prompt_len + output_len - 1

    def empty_memory(self, num_slots: int) -> FirstFitAllocator | BuddyAllocator:
        """An allocator of this placement with nothing in it."""
        if self.placement == "first_fit":
            return FirstFitAllocator(num_slots)
        return BuddyAllocator(num_slots)


@dataclass(frozen=True)
class Paged:
    """Blocks of `block_size` slots anywhere in memory, taken when a token needs them.

    Raises:
        ValueError: `block_size` is not positive.
    """

    block_size: int = 16

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {self.block_size}")


Policy = Contiguous | Paged


@dataclass(frozen=True)
class MemoryUsage:
    """What memory held in each sampled step. All arrays are int64 `[num_samples]`.

    Attributes:
        num_slots: size of the memory, in tokens.
        steps: the sampled steps.
        num_running: requests in the batch.
        used, reserved, internal, external, free: slots in each state; they add up to `num_slots`.
        num_steps: steps until the last request was complete.
        num_preemptions: how often a request had to give its memory back before its end.
        num_discarded_tokens: tokens that memory held for those requests at that time, in all. Their
            keys and values must be computed again.
    """

    num_slots: int
    steps: np.ndarray
    num_running: np.ndarray
    used: np.ndarray
    reserved: np.ndarray
    internal: np.ndarray
    external: np.ndarray
    free: np.ndarray
    num_steps: int
    num_preemptions: int
    num_discarded_tokens: int

    def shares(self, first_step: float = 0, last_step: float = math.inf) -> dict[str, float]:
        """The mean share of each state in memory, over the samples from one step to another.

        Raises:
            ValueError: no sample lies between them.
        """
        chosen = self._between(first_step, last_step)
        return {name: float(getattr(self, name)[chosen].mean()) / self.num_slots for name in STATES}

    def mean_batch(self, first_step: float = 0, last_step: float = math.inf) -> float:
        """The mean number of running requests, over the same samples as `shares`."""
        return float(self.num_running[self._between(first_step, last_step)].mean())

    def _between(self, first_step: float, last_step: float) -> np.ndarray:
        chosen = (self.steps >= first_step) & (self.steps <= last_step)
        if not chosen.any():
            raise ValueError(f"no sample between steps {first_step} and {last_step}")
        return chosen


def check_trace(
    policy: Policy, prompts: list[int], outputs: list[int], arrivals: list[int], num_slots: int
) -> None:
    """Raise ValueError, naming the request, if a trace cannot run to its end under `policy`."""
    if not len(prompts) == len(outputs) == len(arrivals):
        raise ValueError(
            "prompt_lens, output_lens and arrival_steps must have the same length, not "
            f"{len(prompts)}, {len(outputs)} and {len(arrivals)}"
        )
    if any(late < early for early, late in itertools.pairwise(arrivals)):
        raise ValueError("arrival_steps must not descend: sort the trace by arrival")
    if isinstance(policy, Paged):
        largest = num_slots // policy.block_size * policy.block_size
    else:
        memory = policy.empty_memory(num_slots)
        largest = max(size for _, size in memory.holes())
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        if prompt < 1 or output < 1:
            raise ValueError(f"request {i}: lengths must be at least 1, not {prompt} and {output}")
        need = final = prompt + output - 1
        if isinstance(policy, Contiguous):
            if final > policy.max_model_len:
                raise ValueError(
                    f"request {i} grows to {final} tokens, more than max_model_len "
                    f"{policy.max_model_len}. Leave it out, or raise max_model_len"
                )
            need = memory.chunk_size(policy.num_reserved(prompt, output))
        if need > largest:
            raise ValueError(
                f"request {i} needs {need} slots, but the empty memory gives at most {largest} to "
                "one request. Leave it out, or give the memory more slots"
            )
