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


# What stages leave: a file of each kind.
MODEL_FILES = {
    "model.safetensors": bytes(range(200)),
    "config.json": b'{"hidden_size": 8}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ x }}",
    "train.jsonl": b"[1]\n[2]\n",
    "report.md": b"| a |\n",
    "figure.png": b"\x89PNG\r\n",
    "predictions.csv": b"1,2\n",
}


def write_model(settings: dict[str, Any], inputs: dict[str, Path], out: Path) -> dict[str, Any]:
    """Write a file of each kind, each in a folder of its own, but for the first."""
    for name, content in MODEL_FILES.items():
        folder = out / ("" if name == "model.safetensors" else name.partition(".")[0])
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return {"loss": 0.25}


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
    time.sleep(600)  # longer than anybody waits for its end
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
