"""Tiny stages for the tests of the runner; importable, as stages must be."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from utils.pipeline.runner import Runner, Stage


def write(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Write the setting's text, behind those of the inputs."""
    text = "".join((folder / "text").read_text() for folder in inputs.values())
    (out / "text").write_text(text + settings["text"])
    (out / "pid").write_text(str(os.getpid()))
    return {"length": len(text)}


def fail(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Write a part, then fail."""
    (out / "text").write_text("half")
    raise ValueError("on purpose")


def full(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Behave as on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_in_safetensors(
    settings: dict[str, Any], inputs: dict[str, Path], out: Path
) -> dict[str, Any]:
    """Behave as safetensors does on a full disk: an error of its own, after half of the file."""
    (out / "model.safetensors").write_bytes(b"half")
    raise SafetensorError("Error while serializing: I/O error: No space left on device (28)")


def die(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Be killed in the middle, as by the kernel when memory runs out."""
    (out / "text").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def linger(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Write a part, then take long."""
    (out / "text").write_text("half")
    (out / "pid").write_text(str(os.getpid()))
    time.sleep(60)
    return {}


def chain(first: str = "a", second: str = "b") -> list[Stage]:
    """Two stages, the second reading the first."""
    return [
        Stage("one", write, settings={"text": first}),
        Stage("two", write, needs=("one",), settings={"text": second}),
    ]


if __name__ == "__main__":
    from tests.pipeline import fake_stages  # under a name that the stage's process knows too

    Runner(Path(sys.argv[1]), [Stage("one", fake_stages.linger)], {}).run()
