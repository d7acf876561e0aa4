"""What a card can do at most: memory, matrix products, and what it costs to ask it for anything.

    python benchmarks/card.py [--out FILE] [--device cuda]

Prints a line of JSON for each measure, medians over `REPEATS` runs, and writes them all to FILE
after each. The numbers that engines are held against are these, not those of a data sheet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from utils.profiles import driver_cuda_version  # noqa: E402

REPEATS = 15
SMI = "name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit"


def card_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "no card: this processor"


def seconds(work: Callable[[], object], device: str, repeats: int = REPEATS) -> float:
    """The median time of one run. On a card by its own clock, so that starting it is no part."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        if device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        else:
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def copy_bandwidth(device: str, size: int) -> float:
    """Bytes per second, read and written, of a copy of `size` bytes within the memory."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds(lambda: target.copy_(source), device)


def matmul_flops(device: str, dtype: torch.dtype, n: int, tf32: bool = False) -> float:
    """FLOP/s of a product of two random matrices [n, n]."""
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        return 2 * n**3 / seconds(lambda: a @ b, device)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def host_seconds(work: Callable[[], object], count: int, device: str) -> float:
    """Seconds that the processor needs for one run of many, the card's work at the end included."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(count):
            work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


def measures(device: str, small: bool) -> Iterator[tuple[str, Any]]:
    """Names and values, one after the other. `small`: sizes for a processor."""
    n, size = (512, 1 << 26) if small else (8192, 1 << 32)
    yield "copy_bytes_per_s", copy_bandwidth(device, size)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        yield f"matmul_{name}_flops", matmul_flops(device, dtype, n)
    yield "matmul_tf32_flops", matmul_flops(device, torch.float32, n, tf32=True)
    one = torch.zeros(1, device=device)
    yield "kernel_us", 1e6 * host_seconds(lambda: one.add_(1), 500, device)
    yield "wait_for_a_number_us", 1e6 * host_seconds(one.item, 100, device)
    numbers = list(range(64))
    yield (
        "small_copy_to_card_us",
        1e6 * host_seconds(lambda: torch.tensor(numbers, device=device), 100, device),
    )
    if device == "cuda":
        host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
        there = torch.empty_like(host, device=device)
        yield (
            "to_card_bytes_per_s",
            len(host) / seconds(lambda: there.copy_(host, non_blocking=True), device),
        )
        yield (
            "from_card_bytes_per_s",
            len(host) / seconds(lambda: host.copy_(there, non_blocking=True), device),
        )
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(100):
                one.add_(1)
        yield "kernel_in_a_graph_us", 1e6 * host_seconds(graph.replay, 20, device) / 100


def about(device: str) -> dict[str, Any]:
    """Which card this is; whatever cannot be read is left out."""
    if device != "cuda":
        return {"card": card_name(device)}
    card = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {
        "card": card.name, "memory_bytes": card.total_memory,
        "compute_capability": f"{card.major}.{card.minor}",
        "multiprocessors": card.multi_processor_count, "l2_bytes": card.L2_cache_size,
    }  # fmt: skip
    if version := driver_cuda_version():
        found["driver_cuda"] = "{}.{}".format(*version)
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
