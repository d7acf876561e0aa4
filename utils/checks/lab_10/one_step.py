"""Steps of training, in lockstep with a right one: exercise 10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from utils.checks.kit.contracts import Choices, Clause, Contract, InLockstep, Raised, Stage, mistake
from utils.checks.lab_10.what_is_learned import IGNORE

VOCAB_SIZE, WIDTH, MAX_NORM = 10, 8, 1.0
OPTIMIZERS = ("SGD", "SGD", "SGD with momentum", "AdamW")
PARTS = ("all", "the last layer", "all but one, which nobody moves")


class Toy(nn.Module):
    """An embedding, two linear layers and an output layer: ids [B, T] to logits [B, T, 10].

    While training it answers a little differently, as a model with dropout does.
    """

    def __init__(self, size: float = 1.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            self.embed = nn.Embedding(VOCAB_SIZE, WIDTH)
            self.proj, self.up = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
            self.lm_head = nn.Linear(WIDTH, VOCAB_SIZE, bias=False)
        with torch.no_grad():
            self.lm_head.weight *= size

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.embed(token_ids)
        x = x + self.proj(x).tanh()
        x = x + self.up(x).tanh()
        return self.lm_head(x * (0.9 if self.training else 1.0))


@dataclass(frozen=True)
class Run:
    size: float  # of the logits, and so of the gradients
    optimizer: str
    rate: float
    training: bool
    part: str
    batches: tuple[tuple[Any, Any], ...]  # ids and labels, as lists

    def __str__(self) -> str:
        mode = "train" if self.training else "eval"
        return (
            f"a toy model in {mode} mode, {self.optimizer} with learning rate {self.rate}, trained "
            f"is {self.part}; {len(self.batches)} steps; logits times {self.size:g}"
        )


def draw_run(c: Choices) -> Run:
    def batch() -> tuple[Any, Any]:
        rows, length = c.integer(1, 3), c.integer(2, 7)
        ids = [[c.integer(0, VOCAB_SIZE - 1) for _ in range(length)] for _ in range(rows)]
        labels = [[IGNORE if c.rarely(3) else i for i in row] for row in ids]
        labels[0][-1] = ids[0][-1]
        return ids, labels

    return Run(
        c.pick((1.0, 6.0, 0.1)),
        c.pick(OPTIMIZERS),
        c.pick((0.5, 0.05)),
        c.rarely(2),
        c.pick(PARTS),
        tuple(c.some(batch, 1, 4)),
    )


def play(stage: Stage, step: Any, run: Run) -> None:
    model = Toy(run.size).train(run.training)
    trained = list(model.parameters())
    if run.part == "the last layer":
        model.requires_grad_(False)
        model.lm_head.weight.requires_grad_(True)
        trained = list(model.lm_head.parameters())
    if run.part == PARTS[2]:  # it gets a gradient, and must not count
        trained = [p for p in trained if p is not model.embed.weight]
    optimizer = _optimizer(run, trained)
    for number, (ids, labels) in enumerate(run.batches, start=1):
        stage.now(f"step {number}")
        given = torch.tensor(ids), torch.tensor(labels)
        loss = stage.do(lambda *a: step(model, trained, optimizer, *a), *given)
        if isinstance(loss, Raised):
            stage.blame("raises", "a loss", loss)
        if not isinstance(loss, float):
            clause = "tensor" if isinstance(loss, Tensor) else "form"
            stage.blame(clause, "a float", f"a {type(loss).__name__}")
        enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        stage.see("grad mode", enabled)
        stage.see(
            "mode",
            [m.training for m in model.modules()],
            lambda modes: "train" if any(modes) else "eval",
        )
        stage.see("loss", loss)
        stage.see("optimizer", [group["lr"] for group in optimizer.param_groups])
        stage.see("trained", [p.requires_grad for p in model.parameters()])
        stage.see("weights", torch.cat([p.detach().flatten() for p in model.parameters()]).clone())


def _optimizer(run: Run, trained: list[nn.Parameter]) -> torch.optim.Optimizer:
    if run.optimizer == "AdamW":
        return torch.optim.AdamW(trained, lr=run.rate / 50)
    return torch.optim.SGD(trained, lr=run.rate, momentum=0.9 * ("momentum" in run.optimizer))


def mean_loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    scores = model(ids)[:, :-1].float().log_softmax(-1)
    following = labels[:, 1:]
    learned = following != IGNORE
    return -scores[learned].gather(1, following[learned][:, None]).mean()


def but(
    zero: bool = True,
    clip: str = "norm",
    steps: int = 1,
    after: bool = False,
    item: bool = True,
    mode: str = "",
    first: bool = False,
) -> Any:
    """A right step with switches for mistakes."""

    def step(model: nn.Module, trained: Any, optimizer: Any, ids: Tensor, labels: Tensor) -> Any:
        if mode:
            model.train(mode == "train")
        loss = mean_loss(model, ids, labels)
        if zero:
            optimizer.zero_grad()
        loss.backward()
        if first:
            optimizer.zero_grad()
        grads = [p.grad for p in trained if p.grad is not None]
        if clip == "value":
            torch.nn.utils.clip_grad_value_(trained, MAX_NORM)
        elif clip == "all":
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        elif clip == "each":
            for p in trained:
                torch.nn.utils.clip_grad_norm_(p, MAX_NORM)
        elif clip != "none" and grads:
            norm = torch.stack([g.norm() for g in grads]).norm()
            for g in grads:
                g *= MAX_NORM / norm if clip == "always" or norm > MAX_NORM else 1.0
        for _ in range(steps):
            optimizer.step()
        loss = mean_loss(model, ids, labels) if after else loss
        return loss.item() if item else loss

    return step


_ZERO = "Set the gradients to zero once in each step: before `backward`, or after the step."
_CLIP = "`torch.nn.utils.clip_grad_norm_(trained, 1.0)` between the gradients and the step."
TRAINING_STEP = Contract(
    inputs=draw_run,
    judge=InLockstep(play, but()),
    examples=80,
    passed="Loss, gradients, clipped by their common norm, one step, and the slate is clean.",
    clauses={
        "tensor": Clause(
            "You return a tensor. It keeps the whole graph of the step in memory, as "
            "long as somebody keeps the loss.",
            "`loss.item()` is a plain number.",
        ),
        "form": Clause("You return {got}; expected the loss, a float."),
        "grad mode": Clause("After your call, gradients are switched off for the whole program."),
        "mode": Clause(
            "The model is in {got} mode after the step; it was in {expected} mode. "
            "Whoever calls decides that."
        ),
        "loss": Clause(
            "The loss is wrong. {says}",
            "Is it `answer_loss` of exercise 4, of this batch, before the step, with "
            "the model in the mode in which it came?",
        ),
        "optimizer": Clause("The optimizer's learning rate is changed."),
        "trained": Clause("Your step changes what needs a gradient."),
        "weights": Clause(
            "After the step, the weights are not where they should be. {says}",
            "Gradients of this batch alone, clipped by the norm of all of them "
            "together; then one step.",
        ),
        "changes": Clause(
            "Your step changes {got} in place: ids or labels. The next epoch needs "
            "them as they were.",
            "Compute a new tensor.",
        ),
        "raises": Clause("{says}"),
    },
    mistakes=(
        mistake(
            "Gradients add up from step to step: they are never set to zero.",
            _ZERO,
            but(zero=False),
        ),
        mistake(
            "Gradients add up from step to step, and they are not clipped.",
            _ZERO,
            but(zero=False, clip="none"),
        ),
        mistake(
            "The weights do not move.",
            "Is there a `backward` and a `step`? And are the gradients still there when it steps?",
            but(steps=0),
        ),
        mistake("The gradients are not clipped before the step.", _CLIP, but(clip="none")),
        mistake(
            "Each parameter is clipped by itself. Then the direction of the step changes. The "
            "norm is that of all gradients together.",
            _CLIP,
            but(clip="each"),
        ),
        mistake(
            "Each number is clipped by itself, not the norm of all together.",
            _CLIP,
            but(clip="value"),
        ),
        mistake(
            "Gradients with a norm below 1 are scaled *up* to it. Clipping leaves them as they "
            "are.",
            _CLIP,
            but(clip="always"),
        ),
        mistake(
            "The norm is that of all the model's gradients. Only the trained ones count.",
            _CLIP,
            but(clip="all"),
        ),
        mistake("The weights move twice in a step.", "One `optimizer.step()`.", but(steps=2)),
        mistake(
            "You return the loss after the step. It is computed anew, which costs a second "
            "forward pass.",
            "Return the loss whose gradient you took.",
            but(after=True),
        ),
        mistake(
            "You set the model's mode yourself: the step runs in another one than it came in.",
            "No `model.train()` and no `model.eval()` here.",
            but(mode="train"),
            but(mode="eval"),
        ),
    ),
)
