"""What is compiled for processors with AMX, on any x86: its instructions are emulated."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.scale import FULL, ONLY_FULL, SCALE
from utils.engine.kernels.fast_ops import load_fast_ops

HERE = Path(__file__).parent
# All tests of single kernels. Those of whole models take long; compiling shows nothing new.
KERNELS = (
    "rms_norm or silu or rotary or paged_attention or keys_of_few or all_layers or reshape "
    "or own_product"
)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AMX is of x86")
@pytest.mark.skipif(load_fast_ops() is None, reason="no C++ compiler")
@pytest.mark.skipif(
    SCALE != FULL and torch.cpu._is_amx_tile_supported(),
    reason=f"{ONLY_FULL} this processor has AMX, so test_kernels.py tests the real instructions",
)
def test_the_kernels_for_amx_compute_what_the_others_do() -> None:
    """The same tests, with 16 lanes and with tiles; it is counted that these were used."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-p", "tests.engine.kernels.emulated_amx", str(HERE / "test_kernels.py")]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "-k", KERNELS],
        env=own,
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    products = re.search(r"Products by emulated AMX: (\d+)", done.stdout)
    assert products and int(products[1]) > 10_000, done.stdout
