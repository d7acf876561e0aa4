"""How many processes run a model, and who does what. In vLLM: `vllm/config/parallel.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from utils.engine.config.model import ModelConfig

if TYPE_CHECKING:
    from utils.engine.distributed.layers import ParallelOps


@dataclass(frozen=True)
class MoEConfig:
    """A mixture of experts, made from a dense model.

    Each MLP is copied `num_experts` times, with some noise so that the copies differ, and a random
    router chooses among them ("upcycling", Komatsuzaki et al. 2022). It is not trained any further:
    it answers about as well as the dense model, and costs as a mixture does.

    Args:
        num_experts: copies of each MLP.
        num_experts_per_tok: how many of them each token goes through.
        noise: standard deviation of what is added to each copy, relative to that of its weights.
        seed: of noise and routers.
    """

    num_experts: int = 4
    num_experts_per_tok: int = 2
    noise: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok={self.num_experts_per_tok} is out of range: expected 1 to "
                f"num_experts={self.num_experts}."
            )


@dataclass(frozen=True)
class ParallelConfig:
    """How many processes ("ranks") run the model.

    Args:
        tensor_parallel_size: ranks that share each layer's heads, columns and rows.
        pipeline_parallel_size: ranks that have one stretch of layers each.
        data_parallel_size: engines, each with its own requests.
        enable_expert_parallel: the engines share the experts between them.
        upcycle: make a mixture of experts of the model. None: it stays as it is.
        parallel_ops: what distributed layers are made of, in place of ours.
        rank_timeout: seconds after which a rank that does not answer is given up.

    Raises:
        ValueError: a size is not a positive integer, or they don't go together.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    upcycle: MoEConfig | None = None
    parallel_ops: ParallelOps | None = None
    rank_timeout: float = 300.0

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            size = getattr(self, name)
            if type(size) is not int or size < 1:
                raise ValueError(f"{name} must be a positive integer, got {size!r}.")
        if self.upcycle is not None and self.world_size > 1:
            raise ValueError(
                "A mixture of experts is spread by data_parallel_size and enable_expert_parallel; "
                "tensor_parallel_size and pipeline_parallel_size must be 1 with it."
            )
        if self.enable_expert_parallel and (self.upcycle is None or self.data_parallel_size == 1):
            raise ValueError(
                "enable_expert_parallel=True needs experts to spread (upcycle=MoEConfig(...)) and "
                "engines to spread them over (data_parallel_size of at least 2)."
            )
        if self.enable_expert_parallel and self.upcycle is not None:
            experts = self.upcycle.num_experts
            if experts % self.data_parallel_size:
                raise ValueError(
                    f"{experts} experts cannot be divided among data_parallel_size="
                    f"{self.data_parallel_size} ranks."
                )

    @property
    def world_size(self) -> int:
        """Ranks of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def check(self, model: ModelConfig, device: torch.device) -> None:
        """Raise a ValueError if the model cannot be divided like this, or not on this device."""
        if device.type != "cpu" and max(self.world_size, self.data_parallel_size) > 1:
            raise ValueError(
                f"Several processes run on the CPU here, and the device is {device}. Pass "
                f"device='cpu'. For several cards take vLLM, with the same arguments."
            )
        heads, tp = model.num_key_value_heads, self.tensor_parallel_size
        if tp > heads:
            raise ValueError(
                f"tensor_parallel_size={tp} is more than the model's {heads} KV heads, and each "
                f"rank needs one. Expected 1 to {heads}."
            )
        layers, pp = model.num_hidden_layers, self.pipeline_parallel_size
        if pp > layers:
            raise ValueError(
                f"pipeline_parallel_size={pp} is more than the model's {layers} layers, and each "
                f"stage needs one."
            )
