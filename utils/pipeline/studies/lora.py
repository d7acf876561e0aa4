"""LoRA from scratch: y = W x + (alpha / r) B A x, with W frozen and A and B trained.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, section 4.1,
https://arxiv.org/abs/2106.09685. Names, initial values and results are those of peft; the tests
compare outputs and gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.pipeline.estimates.train_shapes import ALL_LINEAR


class LoRALinear(nn.Module):
    """A linear layer with a trained update of rank `r` beside its frozen weight.

    Args:
        base_layer: the layer to adapt; frozen from now on. A 4-bit layer of bitsandbytes works too.
        r: rank of the update: the width between A and B.
        lora_alpha: the update is multiplied by lora_alpha / r.
        lora_dropout: share of A's inputs that are set to zero while training.
        dtype: of A and B. Default: float32, in which small steps add up.

    Raises:
        ValueError: r below 1, or a dropout outside [0, 1).
    """

    def __init__(
        self,
        base_layer: nn.Linear,
        r: int,
        lora_alpha: float,
        lora_dropout: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if r < 1:
            raise ValueError(f"r must be at least 1, got {r}.")
        if not 0 <= lora_dropout < 1:
            raise ValueError(f"lora_dropout must lie in [0, 1), got {lora_dropout}.")
        self.base_layer = base_layer.requires_grad_(False)
        self.scaling = lora_alpha / r
        self.merged = False
        self.lora_dropout = nn.Dropout(lora_dropout)
        device = base_layer.weight.device
        self.lora_A = nn.Parameter(
            torch.empty(r, base_layer.in_features, dtype=dtype, device=device)
        )
        # B is zero, so the layer starts as what it was. A must not be: if both were zero, the
        # gradient of each would be zero, and nothing would ever be learned.
        self.lora_B = nn.Parameter(
            torch.zeros(base_layer.out_features, r, dtype=dtype, device=device)
        )
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))  # what nn.Linear does, and peft

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features], in the base layer's type."""
        result = self.base_layer(x)
        if self.merged:
            return result
        update = self.lora_dropout(x.to(self.lora_A.dtype))  # [..., in_features]
        update = F.linear(F.linear(update, self.lora_A), self.lora_B)  # by way of [..., r]
        return (result + self.scaling * update).to(result.dtype)

    def delta_weight(self) -> Tensor:
        """The update as one matrix, (alpha / r) B A: float32 [out_features, in_features]."""
        return self.scaling * (self.lora_B.float() @ self.lora_A.float())

    def merge(self) -> None:
        """Add the update to the weight. From then on the layer costs what the base layer costs.

        Raises:
            RuntimeError: merged already, the base is quantized, or the sum is not finite.
        """
        if self.merged:
            raise RuntimeError(
                "This layer is merged already; a second time would double the update."
            )
        self._add(1)
        self.merged = True

    def unmerge(self) -> None:
        """Take the update out of the weight again, up to the rounding of the weight's type.

        Raises:
            RuntimeError: the layer is not merged.
        """
        if not self.merged:
            raise RuntimeError("This layer is not merged, so there is nothing to take out.")
        self._add(-1)
        self.merged = False

    @torch.no_grad()
    def _add(self, sign: int) -> None:
        weight = self.base_layer.weight
        if weight.shape != (self.base_layer.out_features, self.base_layer.in_features):
            raise RuntimeError(
                f"The base weight is stored as {tuple(weight.shape)}: it is quantized, and has no "
                "room for the update. Dequantize the layer first, or merge into the 16-bit model."
            )
        # In the weight's own 16-bit type, much of a small update would be rounded away.
        merged = weight.float() + sign * self.delta_weight()
        if not merged.isfinite().all():
            raise RuntimeError("The sum holds NaN or infinity. The adapter is damaged.")
        weight.copy_(merged)

    def extra_repr(self) -> str:
        return f"r={self.lora_A.shape[0]}, scaling={self.scaling:g}, merged={self.merged}"


def add_lora(
    model: nn.Module,
    target_modules: Sequence[str] = ALL_LINEAR,
    r: int = 16,
    lora_alpha: float = 32,
    lora_dropout: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> list[nn.Parameter]:
    """Freeze `model` and put a `LoRALinear` in the place of each linear layer that is named.

    Args:
        model: changed in place.
        target_modules: last parts of the layers' names, such as "q_proj".

    Returns:
        The trained parameters, for the optimizer.

    Raises:
        ValueError: some name in `target_modules` fits no linear layer.
    """
    found = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] in target_modules
    ]
    missing = set(target_modules) - {name.rpartition(".")[2] for name, _ in found}
    if missing:
        raise ValueError(f"No linear layer of the model is named {', '.join(sorted(missing))}.")
    model.requires_grad_(False)
    for name, layer in found:
        parent, _, child = name.rpartition(".")
        adapted = LoRALinear(layer, r, lora_alpha, lora_dropout, dtype)
        setattr(model.get_submodule(parent), child, adapted)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoRALinear]]:
    """The adapted layers of a model, with their names."""
    for name, layer in model.named_modules():
        if isinstance(layer, LoRALinear):
            yield name, layer


def merge_and_unload(model: nn.Module) -> nn.Module:
    """Merge each adapted layer and put the plain layer back in its place. Changes `model`."""
    for name, layer in list(lora_layers(model)):
        if not layer.merged:
            layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.base_layer)
    return model
