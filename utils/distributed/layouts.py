"""A model over many GPUs: what each rank holds.

Tensor parallel (TP) cuts every matrix: Shoeybi et al. 2019, "Megatron-LM", arXiv 1909.08053,
section 3. Pipeline parallel (PP) gives each stage some layers: Huang et al. 2019, "GPipe", arXiv
1811.06965. Data parallel (DP) has replicas with requests of their own. Expert parallel (EP) deals
the experts of an MoE out to all ranks of all replicas: Lepikhin et al. 2020, "GShard", arXiv
2006.16668. Sizes and options are vLLM's (`vllm.config.ParallelConfig`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from utils.distributed.hardware import Gpu
from utils.distributed.shapes import (
    Shape,
    attention_parameters,
    mlp_parameters,
    norm_and_router_parameters,
)
from utils.engine.distributed.shard import get_pp_indices, partition

# Of a card's memory; the rest is for activations and the runtime. vLLM's default.
GPU_MEMORY_UTILIZATION = 0.92


@dataclass(frozen=True)
class Layout:
    """How many ranks share what. Ranks are numbered as in vLLM: TP first, then PP, then DP.

    Attributes:
        tensor_parallel_size: ranks that hold parts of the same matrices.
        pipeline_parallel_size: stages, which hold successive layers.
        data_parallel_size: replicas, which work on requests of their own.
        enable_expert_parallel: an MoE's experts stay whole, and every TP rank of every replica
            holds some of them. Else each expert is cut, over the same ranks.
        uneven: let ranks have different numbers of heads, as the course's engine does. vLLM
            refuses what does not divide.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    uneven: bool = False

    def __post_init__(self) -> None:
        sizes = (self.tensor_parallel_size, self.pipeline_parallel_size, self.data_parallel_size)
        if min(sizes) < 1:
            raise ValueError(f"Sizes of TP, PP and DP must be at least 1, got {sizes}.")

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def expert_ranks(self) -> int:
        """Over how many ranks an MoE layer's experts are spread, whole or cut."""
        return self.tensor_parallel_size * self.data_parallel_size

    def __str__(self) -> str:
        sizes = {
            "TP": self.tensor_parallel_size,
            "PP": self.pipeline_parallel_size,
            "DP": self.data_parallel_size,
        }
        parts = [f"{name}={size}" for name, size in sizes.items() if size > 1]
        parts += ["EP"] if self.enable_expert_parallel else []
        return " ".join(parts) or "one GPU"


@dataclass(frozen=True)
class Rank:
    """One rank's place in a layout, and its share of a model.

    Args:
        tp, pp, dp: its numbers in its groups, from 0.
    """

    shape: Shape
    layout: Layout
    tp: int = 0
    pp: int = 0
    dp: int = 0

    @cached_property
    def layers(self) -> range:
        stages = self.layout.pipeline_parallel_size
        return range(*get_pp_indices(self.shape.num_hidden_layers, self.pp, stages))

    @cached_property
    def num_kv_heads(self) -> int:
        """KV heads of its layers. Where ranks outnumber them, several hold the same one."""
        heads, ranks = self.shape.num_key_value_heads, self.layout.tensor_parallel_size
        if self.layout.uneven:
            return len(partition(heads, ranks, self.tp))
        return max(1, heads // ranks)

    @cached_property
    def num_heads(self) -> int:
        """Query heads. Those of a group stay with the KV head that they share."""
        heads, ranks = self.shape.num_attention_heads, self.layout.tensor_parallel_size
        if self.layout.uneven:
            return self.num_kv_heads * (heads // self.shape.num_key_value_heads)
        return heads // ranks

    @property
    def is_first_stage(self) -> bool:
        return self.pp == 0

    @property
    def is_last_stage(self) -> bool:
        return self.pp == self.layout.pipeline_parallel_size - 1

    def columns(self, width: int) -> int:
        """Its share of a matrix with `width` columns: of the MLP, or of the vocabulary."""
        return len(partition(width, self.layout.tensor_parallel_size, self.tp))

    def num_experts(self) -> int:
        """Whole experts of each MoE layer that it holds, under expert parallel."""
        position = self.dp * self.layout.tensor_parallel_size + self.tp
        return len(partition(self.shape.num_experts, self.layout.expert_ranks, position))

    def expert_parameters(self) -> int:
        """Parameters of its experts, or parts of experts, in one MoE layer."""
        shape, width = self.shape, self.shape.moe_intermediate_size
        if self.layout.enable_expert_parallel:
            return self.num_experts() * mlp_parameters(shape, width)
        position = self.dp * self.layout.tensor_parallel_size + self.tp
        share = len(partition(width, self.layout.expert_ranks, position))
        return shape.num_experts * mlp_parameters(shape, share)

    def layer_parameters(self, layer: int, with_experts: bool = True) -> int:
        """Parameters of a layer that this rank holds."""
        shape = self.shape
        total = attention_parameters(shape, self.num_heads, self.num_kv_heads)
        total += norm_and_router_parameters(shape, layer)
        if not shape.is_moe(layer):
            return total + mlp_parameters(shape, self.columns(shape.intermediate_size))
        shared = shape.num_shared_experts * shape.moe_intermediate_size
        total += mlp_parameters(shape, self.columns(shared)) if shared else 0
        return total + (self.expert_parameters() if with_experts else 0)

    def embedding_parameters(self) -> int:
        """Its part of the vocabulary, in the first stage, and for the logits in the last."""
        one = self.columns(self.shape.vocab_size) * self.shape.hidden_size
        if self.is_first_stage and self.is_last_stage and self.shape.tie_word_embeddings:
            return one  # both are one matrix
        return one * (self.is_first_stage + self.is_last_stage)

    def num_parameters(self) -> int:
        """All that this rank holds."""
        total = sum(self.layer_parameters(layer) for layer in self.layers)
        last_norm = self.shape.hidden_size if self.is_last_stage else 0
        return total + self.embedding_parameters() + last_norm

    def kv_bytes_per_token(self, itemsize: int = 2) -> int:
        """Bytes that a token of one of its requests takes in its KV cache.

        2 (K, V) x its layers x its KV heads x head_dim x itemsize. MLA's one vector serves all
        heads, so every rank of a TP group keeps all of it.
        """
        if self.shape.is_mla:
            width = self.shape.kv_lora_rank + self.shape.qk_rope_head_dim
        else:
            width = 2 * self.num_kv_heads * self.shape.head_dim
        return len(self.layers) * width * itemsize


def all_ranks(shape: Shape, layout: Layout) -> list[Rank]:
    """Every rank, in the order of their numbers in the world."""
    return [
        Rank(shape, layout, tp, pp, dp)
        for dp in range(layout.data_parallel_size)
        for pp in range(layout.pipeline_parallel_size)
        for tp in range(layout.tensor_parallel_size)
    ]


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest card of a layout, and what they leave room for.

    Attributes:
        weights: bytes of parameters.
        kv_per_token: bytes of KV cache for each token of a request of this rank's replica.
        usable: bytes that the engine may take of the card.
        tokens: how many tokens of KV cache fit beside the weights, in one replica.
    """

    weights: int
    kv_per_token: int
    usable: int
    tokens: int

    @property
    def fits(self) -> bool:
        return self.weights <= self.usable


def memory_of(
    rank: Rank, gpu: Gpu, itemsize: int = 2, weight_itemsize: float | None = None
) -> Memory:
    """What a rank's card holds.

    Args:
        itemsize: bytes of a number, in weights and in KV.
        weight_itemsize: bytes of a weight where that differs: 0.5 in 4 bits.
    """
    weights = int(rank.num_parameters() * (weight_itemsize or itemsize))
    per_token = rank.kv_bytes_per_token(itemsize)
    usable = int(GPU_MEMORY_UTILIZATION * gpu.memory)
    room = max(0, usable - weights)
    return Memory(weights, per_token, usable, room // per_token if per_token else 0)


def fullest(
    shape: Shape, layout: Layout, gpu: Gpu, itemsize: int = 2, weight_itemsize: float | None = None
) -> Memory:
    """The memory of the rank with the least room for tokens. It decides for its whole replica.

    (Every rank keeps its part of each token, so they all have the same number of blocks.) The first
    rank of a group has the largest share of whatever does not divide, so one of each stage is
    enough to look at.
    """
    stages = range(layout.pipeline_parallel_size)
    return min(
        (
            memory_of(Rank(shape, layout, pp=stage), gpu, itemsize, weight_itemsize)
            for stage in stages
        ),
        key=lambda memory: (memory.fits, memory.tokens, -memory.weights),
    )


def room_for_requests(shape: Shape, layout: Layout, gpu: Gpu, context: int) -> int:
    """How many requests of `context` tokens fit in all replicas together.

    A request is in one replica. What is left over in two of them can't hold one more.
    """
    return layout.data_parallel_size * (fullest(shape, layout, gpu).tokens // context)
