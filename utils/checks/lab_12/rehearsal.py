"""The learner's checkpoints of small models, before a file is written: exercise 6."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.lab_12.fields import tensors_differ
from utils.checks.lab_12.real_files import LINEARS, MakeCheckpoint
from utils.checks.lab_12.writing import by_hand
from utils.quant import rtn


def draw_state(c: Choices) -> Given:
    """A small model: some layers to quantize, others of the same kind to leave alone."""
    group_size, bits = c.pick((16, 32, 48)), c.pick((4, 8, 2))
    seed, dtype = c.integer(0, 9999), c.pick((torch.bfloat16, torch.float32, torch.float16))
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    names = [f"model.layers.{n}.{part}" for n in (0, 1, 10) for part in LINEARS[-2:]]
    names.insert(2, "model.layers.0.weights.1")
    state = {"model.embed_tokens.weight": numbers(8, 16), "model.norm.weight": numbers(16)}
    for name in names[: c.size(1, 7)]:
        state[f"{name}.weight"] = numbers(16 * c.integer(1, 2), group_size * c.size(1, 3))
        if c.rarely(3):
            state[f"{name}.weight"].abs_()  # then each zero is 0
        if c.rarely(4):
            state[f"{name}.bias"] = numbers(16)
    linears = [name.removesuffix(".weight") for name in state if ".layers." in name]
    linears = [name for name in linears if not name.endswith(".bias")]
    layers = [name for name in linears if not c.rarely(4)]
    if c.rarely(3):  # other parts whose names begin as a layer's
        state |= {f"{n}{s}": numbers(16) for n in layers for s in ("_2.weight", ".norm.weight")}
    return Given(state, c.shuffled(layers) if c.rarely(3) else layers, bits, group_size)


def right_checkpoint(
    state: dict[str, Tensor], layers: list[str], bits: int, group_size: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """From the course's rounding and the oracle of exercise 3."""
    tensors = {n: t for n, t in state.items() if n.removesuffix(".weight") not in layers}
    for layer in layers:
        q = rtn(state[f"{layer}.weight"].float(), bits=bits, group_size=group_size, sym=False)
        parts = by_hand(q.q, q.zeros, q.scales, q.g_idx, bits, "gptq_v2")
        tensors |= {f"{layer}.{part}": tensor for part, tensor in parts.items()}
    entry = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "desc_act": False,
        "sym": False,
        "checkpoint_format": "gptq_v2",
    }
    return entry, tensors


def _wrong(expected: Any, got: Any, given: Given) -> Fault | None:
    def fault(clause: str, says: str) -> Fault:
        return Fault(
            clause, "", expected, got, says, words=("an entry, and the tensors of the file", says)
        )

    if (
        not isinstance(got, tuple | list)
        or len(got) != 2
        or not all(isinstance(part, dict) for part in got)
    ):
        return fault("form", f"Expected two dicts, not a {type(got).__name__}.")
    entry, tensors = got
    for key, value in expected[0].items():
        if key not in entry or entry[key] != value:
            return fault(
                "entry",
                f'Expected "{key}": {value!r} in the entry, not {entry.get(key, "nothing")!r}.',
            )
    if missing := sorted(expected[1].keys() - tensors.keys()):
        return fault("missing", f"`{missing[0]}` is missing.")
    if more := sorted(map(str, tensors.keys() - expected[1].keys())):
        return fault("more", f"`{more[0]}` should not be there.")
    _, says = tensors_differ(expected[1], tensors, tuple(expected[1]))
    return fault("tensors", says) if says else None


def _make(change: str = "") -> MakeCheckpoint:
    """A right answer, but for one thing."""

    def make(state: Any, layers: Any, bits: int, group_size: int) -> Any:
        if change == "all linears":
            layers = [n.removesuffix(".weight") for n in state if n.endswith("_proj.weight")]
        entry, tensors = right_checkpoint(state, layers, bits, group_size)
        if change == "weights stay":
            tensors |= state
        if change == "only packed":
            tensors = {n: t for n, t in tensors.items() if n not in state}
        if change == "biases are lost":
            tensors = {
                n: t
                for n, t in tensors.items()
                if n.rpartition(".")[0] not in layers or not n.endswith(".bias")
            }
        if change == "symmetric":
            for layer in layers:
                weight = state[f"{layer}.weight"].float()
                q = rtn(weight, bits=bits, group_size=group_size, sym=True)
                parts = by_hand(q.q, q.zeros, q.scales, q.g_idx, bits, "gptq_v2")
                tensors |= {f"{layer}.{part}": tensor for part, tensor in parts.items()}
        return entry, tensors

    return make


CHECKPOINT = Contract(
    inputs=draw_state,
    judge=Returns(right_checkpoint, wrong=_wrong),
    examples=60,
    passed="",
    clauses={
        "form": Clause("{says}", "`return entry, tensors`"),
        "entry": Clause(
            "{says} A reader knows the tensors by the entry alone.", "The list of the contract."
        ),
        "missing": Clause(
            "{says}",
            "All of `state` stays, but for the weights of `layers`; each "
            "of these becomes four tensors.",
        ),
        "more": Clause(
            "{says} A reader would load it, or stop at it.",
            "The weights of `layers` go, and only their four tensors come.",
        ),
        "tensors": Clause(
            "{says}",
            "rtn(weight.float(), bits=bits, group_size=group_size, "
            'sym=False), and `write_layer` with "gptq_v2".',
        ),
    },
    mistakes=(
        mistake(
            "The weights in 16 bits are still there, beside their four tensors: the file has "
            "grown.",
            "Leave them out.",
            _make("weights stay"),
        ),
        mistake(
            "Embedding, norms and the like are missing. They stay in 16 bits.",
            "Begin with a copy of `state`.",
            _make("only packed"),
        ),
        mistake(
            "The biases of quantized layers are lost. They stay as they are.",
            "Only `.weight` goes.",
            _make("biases are lost"),
        ),
        mistake(
            "Layers that are not in `layers` are quantized, too.",
            "Go through `layers`.",
            _make("all linears"),
        ),
        mistake(
            "The grid is symmetric, and the entry says that it is not.",
            "`sym=False`.",
            _make("symmetric"),
        ),
    ),
)
