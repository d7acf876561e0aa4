"""A quantizer in a process of its own: its progress is a bar, its crash an error message."""

from __future__ import annotations

import os
import re
import subprocess
from collections import deque
from pathlib import Path

from tqdm.auto import tqdm

from utils.environments.pipeline import worker_environment
from utils.pipeline.quantizers.classic.worker import PROGRESS
from utils.processes.supervised import stop, supervised

WORKER_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # the model is local; no library should ask for anything
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # gptqmodel wants two workers and counts one on a machine with two cores.
    "GPTQMODEL_CPU_WORKERS": "2",
    "BUILD_CUDA_EXT": "0",  # quantizing needs no compiled kernels
}


_PROGRESS_LINE = re.compile(rf"{PROGRESS} (\d+) (\d+)")


class QuantizeError(RuntimeError):
    """A quantizer's subprocess failed. The message ends with the last lines of its output."""


def run_tool(python: Path, script: Path, job: Path, name: str, use_tqdm: bool) -> None:
    """Run a worker and turn its progress lines into a bar.

    Raises:
        QuantizeError: it failed; the message holds the last lines it printed.
    """
    env = os.environ | WORKER_ENVIRONMENT
    if script.parent.name == "classic":
        env.pop("PYTHONPATH", None)  # the classic tools must not see this environment
    else:
        env |= worker_environment()
    tail: deque[str] = deque(maxlen=30)
    with (
        subprocess.Popen(
            supervised([str(python), str(script), str(job)]),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            cwd=job.parent,  # gptqmodel writes a folder of logs wherever it stands
        ) as process,
        tqdm(desc=name, unit="layer", disable=not use_tqdm) as bar,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                # Not `match`: a tool's own progress bar may have left the line unfinished.
                if found := _PROGRESS_LINE.search(line):
                    done, bar.total = map(int, found.groups())
                    bar.update(done - bar.n)
                elif line.strip():
                    tail.append(line.rstrip())
        except BaseException:  # a cell was interrupted: the worker must not go on alone
            stop(process)
            raise
        code = process.wait()
        if code == 0 and bar.total:
            bar.update(bar.total - bar.n)
    if code:
        reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        memory = (
            " Signal 9 usually means that memory ran out: see docs/troubleshooting.md."
            if code == -9
            else ""
        )
        raise QuantizeError(f"{name} {reason}.{memory} Its last lines:\n" + "\n".join(tail))
