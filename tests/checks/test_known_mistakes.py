"""Each known mistake of each lab is named as itself, whichever answer makes it."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest

from utils import checks
from utils.checks.kit.contracts import Contract
from utils.checks.kit.runner import Mismatch

# PROPOSE with shorter texts, for the engine's check.
ELSEWHERE = {"PROPOSER"}


def contracts() -> dict[str, Contract]:
    """All contracts with known mistakes, by lab and name."""
    found: dict[str, Contract] = {}
    seen: set[int] = set()
    for module in pkgutil.walk_packages(checks.__path__, "utils.checks."):
        lab = module.name.split(".")[2]
        # What runs inside vLLM imports vLLM, and holds no contract.
        if not lab.startswith("lab_") or module.name.endswith("inside_vllm"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            value = getattr(value, "contract", value)  # of a lab's check
            if isinstance(value, Contract) and value.mistakes and id(value) not in seen:
                seen.add(id(value))
                found[f"{lab}-{name}"] = value
    return {name: value for name, value in found.items() if name.split("-")[1] not in ELSEWHERE}


CONTRACTS = contracts()


def test_all_labs_are_here() -> None:
    assert len({name.split("-")[0] for name in CONTRACTS}) >= 12
    assert len(CONTRACTS) > 80


@pytest.mark.parametrize("name", CONTRACTS)
def test_each_is_named(name: str) -> None:
    """One test for a contract: what its inputs and oracle cost is paid once."""
    contract = CONTRACTS[name]
    wrong = [
        f"mistake {number}, answer {variant}: {problem}"
        for number, mistake in enumerate(contract.mistakes)
        for variant, answer in enumerate(mistake.answers)
        if (problem := problem_of(contract, answer, mistake.says))
    ]
    assert not wrong, "\n".join(wrong)


def problem_of(contract: Contract, answer: Any, says: str) -> str:
    """What is wrong with the words for a known mistake; "" if nothing is."""
    try:
        contract.check(answer)
    except Mismatch as mismatch:
        if mismatch.headline != says:
            return f"named {mismatch.headline!r}, expected {says!r}"
        if bool(mismatch.figure) != bool(mismatch.alt):
            return "a figure without a text, or a text without a figure"
        return ""
    return f"passed, expected {says!r}"
