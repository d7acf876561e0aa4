"""A plugin for pytest: the kernels are compiled for a processor with AMX, which is emulated.

pytest -p tests.engine.kernels.emulated_amx tests/engine/kernels/test_kernels.py
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from utils.engine.kernels import fast_ops

INSTRUCTIONS = Path(__file__).with_suffix(".h")

# -O1: compiling takes a third of the time, and what is tested here takes little.
fast_ops.FLAGS = (*fast_ops.FLAGS, "-O1", "-Wno-psabi", "-include", str(INSTRUCTIONS))
fast_ops.HEADERS = (*fast_ops.HEADERS, INSTRUCTIONS)  # the compiled file's name depends on it


def pytest_sessionfinish() -> None:
    products = ctypes.CDLL(str(fast_ops._compiled())).emulated_products()
    print(f"\nProducts by emulated AMX: {products}")
