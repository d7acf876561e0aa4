"""Calls one stage in a process of its own: its memory and threads end with it.

On Colab that is the Python of Part II's environment (`environment.py`), which has other packages
than this one. This module, run as a program, is the other side.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from utils.environments.pipeline import pipeline_python, worker_environment
from utils.processes.json_lines import Ended, LineProcess, serve

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
    command = [str(pipeline_python()), "-m", "utils.pipeline.stage_process"]
    environment = os.environ | worker_environment()
    with LineProcess(command, environment, keep_log=False) as process:  # also when interrupted
        try:
            return process.ask(
                "call",
                module=function.__module__,
                function=function.__qualname__,
                settings=settings,
                inputs={name: str(path) for name, path in inputs.items()},
                out=str(out),
            )
        except Ended:
            raise StageKilledError from None


def main() -> None:
    """The other side: make the calls that it is asked for."""

    def answer(do: str, call: dict[str, Any]) -> dict[str, Any]:
        function = getattr(importlib.import_module(call["module"]), call["function"])
        inputs = {name: Path(path) for name, path in call["inputs"].items()}
        return function(call["settings"], inputs, Path(call["out"]))

    serve(answer)


if __name__ == "__main__":
    main()
