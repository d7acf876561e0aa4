"""What lab 10 says of the first values of A and B: exercise 5."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Raised, mistake
from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.contracts.guards import as_at_first

ENOUGH = 200  # numbers, to judge how they are spread
FARTHEST = 2.9  # Kolmogorov and Smirnov's distance times sqrt(n): above it once in ten million


class Sizes(NamedTuple):
    in_features: int
    out_features: int
    r: int
    seed: int

    def __str__(self) -> str:
        return f"in_features {self.in_features}, out_features {self.out_features}, r {self.r}"


def draw_sizes(c: Choices) -> Sizes:
    return Sizes(c.size(1, 900), c.size(1, 300), c.size(1, 70), c.integer(0, 9999))


class Drawn:
    """Judges three calls: after a seed, a second one, and one after the same seed again."""

    def tell(self, case: Sizes) -> str:
        return str(case)

    def expect(self, case: Sizes) -> None:
        return None

    def fault(self, answer: Any, case: Sizes, expected: None) -> Fault | None:
        as_at_first(answer)
        pairs: list[tuple[Tensor, Tensor]] = []
        for seed in (case.seed, None, case.seed):
            if seed is not None:
                torch.default_generator.manual_seed(seed)
            got = attempt(answer, *case[:3])
            fault = _of_form(got, case)
            if fault is None:
                fault = _of_values(got[0].detach(), got[1].detach(), case)
            if fault is not None:
                return fault
            pairs.append((got[0].detach().clone(), got[1]))
            with torch.no_grad():
                got[0].zero_(), got[1].fill_(1)  # as training does: whose memory is it?
        if torch.equal(pairs[0][0], pairs[1][0]):
            return Fault("again", "two calls", "another A", "the same A")
        if not torch.equal(pairs[0][0], pairs[2][0]):
            return Fault(
                "seed", "two calls, each after `torch.manual_seed(0)`", "the same A", "another A"
            )
        return None


def _of_form(got: Any, case: Sizes) -> Fault | None:
    i, o, r = case[:3]
    if isinstance(got, Raised):
        return Fault("raises", "", "A and B", got, got.says, got.look)
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Fault("form", "", "a pair: A and B", got)
    shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in got]
    if shapes != [(r, i), (o, r)]:
        return Fault("shapes", "", [(r, i), (o, r)], shapes)
    for name, value in zip("AB", got, strict=True):
        if not isinstance(value, nn.Parameter) or not value.requires_grad:
            return Fault("parameter", name, "an nn.Parameter", f"a {type(value).__name__}")
        if value.dtype != torch.float32:
            return Fault("dtype", name, "float32", str(value.dtype).removeprefix("torch."))
        places = value.untyped_storage().nbytes() // value.element_size()
        if places < value.numel():
            return Fault("own", name, f"memory for {value.numel()} numbers", f"for {places}")
    return None


def _of_values(a: Tensor, b: Tensor, case: Sizes) -> Fault | None:
    bound, kind = case.in_features**-0.5, "B is not zero"
    if b.any():
        return Fault("zero", "", "B all zeros", kind if a.any() else "A is zero, and B is not")
    if not a.any():
        return Fault("both zero", "", "A random", "A and B all zeros")
    if a.numel() > 1 and a.abs().unique().numel() < 0.95 * a.numel():
        return Fault("repeated", "", "r x in_features numbers", "numbers that come again")
    largest = float(a.abs().max())
    words = (
        f"within -{bound:.4g} and {bound:.4g}, each place as likely",
        f"from {float(a.min()):.4g} to {float(a.max()):.4g}",
    )
    if largest > 1.001 * bound:
        return Fault("spread", "", bound, largest, words=words)
    if a.numel() < ENOUGH:
        return None
    if a.min() > 0:
        return Fault("positive", "", words[0], words[1])
    share = (a.flatten().double().sort().values / bound + 1) / 2  # of uniform numbers: evenly on
    steps = torch.arange(a.numel(), dtype=torch.float64) / a.numel()
    distance = float((share - steps).abs().max()) * math.sqrt(a.numel())
    return Fault("spread", "", bound, largest, words=words) if distance > FARTHEST else None


def but(a: Any = None, b: Any = None, bound: Any = None) -> Any:
    """A right answer, with another A, B or bound."""

    def answer(i: int, o: int, r: int) -> Any:
        limit = bound(i, o, r) if bound else i**-0.5
        first = a(i, o, r) if a else torch.empty(r, i).uniform_(-limit, limit)
        return nn.Parameter(first), nn.Parameter(b(i, o, r) if b else torch.zeros(o, r))

    return answer


def _plain(i: int, o: int, r: int) -> Any:
    return tuple(t.data for t in but()(i, o, r))


def _swapped(i: int, o: int, r: int) -> Any:
    b, a = but()(o, i, r)
    return nn.Parameter(b.data.T.contiguous()), nn.Parameter(a.data.T.contiguous())


def _seeded(i: int, o: int, r: int) -> Any:
    torch.manual_seed(0)
    return but()(i, o, r)


_SQUARE = "Both sides of zero, with b = in_features to the power of -1/2 as the limit."
INIT_LORA = Contract(
    inputs=draw_sizes,
    judge=Drawn(),
    passed="B is zero, so training begins with exactly the model that is there. A is not, so it "
    "can begin.",
    clauses={
        "form": Clause("Your function must return a pair: A and B."),
        "shapes": Clause(
            "A or B has the wrong shape.",
            "A goes from in_features to r, B from r to out_features. A linear "
            "layer's weight is [outputs, inputs].",
        ),
        "parameter": Clause(
            "{expected} was expected, not {got}. An optimizer would not find it.",
            "`nn.Parameter(...)` around the tensor.",
        ),
        "dtype": Clause("A and B must be float32, in which small steps add up."),
        "own": Clause(
            "Several numbers lie in one place of memory: what is learned for one "
            "overwrites the others.",
            "No `expand`: reserve all of them.",
        ),
        "zero": Clause(
            "B is not zero. Then B A is not zero either, and before the first step the "
            "model is already another one, damaged at random.",
            "All zeros, in each call anew.",
        ),
        "both zero": Clause(
            "A and B are both zero. The gradient of each contains the other, so "
            "both gradients are zero for ever.",
            "A is random, in each call anew.",
        ),
        "repeated": Clause(
            "Numbers of A come again. If rows are the same, A makes r times the "
            "same number, and the rank is 1.",
            "Draw all r x in_features numbers.",
        ),
        "positive": Clause(
            "The numbers of A are all positive. They must lie on both sides of zero.", _SQUARE
        ),
        "spread": Clause("The numbers of A are not spread evenly between -b and b.", _SQUARE),
        "again": Clause(
            "A is the same in each call. All layers of a model would begin with the same A.",
            "No seed inside the function.",
        ),
        "seed": Clause(
            "After the same `torch.manual_seed`, A is another one. Nobody could repeat a training.",
            "Draw with torch, and set no seed of your own.",
        ),
    },
    mistakes=(
        mistake(
            "A is zero and B is random. The product is zero, too, but here it is the other way "
            "round: B starts at zero.",
            "`torch.zeros` for B.",
            but(a=lambda i, o, r: torch.zeros(r, i), b=lambda i, o, r: torch.randn(o, r)),
        ),
        mistake(
            "A is drawn from a normal distribution. Expected is a uniform one between two bounds.",
            _SQUARE,
            but(a=lambda i, o, r: torch.randn(r, i) * i**-0.5),
        ),
        mistake(
            "The bound of A is taken from out_features. It is in_features ** -0.5: A sums over "
            "in_features numbers, and its outputs should neither grow nor vanish.",
            _SQUARE,
            but(bound=lambda i, o, r: o**-0.5),
        ),
        mistake(
            "The bound of A is taken from r. It is in_features ** -0.5: A sums over "
            "in_features numbers, and its outputs should neither grow nor vanish.",
            _SQUARE,
            but(bound=lambda i, o, r: r**-0.5),
        ),
        mistake(
            "The bound of A is 1 / in_features; the square root is missing.",
            _SQUARE,
            but(bound=lambda i, o, r: 1 / i),
        ),
        mistake(
            "A and B are no nn.Parameters that can be trained. An optimizer would not find them.",
            "`nn.Parameter(...)` around each tensor.",
            _plain,
        ),
        mistake(
            "A and B are swapped.",
            "A goes from in_features to r, B from r to out_features.",
            _swapped,
        ),
        mistake(
            "A is the same in each call: all layers of a model would begin with the same A. "
            "And every other random number of the program is no longer random.",
            "No `manual_seed` inside the function.",
            _seeded,
        ),
    ),
)
