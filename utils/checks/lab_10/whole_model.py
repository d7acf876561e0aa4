"""What lab 10 says of `add_lora`: exercise 9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from utils.checks.kit.runner import Mismatch, call

TARGETS = ("proj", "up")
R, ALPHA = 3, 12
GIVEN = (
    f"a model of two blocks, each with a norm named `up`, too; target_modules {list(TARGETS)}, "
    f"r = {R}, lora_alpha = {ALPHA}"
)


class Block(nn.Module):
    """Names that are alike: only the linear layers `proj` and `up` are meant."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.proj = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.mlp = nn.ModuleDict({"up": nn.Linear(8, 12), "down": nn.Linear(12, 8)})
        self.up = nn.LayerNorm(8)  # a name among the targets, but no linear layer

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.proj(self.q_proj(self.up(x)).tanh())
        return x + self.mlp["down"](self.mlp["up"](x).tanh())


class Toy(nn.Module):
    """An embedding, two blocks and an output layer; token ids [B, T] to logits [B, T, 10]."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            self.embed = nn.Embedding(10, 8)
            self.layers = nn.ModuleList([Block(), Block()])
            self.lm_head = nn.Linear(8, 10, bias=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.embed(token_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


WANTED = {f"layers.{i}.{name}" for i in range(2) for name in ("proj", "mlp.up")}
IDS = torch.tensor([[1, 5, 3, 7, 2]])


def adapted(model: nn.Module) -> dict[str, Any]:
    """The layers of `model` that hold an A and a B, by name; a layer may stand in two places."""
    modules = model.named_modules(remove_duplicate=False)
    return {n: m for n, m in modules if hasattr(m, "lora_A") and hasattr(m, "base_layer")}


def judge_add_lora(function: Callable[..., list[nn.Parameter]]) -> str:
    """Check `add_lora(model, target_modules, r, lora_alpha)`."""
    model = Toy()
    before = model(IDS).detach()
    weights = {name: module.weight for name, module in model.named_modules() if name in WANTED}
    returned = call(function, model, list(TARGETS), R, ALPHA, given=GIVEN)
    found = adapted(model)
    _judge_places(set(found))
    for name, layer in found.items():
        if layer.base_layer.weight is not weights[name]:
            raise Mismatch(f"`{name}` got another layer's weight as its base.", input=GIVEN,
                           look="Each target gets its own `LoRALinear(layer, ...)`.")  # fmt: skip
        if layer.lora_A.shape[0] != R:
            swapped = layer.lora_A.shape[0] == ALPHA
            raise Mismatch(
                "r and lora_alpha are swapped." if swapped else f"The rank of `{name}` is wrong.",
                input=GIVEN, expected=f"A: `[{R}, ...]`", got=f"`{list(layer.lora_A.shape)}`",
            )  # fmt: skip
    _judge_trained(model, found, returned)
    if not torch.allclose(call(model, IDS, given=GIVEN), before, atol=1e-5):
        raise Mismatch("The model gives other logits than before, though B is zero.", input=GIVEN)
    _judge_sum(model, found)
    return "The named layers, and only these, got an A and a B of their own. All else is frozen."


def _judge_places(found: set[str]) -> None:
    if found == WANTED:
        return
    extra, missing = sorted(found - WANTED), sorted(WANTED - found)
    look = "The last part of a layer's name: `name.rpartition('.')[2] in target_modules`."
    if not found:
        says = "No layer of the model was replaced."
        look = (
            "Assigning to a loop variable changes nothing in the model. Replace the layer in its "
            "parent: `setattr(parent, child_name, new)`, with `model.get_submodule(parent_name)`."
        )
    elif any(name.endswith("base_layer") for name in extra):
        says = "A layer was adapted twice: the base layer inside a LoRALinear, too."
        look = "Make a list of the layers first, then replace: `list(model.named_modules())`."
    elif extra:
        says = f"Layers were adapted that are not named in target_modules, such as `{extra[0]}`."
    elif len(found) == 1:
        says = "Only one layer was adapted."
        look = "Go on after the first one: no `break` or `return` in the loop."
    else:
        says = f"Some layers were not adapted, such as `{missing[0]}`."
    raise Mismatch(
        says, input=GIVEN, expected=f"`{sorted(WANTED)}`", got=f"`{sorted(found)}`", look=look
    )


def _judge_trained(model: nn.Module, found: dict[str, Any], returned: Any) -> None:
    wanted = {id(p) for layer in found.values() for p in (layer.lora_A, layer.lora_B)}
    if len(wanted) != 2 * len(found):
        raise Mismatch("Layers share their A and B. Each needs its own.", input=GIVEN,
                       look="Call `LoRALinear(...)` inside the loop.")  # fmt: skip
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    extra = sorted(name for name, p in trained.items() if id(p) not in wanted)
    if extra:
        raise Mismatch(
            f"Not everything else is frozen: `{extra[0]}` would be trained, too.", input=GIVEN,
            look="`model.requires_grad_(False)` freezes everything. Do it before you add A and B.",
        )  # fmt: skip
    if len(trained) < len(wanted):
        raise Mismatch("A and B are frozen, too, so nothing is trained.", input=GIVEN,
                       look="Freeze the model first, then add A and B.")  # fmt: skip
    if not isinstance(returned, list | tuple) or not all(isinstance(p, Tensor) for p in returned):
        raise Mismatch("Your function must return the list of trained parameters.", input=GIVEN)
    got = [id(p) for p in returned]
    if set(got) != wanted or len(got) != len(wanted):
        says = "The returned list is not that of all A and B."
        if set(got) > wanted:
            says = "The returned list also holds frozen parameters."
        elif len(got) > len(set(got)):
            says = "The returned list holds a parameter twice."
        raise Mismatch(says, input=GIVEN, expected=f"{len(wanted)} parameters",
                       got=f"{len(got)}, of which {len(set(got) & wanted)} are an A or a B",
                       look="`[p for p in model.parameters() if p.requires_grad]`.")  # fmt: skip


def _judge_sum(model: Toy, found: dict[str, Any]) -> None:
    """With random A and B: the same logits as a plain model with the merged weights."""
    plain, generator = Toy(), torch.Generator().manual_seed(9)
    for name, layer in found.items():
        for p in (layer.lora_A, layer.lora_B):
            p.data = torch.randn(p.shape, generator=generator) * 0.3
        delta = ALPHA / R * layer.lora_B @ layer.lora_A
        plain.get_submodule(name).weight.data += delta.detach()
    if not torch.allclose(model(IDS), plain(IDS), rtol=1e-3, atol=1e-4):
        raise Mismatch("With A and B filled, the logits are wrong.", input=GIVEN,
                       look="Is lora_alpha handed on to `LoRALinear`? See exercise 8.")  # fmt: skip
