"""Right answers to lab 15, written differently, and wrong ones that are no edits of the right."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.kit.lab.edits import edited
from utils.checks.lab_15 import answers
from utils.checks.lab_15.real_ranks import Parts
from utils.engine.distributed.collectives import ring_all_gather, ring_reduce_scatter

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right


def neighbours(group):
    return (group.rank_in_group + 1) % group.world_size, (
        group.rank_in_group - 1
    ) % group.world_size


# 1 ring_reduce_scatter


@right("ring_reduce_scatter")
def send_while_receiving(group, chunks):
    """Odd ranks send first, even ranks receive first; the last rank of an odd ring, too."""
    size, (to, source) = group.world_size, neighbours(group)
    number = (group.rank_in_group - 1) % size
    total = chunks[number].clone()
    for _ in range(size - 1):
        number = (number - 1) % size
        came = torch.zeros_like(chunks[number])
        sending = group.isend(total, to)
        group.recv(came, source)
        sending.wait()
        total = came.add_(chunks[number])
    return total


@wrong("ring_reduce_scatter", "only to the next one")
def straight_to_its_owner(group, chunks):
    """No ring: each chunk goes to its owner at once."""
    rank, size = group.rank_in_group, group.world_size
    total, works, buffers = chunks[rank].clone(), [], []
    for other in range(size):
        if other != rank:
            buffers.append(torch.empty_like(total))
            works += [group.irecv(buffers[-1], other), group.isend(chunks[other], other)]
    for work in works:
        work.wait()
    return sum(buffers, total)


# 2 ring_all_gather


@right("ring_all_gather")
def by_number(group, own, like):
    everything = {group.rank_in_group: own}
    to, source = neighbours(group)
    holding = group.rank_in_group
    while len(everything) < group.world_size:
        coming = (holding - 1) % group.world_size
        buffer = torch.zeros_like(like[coming])
        works = group.isend(everything[holding], to), group.irecv(buffer, source)
        [work.wait() for work in works]
        everything[coming] = buffer
        holding = coming
    return [everything[i] for i in range(group.world_size)]


# 3 ring_all_reduce


@right("ring_all_reduce")
def padded(group, tensor):
    """Chunks of equal size, the last ones filled up with zeros."""
    size = group.world_size
    each = math.ceil(tensor.numel() / size)
    chunks = F.pad(tensor.reshape(-1), (0, each * size - tensor.numel())).view(size, each)
    own = ring_reduce_scatter(group, list(chunks))
    whole = torch.cat(ring_all_gather(group, own, list(chunks)))
    return whole[: tensor.numel()].reshape(tensor.shape)


@wrong("ring_all_reduce", "each has added up in another order")
def adds_up_at_home(group, tensor):
    """Passes whole tensors round; of two ranks that costs no more, and the order differs."""
    total, holding = tensor.clone(), tensor.contiguous()
    to, source = neighbours(group)
    for _ in range(group.world_size - 1):
        buffer = torch.empty_like(holding)
        works = group.isend(holding, to), group.irecv(buffer, source)
        [work.wait() for work in works]
        holding, total = buffer, total + buffer
    return total


# 4 shard_heads


@right("shard_heads")
def by_counting(num_heads, num_kv_heads, tp_rank, tp_size):
    shares = [0] * tp_size
    for head in range(num_kv_heads):
        shares[head % tp_size] += 1
    if min(shares) == 0:
        raise ValueError("too many ranks")
    ends = list(itertools.accumulate(shares))
    kv = range(ends[tp_rank] - shares[tp_rank], ends[tp_rank])
    per = num_heads // num_kv_heads
    return range(kv[0] * per, (kv[-1] + 1) * per), kv


# 5 shard_mlp


@right("shard_mlp")
def by_index(gate_up, down, tp_rank, tp_size):
    width = down.shape[1]
    columns = torch.tensor_split(torch.arange(width), tp_size)[tp_rank]
    return gate_up.view(2, width, -1)[:, columns].flatten(0, 1), down.index_select(1, columns)


# 6 row_parallel_linear


@right("row_parallel_linear")
class FromLinear(nn.Linear):
    def __init__(self, input_size, output_size, group):
        super().__init__(input_size, output_size, bias=False)
        self.group = group

    def forward(self, x):
        return self.group.all_reduce(x @ self.weight.T)


# 7 vocab_parallel_embedding


@right("vocab_parallel_embedding")
def token_by_token(input_ids, weight, vocabulary, group):
    found = weight.new_zeros(len(input_ids), weight.shape[1])
    for place, token in enumerate(input_ids.tolist()):
        if token in vocabulary:
            found[place] = weight[token - vocabulary.start]
    return group.all_reduce(found)


# 8 pipeline_idle_share


@right("pipeline_idle_share")
def slowest_decides(stage_seconds, num_micro_batches):
    """With equal micro-batches the slowest stage never waits once it has begun."""
    end = sum(stage_seconds) + (num_micro_batches - 1) * max(stage_seconds)
    idle = [end - num_micro_batches * seconds for seconds in stage_seconds]
    return sum(idle) / (end * len(stage_seconds))


# 9 expert_parallel


@right("expert_parallel")
def rank_by_rank(x, expert_ids, weights, run_expert, experts_per_rank, group):
    """Without sorting: for each rank the pairs (token, slot) that go there."""
    pairs = [(expert_ids // experts_per_rank == rank).nonzero() for rank in range(group.world_size)]
    counts = torch.tensor([[len(p)] for p in pairs])
    incoming = [int(n) for n in group.exchange_counts(counts)]
    rows = group.all_to_all([x[p[:, 0]] for p in pairs], incoming)
    ids = group.all_to_all([expert_ids[p[:, 0], p[:, 1]] for p in pairs], incoming)
    results = []
    for their_rows, their_ids in zip(rows, ids, strict=True):
        done = [run_expert(int(e), r[None]) for r, e in zip(their_rows, their_ids, strict=True)]
        results.append(torch.cat(done) if done else their_rows)
    y = torch.zeros_like(x)
    for p, came in zip(pairs, group.all_to_all(results, [len(p) for p in pairs]), strict=True):
        for (token, slot), row in zip(p.tolist(), came, strict=True):
            y[token] += weights[token, slot] * row
    return y


@wrong("expert_parallel", "which lives on rank")
def all_experts_here(x, expert_ids, weights, run_expert, experts_per_rank, group):
    y = torch.zeros_like(x)
    for token, slot in itertools.product(range(len(x)), range(expert_ids.shape[1])):
        y[token] += weights[token, slot] * run_expert(int(expert_ids[token, slot]), x[token])
    return y


# 10 sent_bytes


@right("sent_bytes")
def counted(num_layers, hidden_size, num_tokens, itemsize, tp_size, pp_size, stage):
    numbers = 0
    for _ in range(2 * num_layers // pp_size + (1 if stage == 0 else 0)):
        numbers += (num_tokens * hidden_size // tp_size) * (tp_size - 1) * 2
    if stage != pp_size - 1:
        numbers += num_tokens * hidden_size
    return numbers * itemsize


# 11 engine


@right("engine")
def other_parts():
    return Parts(padded, FromLinear, counted)


@wrong("engine", "Exercise 3", "not the whole sum")
def half_a_ring():
    whole = "return torch.cat(ring_all_gather(group, own, chunks)).view(tensor.shape)"
    return Parts(edited(answers.ring_all_reduce, [f"{whole} => return own"]), FromLinear, counted)


@wrong("engine", "Exercise 10", "The number of bytes is wrong")
def wrong_formula():
    return Parts(
        answers.ring_all_reduce, FromLinear, edited(answers.sent_bytes, [" * itemsize => "])
    )
