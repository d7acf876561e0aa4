"""The checks of lab 11: what is drawn, and what is right.

Oracles: keys by a regular expression, sums in float64 with the room that one rounding needs, and
faults that are planted outside of it; at last peft's own adapter and its unmerged model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.kit.lab.engine import speaks_first
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.runner import Passed
from utils.checks.lab_11 import answers, real_files, suspects
from utils.checks.lab_11.adapters import (
    DTYPES,
    PREFIX,
    A,
    Config,
    Model,
    Pairs,
    Tensors,
    by_expression,
    draw_config,
    draw_matrices,
    draw_model,
    dtype_of,
    numbers,
    told,
)
from utils.checks.lab_11.merged import Rounded, in_float64, not_rounded_once
from utils.checks.lab_11.planted import SIZES, draw_merged, explanations, judged, sizes_of, steps
from utils.checks.lab_11.spoiled import spoil

LAB = Lab(__file__)

# Exercise 1


def draw_adapter(c: Choices) -> Given:
    config, tensors, base = draw_model(c)
    if c.rarely(2):
        spoil(c, config, tensors, base)
    return Given(config, tensors, base)


def wrong_pairs(expected: Pairs, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, dict) or any(type(pair) is not tuple for pair in got.values()):
        return Fault("form", "", "a dict: name -> (A, B)", got)
    for name in sorted(map(str, expected.keys() ^ got.keys())):
        says = f"`{name}` is {'missing' if name in expected else 'no weight of these layers'}."
        return Fault("names", "", sorted(expected), sorted(map(str, got)), says)
    for name, pair in expected.items():
        if difference(pair, got[name], rtol=0.0, atol=0.0):
            return Fault("pairs", "", expected, got, f"Wrong for `{name}`.")
    return None


match_adapter = LAB.check(
    answers.match_adapter,
    draw_adapter,
    Returns(by_expression, wrong=wrong_pairs),
    tell=told,
    examples=400,
)

# Exercise 2


def draw_weight(c: Choices) -> Given:
    """Updates as large as the weight, and far smaller; what float16 cannot hold; a NaN."""
    r, width, out = c.size(1, 130, small=4), c.size(1, 40), c.size(1, 40)
    out = width if c.rarely(3) else out
    config = draw_config(c, r)
    a, b = draw_matrices(c, r, width, out)
    if c.rarely(4):
        config["lora_alpha"] = c.pick((0, -8, 100))
    shape = (width, out) if config.get("fan_in_fan_out") else (out, width)
    weight = numbers(c, *shape, scale=c.pick((1.0, 1.0, 0.02, 1e-6))).to(c.pick(DTYPES))
    kind = c.pick(("plain",) * 9 + ("overflow", "overflow", "nan", "inf"))
    if kind == "overflow":
        # float16 ends at 65504. What is below 65520 is rounded to that.
        total = c.pick((9e4, 65000, 65504, 65510, 65530))
        weight = torch.full_like(weight, 6e4)
        config |= {"r": 1, "lora_alpha": total - 6e4, "use_rslora": False}
        a, b = torch.ones_like(a)[:1], torch.ones_like(b)[:, :1]
    if kind in ("nan", "inf"):
        c.pick((a, b, weight))[0, 0] = float(kind)
    weight = laid_out(weight, c.pick(LAYOUTS))
    if c.rarely(4):
        a, b = a.requires_grad_(), b.requires_grad_()
    return Given(weight, a, b, config)


def wrong_weight(expected: Rounded, got: Any, given: Given) -> Fault | None:
    """The clause is what the smallest input that shows the fault cannot do without."""
    if not (found := not_rounded_once(expected, got)):
        return None
    clause, says = found
    config = given.args[3]
    if clause == "number":
        special = [key for key in ("fan_in_fan_out", "use_rslora") if config.get(key)]
        clause = special[0] if special else "number"
    return Fault(clause, "", expected.nearest, got, says)


def tell_weight(given: Given) -> str:
    weight, a, b, config = given.args
    shapes = (
        f"{name} {dtype_of(t)} {list(t.shape)}"
        for name, t in (("weight", weight), ("A", a), ("B", b))
    )
    keys = ("r", "lora_alpha", "use_rslora", "fan_in_fan_out")
    return f"{', '.join(shapes)}; config { {key: config[key] for key in keys if key in config} }"


merge_weight = LAB.check(
    answers.merge_weight,
    draw_weight,
    Returns(in_float64, own=True, wrong=wrong_weight),
    tell=tell_weight,
)

# Exercise 3


def draw_state(c: Choices) -> Model:
    """Now and then other dtypes, whole numbers, one tensor twice, or a spoiled adapter."""
    config, tensors, base = draw_model(c)
    tied: tuple[str, ...] = ()
    if c.rarely(3):
        name = c.pick(list(base))
        base[name] = base[name].float()
    if c.rarely(3):
        positions = torch.arange(c.size(1, 5))
        beyond_floats = positions + 2**60
        base["model.rotary.positions"] = c.pick(
            (positions, positions / 7.0, positions == 2, beyond_floats)
        ).to(c.pick((torch.float64, torch.int64, torch.bool)))
    if c.rarely(6):
        base["model.mask"] = torch.full((2, 2), -torch.inf).triu(1)
    if PREFIX + "lm_head" + A in tensors and c.rarely(3):  # embedding and output layer are one
        base["model.embed_tokens.weight"] = base.pop("lm_head.weight")
    elif c.rarely(6):
        spoil(c, config, tensors, base)
    elif c.rarely(8):
        c.pick(list(tensors.values()))[0, 0] = float("nan")
    elif c.rarely(4):
        name = c.pick(list(by_expression(config, tensors, base)))
        tied = (name, "model.embed_tokens.weight")
        base[tied[1]] = base[tied[0]]
    model = Model(config, tensors, base)
    model.tied = tied
    return model


def all_rounded(config: Config, tensors: Tensors, base: Tensors) -> dict[str, Rounded | Tensor]:
    """In float64; what has no matrices as it was."""
    pairs = by_expression(config, tensors, base)
    return {
        name: in_float64(weight, *pairs[name], config, f"`{name}`, merged,")
        if name in pairs
        else weight
        for name, weight in base.items()
    }


def wrong_state(
    expected: dict[str, Rounded | Tensor], got: Any, given: Given | None = None
) -> Fault | None:
    """The first weight that is wrong, with the names and the order before all numbers."""

    def fault(clause: str, says: str) -> Fault:
        words = ("the names of `base`, each weight right", says)
        return Fault(clause, "", "", says, says, words=words)

    if not isinstance(got, dict):
        return fault("form", f"Expected a dict, not a {type(got).__name__}.")
    if lacking := [name for name in expected if name not in got]:
        return fault("missing", f"`{lacking[0]}` is not in it.")
    if odd := [name for name in got if name not in expected]:
        return fault("names", f"`{odd[0]}` is only in your dict, not in the base.")
    if list(got) != list(expected):
        return fault("names", "The names are in another order than in the base.")
    for name, right in expected.items():
        if isinstance(right, Rounded):
            if found := not_rounded_once(right, got[name]):
                return fault("dtype" if found[0] == "dtype" else "merged", f"`{name}`: {found[1]}")
        elif not isinstance(got[name], Tensor):
            return fault("others", f"`{name}` is a {type(got[name]).__name__} now.")
        elif got[name].dtype != right.dtype:
            said = f"`{name}` is {dtype_of(got[name])} now, and {dtype_of(right)} in the base."
            return fault("dtype", said)
        elif not torch.equal(got[name], right):
            return fault("others", f"The numbers of `{name}` have changed.")
    return None


merge_state = LAB.check(
    answers.merge_state, draw_state, Returns(all_rounded, wrong=wrong_state), tell=told
)

# Exercise 4

NAMES = ("changed", "off", "arrived")


def draw_rounding(c: Choices) -> Given:
    """Updates from far below a step of the dtype to far above the weight; some are none at all."""
    shape = (c.size(1, 70), c.size(1, 12), 2)[: c.pick((2, 2, 1, 3))]
    size = c.pick((1.0, 1.0, 0.02, 300.0, 1e-30))
    before = numbers(c, *shape, scale=size).to(c.pick((*DTYPES, torch.float64)))
    delta = numbers(c, *shape, scale=size * c.pick((0.1, 3e-3, 1e-3, 1e-5, 1.0, 1e-15)))
    delta = delta.to(c.pick((torch.float32, torch.float32, torch.float64, *DTYPES)))
    if c.rarely(3):
        delta[..., ::2] = 0
    if c.rarely(5) and shape[-1] % 2 == 0:
        delta[..., ::2] = -delta[..., 1::2]  # their sum is 0
    if c.rarely(10):
        delta = torch.zeros_like(delta)
    kind = c.pick(("once", "once", "backwards", "twice", "not"))
    times = {"once": 1.0, "backwards": -1.0, "twice": 2.0, "not": 0.0}[kind]
    after = (before.double() + times * delta.double()).to(
        before.dtype if not c.rarely(4) else c.pick((*DTYPES, torch.float64))
    )
    return Given(*(laid_out(t, c.pick(LAYOUTS)) for t in (before, after, delta)))


def number_by_number(before: Tensor, after: Tensor, delta: Tensor) -> tuple[float, float, float]:
    """In Python's numbers, summed exactly."""
    old, new, d = (t.double().flatten().tolist() for t in (before, after, delta))
    length = math.fsum(x * x for x in d)
    if length == 0:
        raise ValueError("no update")
    moved = [n - o for o, n in zip(old, new, strict=True)]
    changed = sum(m != 0 for m in moved) / len(moved)
    off = math.sqrt(math.fsum((m - x) ** 2 for m, x in zip(moved, d, strict=True)) / length)
    return changed, off, math.fsum(m * x for m, x in zip(moved, d, strict=True)) / length


def wrong_numbers(expected: tuple[float, ...], got: Any, given: Given) -> Fault | None:
    says = difference(expected, got, rtol=1e-6, atol=1e-9)
    if isinstance(got, list | tuple) and len(got) == len(NAMES):
        if not all(isinstance(number, (float, int) if says else float) for number in got):
            says = f"These are of types {', '.join(type(number).__name__ for number in got)}."
        elif says and not difference(sorted(expected), sorted(got), rtol=1e-6, atol=1e-9):
            says = "These are the right numbers in another order."
    for number, name in enumerate(NAMES):
        if says.startswith(item := f"Item {number}: "):
            return Fault(name, "", expected, got, says.removeprefix(item))
    return Fault("returns", "", expected, got, says) if says else None


what_arrived = LAB.check(
    answers.what_arrived, draw_rounding, Returns(number_by_number, wrong=wrong_numbers)
)

# Exercise 5

RIGHT = "right (no word)"
OF_ALL = (RIGHT, "missing", "extra", "shape", "changed")
VERDICTS = (*OF_ALL, "not merged", "merged twice", "scale forgotten", "other")


def wrong_verdict(expected: dict[str, str], got: Any, given: Given) -> Fault | None:
    if not isinstance(got, dict) or not all(isinstance(name, str) for name in got):
        return Fault("form", "", "a dict: name -> word", got)
    for name in sorted(expected.keys() | got.keys()):
        want, have = expected.get(name, RIGHT), got.get(name, RIGHT)
        if want != have:
            words = f"`{name}`: {want}", f"`{name}`: {have}"
            says = in_words(name, want, have, given)
            return Fault(clause_of(name, want, have, given), "", expected, got, says, words=words)
    return None


def clause_of(name: str, want: str, have: Any, given: Given) -> str:
    """What of the contract is broken; of a right weight, what its smallest input has left."""
    config, tensors, _, merged = given.args
    if have not in VERDICTS:
        return "word"
    if want in ("missing", "extra", "shape") or have in ("missing", "extra", "shape"):
        return "names"
    if want != RIGHT and not merged[name].isfinite().all():
        return "not finite"
    if f"{PREFIX}{name.removesuffix('.weight')}{A}" not in tensors:
        return "unchanged" if have in (RIGHT, "changed") else "no matrices"
    if want == RIGHT:
        special = [key for key in ("fan_in_fan_out", "use_rslora") if config.get(key)]
        return special[0] if special else "refused" if have in ("other", "changed") else "first"
    return "missed" if have == RIGHT else "named"


def in_words(name: str, want: str, have: Any, given: Given) -> str:
    """What is wrong with the verdict on one weight, and which of its numbers fits the worst."""
    config, tensors, base, merged = given.args
    dtypes = [dtype_of(of[name]) for of in (base, merged) if name in of]
    says = f"`{name}` ({', merged as '.join(dtypes)}) is {want}; you say: {have}."
    if name not in base or name not in merged or base[name].shape != merged[name].shape:
        return says
    pairs = by_expression(config, tensors, base)
    exact = explanations(name, config, pairs, base)[""]
    off, step = (merged[name].double() - exact).abs(), steps(exact, merged[name].dtype)
    room = torch.maximum(step, SIZES * sizes_of(name, config, pairs, base))
    room = step if want == RIGHT else room  # a right number is refused for its steps
    worst = int((off / room).nan_to_num(nan=torch.inf).argmax())
    place = [int(i) for i in torch.unravel_index(torch.tensor(worst), off.shape)]
    number, right, far = (float(t.flatten()[worst]) for t in (merged[name], exact, off / step))
    dtype, least = dtype_of(merged[name]), torch.finfo(merged[name].dtype).smallest_normal
    near = f" So near zero, all steps of {dtype} are equally long." if abs(right) < least else ""
    return (
        f"{says} Its worst number, at {place}, is {number:.9g}. Exactly it would be {right:.9g}: "
        f"{far:.3g} steps of {dtype} apart.{near}"
    )


check_merge = LAB.check(
    answers.check_merge, draw_merged, Returns(judged, wrong=wrong_verdict), tell=told, examples=400
)

# Exercise 6


@LAB.exercise
def engine(merge_files: Callable[[Path, Path, Path], Any]) -> str:
    """The learner's merge of files: tiny models first, then the real one."""
    real_files.rehearse(merge_files)
    return real_files.merge_the_real_model(merge_files)


# Exercise 7


@LAB.exercise
def detective(check_of_merges: Callable[..., Any]) -> Passed:
    """Six merges of the real model; the learner's check says which of them to ship."""
    speaks_first(check_merge, check_of_merges)
    return suspects.judged_by(check_of_merges)
