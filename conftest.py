"""Pytest settings for everything it runs: the tests, and the notebooks through nbval."""

from __future__ import annotations

import os

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu`, with the reason, where torch sees no CUDA device."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="needs a CUDA device; torch sees none")
        for item in gpu_items:
            item.add_marker(skip)
