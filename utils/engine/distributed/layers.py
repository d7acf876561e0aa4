"""Layers of which each rank holds a part. Shoeybi et al. 2019, "Megatron-LM", section 3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.engine.distributed.collectives import ring_all_reduce
from utils.engine.distributed.parallel_state import AllReduce, GroupCoordinator


class ColumnParallelLinear(nn.Linear):
    """Holds some of the outputs: what it yields is this rank's part, and nobody is asked.

    Args:
        input_size: of the whole.
        output_size: of this rank's part.
    """

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__(input_size, output_size, bias=False)


class RowParallelLinear(nn.Linear):
    """Takes some of the inputs: its product is one summand of the whole, so all are added up.

    Args:
        input_size: of this rank's part, that of the column-parallel layer before it.
        output_size: of the whole.
        group: whose parts are added.
    """

    def __init__(self, input_size: int, output_size: int, group: GroupCoordinator) -> None:
        super().__init__(input_size, output_size, bias=False)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """[T, input_size] -> [T, output_size], the same on all ranks."""
        return self.group.all_reduce(F.linear(x, self.weight))


class VocabParallelEmbedding(nn.Embedding):
    """Holds the embeddings of some tokens. The others count as zeros, and all are added up.

    Args:
        vocabulary: this rank's token ids.
        embedding_dim: numbers of an embedding.
        group: whose parts are added.
    """

    def __init__(self, vocabulary: range, embedding_dim: int, group: GroupCoordinator) -> None:
        super().__init__(len(vocabulary), embedding_dim)
        self.vocabulary, self.group = vocabulary, group

    def forward(self, input_ids: Tensor) -> Tensor:
        """[T] -> [T, embedding_dim], the same on all ranks."""
        if self.group.world_size == 1:
            return super().forward(input_ids)
        local = input_ids - self.vocabulary.start
        elsewhere = (local < 0) | (local >= len(self.vocabulary))
        embedded = super().forward(local.masked_fill(elsewhere, 0))
        return self.group.all_reduce(embedded.masked_fill(elsewhere[:, None], 0.0))


class ParallelLMHead(ColumnParallelLinear):
    """Scores some tokens of the vocabulary. The first rank gets all the scores.

    Args:
        sizes: how many tokens each rank scores.
    """

    def __init__(self, hidden_size: int, sizes: list[int], group: GroupCoordinator) -> None:
        super().__init__(hidden_size, sizes[group.rank_in_group])
        self.sizes, self.group = sizes, group

    def forward(self, x: Tensor) -> Tensor:
        """[N, hidden] -> [N, vocab_size] on the group's first rank, [N, 0] on the others."""
        scores = super().forward(x)
        if self.group.world_size == 1:
            return scores
        gathered = self.group.gather(scores, self.sizes)
        return torch.empty(len(x), 0) if gathered is None else gathered


@dataclass(frozen=True)
class ParallelOps:
    """What tensor parallelism is made of. Pass your own: `ParallelOps(all_reduce=mine)`.

    Args:
        all_reduce: takes a `GroupCoordinator` and a tensor; returns the sum over its ranks.
        row_parallel_linear: takes `(input_size, output_size, group)`; has a parameter `weight`.
    """

    all_reduce: AllReduce = ring_all_reduce
    row_parallel_linear: Callable[[int, int, GroupCoordinator], nn.Module] = RowParallelLinear
