"""What all of these tests need: time for a form to be compiled, however busy the machine is."""

from __future__ import annotations

import pytest

from utils.engine.structured_output import grammar


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    # By the clock, that is. What the processor spends is limited by `trial.CPU_SECONDS`.
    monkeypatch.setattr(grammar, "MAX_SECONDS", 60)
