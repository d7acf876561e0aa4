"""The checks of lab 12.

Oracles: bits written as text, single weights in Python's numbers, a judge that tries all entries;
at last, gptqmodel reads the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_12 import converting, damage, fields, reading, real_files, rehearsal, writing


@exercise("Exercise 1: unpack", points=2)
def unpack(function: Callable[..., Tensor]) -> str | Passed:
    """Check `unpack(packed, bits)`."""
    return fields.UNPACK.check(function)


@exercise("Exercise 2: read_layer", points=3)
def read_layer(function: Callable[..., Tensor]) -> str | Passed:
    """Check `read_layer(tensors, bits, checkpoint_format)`."""
    return reading.READ_LAYER.check(function)


@exercise("Exercise 3: write_layer", points=4)
def write_layer(function: Callable[..., dict[str, Tensor]]) -> str | Passed:
    """Check `write_layer(codes, zeros, scales, g_idx, bits, checkpoint_format)`."""
    return writing.WRITE_LAYER.check(function)


@exercise("Exercise 4: awq_to_gptq", points=3)
def awq_to_gptq(function: Callable[..., tuple[dict[str, Tensor], str]]) -> str | Passed:
    """Check `awq_to_gptq(tensors)`."""
    return converting.AWQ_TO_GPTQ.check(function)


@exercise("Exercise 5: find_damage", points=5)
def find_damage(function: Callable[..., set[str]]) -> str | Passed:
    """Check `find_damage(entry, shapes, tensors)` on checkpoints damaged at random."""
    return damage.FIND_DAMAGE.check(function)


@exercise("Exercise 6: your checkpoint, read by another program", points=4)
def engine(make_checkpoint: Callable[..., tuple[dict[str, Any], dict[str, Tensor]]]) -> str:
    """Check `make_checkpoint(state, layers, bits, group_size)`: small models, then the real one."""
    rehearsal.CHECKPOINT.check(make_checkpoint)
    return real_files.read_by_gptqmodel(make_checkpoint)
