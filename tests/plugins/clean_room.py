"""A module of tests leaves its process as it found it; otherwise later modules inherit the change.

Two whole runs were once lost to inherited state: a raised niceness, and a variable of the
environment. The module that leaves something behind fails here by name, and what it left is undone,
so that the modules after it run in a clean process.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Libraries set these for themselves when they are imported; no test does. Nor does any set what the
# engine's kernels tell oneDNN, once, when they are imported.
LIBRARIES = (
    "CUDA",
    "CUBLAS",
    "KMP_",
    "LD_",
    "NCCL",
    "OMP_",
    "PYTEST_",
    "PYTORCH",
    "TORCH",
    "VLLM",
    "TOKENIZERS_PARALLELISM",
    "TRITON",
    "TF_",
    "USE_",
    "XLA",
    "HF_",
    "PYTHONHASHSEED",
    "NUMEXPR",
    "MPLBACKEND",
    "QT_",
    "JUPYTER_PLATFORM",
    "DISABLE_",
    "BITSANDBYTES",
    "BNB_",
    "TILELANG",
    "GPTQMODEL",
    "TRANSFORMERS_CACHE",
    "ONEDNN_",
    "LRU_CACHE_CAPACITY",
)
ROOT = Path(__file__).resolve().parents[2]
OURS = ("tests", "tools", "utils")
AT_FIRST = frozenset(os.environ)
SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGCHLD,
    signal.SIGUSR1,
)
PATIENCE_S = 10  # a thread that was told to end may need a moment


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(LIBRARIES) and (name in AT_FIRST or _is_named_by_us(name))
    }


@functools.cache
def _is_named_by_us(name: str) -> bool:
    """Whether a file of the course names a variable; a library may set one that we don't know."""
    files = (file for folder in OURS for file in (ROOT / folder).rglob("*.py"))
    return any(name in file.read_text(encoding="utf-8") for file in files)


def _paths() -> list[str]:
    """Without what lies in the environment itself: libraries add their own folders there."""
    return [path for path in sys.path if not path.startswith(sys.prefix)]


def _set_paths(before: list[str]) -> None:
    kept = [path for path in sys.path if path in before or path.startswith(sys.prefix)]
    sys.path[:] = [*(path for path in before if path not in kept), *kept]


def _torch(read: Callable[[Any], Any]) -> Any:
    torch = sys.modules.get("torch")
    return read(torch) if torch and hasattr(torch, "get_num_threads") else None


def _rc_params() -> dict[str, Any] | None:
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is None or not hasattr(matplotlib, "rcParams"):
        return None
    return {name: value for name, value in dict(matplotlib.rcParams).items() if name != "backend"}


def _set_environment(before: dict[str, str]) -> None:
    for name in _environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _set_signals(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if handler is not None:
            signal.signal(number, handler)


# What is looked at: how to read it, and how to put it back (None: it cannot be).
STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], object] | None]] = {
    "environment": (_environment, _set_environment),
    "working directory": (os.getcwd, os.chdir),
    "sys.path": (_paths, _set_paths),
    "signal handlers": (lambda: {n: signal.getsignal(n) for n in SIGNALS}, _set_signals),
    "niceness": (lambda: os.getpriority(os.PRIO_PROCESS, 0), None),
    "torch's threads": (
        lambda: _torch(lambda torch: torch.get_num_threads()),
        lambda before: _torch(lambda torch: torch.set_num_threads(before)),
    ),
    "torch's default dtype": (
        lambda: _torch(lambda torch: torch.get_default_dtype()),
        lambda before: _torch(lambda torch: torch.set_default_dtype(before)),
    ),
    "torch's grad mode": (
        lambda: _torch(lambda torch: torch.is_grad_enabled()),
        lambda before: _torch(lambda torch: torch.set_grad_enabled(before)),
    ),
}


def _threads() -> set[threading.Thread]:
    """Those that would keep the process from ending."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


def _difference(name: str, before: Any, after: Any) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted(
            str(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)
        )
        return f"{name} ({', '.join(names)})"
    return f"{name} (before: {before}; after: {after})"


def _put_back_rc_params(before: dict[str, Any] | None) -> None:
    """Figures of the course set its style, so this is no fault of a module; only put it back."""
    if before is not None:
        sys.modules["matplotlib"].rcParams.update(before)


@pytest.fixture(scope="module", autouse=True)
def clean_room() -> Iterator[None]:
    """Fail the module that leaves the process in another state than it found it."""
    threads = _threads()
    before = {name: read() for name, (read, _) in STATE.items()}
    style = _rc_params()
    yield
    _put_back_rc_params(style)
    left = []
    for name, (read, put_back) in STATE.items():
        after = read()
        if before[name] is None or after == before[name]:  # None: it was imported meanwhile
            continue
        left.append(_difference(name, before[name], after))
        if put_back is not None:
            put_back(before[name])
    end = time.monotonic() + PATIENCE_S
    while _threads() - threads and time.monotonic() < end:
        time.sleep(0.05)
    left += [f"a thread that still runs ({thread.name})" for thread in _threads() - threads]
    assert not left, "This module of tests leaves behind: " + "; ".join(left)
