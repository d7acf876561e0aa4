"""Recording a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def record(work: Callable[[], Tensor], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of what `work` does, and the tensor in which its result lies after each replay.

    It runs once before: kernels are compiled then, and the libraries choose theirs. A graph knows
    addresses, so whatever `work` reads must be kept as long as the graph.

    Args:
        pool: memory that several graphs share, of which one runs at a time. None: its own.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = work()
    return graph, out
