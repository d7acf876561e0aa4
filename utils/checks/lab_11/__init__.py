"""The checks of lab 11.

Oracles: keys by a regular expression, sums in float64 with the room that one rounding needs, and
faults that are planted far outside of it; at last peft's own adapter and its unmerged model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_11 import arrived, layer, matching, real_files, state, verdicts


@exercise("Exercise 1: match_adapter", points=2)
def match_adapter(function: Callable[..., dict[str, tuple[Tensor, Tensor]]]) -> str | Passed:
    """Check `match_adapter(config, tensors, base)`."""
    return matching.MATCH_ADAPTER.check(function)


@exercise("Exercise 2: merge_weight", points=3)
def merge_weight(function: Callable[..., Tensor]) -> str | Passed:
    """Check `merge_weight(weight, A, B, config)`."""
    return layer.MERGE_WEIGHT.check(function)


@exercise("Exercise 3: merge_state", points=2)
def merge_state(function: Callable[..., dict[str, Tensor]]) -> str | Passed:
    """Check `merge_state(config, tensors, base)`."""
    return state.MERGE_STATE.check(function)


@exercise("Exercise 4: what_arrived", points=2)
def what_arrived(function: Callable[..., tuple[float, float, float]]) -> str | Passed:
    """Check `what_arrived(before, after, delta)`."""
    return arrived.WHAT_ARRIVED.check(function)


@exercise("Exercise 5: check_merge", points=5)
def check_merge(function: Callable[..., dict[str, str]]) -> str | Passed:
    """Check `check_merge(config, tensors, base, merged)` on merges with planted faults."""
    return verdicts.CHECK_MERGE.check(function)


@exercise("Exercise 6: your merge, and peft's adapter", points=4)
def engine(merge_files: Callable[[Path, Path, Path], Any]) -> str:
    """Check `merge_files(base_dir, adapter_dir, out_dir)`: tiny models, then the real one."""
    real_files.rehearse(merge_files)
    return real_files.merge_the_real_model(merge_files)
