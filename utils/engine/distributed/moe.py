"""A mixture of experts, and experts that are spread over ranks.

Each token goes through a few of many MLPs. Shazeer et al. 2017, "Outrageously large neural
networks"; spread over ranks: Lepikhin et al. 2020, "GShard", section 3.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from utils.engine.config.parallel import MoEConfig
from utils.engine.distributed.parallel_state import GroupCoordinator
from utils.engine.models.llama import LlamaForCausalLM, LlamaMLP


class MoE(nn.Module):
    """Takes the place of an MLP. In vLLM: `FusedMoE`.

    Args:
        experts: those of this rank. All ranks have the same number.
        router: hidden -> all experts of all ranks.
        top_k: experts that each token goes through.
        group: the ranks that the experts are spread over, in order. None: all are here.
    """

    def __init__(
        self,
        experts: list[nn.Module],
        router: nn.Linear,
        top_k: int,
        group: GroupCoordinator | None,
    ) -> None:
        super().__init__()
        self.experts, self.router, self.top_k = nn.ModuleList(experts), router, top_k
        self.group = group
        # Tokens that were sent to each expert, by this rank: who is overloaded?
        self.num_routed = torch.zeros(router.out_features, dtype=torch.int64)

    def select_experts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Which experts each token goes through, and with what weight: both [T, top_k].

        The weights of the chosen add up to 1, as in Mixtral.
        """
        weights, experts = self.router(x).float().softmax(-1).topk(self.top_k, -1)
        return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), experts

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]. With a group, all ranks must call it, also without tokens."""
        weights, experts = self.select_experts(x)
        # Shuffle: a row for each token and expert, sorted by expert: those of a rank are together.
        by_expert = experts.flatten().argsort(stable=True)
        tokens = by_expert // self.top_k
        counts = torch.bincount(experts.flatten(), minlength=self.router.out_features)
        self.num_routed += counts
        if self.group is None:
            done = self._run(x[tokens], counts)
        else:
            done = self._run_on_ranks(x[tokens], counts)
        # Shuffle back: each row to its token, times its weight.
        done = done * weights.flatten()[by_expert, None]
        return torch.zeros_like(x).index_add_(0, tokens, done)

    def _run(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Each of this rank's experts on its rows, which are sorted by expert: [n, hidden]."""
        parts = rows.split(counts.tolist())
        return torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])

    def _run_on_ranks(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Send each row to the rank that has its expert, and get the results back in order."""
        assert self.group is not None
        size = self.group.world_size
        outgoing = counts.view(size, -1)  # [ranks, experts of each]
        incoming = self.group.exchange_counts(outgoing)  # the same, of rows that come here
        num_out, num_in = outgoing.sum(1).tolist(), incoming.sum(1).tolist()
        arrived = torch.cat(self.group.all_to_all(rows.split(num_out), num_in))
        # They come sorted by rank, then by expert, and are needed sorted by expert.
        expert = torch.arange(len(self.experts)).repeat(size).repeat_interleave(incoming.flatten())
        order = expert.argsort(stable=True)
        done = torch.empty_like(arrived)
        done[order] = self._run(arrived[order], incoming.sum(0))
        return torch.cat(self.group.all_to_all(done.split(num_in), num_out))


def upcycle(
    model: LlamaForCausalLM, config: MoEConfig, group: GroupCoordinator | None = None
) -> LlamaForCausalLM:
    """Replace each MLP by a mixture of noisy copies of it, in place. See `MoEConfig`.

    Args:
        group: spread the experts over its ranks; only this rank's are made.
    """
    size, rank = (1, 0) if group is None else (group.world_size, group.rank_in_group)
    per_rank = config.num_experts // size
    mine = range(rank * per_rank, (rank + 1) * per_rank)
    for number, layer in enumerate(model.model.layers):

        def generator(expert: int, number: int = number) -> torch.Generator:
            # Of its own for each expert, so that a rank makes only those it holds.
            seed = (config.seed * 10_000 + number) * 1_000 + expert
            return torch.Generator().manual_seed(seed)

        router = nn.Linear(model.config.hidden_size, config.num_experts, bias=False)
        # Scores of about 1 for inputs of about 1: clear choices, and no expert takes all.
        std = model.config.hidden_size**-0.5
        nn.init.normal_(router.weight, std=std, generator=generator(config.num_experts))
        router.to(model.lm_head.weight)
        experts: list[nn.Module] = [
            _noisy_copy(cast(nn.Module, layer.mlp), model, config.noise, generator(expert))
            for expert in mine
        ]
        layer.mlp = MoE(experts, router, config.num_experts_per_tok, group)
    model.requires_grad_(False)
    return model


def _noisy_copy(
    mlp: nn.Module, model: LlamaForCausalLM, noise: float, generator: torch.Generator
) -> LlamaMLP:
    with torch.device("meta"):
        copy = LlamaMLP(model.config, model.ops)
    noisy = {}
    for name, weight in mlp.state_dict().items():
        random = torch.randn(weight.shape, generator=generator).to(weight)
        noisy[name] = weight + weight.std() * noise * random
    copy.load_state_dict(noisy, assign=True)
    return copy
