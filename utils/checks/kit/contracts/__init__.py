"""Checks that generalise: an exercise as inputs, an oracle, clauses and a few known mistakes."""

from utils.checks.kit.contracts.choices import Choices
from utils.checks.kit.contracts.contract import Clause, Contract, Judge, Mistake, mistake
from utils.checks.kit.contracts.faults import Fault, Raised
from utils.checks.kit.contracts.functions import Given, Returns
from utils.checks.kit.contracts.guards import Once
from utils.checks.kit.contracts.plays import InLockstep, Stage

__all__ = [
    "Choices",
    "Clause",
    "Contract",
    "Fault",
    "Given",
    "InLockstep",
    "Judge",
    "Mistake",
    "Once",
    "Raised",
    "Returns",
    "Stage",
    "mistake",
]
