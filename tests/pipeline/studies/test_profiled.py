"""The profiler counts operations and writes nothing to the terminal."""

from __future__ import annotations

import pytest
import torch

from utils.pipeline.studies.profiled import profiled


def test_counts_and_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(3, 3)
    with profiled() as profiler:
        _ = x @ x
    assert {row.key: row.count for row in profiler.key_averages()}["aten::mm"] == 1
    assert capfd.readouterr().err == ""
