"""Start the course's server from a notebook or a test."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils.environments.pipeline import pipeline_python, worker_environment
from utils.processes.server import LocalServer, as_options


def course_server(
    model: str | Path = "bundled",
    *,
    port: int | None = None,
    verbose: bool = True,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> LocalServer:
    """Start `python -m utils.serving` on a local port, a free one unless told.

    Use it in a `with` block, or stop it with `stop()`. It ends with this process at the latest,
    also when this process is killed.

    Args:
        env: variables beside those of this process.
        options: of the command line, with underscores: `max_num_seqs=8`.

    Raises:
        PortInUse, WorkerError: see `LocalServer`.
    """
    arguments = {"model": model} | options
    name = options.get("served_model_name") or Path(model).name
    return LocalServer(
        [str(pipeline_python()), "-m", "utils.serving", *as_options(arguments)],
        os.environ | worker_environment() | dict(env or {}),
        name,
        name="our server",
        port=port,
        verbose=verbose,
    )
