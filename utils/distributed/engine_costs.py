"""What the course's own engine must hold and send in a layout: exact, to be compared with counts.

`LLM.collective_rpc("memory")` and `("sent_bytes")` are the counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from utils.distributed.layouts import Layout, Rank, all_ranks
from utils.distributed.shapes import Shape
from utils.distributed.traffic import bytes_by_operation, step_traffic
from utils.engine.config.model import ModelConfig

COUNT_BYTES = 8  # of a number of rows, as one rank tells it another


def engine_ranks(
    config: ModelConfig, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1
) -> list[Rank]:
    """The ranks of one engine. Unlike vLLM's, they may have different numbers of heads."""
    layout = Layout(tensor_parallel_size, pipeline_parallel_size, uneven=True)
    return all_ranks(Shape.of(config), layout)


def engine_memory(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    itemsize: int,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> list[tuple[int, int]]:
    """Bytes of weights and of KV cache, of each rank."""
    ranks = engine_ranks(config, tensor_parallel_size, pipeline_parallel_size)
    slots = num_blocks * block_size
    return [
        (rank.num_parameters() * itemsize, slots * rank.kv_bytes_per_token(itemsize))
        for rank in ranks
    ]


def engine_sent_bytes(
    config: ModelConfig,
    passes: Sequence[tuple[int, int]],
    itemsize: int,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> list[dict[tuple[str, str], float]]:
    """Bytes that each rank sends, by group and operation.

    Args:
        passes: of each pass through the model, its tokens, and for how many of them logits are
            computed.
        itemsize: bytes of a number.
    """
    sums: list[dict[tuple[str, str], float]] = []
    for rank in engine_ranks(config, tensor_parallel_size, pipeline_parallel_size):
        sent: dict[tuple[str, str], float] = {}
        for tokens, sampled in passes:
            for key, value in bytes_by_operation(
                step_traffic(rank, tokens, sampled, itemsize)
            ).items():
                sent[key] = sent.get(key, 0) + value
        sums.append(sent)
    return sums


def expert_sent_bytes(
    routed: Sequence[Tensor], num_passes: int, hidden_size: int, itemsize: int
) -> list[dict[str, int]]:
    """Bytes that each of the ranks that share experts sends, by operation.

    Before each exchange a rank tells each other one how many rows come for each of its experts.
    The rows go out, and as many results come back.

    Args:
        routed: of each rank, the rows that it sent to each expert: [layers, experts].
        num_passes: how often every rank went through the layers, dummy batches included.
        hidden_size: numbers of a row.
        itemsize: bytes of a number.
    """
    size = len(routed)
    layers, experts = routed[0].shape
    per_rank = experts // size
    by_rank = [counts.view(layers, size, per_rank).sum((0, 2)).tolist() for counts in routed]
    sent = []
    for rank in range(size):
        others = [other for other in range(size) if other != rank]
        rows = sum(by_rank[rank][other] + by_rank[other][rank] for other in others)
        told = num_passes * layers * len(others) * per_rank * COUNT_BYTES
        sent.append({"all_to_all": rows * hidden_size * itemsize, "counts": told})
    return sent
