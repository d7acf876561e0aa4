"""A program that uses vLLM and ends by itself: run in a process of its own, its words returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from utils.environments.pipeline import pipeline_python, worker_environment
from utils.processes.supervised import run_to_end
from utils.vllm.engine_settings import vllm_environment


def run_program(
    arguments: Sequence[str | Path],
    *,
    one_process: bool = False,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run Part II's Python with arguments, such as a script and what it takes, to its end.

    Args:
        arguments: what follows `python` on the command line.
        one_process: vLLM keeps its engine in the program's own process. Else it starts another.
        env: variables beside those with which the course runs vLLM (`vllm_environment`).

    Returns:
        What the program printed.

    Raises:
        WorkerError: it failed; the message holds the end of what it wrote to stderr.
    """
    environment = vllm_environment() | worker_environment() | dict(env or {})
    if one_process:
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    command = [str(pipeline_python()), *map(str, arguments)]
    return run_to_end(command, environment, " ".join(map(str, arguments[:2])))
