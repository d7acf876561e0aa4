"""Calls one stage in a process of its own: its memory and threads end with it.

On Colab that is the Python of Part II's environment (`environment.py`), which has other packages
than this one. So the call and its result travel in files, and this module, run as a program, is the
other side.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from utils.pipeline.environment import pipeline_python, worker_environment
from utils.pipeline.process import WorkerError, stop, supervised

StageFunction = Callable[[dict[str, Any], dict[str, Path], Path], dict[str, Any]]


class StageKilledError(RuntimeError):
    """The process ended without a result and without an error of its own."""


def call_stage(
    function: StageFunction, settings: dict[str, Any], inputs: dict[str, Path], out: Path
) -> dict[str, Any]:
    """Return `function(settings, inputs, out)`, called in a process of its own.

    Raises:
        StageKilledError: that process was killed.
        PipelineEnvironmentError: Part II's environment cannot be built.
        Exception: what the function raised.
    """
    with tempfile.TemporaryDirectory() as folder:
        job, result = Path(folder) / "job.json", Path(folder) / "result.json"
        call = {
            "module": function.__module__,
            "function": function.__qualname__,
            "settings": settings,
            "inputs": {name: str(path) for name, path in inputs.items()},
            "out": str(out),
            "result": str(result),
        }
        job.write_text(json.dumps(call))
        command = [str(pipeline_python()), "-m", "utils.pipeline.stage_process", str(job)]
        process = subprocess.Popen(
            supervised(command), env=os.environ | worker_environment(), text=True
        )
        try:
            process.wait()
        finally:
            stop(process)  # also when a cell was interrupted
        if not result.is_file():
            raise StageKilledError
        answer = json.loads(result.read_text())
    if "error" in answer:
        raise _as_exception(answer) from WorkerError(f"In its process:\n{answer['traceback']}")
    return answer["measures"]


def _as_exception(answer: dict[str, Any]) -> Exception:
    """The other side's exception, if this side has its class; else a WorkerError."""
    module, name, text = answer["module"], answer["error"], answer["text"]
    with contextlib.suppress(
        ImportError, AttributeError, TypeError
    ):  # or it takes more than a text
        kind = getattr(importlib.import_module(module), name)
        return kind(answer["errno"], text) if answer["errno"] else kind(text)
    return WorkerError(f"{name}: {text}")


def main(job_file: str) -> None:
    """The other side: make the call that the job file describes, and write its result."""
    job = json.loads(Path(job_file).read_text())
    function = getattr(importlib.import_module(job["module"]), job["function"])
    inputs = {name: Path(path) for name, path in job["inputs"].items()}
    answer: dict[str, Any]
    try:
        answer = {"measures": function(job["settings"], inputs, Path(job["out"]))}
    except Exception as error:
        kind, code = type(error), getattr(error, "errno", None)
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = error.strerror + (f": {error.filename}" if error.filename else "")
        answer = {"module": kind.__module__, "error": kind.__name__, "text": text, "errno": code,
                  "traceback": traceback.format_exc()}  # fmt: skip
    Path(job["result"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
