"""How vLLM is started over several processes, and how it ends. Notebook 15 runs it for real."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from utils.distributed.vllm_layouts import (
    thread_binding,
    vllm_data_parallel,
    vllm_refusal,
    vllm_tensor_parallel,
)
from utils.processes.supervised import WorkerError


@pytest.mark.parametrize(
    ("num_processes", "cpus", "binding"),
    [
        (1, [0, 1], "0,1"),
        (2, [0, 1], "0|1"),
        (3, [0, 1], "0|1|1"),
        (2, [0], "0|0"),
        (2, [2, 3, 5, 7, 11], "2,3|5,7,11"),
        (3, [0, 1, 2, 3, 4, 5], "0,1|2,3|4,5"),
    ],
)
def test_cores_are_dealt_out(num_processes: int, cpus: list[int], binding: str) -> None:
    assert thread_binding(num_processes, cpus) == binding


def test_own_cores_by_default() -> None:
    assert thread_binding(1) == ",".join(map(str, sorted(os.sched_getaffinity(0))))


@pytest.mark.parametrize("run", [vllm_tensor_parallel, vllm_data_parallel])
def test_fewer_gpus_than_ranks(run, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="takes 2 GPUs, one for each process; this machine has 1"):
        run(Path("nowhere"), [[1]], 1, 2)


def test_heads_that_do_not_divide_are_refused_in_vllms_words(model_path: Path) -> None:
    pytest.importorskip("vllm")
    said = "Total number of attention heads (9) must be divisible by tensor parallel size (2)."
    assert vllm_refusal(model_path, 2) == said


def test_another_failure_is_no_refusal(monkeypatch) -> None:
    def fail(*args: object) -> None:
        raise WorkerError("out of memory")

    monkeypatch.setattr("utils.distributed.vllm_layouts.vllm_tensor_parallel", fail)
    with pytest.raises(WorkerError, match="out of memory"):
        vllm_refusal(Path("nowhere"), 2)
