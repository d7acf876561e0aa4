"""Pytest settings for everything it runs: the tests, and the notebooks through nbval."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.scale import FULL, SCALE, sized

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

if SCALE != FULL:
    # A small chain must not replace the one that `make pipeline` made, nor be taken for it.
    os.environ.setdefault("COURSE_ARTIFACTS", str(Path(__file__).parent / "artifacts" / "small"))
    os.environ.setdefault("COURSE_REPEATS", "1")  # see utils/timing.py

pytest_plugins = [
    "tests.plugins.schedule",
    "tests.plugins.notebooks",
    "tests.plugins.clean_room",
    "tests.plugins.reports",
]

# One profile everywhere, so that a contributor and CI run the same examples. At full size each run
# draws others; what fails is printed in a form that can be run again.
settings.register_profile(
    "course",
    deadline=None,
    database=None,
    derandomize=SCALE != FULL,
    print_blob=True,
    max_examples=sized(40, 100),
)
settings.load_profile("course")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu`, with the reason, where torch sees no CUDA device.

    COURSE_CARD=cpu runs them on the processor (see `tests/device/test_on_cuda.py`).
    """
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items or os.environ.get("COURSE_CARD") == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device; torch sees none")
        for item in gpu_items:
            item.add_marker(skip)
