"""One right answer for each exercise of lab 10, as in the solution. Mistakes are edits of these."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def training_bytes(
    num_frozen: int, bits_per_frozen: float, linears: list[tuple[int, int]], r: int
) -> float:
    num_trained = sum(r * (in_features + out_features) for in_features, out_features in linears)
    return num_frozen * bits_per_frozen / 8 + 16 * num_trained


def make_labels(
    prompt_ids: list[int], answer_ids: list[int], eos_token_id: int
) -> tuple[list[int], list[int]]:
    target = [*answer_ids, eos_token_id]
    return prompt_ids + target, [-100] * len(prompt_ids) + target


def answer_loss(logits: Tensor, labels: Tensor) -> Tensor:
    predictions = logits[:, :-1].float()  # [B, T - 1, vocab_size]
    following = labels[:, 1:]  # [B, T - 1]
    return F.cross_entropy(predictions.flatten(0, 1), following.flatten(), ignore_index=-100)


def init_lora(in_features: int, out_features: int, r: int) -> tuple[nn.Parameter, nn.Parameter]:
    bound = in_features**-0.5
    lora_A = torch.empty(r, in_features).uniform_(-bound, bound)
    return nn.Parameter(lora_A), nn.Parameter(torch.zeros(out_features, r))


def lora_forward(
    base_output: Tensor, x: Tensor, lora_A: Tensor, lora_B: Tensor, lora_alpha: float
) -> Tensor:
    update = F.linear(F.linear(x.float(), lora_A), lora_B)  # by way of [..., r]
    return (base_output + lora_alpha / lora_A.shape[0] * update).to(base_output.dtype)


def merge_weight(weight: Tensor, lora_A: Tensor, lora_B: Tensor, lora_alpha: float) -> Tensor:
    update = lora_alpha / lora_A.shape[0] * (lora_B @ lora_A)
    return (weight.float() + update).to(weight.dtype)


class LoRALinear(nn.Module):
    def __init__(
        self, base_layer: nn.Linear, r: int, lora_alpha: float, lora_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A, self.lora_B = init_lora(base_layer.in_features, base_layer.out_features, r)
        self.lora_alpha = lora_alpha
        self.lora_dropout = nn.Dropout(lora_dropout)
        self.merged = False

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        if self.merged:
            return result
        x = self.lora_dropout(x)
        return lora_forward(result, x, self.lora_A, self.lora_B, self.lora_alpha)

    def merge(self) -> None:
        if not self.merged:
            weight = self.base_layer.weight.data
            A, B = self.lora_A.data, self.lora_B.data
            self.base_layer.weight.data = merge_weight(weight, A, B, self.lora_alpha)
            self.merged = True


def add_lora(
    model: nn.Module, target_modules: list[str], r: int, lora_alpha: float
) -> list[nn.Parameter]:
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        parent, _, child = name.rpartition(".")
        if isinstance(layer, nn.Linear) and child in target_modules:
            setattr(model.get_submodule(parent), child, LoRALinear(layer, r, lora_alpha))
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def training_step(
    model: nn.Module,
    trained: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    input_ids: Tensor,
    labels: Tensor,
) -> float:
    loss = answer_loss(model(input_ids), labels)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    return loss.item()


class SwitchableLoRALinear(LoRALinear):
    def merge(self) -> None:
        if not self.merged:
            self.kept = self.base_layer.weight.data
            super().merge()  # puts new memory in the place of this

    def unmerge(self) -> None:
        if self.merged:
            self.base_layer.weight.data = self.kept
            del self.kept
            self.merged = False
