"""Pytest settings for everything it runs: the tests, and the notebooks through nbval."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

# Set before anything imports torch or a Hugging Face library, and inherited by every notebook
# kernel and subprocess. Passive waiting matters: on few cores, two processes whose OpenMP threads
# spin while idle slow each other down tenfold.
for _name, _value in {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
}.items():
    os.environ.setdefault(_name, _value)
if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores. Two of one thread each get more done than one of two threads.
    _cores = len(os.sched_getaffinity(0)) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores)))
    # vLLM would bind its threads to cores of its choice, and so would the other worker's vLLM.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first, and what shares a kernel, a model or a stage on one worker."""
    _skip_gpu_tests(items)
    needs_stages = {
        path: "need_stages" in path.read_text(encoding="utf-8")
        for path in {item.path for item in items if item.path.suffix == ".ipynb"}
    }
    groups = {item: _group(item, needs_stages) for item in items}
    items.sort(key=lambda item: groups[item])
    for item, (_, name) in groups.items():
        item.add_marker(pytest.mark.xdist_group(name))


def _group(item: pytest.Item, needs_stages: dict[Path, bool]) -> tuple[int, str]:
    """When to run an item, and with which others: those of one file, but for a few.

    The pipeline comes first: it takes longest, and while it runs the other worker does what needs
    no stage of it. Short tests come last, so that both workers end at about the same time.
    """
    name = "/".join(item.path.parts[-2:])
    if "pipeline_run" in getattr(item, "fixturenames", ()):
        return 0, "pipeline"
    if item.path in needs_stages:
        return 2 if needs_stages[item.path] else 1, name
    if lab := getattr(item, "callspec", None) and item.callspec.params.get("lab"):  # type: ignore[attr-defined]
        return 1, f"{name} {lab}"  # each lab by itself
    return 3, name


def _skip_gpu_tests(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu`, with the reason, where torch sees no CUDA device."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device; torch sees none")
        for item in gpu_items:
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the ten files that took longest, below pytest's ten slowest tests."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]
    if len(seconds) > 1:
        terminalreporter.section("slowest 10 files")
        for name, total in seconds.most_common(10):
            terminalreporter.line(f"{total:8.1f}s {name}")
        terminalreporter.line(f"{sum(seconds.values()):8.1f}s all {len(seconds)} files")
