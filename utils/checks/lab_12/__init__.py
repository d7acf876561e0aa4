"""The checks of lab 12: what is drawn, and what is right.

Oracles: bits written as text, single weights in Python's numbers, a judge that tries all entries;
at last, gptqmodel reads the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Fault, Given, Raised, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.inputs import LAYOUTS, laid_out
from utils.checks.kit.lab.engine import speaks_first
from utils.checks.kit.lab.lab import Lab
from utils.checks.lab_12 import answers, damage, real_files
from utils.checks.lab_12.layouts import (
    BITS,
    FEW,
    FORMATS,
    HALF_END,
    PARTS,
    Tensors,
    by_hand,
    fields_of,
    in_hex,
    in_order,
    pack_last,
    repacked,
    tensors_differ,
    told,
    unpack_last,
    weight_by_weight,
)
from utils.quant import rtn

LAB = Lab(__file__)
INTS = (torch.uint8, torch.int32, torch.int64)
TOLD = 5  # layers of a damaged checkpoint that the words for it name
OTHER_FORMATS = ("marlin", "GPTQ", "", "gptq_v3", "gptq_v", "gptq ")


class Reworded(Returns):
    """As `Returns`, but `reword` says more about some faults."""

    def __init__(
        self, oracle: Callable[..., Any], reword: Callable[[Fault, Given], Fault], **more: Any
    ) -> None:
        super().__init__(oracle, **more)
        self._reword = reword

    def fault(self, answer: Any, given: Given, expected: Any) -> Fault | None:
        found = super().fault(answer, given, expected)
        return found and self._reword(found, given)


def seeded(c: Choices) -> torch.Generator:
    return torch.Generator().manual_seed(c.integer(0, 9999))


def random_words(c: Choices, shape: tuple[int, ...]) -> Tensor:
    """Any int32 at all: half of them are negative."""
    return torch.randint(-(2**31), 2**31, shape, generator=seeded(c)).to(torch.int32)


# Exercise 1: the codes in an int32


def draw_words(c: Choices) -> Given:
    """Of one dimension to three; any may be 0; codes on the sign bit; what must be refused."""
    first = [0 if c.rarely(8) else c.size(1, 3) for _ in range(c.pick((1, 0, 2)))]
    words = random_words(c, (*first, c.size(0, 40)))
    if c.rarely(4):
        words = (words % 2**31 if c.rarely(2) else words * 0 - 1).to(torch.int32)
    if c.rarely(12):
        words = words.to(c.pick((torch.int64, torch.uint8, torch.float32)))
    bits = c.pick((3, 5, 6, 7, 16, 32, 0, 1, -4)) if c.rarely(5) else c.pick(BITS)
    return Given(laid_out(words, c.pick(LAYOUTS)), bits)


def cut_out(packed: Tensor, bits: int) -> Tensor:
    """Each int32 by itself, as a text of 32 bits."""
    if bits not in (2, 4, 8):
        raise ValueError(f"{bits} bits")
    if packed.dtype != torch.int32:
        raise ValueError(str(packed.dtype))
    flat = [field for word in packed.flatten().tolist() for field in fields_of(word, bits)]
    shape = (*packed.shape[:-1], packed.shape[-1] * 32 // bits)
    return torch.tensor(flat, dtype=torch.int32).view(shape)


def wrong_kind(expected: Tensor, got: Any) -> Fault | None:
    """A fault if `got` isn't a tensor of the same shape and dtype."""
    if isinstance(got, Tensor) and (got.shape, got.dtype) == (expected.shape, expected.dtype):
        return None
    return Fault("kind", "", expected, got, difference(expected, got))


def wrong_codes(expected: Tensor, got: Any, given: Given) -> Fault | None:
    """A wrong kind of tensor, or the first wrong code with its int32."""
    if (fault := wrong_kind(expected, got)) or torch.equal(expected, got):
        return fault
    packed, bits = given.args
    place = (got != expected).nonzero()[0].tolist()
    word = packed[(*place[:-1], place[-1] * bits // 32)].item()
    says = (
        f"Number {place} is {got[tuple(place)].item()}; expected {expected[tuple(place)].item()}. "
        f"It comes from the int32 {in_hex(word)}."
    )
    return Fault("returns", "", expected, got, says)


unpack = LAB.check(
    answers.unpack,
    draw_words,
    Returns(cut_out, wrong=wrong_codes),
    tell=lambda given: f"{told('packed', given.args[0])}, bits {given.args[1]}",
    passed=lambda answer: (
        "Right, up to the sign bit. -1947890795, which is 0x8be58b95 in hexadecimal digits, holds "
        f"{answer(torch.tensor([-1947890795], dtype=torch.int32), 4).tolist()}."
    ),
)

# Exercise 2: the weights that a layer's tensors stand for


def random_groups(c: Choices, width: int, num_groups: int) -> Tensor:
    """`g_idx`: neighbors mostly, mixed as with act-order, or any group at all."""
    generator = seeded(c)
    kind = c.pick(("neighbors", "mixed", "any"))
    g_idx = torch.arange(width) * num_groups // width
    if kind == "mixed":
        g_idx = g_idx[torch.randperm(width, generator=generator)]
    if kind == "any":
        g_idx = torch.randint(0, num_groups, (width,), generator=generator)
    return g_idx.to(torch.int32)


def random_scales(c: Choices, shape: tuple[int, int]) -> Tensor:
    """Above 0, and exact in float16."""
    scales = torch.rand(shape, generator=seeded(c)) + 0.5
    return (scales * c.pick((1.0, 0.01, 1e-4, 3000.0))).half()


def stored_scales(c: Choices, shape: tuple[int, int]) -> Tensor:
    """float16, or bfloat16 that is beyond float16 on either side; rarely negative."""
    scales = random_scales(c, shape) * c.pick((1, 1, 1, -1))
    return scales.bfloat16() * c.pick((1.0, 2.0**-20, 2.0**10)) if c.rarely(2) else scales


def draw_layer(c: Choices) -> Given:
    """The four tensors of a layer; now and then a bias, or a format that nobody knows."""
    bits, form = c.pick(BITS), c.pick(FORMATS)
    per = 32 // bits
    width, out, groups = per * c.size(1, 9), per * c.size(1, 5), c.size(1, 6)
    top = 2**bits - (form == "gptq")  # no zero of "gptq" is stored as 2^bits - 1
    zeros = torch.randint(0, top, (groups, out), generator=seeded(c))
    tensors = {
        "qweight": laid_out(random_words(c, (width // per, out)), c.pick(LAYOUTS)),
        "qzeros": pack_last(zeros, bits),
        "scales": laid_out(stored_scales(c, (groups, out)), c.pick(LAYOUTS)),
        "g_idx": random_groups(c, width, groups),
    }
    if c.rarely(5):
        tensors["bias"] = torch.ones(out)
    return Given(tensors, bits, c.pick(OTHER_FORMATS) if c.rarely(12) else form)


def wrong_weight(expected: Tensor, got: Any, given: Given) -> Fault | None:
    """A wrong kind of tensor, or the first wrong weight with all that it is made of."""
    if fault := wrong_kind(expected, got):
        return fault
    wrong = ~torch.isclose(got, expected, rtol=1e-6, atol=0.0)
    if not wrong.any():
        return None
    if torch.equal(got.T, expected):
        return Fault("kind", "", expected, got, "Your weight is [in, out]; expected [out, in].")
    tensors, bits, form = given.args
    o, i = wrong.nonzero()[0].tolist()
    group = int(tensors["g_idx"][i])
    code = int(unpack_last(tensors["qweight"].T, bits)[o, i])
    zero = int(unpack_last(tensors["qzeros"], bits)[group, o]) + int(form == "gptq")
    says = (
        f"Weight [{o}, {i}] is {float(got[o, i]):.6g}; expected {float(expected[o, i]):.6g}, which "
        f"is ({code} - {zero}) * {float(tensors['scales'][group, o]):.6g}: input {i} is in group "
        f"{group}."
    )
    steps = tensors["scales"].float()[tensors["g_idx"].long()].T.abs()  # of weights one code apart
    rounded = bool(((got - expected).abs() < steps / 4).all())
    return Fault("rounded" if rounded else "returns", "", expected, got, says)


def tell_layer(given: Given) -> str:
    tensors, bits, form = given.args
    parts = ", ".join(told(name, tensor) for name, tensor in tensors.items())
    return f"bits {bits}, checkpoint_format {form!r}, {parts}"


read_layer = LAB.check(
    answers.read_layer, draw_layer, Returns(weight_by_weight, wrong=wrong_weight), tell=tell_layer
)

# Exercise 3: a layer's tensors, or a refusal

# One of these is put into half of the layers; what stands there twice is drawn more often.
ODD = (
    *("code", "negative code", "zero", "no zero", "width", "out", "scale", "nan", "group"),
    *("negative group", "format", "bits", "negative zero", "last zero", "odd scale"),
    *("groups from 1", "bits", "code", "zero", "no zero", "no zero"),
)
TOO_LARGE = (7e4, float("inf"), -7e4, HALF_END)
ODD_SCALES = (65519.0, -65510.0, 65504.0, 0.0, 1e-9, -0.5)  # can be stored all the same


def draw_codes(c: Choices) -> Given:
    """Mostly what can be stored; else with one thing that cannot, or that only looks like it."""
    bits, form = c.pick(BITS), c.pick(FORMATS)
    odd, generator = c.pick(ODD) if c.rarely(2) else "", seeded(c)
    if odd == "bits":  # the sizes would fit
        bits = c.pick((3, 16, 1, 0, 5, 6))
    per, top = 32 // (bits or 4), 2 ** min(bits or 4, 8)
    width, out, groups = per * c.size(1, 6), per * c.size(1, 4), c.size(1, 5)
    width -= (odd == "width") * c.pick((1, per // 2))
    out -= (odd == "out") * c.pick((1, per // 2))
    codes = torch.randint(0, top, (out, width), generator=generator)
    zeros = torch.randint(int(form == "gptq"), top, (out, groups), generator=generator)
    scales = random_scales(c, (out, groups)).float()
    g_idx = random_groups(c, width, groups).long()
    i, j, k = c.integer(0, out - 1), c.integer(0, width - 1), c.integer(0, groups - 1)
    if odd.endswith("code"):
        codes[i, j] = -1 if odd == "negative code" else c.pick((top, 2**33))
    elif odd.endswith("zero"):
        put = {"no zero": 0, "negative zero": -1, "last zero": top - 1}
        zeros[i, k] = put[odd] if odd in put else c.pick((top, 2**33))
    elif odd in ("scale", "odd scale", "nan"):
        put = {"scale": TOO_LARGE, "odd scale": ODD_SCALES, "nan": (float("nan"),)}
        scales[i, k] = c.pick(put[odd])
    elif odd.endswith("group"):
        g_idx[j] = -1 if odd == "negative group" else c.pick((groups, 2**32))
    elif odd == "groups from 1":
        g_idx += 1
    form = c.pick(OTHER_FORMATS) if odd == "format" else form
    ints = INTS[1:] if "negative" in odd or (bits == 8 and odd in ("code", "zero")) else INTS
    scales = scales.half() if c.rarely(4) and "scale" not in odd else scales
    return Given(
        laid_out(codes.to(c.pick(ints)), c.pick(LAYOUTS)),
        laid_out(zeros.to(c.pick(ints)), c.pick(LAYOUTS)),
        laid_out(scales, c.pick(LAYOUTS)),
        g_idx if odd == "group" else g_idx.to(c.pick(INTS[1:])),
        bits,
        form,
    )


def wrong_tensors(expected: Tensors, got: Any, given: Given) -> Fault | None:
    name, says = tensors_differ(expected, got, PARTS)
    words = ("the layer's four tensors", says)
    return Fault(name or "form", "", expected, got, says, words=words) if says else None


def tell_codes(given: Given) -> str:
    *tensors, bits, form = given.args
    parts = map(told, ("codes", "zeros", "scales", "g_idx"), tensors)
    return f"bits {bits}, checkpoint_format {form!r}, {', '.join(parts)}"


write_layer = LAB.check(
    answers.write_layer,
    draw_codes,
    Returns(by_hand, own=True, wrong=wrong_tensors),
    tell=tell_codes,
    examples=500,
)

# Exercise 4: an AWQ layer in GPTQ's layout


def draw_awq(c: Choices) -> Given:
    """Zeros of 0 now and then, which "gptq" cannot hold; sizes that GPTQ's layout cannot."""
    groups, out = c.size(1, 5), 8 * c.size(1, 5)
    width = groups * (8 * c.size(1, 5) if not c.rarely(6) else c.pick((c.size(1, 12), 136)))
    if c.rarely(4):  # often no multiple of the groups, or fewer inputs than groups
        groups, width = c.integer(1, 18), 8 * c.integer(1, 3) - c.pick((0, 0, 3))
    zeros = torch.randint(1, 16, (groups, out), generator=seeded(c))
    if c.rarely(2):
        zeros[c.integer(0, groups - 1), c.integer(0, out - 1)] = 0
    return Given(
        {
            "qweight": laid_out(random_words(c, (width, out // 8)), c.pick(LAYOUTS)),
            "qzeros": pack_last(zeros, 4),  # any zeros will do: they are read in AWQ's order
            "scales": laid_out(stored_scales(c, (groups, out)), c.pick(LAYOUTS)),
        }
    )


def wrong_layer(expected: Any, got: Any, given: Given) -> Fault | None:
    def fault(clause: str, says: str) -> Fault:
        words = (f'four tensors, and "{expected[1]}"', says)
        return Fault(clause, "", expected, got, says, words=words)

    if not isinstance(got, tuple | list) or len(got) != 2 or not isinstance(got[0], dict):
        return fault("form", f"Expected a dict and a text, not a {type(got).__name__}.")
    if got[1] != expected[1]:  # it shows in qzeros, too
        return fault("checkpoint_format", f"Your format is {got[1]!r}; expected {expected[1]!r}.")
    name, says = tensors_differ(expected[0], got[0], PARTS)
    return fault(name or "form", says) if says else None


def tell_awq(given: Given) -> str:
    tensors = given.args[0]
    zeros = in_order(tensors["qzeros"])
    numbers = f" = {zeros.tolist()}" if zeros.numel() <= FEW else ""
    some = "some are" if (zeros == 0).any() else "none is"
    parts = ", ".join(told(name, tensor) for name, tensor in tensors.items())
    return f"{parts}; the zeros of the outputs in order{numbers}: {some} 0"


def zero_of_0(fault: Fault, given: Given) -> Fault:
    """An error in `write_layer`, most likely, that comes from the choice of the format."""
    raised = isinstance(fault.got, Raised) and fault.got.error is ValueError
    if fault.clause != "raises" or not raised or (in_order(given.args[0]["qzeros"]) > 0).all():
        return fault
    says = f'{fault.says} A zero is 0 here, which "gptq_v2" can hold, and "gptq" can\'t.'
    return replace(fault, says=says)


awq_to_gptq = LAB.check(
    answers.awq_to_gptq,
    draw_awq,
    Reworded(repacked, zero_of_0, own=True, wrong=wrong_layer),
    tell=tell_awq,
)

# Exercise 5: the smallest explanation of a damaged checkpoint


def wrong_names(expected: set[str], got: Any, given: Given) -> Fault | None:
    """Whether the checkpoint is sound once `got` was replaced, and whether fewer names would do."""

    def fault(clause: str, says: str = "") -> Fault:
        return Fault(clause, "", expected, got, says, words=(listed(expected), listed(got)))

    if not isinstance(got, set | frozenset) or not all(isinstance(name, str) for name in got):
        return fault("form", f"Expected a set of names, not a {type(got).__name__}.")
    named, (entry, shapes, tensors) = set(got), given.args
    known = {f"{layer}.{part}" for layer in shapes for part in PARTS} | set(damage.KEYS)
    if strange := sorted(named - known):
        return fault("strange", f"`{strange[0]}`")
    if not expected and named:
        return fault("sound")
    if not any(need <= named for need in damage.explanations(entry, shapes, tensors)):
        return fault("not enough")
    return fault("too many") if len(named) > len(expected) else None


def listed(names: Any) -> str:
    if not isinstance(names, Collection) or isinstance(names, str):
        return repr(names)
    return ", ".join(sorted(map(str, names))) or "nothing is damaged"


def tell_damaged(given: Given) -> str:
    """The entry, and of each layer the kinds of its tensors, with the groups where they are few."""
    entry, shapes, tensors = given.args
    words = [f"{len(shapes)} layer{'s' * (len(shapes) > 1)}, entry {entry}"]
    for layer, (out, width) in [*shapes.items()][:TOLD]:
        parts = {n.rpartition(".")[2]: t for n, t in tensors.items() if n.startswith(layer + ".")}
        kinds = ", ".join(f"{p} {str(t.dtype)[6:]} {list(t.shape)}" for p, t in parts.items())
        g_idx, scales = (parts.get(part, torch.empty(0)) for part in ("g_idx", "scales"))
        numbers = f", g_idx = {g_idx.tolist()}" if 0 < g_idx.numel() <= FEW else ""
        odd = scales[~((scales > 0) & scales.isfinite())].tolist()
        numbers += f", scales with {odd[0]}" if odd else ""
        words.append(f"{layer} (out {out}, in {width}): {kinds or 'no tensors'}{numbers}")
    return "; ".join(words + ["and so on"] * (len(shapes) > TOLD))


def in_time(fault: Fault, given: Given) -> Fault:
    return replace(fault, clause="time", says="", look="") if fault.never_ended else fault


find_damage = LAB.check(
    answers.find_damage,
    damage.draw_damaged,
    Reworded(damage.smallest, in_time, wrong=wrong_names),
    tell=tell_damaged,
    examples=160,
)

# Exercise 6: a checkpoint, first of small models, then of the real one


def draw_state(c: Choices) -> Given:
    """A small model: some layers to quantize, others of the same kind to leave alone."""
    group_size, bits = c.pick((16, 32, 48)), c.pick((4, 8, 2))
    generator, dtype = seeded(c), c.pick((torch.bfloat16, torch.float32, torch.float16))

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    names = [f"model.layers.{n}.{part}" for n in (0, 1, 10) for part in real_files.LINEARS[-2:]]
    names.insert(2, "model.layers.0.weights.1")
    state = {"model.embed_tokens.weight": numbers(8, 16), "model.norm.weight": numbers(16)}
    linears = names[: c.size(1, 7)]
    for name in linears:
        state[f"{name}.weight"] = numbers(16 * c.integer(1, 2), group_size * c.size(1, 3))
        if c.rarely(3):
            state[f"{name}.weight"].abs_()  # then each zero is 0
        if c.rarely(4):
            state[f"{name}.bias"] = numbers(16)
    layers = [name for name in linears if not c.rarely(4)]
    if c.rarely(3):  # other parts whose names begin, or end, as a layer's
        state |= {f"{n}{s}": numbers(16) for n in layers for s in ("_2.weight", ".norm.weight")}
    if c.rarely(3):
        state |= {f"vision.{name}.weight": numbers(16, group_size) for name in layers[:1]}
    return Given(state, c.shuffled(layers) if c.rarely(3) else layers, bits, group_size)


def right_checkpoint(
    state: Tensors, layers: list[str], bits: int, group_size: int
) -> tuple[dict[str, Any], Tensors]:
    """From the course's rounding and the oracle of exercise 3."""
    tensors = {n: t for n, t in state.items() if n.removesuffix(".weight") not in layers}
    for layer in layers:
        q = rtn(state[f"{layer}.weight"].float(), bits=bits, group_size=group_size, sym=False)
        parts = by_hand(q.q, q.zeros, q.scales, q.g_idx, bits, "gptq_v2")
        tensors |= {f"{layer}.{part}": tensor for part, tensor in parts.items()}
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "desc_act": False,
        "sym": False,
        "checkpoint_format": "gptq_v2",
    }, tensors


def wrong_checkpoint(expected: Any, got: Any, given: Given) -> Fault | None:
    def fault(clause: str, says: str) -> Fault:
        words = ("an entry, and the tensors of the file", says)
        return Fault(clause, "", expected, got, says, words=words)

    if not real_files.two_dicts(got):
        return fault("form", f"Expected two dicts, not a {type(got).__name__}.")
    (right, needed), (entry, tensors) = expected, got
    for key, value in right.items():
        if key not in entry or entry[key] != value:
            there = repr(entry[key]) if key in entry else "nothing"
            return fault("entry", f'Expected "{key}": {value!r} in the entry, not {there}.')
    if missing := sorted(needed.keys() - tensors.keys()):
        return fault("missing", f"`{missing[0]}` is missing.")
    if more := sorted(map(str, tensors.keys() - needed.keys())):
        return fault("more", f"`{more[0]}` should not be there.")
    kept = [name for name in needed if name in given.args[0]]
    for clause, names in (("others", kept), ("tensors", [n for n in needed if n not in kept])):
        _, says = tensors_differ(needed, tensors, names)
        if says:
            return fault(clause, says)
    owners: dict[int, str] = {}
    for name, tensor in tensors.items():
        owner = owners.setdefault(tensor.untyped_storage().data_ptr(), name)
        if owner != name:
            return fault("shares", f"`{owner}` and `{name}` share their memory.")
    return None


def tell_state(given: Given) -> str:
    state, layers, bits, group_size = given.args
    shapes = {name: list(tensor.shape) for name, tensor in state.items()}
    return f"layers {layers}, bits {bits}, group_size {group_size}, state with the shapes {shapes}"


engine = LAB.check(
    answers.make_checkpoint,
    draw_state,
    Returns(right_checkpoint, wrong=wrong_checkpoint),
    passed=real_files.read_by_gptqmodel,
    tell=tell_state,
    examples=60,
)

# Exercise 7


@LAB.exercise
def repair(find_damage_answer: Callable[..., Any]) -> str:
    """The learner's function finds what is damaged in a real checkpoint, which then speaks."""
    speaks_first(find_damage, find_damage_answer)
    return real_files.repaired_by(find_damage_answer)
