"""`add_lora` on models of many shapes: exercise 9."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.lab_10.layer_mistakes import RightLayer

WIDTH = 6
NAMES = ("proj", "up", "q_proj", "base_layer", "down", "0", "mlp")
KINDS = ("linear", "linear", "box", "bias", "twice", "wide", "norm", "embedding", "alike")


class Twice(nn.Linear):
    """A kind of linear layer that computes in its own way, as a 4-bit layer does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Box(nn.Module):
    """Its children one after the other, each beside what goes in."""

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            first = isinstance(child, nn.Embedding)
            x = x + child(torch.zeros_like(x[..., 0]).long() if first else x).tanh()
        return x


class Alike(nn.Module):
    """It has all that an nn.Linear has, and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.in_features = self.out_features = WIDTH
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, WIDTH)), None

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight.T).relu()


class Wide(nn.Sequential):
    """Two linear layers that are not square."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH + 3), nn.Linear(WIDTH + 3, WIDTH)


@dataclass(frozen=True)
class Case:
    """Each tree is a tuple of (name, kind, tree below)."""

    trees: tuple[Any, ...]
    targets: tuple[str, ...]
    r: int
    alpha: float
    frozen: bool  # some of it, before
    training: bool
    tied: bool  # one weight in two layers of the first model

    def __str__(self) -> str:
        models = "; another model: ".join(", ".join(_listing(t)) or "empty" for t in self.trees)
        return f"a model of {models}; target_modules {list(self.targets)}, r = {self.r}, " + (
            f"lora_alpha = {self.alpha:g}"
        )


def _listing(tree: Any, above: str = "") -> Iterator[str]:
    for name, kind, below in tree:
        plain = {
            "box": "a module",
            "twice": "a subclass of nn.Linear",
            "norm": "nn.LayerNorm",
            "embedding": "nn.Embedding",
            "alike": "a module with in_features, but no nn.Linear",
            "wide": "a module with `up` and `down`",
        }
        yield f"`{above}{name}` ({plain.get(kind, 'nn.Linear')})"
        yield from _listing(below, f"{above}{name}.")


def draw_case(c: Choices) -> Case:
    def tree(depth: int) -> Any:
        def part() -> Any:
            name, kind = c.pick(NAMES), c.pick(KINDS)
            kind = "linear" if kind == "box" and depth == 3 else kind
            return name, kind, tree(depth + 1) if kind == "box" else ()

        return tuple({name: (name, *rest) for name, *rest in c.some(part, 0, 4)}.values())

    trees = tuple(tree(0) for _ in range(c.pick((1, 1, 2))))
    linear = sorted({n for t in trees[:1] for n in _linear_names(t)})
    if len(trees) > 1:
        linear = [n for n in linear if n in set(_linear_names(trees[1]))]
    targets = [name for name in linear if not c.rarely(3)]
    return Case(
        trees,
        tuple(c.shuffled(targets)),
        c.size(1, 20),
        c.pick((8, 1, 16, 0.5)),
        c.rarely(3),
        c.rarely(2),
        c.rarely(4),
    )


def _linear_names(tree: Any) -> Iterator[str]:
    for name, kind, below in tree:
        if kind in ("linear", "bias", "twice"):
            yield name
        if kind == "wide":
            yield from ("up", "down")
        yield from _linear_names(below)


def build(tree: Any) -> nn.Module:
    makes: dict[str, Any] = {
        "linear": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
        "wide": Wide,
        "bias": lambda: nn.Linear(WIDTH, WIDTH),
        "twice": lambda: Twice(WIDTH, WIDTH),
        "norm": lambda: nn.LayerNorm(WIDTH),
        "embedding": lambda: nn.Embedding(WIDTH, WIDTH),
        "alike": Alike,
    }
    box = Box()
    for name, kind, below in tree:
        box.add_module(name, build(below) if kind == "box" else makes[kind]())
    return box


def adapted(model: nn.Module) -> dict[str, Any]:
    """The layers of `model` that hold an A and a B, by name; a layer may stand in two places."""
    modules = model.named_modules(remove_duplicate=False)
    return {n: m for n, m in modules if hasattr(m, "lora_A") and hasattr(m, "base_layer")}


def play(stage: Stage, add_lora: Any, case: Case) -> None:
    torch.default_generator.manual_seed(4)
    done = []
    for number, tree in enumerate(case.trees):
        stage.now("the second model" if number else "")
        model = build(tree)
        linears = [m for m in model.modules() if type(m) is nn.Linear and m.weight.shape[0] == 6]
        if case.tied and len(linears) > 1 and linears[0].weight.shape == linears[1].weight.shape:
            linears[1].weight = linears[0].weight
        for index, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(not (case.frozen and index % 2))
        done.append(_adapt(stage, add_lora, case, model.train(case.training)))
    for model, found in done:  # after both calls
        stage.see("places", sorted(adapted(model)))
        trained = [p for p in model.parameters() if p.requires_grad]
        stage.see("trained", len(trained) == 2 * len(found))


def _adapt(stage: Stage, add_lora: Any, case: Case, model: nn.Module) -> Any:
    plain, before = copy.deepcopy(model), dict(model.named_modules())
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    got = stage.do(
        lambda m, t, *rest: add_lora(m, t, *rest), model, list(case.targets), case.r, case.alpha
    )
    if isinstance(got, Raised):
        stage.blame("raises", "a list of parameters", got)
    found = adapted(model)
    stage.see("twice", sorted(n for n in found if n.endswith("base_layer")))
    stage.see("places", sorted(found), lambda names: ", ".join(names) or "none")
    for name, layer in found.items():
        if layer.base_layer is not before[name]:
            stage.blame("base", f"`{name}` keeps its own layer", "another layer inside")
        stage.see("rank", f"A has {layer.lora_A.shape[0]} rows")
    after = dict(model.named_modules())
    others = [n for n, m in before.items() if n not in found and after.get(n) is not m]
    stage.see("others", others, lambda names: ", ".join(names) or "all as they were")
    stage.see("mode", [m.training for m in before.values()])
    _see_trained(stage, model, found, got)
    moved = [n for n, p in model.named_parameters() if _is_base(n, p, values)]
    stage.see("changed", moved, lambda names: ", ".join(names) or "weights as they were")
    _see_logits(stage, case, model, plain, found)
    return model, found


def _is_base(name: str, parameter: Tensor, values: dict[str, Tensor]) -> bool:
    old = values.get(name.replace(".base_layer", "", 1))
    return old is not None and not torch.equal(old, parameter)


def _see_trained(stage: Stage, model: nn.Module, found: dict[str, Any], got: Any) -> None:
    ours = {id(p) for layer in found.values() for p in (layer.lora_A, layer.lora_B)}
    stage.see("shared", len(ours) < 2 * len(found))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    extra = sorted(name for name, p in trained.items() if id(p) not in ours)
    stage.see("not frozen", extra, lambda names: ", ".join(names) or "nothing but A and B")
    stage.see("trained", len(trained) == len(ours))
    if not isinstance(got, list | tuple) or not all(isinstance(p, Tensor) for p in got):
        stage.blame("form", "a list of parameters", f"a {type(got).__name__}")
    ids = [id(p) for p in got]
    stage.see("returned", f"{len(ids)} parameters, of which {len(set(ids) & ours)} are an A or a B")


def _see_logits(
    stage: Stage, case: Case, model: nn.Module, plain: nn.Module, found: dict[str, Any]
) -> None:
    """With B zero, and with random A and B: as the plain model with right layers."""
    x = torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(1))
    for clause in ("same", "filled"):
        out = stage.do(lambda v: model(v), x)
        right = plain(x).detach()
        if not isinstance(out, Tensor) or not torch.allclose(out, right, rtol=1e-3, atol=1e-4):
            stage.blame(clause, right, out.detach() if isinstance(out, Tensor) else out)
        if clause == "same":
            but()(plain, case.targets, case.r, case.alpha)
        generator = torch.Generator().manual_seed(9)
        for name in sorted(found):
            for p, q in zip(_ab(found[name]), _ab(plain.get_submodule(name)), strict=True):
                with torch.no_grad():
                    p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
                    q.copy_(p)


def _ab(layer: Any) -> tuple[Tensor, Tensor]:
    return layer.lora_A, layer.lora_B


def but(
    fits: Any = None, make: Any = None, before: Any = None, after: Any = None, result: Any = None
) -> Any:
    """A right answer with one part changed."""

    def add_lora(model: nn.Module, targets: list[str], r: int, alpha: float) -> Any:
        (before or (lambda m: m.requires_grad_(False)))(model)
        for name, layer in list(model.named_modules()):
            parent, _, child = name.rpartition(".")
            if isinstance(layer, nn.Linear) and (fits or _last)(name, child, targets, layer):
                new = (make or RightLayer)(layer, r, alpha)
                setattr(model.get_submodule(parent), child, new)
        trained = [p for p in model.parameters() if p.requires_grad]
        if after:
            after(model)
        return result(model) if result else trained

    return add_lora


def _last(name: str, child: str, targets: list[str], layer: nn.Module) -> bool:
    return child in targets


def _first_only(model: nn.Module, targets: list[str], r: int, alpha: float) -> Any:
    done: list[int] = []
    fits = lambda n, child, t, layer: child in t and not done and not done.append(1)  # type: ignore[func-returns-value] # noqa: E731
    return but(fits=fits)(model, targets, r, alpha)


def _nothing(model: nn.Module, targets: list[str], r: int, alpha: float) -> Any:
    model.requires_grad_(False)
    return []


_LAST = "The last part of a layer's name must be in the list, as a whole."
_FREEZE = "Freeze the whole model first, then add A and B."
ADD_LORA = Contract(
    inputs=draw_case,
    judge=InLockstep(play, but()),
    passed="The named layers, and only these, got an A and a B of their own. All else is frozen.",
    clauses={
        "twice": Clause(
            "A layer was adapted twice: the base layer inside a LoRALinear, too.",
            "Make a list of the layers first, then replace.",
        ),
        "places": Clause("The wrong layers were adapted: {got}; expected: {expected}.", _LAST),
        "base": Clause(
            "A target got another layer's weight as its base: {got}.",
            "Each target gets its own `LoRALinear(layer, ...)`.",
        ),
        "rank": Clause("The rank is wrong: {got}; expected: {expected}."),
        "others": Clause("Modules that are not adapted were replaced: {got}."),
        "mode": Clause("The mode of the model (train or eval) is another one than before."),
        "shared": Clause(
            "Layers share their A and B. Each needs its own.",
            "Make a `LoRALinear` inside the loop.",
        ),
        "not frozen": Clause(
            "Not everything else is frozen: {got} would be trained, too.", _FREEZE
        ),
        "trained": Clause("A and B are frozen, too, so nothing is trained.", _FREEZE),
        "form": Clause("Your function must return the list of trained parameters."),
        "returned": Clause(
            "The returned list is not that of all A and B, each once: {got}; expected: {expected}.",
            "Those parameters that require a gradient.",
        ),
        "changed": Clause("Weights of the model are changed: {got}."),
        "same": Clause("The model gives other numbers than before, though B is zero. {says}"),
        "filled": Clause(
            "With A and B filled, the model's numbers are wrong. {says}",
            "Is lora_alpha handed on to `LoRALinear`? See exercise 8.",
        ),
        "raises": Clause("{says}"),
    },
    mistakes=(
        mistake(
            "No layer of the model was replaced.",
            "Assigning to a loop variable changes "
            "nothing in the model. Replace the layer in its parent, with `setattr`.",
            _nothing,
        ),
        mistake(
            "Layers inside other modules are not found, or only by their whole name.",
            _LAST,
            but(fits=lambda name, child, t, layer: name in t),
        ),
        mistake(
            "Layers were adapted that are not named in target_modules: a part of the name is "
            "enough for you.",
            _LAST,
            but(fits=lambda name, child, t, layer: any(part in name for part in t)),
            but(fits=lambda name, child, t, layer: any(part in child for part in t)),
            but(fits=lambda name, child, t, layer: name.endswith(tuple(t))),
        ),
        mistake(
            "All linear layers were adapted, also those that are not named in target_modules.",
            _LAST,
            but(fits=lambda *_: True),
        ),
        mistake(
            "Subclasses of nn.Linear are left out. A 4-bit layer is one.",
            "`isinstance(layer, nn.Linear)`, not `type(layer) is ...`.",
            but(fits=lambda n, child, t, layer: child in t and type(layer) is nn.Linear),
        ),
        mistake("Only one layer was adapted.", "Go on after the first one.", _first_only),
        mistake(
            "Not everything else is frozen: only what was adapted is.",
            _FREEZE,
            but(before=lambda m: None),
        ),
        mistake(
            "A and B are frozen, too, so nothing is trained.",
            _FREEZE,
            but(after=lambda m: m.requires_grad_(False)),
        ),
        mistake(
            "r and lora_alpha are swapped.",
            "`LoRALinear(layer, r, lora_alpha)`.",
            but(make=lambda layer, r, alpha: RightLayer(layer, max(1, int(alpha)), r)),
        ),
        mistake(
            "The returned list also holds frozen parameters.",
            "Those parameters that require a gradient.",
            but(result=lambda m: list(m.parameters())),
        ),
    ),
)
