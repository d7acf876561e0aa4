"""`add_lora` on models of many shapes (exercise 8), and steps of training (exercise 9)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from utils.checks.kit.contracts import Choices, Raised, Stage
from utils.checks.lab_10.layers import mode_in_words
from utils.checks.lab_10.near import beside

WIDTH, DEEPEST, VOCAB_SIZE, IGNORE = 6, 6, 10, -100
NAMES = ("proj", "up", "q_proj", "base_layer", "down", "0", "mlp", "lora_A_proj", "proj_out")
MODES = ("eval", "train", "some parts in train mode")
PARTS = ("all", "the last layer", "all but the embedding, which nobody moves")


class Twice(nn.Linear):
    """A kind of linear layer that computes in its own way, as a 4-bit layer does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Alike(nn.Module):
    """It has all that an nn.Linear has, and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.in_features = self.out_features = WIDTH
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, WIDTH)), None


# What a model is made of: in words, and how it is made. The first of them are linear layers.
KINDS: dict[str, Any] = {
    "nn.Linear": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "nn.Linear with bias": lambda: nn.Linear(WIDTH, WIDTH + 3),
    "a subclass of nn.Linear": lambda: Twice(WIDTH, WIDTH),
    "nn.Embedding": lambda: nn.Embedding(WIDTH, WIDTH),
    "a module with in_features that is no nn.Linear": Alike,
}
LINEAR = tuple(KINDS)[:3]


class Case(NamedTuple):
    model: dict[str, str]  # what its parts are, by their whole names
    target_modules: list[str]
    r: int
    lora_alpha: float
    dtype: torch.dtype
    frozen: bool  # every second parameter, before
    mode: str


def draw_case(c: Choices) -> Case:
    model: dict[str, str] = {}
    for names, kind in c.some(
        lambda: (c.some(lambda: c.pick(NAMES), 1, DEEPEST), draw_kind(c)), 0, 9
    ):
        name = ".".join(names)
        if not any(f"{name}.".startswith(f"{n}.") or n.startswith(f"{name}.") for n in model):
            model[name] = kind
    linear = sorted({name.rpartition(".")[2] for name, kind in model.items() if kind in LINEAR})
    targets = c.shuffled([name for name in linear if not c.rarely(3)])
    alpha, dtype = c.pick((8, 1, 16, 0.5)), c.pick((torch.float32, torch.bfloat16))
    return Case(model, targets, c.size(1, 20), alpha, dtype, c.rarely(3), c.pick(MODES))


def draw_kind(c: Choices) -> str:
    return c.pick(("nn.Linear", *KINDS))


def build(case: Case) -> nn.Module:
    model = nn.Module()
    for name, kind in case.model.items():
        *above, last = name.split(".")
        parent = model
        for part in above:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        parent.add_module(last, KINDS[kind]())
    for index, module in enumerate(model.modules()):
        module.training = case.mode == MODES[1] or (case.mode == MODES[2] and index % 2 > 0)
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(not (case.frozen and index % 2))
    return model.to(case.dtype)


def adapted(model: nn.Module) -> dict[str, Any]:
    """The layers that hold an A and a B, by name; a layer may have two names."""
    modules = model.named_modules(remove_duplicate=False)
    return {n: m for n, m in modules if hasattr(m, "lora_A") and hasattr(m, "base_layer")}


def joined(words: list[str]) -> str:
    return ", ".join(words) or "none"


def play_case(stage: Stage, add_lora: Any, case: Case) -> None:
    """Two models of the same kind are adapted, one after the other."""
    torch.default_generator.manual_seed(4)
    models = [build(case), build(case)]
    for number, model in enumerate(models):
        stage.now("a second model of the same kind" if number else "")
        adapt(stage, add_lora, case, model)
    layers = [layer for model in models for layer in adapted(model).values()]
    stage.see("shared", len({id(p) for layer in layers for p in ab(layer)}) < 2 * len(layers))
    stage.see("places", [sorted(adapted(model)) for model in models], str)


def ab(layer: Any) -> list[nn.Parameter]:
    return [layer.lora_A, layer.lora_B]


def adapt(stage: Stage, add_lora: Any, case: Case, model: nn.Module) -> None:
    """Let the answer adapt one model, and look at all of it."""
    modules, modes = dict(model.named_modules()), [m.training for m in model.modules()]
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    arguments = [*case.target_modules], case.r, case.lora_alpha
    got = stage.do(lambda *given: add_lora(model, *given), *arguments)
    if isinstance(got, Raised):
        stage.blame("raises", "a list of parameters", got)
    found, after = adapted(model), dict(model.named_modules())
    stage.see("twice", sorted(n for n in found if n.endswith("base_layer.base_layer")), joined)
    stage.see("places", sorted(found), joined)
    for name, layer in found.items():
        if layer.base_layer is not modules[name]:
            stage.blame("base", f"`{name}` keeps its own layer", "another layer inside")
        stage.see("rank", f"A is {list(layer.lora_A.shape)}")
    replaced = [n for n, m in modules.items() if n not in found and after.get(n) is not m]
    stage.see("others", replaced, joined)
    stage.see("mode", modes == [m.training for m in modules.values()])
    same = {n: p.dtype == old.dtype and torch.equal(p, old) for n, (p, old) in before.items()}
    stage.see("changed", [n for n in same if not same[n]], joined)
    ours = {id(p) for layer in found.values() for p in ab(layer)}
    stage.see("shared", len(ours) < 2 * len(found))
    trained = {name: id(p) for name, p in model.named_parameters() if p.requires_grad}
    stage.see("not frozen", sorted(n for n in trained if trained[n] not in ours), joined)
    stage.see("trained", len(trained) == len(ours))
    is_list = isinstance(got, list | tuple)
    if not is_list or not all(isinstance(p, Tensor) for p in got):
        odd = [type(p).__name__ for p in got if not isinstance(p, Tensor)] if is_list else []
        kind = f"a {type(got).__name__}" + (f" that holds a {odd[0]}" if odd else "")
        stage.blame("form", "a list of parameters", kind)
    ids = [id(p) for p in got]
    stage.see("returned", f"{len(ids)} parameters, of which {len(set(ids) & ours)} are an A or a B")
    for name, layer in found.items():
        stage.now(f"`{name}` with numbers in A and B")
        see_output(stage, case, layer.eval())


def see_output(stage: Stage, case: Case, layer: Any) -> None:
    """What an adapted layer makes of x once A and B aren't zero."""
    generator = torch.Generator().manual_seed(1)
    for parameter in ab(layer):
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(3, WIDTH, generator=generator).to(case.dtype)
    near = beside(layer.base_layer(x), x, layer.lora_A, layer.lora_B, case.lora_alpha)
    near.must_fit(stage, "filled", stage.do(layer, x))


class Toy(nn.Module):
    """An embedding, two linear layers and an output layer: ids [B, T] to logits [B, T, 10].

    While training it answers a little differently, as a model with dropout does.
    """

    calls = 0

    def __init__(self, size: float = 1.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB_SIZE, 8)
        self.proj, self.up = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.lm_head = nn.Linear(8, VOCAB_SIZE, bias=False)
        self.lm_head.weight.data *= size

    def forward(self, token_ids: Tensor) -> Tensor:
        self.calls += 1
        x = self.embed(token_ids)
        x = x + self.proj(x).tanh()
        x = x + self.up(x).tanh()
        logits: Tensor = self.lm_head(x * (0.9 if self.training else 1.0))
        return logits


class Run(NamedTuple):
    logits_times: float  # and so the gradients
    optimizer: str
    parameter_groups: int
    learning_rate: float
    mode: str
    trained: str
    batches: list[tuple[Any, Any]]  # ids and labels, as lists


def draw_run(c: Choices) -> Run:
    def batch() -> tuple[Any, Any]:
        rows, length = c.integer(1, 3), c.integer(2, 7)
        ids = [[c.integer(0, VOCAB_SIZE - 1) for _ in range(length)] for _ in range(rows)]
        labels = [[IGNORE if c.rarely(3) else i for i in row] for row in ids]
        labels[0][-1] = ids[0][-1]
        return ids, labels

    optimizer, groups = c.pick(("SGD", "SGD", "SGD with momentum", "AdamW")), c.integer(1, 2)
    size, rate, mode = c.pick((1.0, 6.0, 0.1)), c.pick((0.5, 0.05)), c.pick(MODES[:2])
    return Run(size, optimizer, groups, rate, mode, c.pick(PARTS), c.some(batch, 1, 4))


def trained_of(model: Toy, part: str) -> list[nn.Parameter]:
    if part == PARTS[1]:
        model.requires_grad_(False)
        model.lm_head.requires_grad_()
        return list(model.lm_head.parameters())
    # What nobody moves gets a gradient all the same, and must not count.
    return [p for p in model.parameters() if part == PARTS[0] or p is not model.embed.weight]


def optimizer_of(run: Run, trained: list[nn.Parameter]) -> torch.optim.Optimizer:
    groups = [trained[:1], trained[1:]] if run.parameter_groups == 2 else [trained]
    params: Any = [{"params": group} for group in groups if group]
    if run.optimizer == "AdamW":
        return torch.optim.AdamW(params, lr=run.learning_rate / 50)
    momentum = 0.9 * ("momentum" in run.optimizer)
    return torch.optim.SGD(params, lr=run.learning_rate, momentum=momentum)


def play_run(stage: Stage, step: Any, run: Run) -> None:
    torch.default_generator.manual_seed(4)
    model = Toy(run.logits_times).train(run.mode == MODES[1])
    trained = trained_of(model, run.trained)
    optimizer = optimizer_of(run, trained)
    for number, batch in enumerate(run.batches, start=1):
        stage.now(f"step {number}")
        given = [torch.tensor(part) for part in batch]
        loss = stage.do(lambda *b: step(model, trained, optimizer, *b), *given)
        enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        if isinstance(loss, Raised):
            stage.blame("raises", "a loss", loss)
        if not isinstance(loss, float):
            clause = "tensor" if isinstance(loss, Tensor) else "form"
            stage.blame(clause, "a float", f"a {type(loss).__name__}")
        stage.see("grad mode", enabled)
        stage.see("calls", model.calls, "run {} times by now".format)
        stage.see("mode", model.training, mode_in_words)
        stage.see("loss", Loss(loss), str)
        stage.see("optimizer", [group["lr"] for group in optimizer.param_groups])
        stage.see("trained", [p.requires_grad for p in model.parameters()])
        for name, p in model.named_parameters():
            stage.now(f"`{name}` after step {number}")
            stage.see("weights", p.detach())


class Loss(float):
    """Equal to another one up to the errors of float32."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and math.isclose(self, other, rel_tol=1e-5, abs_tol=1e-7)

    __hash__ = float.__hash__
