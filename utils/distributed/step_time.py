"""How long a step takes in a layout, at best: arithmetic, memory and links, by formula.

The model of Pope et al. 2022, "Efficiently Scaling Transformer Inference", arXiv 2211.05102,
sections 2 and 3: a rank reads its weights and the KV cache once in a step, computes meanwhile, and
waits for its links. Nothing else counts (no kernels' overheads, no overlap of links and compute),
so true times are longer, and ratios are what to look at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from utils.distributed.hardware import START_LATENCY, Cluster
from utils.distributed.layouts import Layout, Rank
from utils.distributed.shapes import Shape, mlp_parameters
from utils.distributed.traffic import Traffic, step_traffic


@dataclass(frozen=True)
class StepTime:
    """One step of a replica: seconds of each part, and what they mean.

    Attributes:
        memory: seconds to read weights and KV cache, all stages one after the other.
        arithmetic: seconds to compute, likewise.
        work: of each stage the longer of the two, added up: reading and computing overlap.
        communication: seconds on the links, by group ("tp", "pp", "ep").
        requests: how many requests of all replicas get a token by the step.
    """

    memory: float
    arithmetic: float
    work: float
    communication: Mapping[str, float]
    requests: int

    @property
    def seconds(self) -> float:
        """From the first stage's begin to the last one's end: a token's latency."""
        return self.work + sum(self.communication.values())

    @property
    def tokens_per_second(self) -> float:
        """Of all replicas. With PP every stage is busy: with another part of the requests."""
        return self.requests / self.seconds


def message_seconds(traffic: Traffic, cluster: Cluster) -> float:
    """Seconds that a rank waits for what it sends: calls x (start + hops x latency) + bytes."""
    link = cluster.link(traffic.span)
    wait = traffic.calls * (START_LATENCY + traffic.hops * link.latency)
    return wait + traffic.sent_bytes / link.bandwidth


def decode_step(
    shape: Shape,
    layout: Layout,
    cluster: Cluster,
    requests: int,
    context: int,
    itemsize: int = 2,
    weight_itemsize: float | None = None,
) -> StepTime:
    """Give every request of a replica its next token.

    Args:
        requests: of one replica. With PP they are divided into as many parts as there are stages,
            and each stage works on another part.
        context: tokens that a request has in the KV cache.
        itemsize: bytes of a number.
        weight_itemsize: bytes of a weight where that differs: 0.5 in 4 bits. The arithmetic stays
            in 16 bits.
    """
    batch = -(-requests // layout.pipeline_parallel_size)
    time = _pass(shape, layout, cluster, batch, batch * context, batch, itemsize, weight_itemsize)
    memory, arithmetic, work, communication = time
    total = requests * layout.data_parallel_size
    return StepTime(memory, arithmetic, work, communication, total)


def prefill(
    shape: Shape,
    layout: Layout,
    cluster: Cluster,
    prompt: int,
    micro_batches: int = 1,
    itemsize: int = 2,
    weight_itemsize: float | None = None,
) -> StepTime:
    """Compute the KV cache of one prompt, and its first token.

    Args:
        prompt: tokens.
        micro_batches: pieces into which it is cut (chunked prefill). With PP the stages work on
            different pieces at the same time, all but the bubble's share of the time.
        itemsize, weight_itemsize: as in `decode_step`.
    """
    piece = -(-prompt // micro_batches)
    # A piece looks at all before it: on average at half of the prompt.
    scores = piece * (prompt + 1) // 2
    time = _pass(shape, layout, cluster, piece, 0, 1, itemsize, weight_itemsize, scores=scores)
    # After the first piece has passed, another one is done whenever a stage is.
    stages = layout.pipeline_parallel_size
    rounds = (micro_batches + stages - 1) / stages
    memory, arithmetic, work, communication = time
    scaled = {group: rounds * seconds for group, seconds in communication.items()}
    return StepTime(
        rounds * memory, rounds * arithmetic, rounds * work, scaled, layout.data_parallel_size
    )


def _pass(
    shape: Shape,
    layout: Layout,
    cluster: Cluster,
    tokens: int,
    kv_tokens: int,
    sampled: int,
    itemsize: int,
    weight_itemsize: float | None = None,
    scores: int | None = None,
) -> tuple[float, float, float, dict[str, float]]:
    """Some tokens of a replica, through all stages.

    Args:
        kv_tokens: tokens in the KV cache that are read.
        sampled: for how many tokens logits are computed.
        scores: pairs of a token and one that it looks at; `kv_tokens` where each is looked at once.
    """
    memory, arithmetic, work = 0.0, 0.0, 0.0
    communication: dict[str, float] = {}
    for stage in range(layout.pipeline_parallel_size):
        rank = Rank(shape, layout, 0, stage, 0)  # the first has the largest share of everything
        read = _bytes_read(
            rank, tokens, weight_itemsize or itemsize
        ) + kv_tokens * rank.kv_bytes_per_token(itemsize)
        compute = _flops(rank, tokens, sampled, kv_tokens if scores is None else scores, kv_tokens)
        memory += read / cluster.gpu.bandwidth
        arithmetic += compute / cluster.gpu.flops
        work += max(read / cluster.gpu.bandwidth, compute / cluster.gpu.flops)
        sender = Rank(shape, layout, layout.tensor_parallel_size - 1, stage, 0)
        for part in step_traffic(sender, tokens, sampled, itemsize):
            seconds = communication.get(part.group, 0.0) + message_seconds(part, cluster)
            communication[part.group] = seconds
    return memory, arithmetic, work, communication


def _bytes_read(rank: Rank, tokens: int, itemsize: float) -> float:
    """Weights that a step reads: all but the embeddings' table and experts that nobody chose."""
    shape = rank.shape
    total: float = sum(rank.layer_parameters(layer, with_experts=False) for layer in rank.layers)
    moe_layers = sum(shape.is_moe(layer) for layer in rank.layers)
    if moe_layers:
        everybody = tokens * rank.layout.data_parallel_size
        missed = (1 - shape.num_experts_per_tok / shape.num_experts) ** everybody
        total += moe_layers * rank.expert_parameters() * (1 - missed)
    if rank.is_last_stage:
        total += rank.columns(shape.vocab_size) * shape.hidden_size
    return total * itemsize


def _flops(rank: Rank, tokens: int, sampled: int, scores: int, kv_tokens: int) -> float:
    """Two operations for each parameter and token, and four for each number of a looked-at key.

    (One multiplication and one addition; with the key, and again with the value.)
    """
    shape, layout = rank.shape, rank.layout
    dense = sum(rank.layer_parameters(layer, with_experts=False) for layer in rank.layers)
    total = 2.0 * tokens * dense
    moe_layers = sum(shape.is_moe(layer) for layer in rank.layers)
    if moe_layers:
        visits = tokens * layout.data_parallel_size * shape.num_experts_per_tok
        one = mlp_parameters(shape, shape.moe_intermediate_size) / layout.expert_ranks
        total += 2.0 * visits * one * moe_layers
    if rank.is_last_stage:
        total += 2.0 * sampled * rank.columns(shape.vocab_size) * shape.hidden_size
    if shape.is_mla and kv_tokens:
        # A decode step stays in the latent space: every head looks at the one cached vector, and
        # sums its latent part (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
        per_head = 2 * (2 * shape.kv_lora_rank + shape.qk_rope_head_dim)
    elif shape.is_mla:
        per_head = 2 * (shape.head_dim + shape.qk_rope_head_dim + shape.v_head_dim)
    else:
        per_head = 4 * shape.head_dim
    return total + float(scores) * per_head * rank.num_heads * len(rank.layers)
