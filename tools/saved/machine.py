"""Which machine a result comes from."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    """This machine in a few words: cores, processor, and what it multiplies with."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    said = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in said.items()}
    flags = fields.get("flags", "").split()
    known = [name for name in ("amx_tile", "avx512_bf16", "avx512f", "avx2") if name in flags]
    model = fields.get("model name", platform.machine())
    return f"{os.cpu_count()} cores, {model}, {(known or ['no AVX2'])[0]}"
