"""How much KV memory holds tokens, and how the rest is wasted, when a trace runs.

The simulated engine works in steps, one token per running request and step, and batches
continuously (notebook 06). In each step:

1. Requests that are complete leave, and their memory is freed.
2. Paged only: each running request that begins a new block gets one. If none is free, the request
   admitted last is preempted: its blocks are freed, and it waits again, before all others, until
   there is room for its prompt and for what it has written so far (recomputation; the same rule as
   in vLLM's scheduler). The time that recomputation takes is not simulated.
3. Waiting requests are admitted, first come first served, while the first in line finds room.

A request that is admitted holds its prompt in that step and one token more in each step after it.
It leaves with `prompt_len + output_len - 1` tokens, since no one needs keys and values of the very
last token.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

import numpy as np

from utils.sim.memory_policies import Contiguous, MemoryUsage, Paged, Policy, check_trace


def simulate(
    policy: Policy,
    prompt_lens: Sequence[int] | np.ndarray,
    output_lens: Sequence[int] | np.ndarray,
    num_slots: int,
    *,
    arrival_steps: Sequence[int] | np.ndarray | None = None,
    sample_every: int = 1,
) -> MemoryUsage:
    """Run a trace under one policy.

    Args:
        policy: how memory is given out.
        prompt_lens, output_lens: tokens of each request, at least 1, in order of arrival.
        num_slots: size of the memory, in tokens.
        arrival_steps: the step in which each request comes, ascending; by default all come at once.
        sample_every: every how many steps memory is looked at.

    Raises:
        ValueError: lengths below 1 or of different number, arrivals that descend, or a request that
            can never run, because it is longer than `max_model_len` or needs more than all memory.
    """
    prompts, outputs = np.asarray(prompt_lens).tolist(), np.asarray(output_lens).tolist()
    arrivals = [0] * len(prompts) if arrival_steps is None else np.asarray(arrival_steps).tolist()
    if sample_every < 1:
        raise ValueError(f"sample_every must be at least 1, not {sample_every}")
    check_trace(policy, prompts, outputs, arrivals, num_slots)
    trace = (prompts, outputs, arrivals)
    if isinstance(policy, Paged):
        return _simulate_paged(policy.block_size, *trace, num_slots, sample_every)
    return _simulate_contiguous(policy, *trace, num_slots, sample_every)


def _simulate_contiguous(
    policy: Contiguous,
    prompts: list[int],
    outputs: list[int],
    arrivals: list[int],
    num_slots: int,
    sample_every: int,
) -> MemoryUsage:
    """Jumps from one arrival or end to the next; between them all sums are known."""
    memory = policy.empty_memory(num_slots)
    ending: list[tuple[int, int, int]] = []  # heap of (step, first slot, request)
    head = 0  # the first request that was not admitted yet
    at_step_0 = 0  # sum of prompt - admission step: what the batch's tokens count back to
    final = asked = 0  # sums over the batch: tokens at the end, slots asked for
    rows: list[tuple[int, ...]] = []
    step = 0
    while True:
        while ending and ending[0][0] == step:
            _, start, i = heapq.heappop(ending)
            memory.free(start)
            at_step_0 -= prompts[i] - (step - outputs[i])
            final -= prompts[i] + outputs[i] - 1
            asked -= policy.num_reserved(prompts[i], outputs[i])
        if not ending and head == len(prompts):
            return _usage(num_slots, rows, step, num_preemptions=0, num_discarded_tokens=0)
        while head < len(prompts) and arrivals[head] <= step:
            need = policy.num_reserved(prompts[head], outputs[head])
            place = memory.allocate(need)
            if place is None:
                break
            heapq.heappush(ending, (step + outputs[head], place, head))
            at_step_0 += prompts[head] - step
            final += prompts[head] + outputs[head] - 1
            asked += need
            head += 1
        next_step = ending[0][0] if ending else arrivals[head]
        if head < len(prompts) and arrivals[head] > step:
            next_step = min(next_step, arrivals[head])
        samples = range(-(-step // sample_every) * sample_every, next_step, sample_every)
        if samples:
            need = 1
            if head < len(prompts):
                need = memory.chunk_size(policy.num_reserved(prompts[head], outputs[head]))
            free = sum(size for _, size in memory.holes() if size >= need)
            for s in samples:
                used = at_step_0 + len(ending) * s
                external = num_slots - free - asked
                rows.append((s, len(ending), used, final - used, asked - final, external, free))
        step = next_step


def _simulate_paged(
    block_size: int,
    prompts: list[int],
    outputs: list[int],
    arrivals: list[int],
    num_slots: int,
    sample_every: int,
) -> MemoryUsage:
    """Step by step, in constant time per step: every block is as good as any other, so only their
    number counts, and `begins` says how many requests need a block in which steps."""
    free = num_slots // block_size  # blocks
    running: dict[int, int] = {}  # request -> offset: it holds step + offset tokens
    begins = [0] * block_size  # [step % block_size] -> running requests that begin a block then
    ends: dict[int, list[int]] = {}  # step -> requests that leave
    preempted: deque[tuple[int, int]] = deque()  # (request, tokens that it held and wrote last)
    head = num_preemptions = num_discarded_tokens = step = 0
    rows: list[tuple[int, ...]] = []
    while True:
        for i in ends.pop(step, ()):
            offset = running.pop(i)
            begins[(1 - offset) % block_size] -= 1
            free += -(-(step - 1 + offset) // block_size)
        if not running and not preempted and head == len(prompts):
            return _usage(num_slots, rows, step, num_preemptions, num_discarded_tokens)
        need = begins[step % block_size]
        while need > free:
            i, offset = running.popitem()
            begins[(1 - offset) % block_size] -= 1
            need -= (step + offset - 1) % block_size == 0
            free += -(-(step - 1 + offset) // block_size)
            ends[prompts[i] + outputs[i] - offset].remove(i)
            preempted.appendleft((i, step + offset))
            num_preemptions += 1
            num_discarded_tokens += step - 1 + offset
        free -= need
        while preempted or (head < len(prompts) and arrivals[head] <= step):
            i, tokens = preempted[0] if preempted else (head, prompts[head])
            if -(-tokens // block_size) > free:
                break
            if preempted:
                preempted.popleft()
            else:
                head += 1
            free -= -(-tokens // block_size)
            offset = running[i] = tokens - step
            begins[(1 - offset) % block_size] += 1
            ends.setdefault(prompts[i] + outputs[i] - offset, []).append(i)
        next_step = step + 1
        if not running and not preempted and head < len(prompts):
            next_step = max(next_step, arrivals[head])
        for s in range(-(-step // sample_every) * sample_every, next_step, sample_every):
            used = sum(offset + s for offset in running.values())
            taken = num_slots // block_size - free
            # Slots of the last blocks that will be used: up to the end of the block or the request.
            reserved = -used
            for i, offset in running.items():
                owned = -(-(offset + s) // block_size) * block_size
                reserved += min(owned, prompts[i] + outputs[i] - 1)
            internal = taken * block_size - used - reserved
            external = num_slots % block_size
            rows.append((s, len(running), used, reserved, internal, external, free * block_size))
        step = next_step


def _usage(
    num_slots: int,
    rows: list[tuple[int, ...]],
    num_steps: int,
    num_preemptions: int,
    num_discarded_tokens: int,
) -> MemoryUsage:
    steps, num_running, *states = np.array(rows, dtype=np.int64).reshape(len(rows), 7).T
    used, reserved, internal, external, free = states
    return MemoryUsage(
        num_slots,
        steps,
        num_running,
        used,
        reserved,
        internal,
        external,
        free,
        num_steps,
        num_preemptions,
        num_discarded_tokens,
    )
