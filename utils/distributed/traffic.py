"""Who sends how many bytes to whom in one step, by formula.

Groups and operations bear the names under which the engine's `GroupCoordinator` counts them, so
that a prediction and a count can be laid side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from utils.distributed.layouts import Rank
from utils.engine.distributed.shard import partition
from utils.engine.distributed.worker import StageRun


@dataclass(frozen=True)
class Traffic:
    """What one rank sends in one step, of one kind.

    Attributes:
        group: "tp", "pp" or "ep".
        operation: "all_reduce", "gather", "send", "all_gather", "reduce_scatter" or "all_to_all".
        calls: how often in the step.
        sent_bytes: in all calls together. Of an all-to-all: expected, if all experts are chosen
            equally often.
        hops: messages of one call that wait for each other.
        span: among how many neighbouring ranks of the cluster it happens.
    """

    group: str
    operation: str
    calls: int
    sent_bytes: float
    hops: int
    span: int


def ring_all_reduce_bytes(numel: int, itemsize: int, world_size: int, rank: int) -> int:
    """What a rank sends when a ring adds up everybody's tensor of `numel` numbers.

    The tensor is cut into as many chunks as there are ranks. In the reduce-scatter a rank passes
    on every chunk but the one that it keeps, its own; in the all-gather every chunk but the next
    rank's, which comes to it last. Where the chunks are equal that is `2 (N - 1) / N` of the
    tensor: Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", section 3.
    """
    kept = sum(len(partition(numel, world_size, i % world_size)) for i in (rank, rank + 1))
    return (2 * numel - kept) * itemsize if world_size > 1 else 0


def step_traffic(rank: Rank, tokens: int, sampled: int, itemsize: int = 2) -> list[Traffic]:
    """What a rank sends while its replica runs `tokens` tokens through the model.

    - TP adds up partial sums twice in each layer (after attention and after the MLP), and once for
      the embeddings, of which each rank has some: Megatron-LM, arXiv 1909.08053, section 3. The
      scores of the `sampled` tokens go to the group's first rank.
    - PP sends the hidden states of all tokens to the next stage.
    - Where replicas share the experts of an MoE, tokens travel to their experts, and back: see
      `expert_traffic`.
    - DP by itself sends nothing.
    """
    shape, layout = rank.shape, rank.layout
    tp, span = layout.tensor_parallel_size, layout.tensor_parallel_size
    hidden_bytes = tokens * shape.hidden_size * itemsize
    found = []
    if tp > 1:
        shared_moe = layout.data_parallel_size > 1
        calls = int(rank.is_first_stage)
        for layer in rank.layers:
            # An MoE layer of several replicas has an exchange of its own.
            calls += 1 if shape.is_moe(layer) and shared_moe else 2
        each = ring_all_reduce_bytes(tokens * shape.hidden_size, itemsize, tp, rank.tp)
        found.append(Traffic("tp", "all_reduce", calls, calls * each, 2 * (tp - 1), span))
        if rank.is_last_stage:
            scores = sampled * rank.columns(shape.vocab_size) * itemsize if rank.tp else 0
            found.append(Traffic("tp", "gather", 1, scores, 1, span))
    if not rank.is_last_stage:
        # The next stage is `tp` ranks further; the slowest link between any two stages counts.
        stages = tp * layout.pipeline_parallel_size
        found.append(Traffic("pp", "send", 1, hidden_bytes, 1, stages))
    moe_layers = sum(shape.is_moe(layer) for layer in rank.layers)
    if moe_layers and layout.data_parallel_size > 1:
        found += expert_traffic(rank, moe_layers, hidden_bytes)
    return found


def expert_traffic(rank: Rank, moe_layers: int, hidden_bytes: int) -> list[Traffic]:
    """What a rank sends in its MoE layers, where several replicas share the experts.

    With expert parallel, each of a replica's `tp` ranks sends its share of the tokens to the ranks
    of the experts that they chose (dispatch), and gets results back (combine): two all-to-alls of
    `top_k` copies, of which all but 1 / N leave the rank. GShard, arXiv 2006.16668, section 3.2.
    The replica's ranks then tell each other the results.

    Without it every rank has a slice of every expert, so every rank needs every token: all tokens
    go to all replicas (all-gather), partial sums come back (reduce-scatter), and the slices of a
    replica's ranks are added up (all-reduce).
    """
    layout, shape = rank.layout, rank.shape
    tp, dp, ranks = layout.tensor_parallel_size, layout.data_parallel_size, layout.expert_ranks
    world, found = layout.world_size, []
    if layout.enable_expert_parallel:
        copies = shape.num_experts_per_tok * (ranks - 1) / ranks
        one_way = hidden_bytes / tp * copies
        found.append(
            Traffic("ep", "all_to_all", 2 * moe_layers, 2 * moe_layers * one_way, 1, world)
        )
        if tp > 1:
            back = (tp - 1) * hidden_bytes / tp
            found.append(Traffic("tp", "all_gather", moe_layers, moe_layers * back, tp - 1, tp))
        return found
    others = (dp - 1) * hidden_bytes * moe_layers
    found.append(Traffic("ep", "all_gather", moe_layers, others, dp - 1, world))
    found.append(Traffic("ep", "reduce_scatter", moe_layers, others, dp - 1, world))
    if tp > 1:
        each = 2 * (tp - 1) / tp * hidden_bytes
        found.append(Traffic("tp", "all_reduce", moe_layers, moe_layers * each, 2 * (tp - 1), tp))
    return found


def bytes_by_operation(traffic: list[Traffic]) -> dict[tuple[str, str], float]:
    """Sent bytes by (group, operation), without what is nothing."""
    sums: dict[tuple[str, str], float] = {}
    for part in traffic:
        key = (part.group, part.operation)
        sums[key] = sums.get(key, 0) + part.sent_bytes
    return {key: value for key, value in sums.items() if value}


def bubble(num_stages: int, num_micro_batches: int) -> float:
    """The share of a pipeline's time in which a stage waits: (p - 1) / (m + p - 1).

    The last stage can begin when the first micro-batch has passed the `p - 1` before it, and the
    first is done that much earlier. GPipe, arXiv 1811.06965, section 2.3.
    """
    if num_stages < 1 or num_micro_batches < 1:
        raise ValueError(
            f"Stages and micro-batches must be at least 1, got {num_stages}, {num_micro_batches}."
        )
    return (num_stages - 1) / (num_micro_batches + num_stages - 1)


def pipeline_schedule(
    num_stages: int, num_micro_batches: int, seconds: float = 1.0
) -> list[StageRun]:
    """When each stage works on each micro-batch, if all take equally long and links no time."""
    return [
        StageRun(stage, i, (stage + i) * seconds, (stage + i + 1) * seconds)
        for stage in range(num_stages)
        for i in range(num_micro_batches)
    ]


def micro_batch_steps(
    num_stages: int, num_micro_batches: int, steps: int, seconds: float = 1.0
) -> list[StageRun]:
    """Several steps, each cut into micro-batches: a step begins when the one before has ended."""
    one = pipeline_schedule(num_stages, num_micro_batches, seconds)
    length = (num_stages + num_micro_batches - 1) * seconds
    return [
        StageRun(run.stage, run.micro_batch, run.begin + i * length, run.end + i * length)
        for i in range(steps)
        for run in one
    ]


def batches_in_flight(num_stages: int, steps: int, seconds: float = 1.0) -> list[StageRun]:
    """Several steps of as many batches as stages, each of other requests.

    A batch begins its next step when its own tokens are known, whatever the others do. In vLLM:
    `EngineCore.step_with_batch_queue`.
    """
    return [
        StageRun(
            stage,
            batch,
            (i * num_stages + batch + stage) * seconds,
            (i * num_stages + batch + stage + 1) * seconds,
        )
        for i in range(steps)
        for batch in range(num_stages)
        for stage in range(num_stages)
    ]
