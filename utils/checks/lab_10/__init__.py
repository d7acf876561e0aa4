"""The checks of lab 10: what is drawn, and what is right.

Oracles: counting, the same sums in double precision (token by token, or with the update as one
matrix), stories of layers told by `layers.py`, toy models, and at last what the engine says.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from utils.checks.kit.contracts import Choices, Fault, Given, InLockstep, Returns, Stage
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.inputs import tensor
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_10 import answers, layers, lighthouse, models
from utils.checks.lab_10.near import Near, WithGradients, beside, gradients, pulled, told

LAB = Lab(__file__)
IGNORE = -100
DTYPES = (torch.float32, torch.bfloat16, torch.float32, torch.float16)
VALUES = ("plain", "plain", "ties", "tiny", "zero")

# Exercise 1: the memory of training


def draw_training(c: Choices) -> Given:
    """No layer, one or many, of any size; some are like others."""
    linears = c.some(lambda: (c.size(1, 100_000), c.size(1, 100_000)), 0, 12)
    if linears and c.rarely(3):
        linears = [*linears, *linears]
    bits = c.pick((16, 8, 4, 4.127, 32, 4.5, 3, 1.58))
    return Given(c.size(0, 10**12), bits, linears, c.size(1, 4096))


def bytes_of_all(
    num_frozen: int, bits_per_frozen: float, linears: list[tuple[int, int]], r: int
) -> float:
    """In exact fractions, item by item, with matrices that take no memory on this device."""
    total = Fraction(num_frozen) * Fraction(bits_per_frozen) / 8
    for shape in (shape for i, o in linears for shape in ((r, i), (o, r))):
        for bits in (16, 16, 32, 32, 32):  # number, gradient, master copy, Adam's two means
            total += Fraction(torch.empty(shape, device="meta").numel()) * bits / 8
    return float(total)


training_bytes = LAB.check(answers.training_bytes, draw_training, Returns(bytes_of_all, rtol=1e-9))

# Exercise 2: which tokens are learned


def draw_texts(c: Choices) -> Given:
    """Texts of any length, also empty; ids above 65,535; an end token that also stands inside."""

    def token() -> int:
        return c.size(0, 200_000, 9)

    prompt, answer = c.some(token, 0, 9), c.some(token, 0, 9)
    if c.rarely(8):
        prompt = prompt * c.integer(1, 300)
    return Given(prompt, answer, c.pick((2, token(), *prompt[:1], *answer[-1:])))


def row_of(prompt_ids: list[int], answer_ids: list[int], eos_token_id: int) -> Any:
    """Token by token."""
    pairs = [(token, IGNORE) for token in prompt_ids]
    pairs += [(token, token) for token in (*answer_ids, eos_token_id)]
    return [token for token, _ in pairs], [label for _, label in pairs]


def _all_ints(row: list[Any]) -> bool:
    return all(type(token) is int for token in row)


def two_lists(expected: Any, got: Any, given: Given) -> Fault | None:
    pair = isinstance(got, tuple | list) and len(got) == 2
    if not pair or not all(isinstance(row, list) and _all_ints(row) for row in got):
        return Fault("form", "", "two lists of ints", got)
    clause = "labels" if got[0] == expected[0] else "ids"
    if len(got[0]) != len(got[1]):
        clause = "lengths"
    elif tuple(got) == tuple(expected):
        return Fault("one list", "", "two lists", "one") if got[0] is got[1] else None
    return Fault(clause, "", expected, got)


make_labels = LAB.check(answers.make_labels, draw_texts, Returns(row_of, own=True, wrong=two_lists))

# Exercise 3: the loss


def draw_loss(c: Choices) -> Given:
    """Texts of any length, wide vocabularies, first places with a label, large and low logits."""
    batch, length = c.integer(1, 3), 1 + c.size(1, 70)
    vocab_size = 70_000 if c.rarely(30) else 1 + c.size(1, 40)
    length = min(length, 5) if vocab_size > 1000 else length
    dtype = c.pick((torch.float32, torch.float32, torch.bfloat16, torch.float16))
    logits = tensor(c, (batch, length, vocab_size), (dtype,))
    labels = torch.full((batch, length), IGNORE)
    learned = c.pick((2, 1, 4))
    for row in range(batch):
        for place in range(length):
            if c.rarely(learned):
                labels[row, place] = c.integer(0, vocab_size - 1)
    if (labels[:, 1:] == IGNORE).all():
        labels[-1, c.integer(1, length - 1)] = c.integer(0, vocab_size - 1)
    return Given(logits, labels)


def token_by_token(logits: Tensor, labels: Tensor) -> Tensor:
    """In double precision."""
    terms = []
    for row, place in (labels != IGNORE).nonzero().tolist():
        if place > 0:
            scores = logits[row, place - 1].double()
            terms.append(scores.logsumexp(0) - scores[labels[row, place]])
    return torch.stack(terms).mean()


def right_loss(logits: Tensor, labels: Tensor) -> list[Near]:
    exact = logits.double().requires_grad_()
    loss = token_by_token(exact, labels)
    (loss * pulled(loss)).backward()
    assert exact.grad is not None
    loss, rounding = loss.detach(), 1e-6 * logits.double().abs().max()
    output = Near(loss.float(), 1e-5 * loss.abs() + rounding + 1e-6)
    per_token = (rounding + 1e-5) / (labels[:, 1:] != IGNORE).sum()
    tolerance = 4 * torch.finfo(logits.dtype).eps * exact.grad.abs() + 2 * per_token
    return [output, Near(exact.grad.to(logits.dtype), tolerance)]


answer_loss = LAB.check(answers.answer_loss, draw_loss, WithGradients(right_loss, ("logits",)))

# Exercise 4: the first values of A and B


def draw_sizes(c: Choices) -> Sizes:
    return Sizes(c.size(1, 900), c.size(1, 300), c.size(1, 70))


class Sizes(NamedTuple):
    in_features: int
    out_features: int
    r: int


def play_first_values(stage: Stage, answer: Any, sizes: Sizes) -> None:
    """Three calls: after a seed, a second one, and one after the same seed again."""
    pairs = []
    for seed in (1, None, 1):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        got = stage.do(answer, *sizes)
        see_form(stage, got, sizes)
        layers.see_first_values(stage, got[0].detach(), got[1].detach())
        pairs.append(got)
    (a, b), (a2, b2), (a3, _) = pairs
    shared = a.data_ptr() == a2.data_ptr() or b.data_ptr() == b2.data_ptr()
    for clause, wrong, expected, came in (
        ("kept", shared, "new Parameters in each call", "the same Parameters"),
        ("again", torch.equal(a, a2), "another A in each call", "the same A"),
        ("seed", not torch.equal(a, a3), "the same A after the same seed", "another A"),
    ):
        if wrong:
            stage.blame(clause, expected, came)


def see_form(stage: Stage, got: Any, sizes: Sizes) -> None:
    i, o, r = sizes
    if not isinstance(got, tuple | list) or len(got) != 2:
        stage.blame("form", "a pair: A and B", got)
    shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in got]
    stage.expect("shapes", [(r, i), (o, r)], shapes)
    for name, value in zip("AB", got, strict=True):
        if not isinstance(value, nn.Parameter) or not value.requires_grad:
            kind = "frozen" if isinstance(value, nn.Parameter) else "no nn.Parameter"
            stage.blame("parameter", "an nn.Parameter that needs a gradient", f"{name} is {kind}")
        stage.expect("dtype", "torch.float32", str(value.dtype))
        if value.untyped_storage().nbytes() < value.numel() * value.element_size():
            stage.blame("own", "memory for each number", "several numbers in one place")


init_lora = LAB.check(
    answers.init_lora, draw_sizes, InLockstep(play_first_values, answers.init_lora), tell=told
)

# Exercise 5: the update beside the base layer


def draw_forward(c: Choices) -> Given:
    """x with any number of dimensions, also empty; A and B whose last bits count."""
    dtype = c.pick(DTYPES)
    i, o, r = c.size(1, 140), c.size(1, 140), c.size(1, 20)
    rows = c.pick(((1,), (), (3,), (2, 2), (0,), (2, 1, 3)))
    of_base = c.pick(DTYPES) if c.rarely(4) else dtype
    base_output, x = (
        tensor(c, (*rows, n), (kind,), VALUES) for n, kind in ((o, of_base), (i, dtype))
    )
    a, b = (tensor(c, s, values=VALUES) for s in ((r, i), (o, r)))
    return Given(base_output, x, a, b, c.pick(layers.ALPHAS))


def right_forward(
    base_output: Tensor, x: Tensor, lora_A: Tensor, lora_B: Tensor, lora_alpha: float
) -> list[Near]:
    """The output, and the gradients of base_output, x, A and B."""
    above = pulled(base_output)
    of_base = Near(above.to(base_output.dtype), torch.zeros_like(above))
    others = gradients(torch.zeros_like(x), x, above, lora_A, lora_B, lora_alpha)
    return [beside(base_output, x, lora_A, lora_B, lora_alpha), of_base, *others]


def builds_the_product(answer: Any, given: Given) -> Fault | None:
    """Whether B A is built; only asked where it is far larger than all that must be made."""
    base_output, x, a, b, alpha = given.copied().args
    whole = b.shape[0] * a.shape[1]
    if whole <= 4 * sum(t.numel() for t in (base_output, x, a, b)):
        return None
    with Largest() as largest:
        attempt(answer, base_output, x, a, b, alpha)
    if largest.numbers < whole:
        return None
    return Fault("built", "", "no tensor of this size", f"a tensor of {whole:,} numbers")


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor has that is made within it."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, out.numel() if isinstance(out, Tensor) else 0)
        return out


lora_forward = LAB.check(
    answers.lora_forward,
    draw_forward,
    WithGradients(right_forward, ("base_output", "x", "lora_A", "lora_B"), builds_the_product),
)

# Exercise 6: the update in the weight


def draw_merge(c: Choices) -> Given:
    """Updates as large as the weight, and ones that are nearly lost in it."""
    dtype, o, i, r = c.pick(DTYPES), c.size(1, 60), c.size(1, 60), c.size(1, 20)
    weight = tensor(c, (o, i), (dtype,), (*VALUES, "large", "negative"))
    a, b = (tensor(c, s, values=("plain", "plain", "ties")) for s in ((r, i), (o, r)))
    b = b * c.pick((1.0, 0.1, 0.01, 1e-4, 0.0))
    if c.rarely(3):  # as in a layer that is still trained
        a, b = a.requires_grad_(), b.requires_grad_()
    return Given(weight, a, b, c.pick(layers.ALPHAS))


def summed(weight: Tensor, lora_A: Tensor, lora_B: Tensor, lora_alpha: float) -> Tensor:
    return layers.exact_sum(weight, lora_A, lora_B, lora_alpha).to(weight.dtype)


def rounded_weight(expected: Tensor, got: Any, given: Given) -> Fault | None:
    if isinstance(got, Tensor) and layers.rounded_once(got.detach(), *given.args):
        return None
    clause = "dtype" if isinstance(got, Tensor) and got.dtype != expected.dtype else "returns"
    says = difference(expected, got) or "The numbers are rounded more than once."
    return Fault(clause, "", expected, got, says)


merge_weight = LAB.check(
    answers.merge_weight, draw_merge, Returns(summed, own=True, wrong=rounded_weight)
)

# Exercises 7 to 10: a layer, a model of them, a step of training, and a way back

lora_linear = LAB.check(
    answers.LoRALinear, layers.LayerStory.draw, layers.LayerStory.judge(answers.LoRALinear)
)
add_lora = LAB.check(
    answers.add_lora,
    models.draw_case,
    InLockstep(models.play_case, answers.add_lora),
    tell=told,
    examples=70,
)
training_step = LAB.check(
    answers.training_step,
    models.draw_run,
    InLockstep(models.play_run, answers.training_step),
    tell=told,
    examples=80,
)
switchable = LAB.check(
    answers.SwitchableLoRALinear,
    layers.SwitchStory.draw,
    layers.SwitchStory.judge(answers.SwitchableLoRALinear),
    examples=100,
)

# Exercise 11


@LAB.exercise
def engine(make_parts: Callable[[], tuple[Any, ...]]) -> str:
    """All parts by themselves first; then the real model learns, and the engine speaks."""
    got = call(make_parts)
    if not isinstance(got, tuple) or len(got) != len(lighthouse.Parts._fields):
        raise Mismatch(f"`my_parts` must return {', '.join(lighthouse.Parts._fields)}.")
    parts = lighthouse.Parts(*got)
    lighthouse.rehearse(parts, (make_labels, lora_linear, add_lora, training_step, switchable))
    return lighthouse.run(parts)


ask, said = lighthouse.ask, lighthouse.said
