"""Each known mistake of each lab is named as itself, whichever answer makes it."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest

from utils import checks
from utils.checks.kit.contracts import Contract
from utils.checks.kit.runner import Mismatch

# The first one's answers lean on the engine's pool, which must refuse meanwhile: see
# tests/checks/lab_05. The second is PROPOSE with shorter texts, for the engine's check.
ELSEWHERE = {"CACHING_BLOCK_POOL", "PROPOSER"}


def contracts() -> dict[str, Contract]:
    """All contracts, by lab and name."""
    found: dict[str, Contract] = {}
    seen: set[int] = set()
    for module in pkgutil.walk_packages(checks.__path__, "utils.checks."):
        lab = module.name.split(".")[2]
        # What runs inside vLLM imports vLLM, and holds no contract.
        if not lab.startswith("lab_") or module.name.endswith("inside_vllm"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Contract) and id(value) not in seen:
                seen.add(id(value))
                found[f"{lab}-{name}"] = value
    return {name: value for name, value in found.items() if name.split("-")[1] not in ELSEWHERE}


CONTRACTS = contracts()
CASES = [
    pytest.param(contract, m.says, answer, id=f"{name}-{number}.{variant}")
    for name, contract in CONTRACTS.items()
    for number, m in enumerate(contract.mistakes)
    for variant, answer in enumerate(m.answers)
]


def test_all_labs_are_here() -> None:
    assert len({name.split("-")[0] for name in CONTRACTS}) >= 12
    assert sum(bool(contract.mistakes) for contract in CONTRACTS.values()) > 80


@pytest.mark.parametrize(("contract", "says", "answer"), CASES)
def test_it_is_named(contract: Contract, says: str, answer: Any) -> None:
    with pytest.raises(Mismatch) as caught:
        contract.check(answer)
    assert caught.value.headline == says
    assert bool(caught.value.figure) == bool(caught.value.alt)
