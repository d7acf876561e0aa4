"""What is wrong with a tensor that a learner's function returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Fault, Given
from utils.checks.kit.contracts.differences import difference


def same_tensor(
    expected: Tensor, got: Any, given: Given, atol: float | None = None
) -> Fault | None:
    """As `Returns` judges, but the clause says what differs: "form", "dtype", "nan" or "numbers".

    Args:
        atol: as in `difference`
    """
    if not (says := difference(expected, got, atol=atol)):
        return None
    return Fault(_clause(expected, got), "", expected, got, says)


def _clause(expected: Tensor, got: Any) -> str:
    if not isinstance(got, Tensor) or got.shape != expected.shape:
        return "form"
    if got.dtype != expected.dtype:
        return "dtype"
    return "nan" if got.isnan().any() and not expected.isnan().any() else "numbers"


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
