"""What a card can do at most: memory, matrix products, and what it costs to ask it for anything.

    python benchmarks/card.py [--out FILE] [--device cuda]

Prints a line of JSON for each measure, medians over `REPEATS` runs, and writes them all to FILE
after each. The numbers that engines are held against are these, not those of a data sheet.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from utils.profiles import driver_cuda_version  # noqa: E402
from utils.timing import median_seconds  # noqa: E402

REPEATS = 9
SMI = "name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit"


def seconds_each(work: Callable[[], object], count: int) -> float:
    """The median time of one run, of `count` in a row: waiting for their end weighs little then."""

    def all_of_them() -> None:
        for _ in range(count):
            work()

    return median_seconds(all_of_them, REPEATS) / count


def copy_bandwidth(device: str, size: int) -> float:
    """Bytes per second, read and written, of a copy of `size` bytes within the memory."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_each(lambda: target.copy_(source), 4)


def matmul_flops(device: str, dtype: torch.dtype, n: int, tf32: bool = False) -> float:
    """FLOP/s of a product of two random matrices [n, n]."""
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        return 2 * n**3 / seconds_each(lambda: a @ b, 4)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def measures(device: str, small: bool) -> Iterator[tuple[str, Any]]:
    """Names and values, one after the other. `small`: sizes for a processor."""
    n, size = (512, 1 << 26) if small else (8192, 1 << 32)
    yield "copy_bytes_per_s", copy_bandwidth(device, size)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        yield f"matmul_{name}_flops", matmul_flops(device, dtype, n)
    yield "matmul_tf32_flops", matmul_flops(device, torch.float32, n, tf32=True)
    one = torch.zeros(1, device=device)
    yield "kernel_us", 1e6 * seconds_each(lambda: one.add_(1), 500)
    yield "wait_for_a_number_us", 1e6 * seconds_each(one.item, 100)
    numbers = list(range(64))
    yield (
        "small_copy_to_card_us",
        1e6 * seconds_each(lambda: torch.tensor(numbers, device=device), 100),
    )
    if device == "cuda":
        host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
        there = torch.empty_like(host, device=device)
        yield (
            "to_card_bytes_per_s",
            len(host) / seconds_each(lambda: there.copy_(host, non_blocking=True), 4),
        )
        yield (
            "from_card_bytes_per_s",
            len(host) / seconds_each(lambda: host.copy_(there, non_blocking=True), 4),
        )
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(100):
                one.add_(1)
        yield "kernel_in_a_graph_us", 1e6 * seconds_each(graph.replay, 20) / 100


def about(device: str) -> dict[str, Any]:
    """Which card this is, and what runs here; whatever cannot be read of the card is left out."""
    found: dict[str, Any] = {
        "card": "no card: this processor",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
    }
    if device != "cuda":
        return found
    card = torch.cuda.get_device_properties(0)
    found |= {
        "card": card.name,
        "memory_bytes": card.total_memory,
        "compute_capability": f"{card.major}.{card.minor}",
        "multiprocessors": card.multi_processor_count,
        "l2_bytes": card.L2_cache_size,
    }
    if newest := driver_cuda_version():
        found["driver_cuda"] = "{}.{}".format(*newest)
    command = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
        found |= dict(zip(SMI.split(","), map(str.strip, answer.split(",")), strict=True))
    except (OSError, subprocess.TimeoutExpired, ValueError):
        pass
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    result = about(options.device)
    print(json.dumps(result), flush=True)
    for name, value in measures(options.device, small=options.device == "cpu"):
        result[name] = value
        print(json.dumps({name: value}), flush=True)
        if options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
