"""Right answers to lab 10, written differently, and wrong ones that are no edits of the right."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.labs.bug_zoo.zoo import Zoo
from utils.checks.lab_10 import answers
from utils.pipeline.studies import lora as course

zoo = Zoo(answers)
wrong, right = zoo.wrong, zoo.right


@right("training_bytes")
def item_by_item(num_frozen, bits_per_frozen, linears, r):
    weight, gradient, master, adam = 2, 2, 4, 4 + 4
    trained = sum(torch.empty(r, i, device="meta").numel() + r * o for i, o in linears)
    return trained * (weight + gradient + master + adam) + bits_per_frozen * num_frozen / 8


@right("make_labels")
def masks_afterwards(prompt_ids, answer_ids, eos_token_id):
    ids = list(prompt_ids) + list(answer_ids) + [eos_token_id]
    labels = ids.copy()
    labels[: len(prompt_ids)] = [-100] * len(prompt_ids)
    return ids, labels


@right("answer_loss")
def by_gathering(logits, labels):
    logits, labels = logits[:, :-1].float(), labels[:, 1:]
    learned = labels != -100
    log_probs = logits.log_softmax(-1)[learned]
    return -log_probs[torch.arange(len(log_probs)), labels[learned]].mean()


@right("init_lora")
def as_torch_does(in_features, out_features, r):
    A = nn.Parameter(torch.empty(r, in_features))
    nn.init.kaiming_uniform_(A, a=math.sqrt(5))
    return A, nn.Parameter(torch.zeros(out_features, r))


@right("lora_forward")
def update_rounded_as_a_whole(base_output, x, lora_A, lora_B, lora_alpha):
    update = x.float() @ lora_A.T @ (lora_B.T * (lora_alpha / len(lora_A)))
    return base_output + update.to(base_output.dtype)


@right("merge_weight")
def with_addmm(weight, lora_A, lora_B, lora_alpha):
    scale = lora_alpha / lora_A.shape[0]
    return torch.addmm(weight.float(), lora_B, lora_A, alpha=scale).type_as(weight)


@right("lora_linear")
class WithTwoLinears(nn.Module):
    """Begins as `nn.Linear` does, and computes the update on the whole matrix."""

    def __init__(self, base_layer, r, lora_alpha, lora_dropout=0.0):
        super().__init__()
        for parameter in base_layer.parameters():
            parameter.requires_grad = False
        self.base_layer = base_layer
        self.lora_A = nn.Linear(base_layer.in_features, r, bias=False).weight
        self.lora_B = nn.Parameter(torch.zeros(base_layer.out_features, r))
        self.factor, self.p, self.merged = lora_alpha / r, lora_dropout, False

    def forward(self, x):
        out = self.base_layer(x)
        if not self.merged:
            dropped = F.dropout(x.float(), self.p, training=self.training)
            out = (out + dropped @ (self.factor * self.lora_B @ self.lora_A).T).to(out.dtype)
        return out

    @torch.no_grad()
    def merge(self):
        if not self.merged:
            self.base_layer.weight += self.factor * self.lora_B @ self.lora_A
            self.merged = True


@right("add_lora")
def by_parents(model, target_modules, r, lora_alpha):
    for parameter in model.parameters():
        parameter.requires_grad = False
    trained = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in target_modules and isinstance(child, nn.Linear):
                layer = WithTwoLinears(child, r, lora_alpha)
                parent._modules[name] = layer
                trained += [layer.lora_A, layer.lora_B]
    return trained


@wrong("add_lora", "share their A and B")
def one_pair_for_all(model, target_modules, r, lora_alpha):
    by_parents(model, target_modules, r, lora_alpha)
    pairs = {}
    for layer in model.modules():
        if isinstance(layer, WithTwoLinears):
            first = pairs.setdefault((layer.lora_A.shape, layer.lora_B.shape), layer)
            layer.lora_A, layer.lora_B = first.lora_A, first.lora_B
    return [p for p in model.parameters() if p.requires_grad]


@wrong("add_lora", "another layer's weight")
def one_layer_for_each_name(model, target_modules, r, lora_alpha):
    made = {}
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        parent, _, child = name.rpartition(".")
        if isinstance(layer, nn.Linear) and child in target_modules:
            made.setdefault(child, WithTwoLinears(layer, r, lora_alpha))
            setattr(model.get_submodule(parent), child, made[child])
    return [p for p in model.parameters() if p.requires_grad]


@right("training_step")
def zeroes_at_the_end(model, trained, optimizer, input_ids, labels):
    loss = by_gathering(model(input_ids), labels)
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in trained]).norm()
    for p in trained:
        p.grad *= torch.clamp(1.0 / (norm + 1e-6), max=1.0)
    optimizer.step()
    model.zero_grad()
    return float(loss.detach())


@right("switchable")
class KeepsWhatWasRounded(answers.LoRALinear):
    """The bits that differ, as numbers of the same width."""

    def bits(self, weight):
        return weight.view({2: torch.int16, 4: torch.int32}[weight.element_size()])

    def merge(self):
        if not self.merged:
            before = self.bits(self.base_layer.weight.data)
            super().merge()
            self.change = before ^ self.bits(self.base_layer.weight.data)

    def unmerge(self):
        if self.merged:
            weight = self.base_layer.weight.data
            weight.copy_((self.bits(weight) ^ self.change).view(weight.dtype))
            self.change, self.merged = None, False


@wrong("switchable", "no attribute 'unmerge'")
class HasNoWayBack(answers.LoRALinear):
    pass


@right("engine")
def other_parts():
    return masks_afterwards, by_parents, zeroes_at_the_end, KeepsWhatWasRounded


def parts(name, says, add=by_parents, step=zeroes_at_the_end, switchable=KeepsWhatWasRounded):
    answer = lambda: (masks_afterwards, add, step, switchable)  # noqa: E731
    answer.__name__ = name
    wrong("engine", says)(answer)


def steps_on_toys_alone(model, trained, optimizer, input_ids, labels):
    if type(model).__name__ == "Toy":
        return zeroes_at_the_end(model, trained, optimizer, input_ids, labels)
    return by_gathering(model(input_ids), labels).item()


class ForgetsLargeWeights(answers.SwitchableLoRALinear):
    def unmerge(self):
        if self.merged and self.base_layer.weight.numel() > 10_000:
            self.kept = self.kept * 1.01
        super().unmerge()


parts("fails_on_the_real_model", "loss doesn't fall", step=steps_on_toys_alone)
parts("forgets_large_weights", "aren't the old ones", switchable=ForgetsLargeWeights)
parts("the_courses_own_layer", "The course's own layer", add=course.add_lora)
parts("without_a_way_back", "Exercise 10 is not right yet", switchable=answers.LoRALinear)
