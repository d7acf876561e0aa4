"""Pytest settings for everything it runs: the tests, and the notebooks through nbval."""

from __future__ import annotations

import os
import re
import time
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


# Where CI is set, what has not begun by then is skipped, and named: CI ends a run at 90 minutes,
# and then says nothing at all. A machine without instructions for bfloat16 comes near it.
CI_MINUTES = 76
_STARTED = time.monotonic()

# What starts several vLLM servers, and takes 10 GB or more.
SERVERS = re.compile(r"notebooks/1[567]_|tests/\w+/test_vllm_")
# Hundreds of right, wrong and hostile answers each.
MANY_ANSWERS = ("test_known_mistakes.py", "test_bug_zoo.py", "test_grading.py")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker a whole file at a time, or all tests of one lab: a model is loaded once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            if SERVERS.search(file):
                return "several vLLM servers"  # one worker, one after the other
            lab = re.search(r"\[(lab_\d\d)", test)
            return f"{file} {lab[1]}" if lab else file

    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first, in such an order that no worker waits for the other."""
    _skip_gpu_tests(items)
    for notebook in {item.parent for item in items if item.path.match("solutions/*/*.ipynb")}:
        # A check's answer is its points, as text, and HTML with pictures, which may differ.
        notebook.skip_compare += ("text/html",)
    waiting = {item.path for item in items if "pipeline_run" in getattr(item, "fixturenames", ())}
    ranks = {p: _rank(p, p in waiting) for p in {item.path for item in items}}
    items.sort(key=lambda item: ranks[item.path])  # stable: the tests of a file keep their order


def _rank(path: Path, waiting: bool) -> int:
    """0: the pipeline, which takes longest. 1: what needs most memory, while workers are small.

    2: all that asks something new. 3: notebooks. 4: what needs the pipeline's stages (`waiting`,
    and some notebooks): they are there by then, and no worker waits for the other. 5: what asks the
    same of hundreds of answers, lab by lab, so that both workers end at about the same time; and
    should time be over (`CI_MINUTES`), this is left out.
    """
    if path.name == "test_pipeline_run.py":
        return 0
    if SERVERS.search(path.as_posix()):
        return 1
    if path.suffix == ".ipynb":
        return 4 if "need_stages" in path.read_text(encoding="utf-8") else 3
    if waiting:
        return 4
    return 5 if path.name in MANY_ANSWERS else 2


def pytest_runtest_setup(item: pytest.Item) -> None:
    """In CI, leave out what would not end in time; the summary lists it with this reason."""
    if os.environ.get("CI") and time.monotonic() - _STARTED > 60 * CI_MINUTES:
        pytest.skip(f"out of time: {CI_MINUTES} minutes of CI are over on this machine")


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
