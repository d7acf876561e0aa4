"""What each single slot of a small KV memory holds, step by step: for pictures.

The same engine as in `utils.sim.memory_waste`, simulated the slow and obvious way: every slot and
every token is followed. It also knows which blocks a paged request owns, which the fast simulator
has no need to know.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from utils.sim.allocators import next_power_of_two
from utils.sim.memory_policies import STATES, Contiguous, Paged, Policy, check_trace

USED, RESERVED, INTERNAL, EXTERNAL, FREE = range(len(STATES))
NOBODY = -1


@dataclass(frozen=True)
class MemoryMap:
    """States and owners of all slots in all steps.

    Attributes:
        states: indices into `STATES`, `[num_steps, num_slots]`.
        owners: the request that owns the slot, or -1, `[num_steps, num_slots]`.
        num_running: requests in the batch, `[num_steps]`.
        num_preemptions: how often a request had to give its memory back before its end.
    """

    states: np.ndarray
    owners: np.ndarray
    num_running: np.ndarray
    num_preemptions: int

    def count(self, state: str) -> np.ndarray:
        """Slots in a state, int64 `[num_steps]`.

        Raises:
            ValueError: no state has that name.
        """
        if state not in STATES:
            raise ValueError(f"state must be one of {STATES}, not {state!r}")
        return (self.states == STATES.index(state)).sum(axis=1)


def as_text(memory: MemoryMap, names: Sequence[str]) -> list[str]:
    """One line per step, a character per slot, as notebook 03 writes them.

    A capital letter holds a token, a small one is reserved, `-` is internal fragmentation, and `.`
    belongs to nobody.

    Args:
        memory: from `map_memory`.
        names: a letter for each request.
    """

    def character(state: int, owner: int) -> str:
        if owner == NOBODY:
            return "."
        name = names[owner]
        return {USED: name.upper(), RESERVED: name.lower()}.get(state, "-")

    return [
        "".join(character(s, o) for s, o in zip(states, owners, strict=True))
        for states, owners in zip(memory.states.tolist(), memory.owners.tolist(), strict=True)
    ]


def map_memory(
    policy: Policy,
    prompt_lens: Sequence[int],
    output_lens: Sequence[int],
    num_slots: int,
    *,
    arrival_steps: Sequence[int] | None = None,
) -> MemoryMap:
    """Run a small trace to its end; arguments and errors as in `memory_waste.simulate`."""
    arrivals = [0] * len(prompt_lens) if arrival_steps is None else list(arrival_steps)
    check_trace(policy, list(prompt_lens), list(output_lens), arrivals, num_slots)
    engine = _Engine(policy, num_slots, prompt_lens, output_lens)
    states, owners, num_running = [], [], []
    while engine.begin_step(arrivals):
        states.append(engine.states())
        owners.append(engine.owners())
        num_running.append(len(engine.running))
    return MemoryMap(
        np.array(states).reshape(-1, num_slots),
        np.array(owners).reshape(-1, num_slots),
        np.array(num_running),
        engine.num_preemptions,
    )


@dataclass
class _Request:
    number: int
    num_tokens: int  # that memory holds, or will hold once it is admitted
    final_len: int
    num_reserved: int
    slots: list[int]  # in the order in which tokens fill them


class _Engine:
    def __init__(
        self, policy: Policy, num_slots: int, prompts: Sequence[int], outputs: Sequence[int]
    ) -> None:
        self.policy, self.num_slots = policy, num_slots
        self.running: list[_Request] = []
        self.waiting: list[_Request] = []
        self.num_preemptions = 0
        self.step = -1
        for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            reserved = 0 if isinstance(policy, Paged) else policy.num_reserved(prompt, output)
            request = _Request(number, prompt, prompt + output - 1, reserved, slots=[])
            self.waiting.append(request)

    def begin_step(self, arrivals: list[int]) -> bool:
        """Free, grow and admit, as `memory_waste` says; False if nothing is left to do."""
        self.step += 1
        self.running = [r for r in self.running if r.num_tokens < r.final_len]
        for request in self.running:
            request.num_tokens += 1
        if isinstance(self.policy, Paged):
            self._grow()
        while self.waiting:
            request = self.waiting[0]
            if arrivals[request.number] > self.step or not self._place(request):
                break
            self.running.append(self.waiting.pop(0))
        return bool(self.running or self.waiting)

    def _grow(self) -> None:
        """A block for every request that needs one, by preempting from the end if need be."""
        position = 0
        while position < len(self.running):
            if self._place(self.running[position]):
                position += 1
            else:
                last = self.running.pop()
                last.slots = []
                self.waiting.insert(0, last)
                self.num_preemptions += 1

    def _place(self, request: _Request) -> bool:
        """Give a request the slots that it needs now, if there are enough."""
        holes = self._holes()
        if isinstance(self.policy, Paged):
            missing = max(0, request.num_tokens - len(request.slots))
            num_blocks = -(-missing // self.policy.block_size)
            if num_blocks > len(holes):
                return False
            request.slots += [slot for block in holes[:num_blocks] for slot in block]
            return True
        size = self._piece(request)
        holes = [hole for hole in holes if len(hole) >= size]
        if not holes:
            return False
        if self.policy.placement == "buddy":
            holes.sort(key=len)  # stable: the lowest of the smallest comes first
        request.slots = holes[0][:size]
        return True

    def _piece(self, request: _Request) -> int:
        """The slots in one piece that a request needs to begin."""
        if isinstance(self.policy, Paged):
            return self.policy.block_size
        if self.policy.placement == "buddy":
            return next_power_of_two(request.num_reserved)
        return request.num_reserved

    def _holes(self) -> list[list[int]]:
        """The free pieces, lowest first, each the list of its slots."""
        free = self.owners() == NOBODY
        if isinstance(self.policy, Contiguous) and self.policy.placement == "first_fit":
            runs = itertools.groupby(range(self.num_slots), key=free.__getitem__)
            return [list(run) for is_free, run in runs if is_free]
        sizes = [2**k for k in reversed(range(self.num_slots.bit_length()))]
        if isinstance(self.policy, Paged):
            sizes = [self.policy.block_size]
        holes = []
        for size in sizes:  # the largest pieces first; what they cover is not looked at again
            for start in range(0, self.num_slots - size + 1, size):
                if free[start : start + size].all():
                    free[start : start + size] = False
                    holes.append(list(range(start, start + size)))
        return sorted(holes)

    def owners(self) -> np.ndarray:
        owners = np.full(self.num_slots, NOBODY)
        for request in self.running:
            owners[request.slots] = request.number
        return owners

    def states(self) -> np.ndarray:
        states = np.full(self.num_slots, EXTERNAL)
        for request in self.running:
            # A paged request asked for every slot of its blocks.
            asked = request.num_reserved or len(request.slots)
            for place, slot in enumerate(request.slots):
                if place < request.num_tokens:
                    states[slot] = USED
                elif place < request.final_len:
                    states[slot] = RESERVED
                elif place < asked:
                    states[slot] = INTERNAL
        enough = self._piece(self.waiting[0]) if self.waiting else 1
        for hole in self._holes():
            if len(hole) >= enough:
                states[hole] = FREE
        return states
