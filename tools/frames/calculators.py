"""The numbers and controls of the widgets that a page computes by itself, in plain JavaScript.

The numbers come from the course's own modules. What the page makes of them is in
`site/static/calculators/`, and is compared with those modules by a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tools.frames.states import Axis, Recording, choices
from utils.pipeline.estimates.train_shapes import TRAIN_SHAPES
from utils.pipeline.estimates.training_memory import nf4_model_bytes
from utils.sim.memory import MODEL_SHAPES, kv_bytes_per_token, weight_bytes
from utils.viz.disaggregation.fetch_or_compute import LINKS, MACHINES, MODELS, fetch_explorer
from utils.viz.explore import Explorer
from utils.viz.finetune.training import NOT_OURS_GB, TARGETS, training_calculator
from utils.viz.memory.kv_memory import CARDS, memory_calculator


def _memory() -> dict[str, Any]:
    return {
        "models": {
            name: {
                "kind": shape.kind,
                "kv": kv_bytes_per_token(shape, 1),  # per byte of a number, per token
                "parameters": weight_bytes(shape, 1),
            }
            for name, shape in MODEL_SHAPES.items()
        }
    }


def _training() -> dict[str, Any]:
    return {
        "shapes": {
            name: asdict(shape)
            | {"linears": shape.linears(), "q_size": shape.q_size, "kv_size": shape.kv_size}
            | {"parameters": shape.num_parameters(), "nf4_bytes": nf4_model_bytes(shape)}
            for name, shape in TRAIN_SHAPES.items()
        },
        "targets": {name: list(modules) for name, modules in TARGETS.items()},
        "cards": CARDS,
        "not_ours": NOT_OURS_GB,
    }


def _fetch() -> dict[str, Any]:
    return {
        "models": {name: asdict(shape) for name, shape in MODELS.items()},
        "machines": MACHINES,
        "links": LINKS,
    }


CALCULATORS: dict[str, tuple[Callable[[], Explorer], Callable[[], dict[str, Any]]]] = {
    "memory": (memory_calculator, _memory),
    "training": (training_calculator, _training),
    "fetch": (fetch_explorer, _fetch),
}


def record_calculator(name: str) -> Recording:
    """All values of a calculator's controls, and the tables that it reads."""
    make, tables = CALCULATORS[name]
    recording = Recording("calculator", calculator=name, tables=tables())
    values = {}
    for key, control in make().controls.items():
        listed = choices(control)
        recording.axes.append(Axis.of(key, control, [value for _, value in listed]))
        values[key] = [value for _, value in listed]
    recording.tables["values"] = values
    return recording
