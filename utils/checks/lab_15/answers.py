"""One right answer for each exercise of lab 15, as in the solution. Mistakes are edits of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.engine.distributed.parallel_state import GroupCoordinator


def ring_reduce_scatter(group: GroupCoordinator, chunks: Sequence[Tensor]) -> Tensor:
    rank, size = group.rank_in_group, group.world_size
    travelling = chunks[(rank - 1) % size]
    for step in range(size - 1):
        own = chunks[(rank - 2 - step) % size]  # the same chunk that comes now
        buffer = torch.empty_like(own)
        works = [group.irecv(buffer, (rank - 1) % size), group.isend(travelling, (rank + 1) % size)]
        for work in works:
            work.wait()
        travelling = own + buffer
    return travelling


def ring_all_gather(group: GroupCoordinator, own: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    rank, size = group.rank_in_group, group.world_size
    gathered = [torch.empty_like(shape) for shape in like]
    gathered[rank] = own
    for step in range(size - 1):
        incoming = group.irecv(gathered[(rank - step - 1) % size], (rank - 1) % size)
        outgoing = group.isend(gathered[(rank - step) % size], (rank + 1) % size)
        incoming.wait()
        outgoing.wait()
    return gathered


def ring_all_reduce(group: GroupCoordinator, tensor: Tensor) -> Tensor:
    chunks = tensor.flatten().tensor_split(group.world_size)
    own = ring_reduce_scatter(group, chunks)
    return torch.cat(ring_all_gather(group, own, chunks)).view(tensor.shape)


def shard_heads(
    num_heads: int, num_kv_heads: int, tp_rank: int, tp_size: int
) -> tuple[range, range]:
    if tp_size > num_kv_heads:
        raise ValueError(f"{num_kv_heads} KV heads cannot be divided among {tp_size} ranks.")
    each, more = divmod(num_kv_heads, tp_size)
    start = tp_rank * each + min(tp_rank, more)
    stop = start + each + (tp_rank < more)
    group_size = num_heads // num_kv_heads
    return range(start * group_size, stop * group_size), range(start, stop)


def shard_mlp(gate_up: Tensor, down: Tensor, tp_rank: int, tp_size: int) -> tuple[Tensor, Tensor]:
    gate, up = gate_up.chunk(2)
    mine = [part.tensor_split(tp_size)[tp_rank] for part in (gate, up)]
    return torch.cat(mine), down.tensor_split(tp_size, dim=1)[tp_rank]


class RowParallelLinear(nn.Module):
    def __init__(self, input_size: int, output_size: int, group: GroupCoordinator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(output_size, input_size))
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        return self.group.all_reduce(F.linear(x, self.weight))


def vocab_parallel_embedding(
    input_ids: Tensor, weight: Tensor, vocabulary: range, group: GroupCoordinator
) -> Tensor:
    local = input_ids - vocabulary.start
    elsewhere = (local < 0) | (local >= len(vocabulary))
    found = weight[local.masked_fill(elsewhere, 0)]
    return group.all_reduce(found.masked_fill(elsewhere[:, None], 0.0))


def pipeline_idle_share(stage_seconds: Sequence[float], num_micro_batches: int) -> float:
    free_at = [0.0] * len(stage_seconds)  # when each stage has finished its last micro-batch
    for _ in range(num_micro_batches):
        arrived = 0.0
        for stage, seconds in enumerate(stage_seconds):
            free_at[stage] = arrived = max(arrived, free_at[stage]) + seconds
    work = num_micro_batches * sum(stage_seconds)
    return 1 - work / (len(stage_seconds) * free_at[-1])


def expert_parallel(
    x: Tensor,
    expert_ids: Tensor,
    weights: Tensor,
    run_expert: Callable[[int, Tensor], Tensor],
    experts_per_rank: int,
    group: GroupCoordinator,
) -> Tensor:
    size, top_k = group.world_size, expert_ids.shape[1]
    flat = expert_ids.flatten()
    order = flat.argsort(stable=True)  # sorted by expert, so also by rank
    owner = flat[order] // experts_per_rank
    counts = torch.bincount(owner, minlength=size)
    num_in = group.exchange_counts(counts[:, None]).flatten().tolist()
    num_out = counts.tolist()
    # Dispatch: the rows, and which expert each of them wants.
    ids = torch.cat(group.all_to_all(flat[order].split(num_out), num_in))
    rows = torch.cat(group.all_to_all(x[order // top_k].split(num_out), num_in))
    done = torch.empty_like(rows)
    for expert in ids.unique().tolist():
        done[ids == expert] = run_expert(expert, rows[ids == expert])
    # Combine: back to where they came from, in the order in which they were sent.
    results = torch.cat(group.all_to_all(done.split(num_in), num_out))
    results = results * weights.flatten()[order, None]
    return torch.zeros_like(x).index_add_(0, order // top_k, results)


def sent_bytes(
    num_layers: int,
    hidden_size: int,
    num_tokens: int,
    itemsize: int,
    tp_size: int,
    pp_size: int,
    stage: int,
) -> int:
    payload = num_tokens * hidden_size * itemsize
    all_reduces = 2 * (num_layers // pp_size) + (stage == 0)
    sent = all_reduces * 2 * (tp_size - 1) * (payload // tp_size)
    return sent + (payload if stage < pp_size - 1 else 0)
