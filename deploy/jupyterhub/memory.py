"""Measure what a learner's lessons and labs take of memory, and write the README's table.

    python deploy/jupyterhub/memory.py               measure all (minutes each), write memory.json
    python deploy/jupyterhub/memory.py NOTEBOOK ...  measure these again, keep the other numbers
    python deploy/jupyterhub/memory.py --table       write the README's table alone

Each notebook runs as a learner runs it, from top to bottom in a kernel of its own. Its process and
the processes it starts are looked at five times a second. Two numbers matter: what a learner has
for themselves (heap, activations, caches), and what is read from files (libraries, weights), which
the system keeps once for everybody.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "memory.json"
README = HERE / "README.md"
MARKS = ("<!-- memory: python deploy/jupyterhub/memory.py -->", "<!-- end of memory -->")
NOTEBOOKS = (
    "notebooks/00_start_here.ipynb",
    "notebooks/02_kv_cache.ipynb",
    "notebooks/04_paged_allocator.ipynb",
    "notebooks/06_continuous_batching.ipynb",
    "solutions/02_kv_cache/02_kv_cache.ipynb",
    "solutions/04_paged_allocator/04_paged_allocator.ipynb",
)
LOOK = 0.2  # seconds between two looks
SYSTEM = 2e9  # bytes for the machine's own programs, the hub and its proxy
MACHINES = (16, 32, 64, 128)  # GB


def memory_of(pid: int) -> tuple[int, int]:
    """Bytes of a process and its descendants: their own, and pages of files."""
    own = files = 0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(OSError, psutil.Error):  # gone meanwhile
                text = Path(f"/proc/{process.pid}/status").read_text()
                kilobytes = {k: int(v) for k, v in re.findall(r"^(Rss\w+):\s+(\d+)", text, re.M)}
                own += 1024 * (kilobytes["RssAnon"] + kilobytes["RssShmem"])
                files = max(files, 1024 * kilobytes["RssFile"])  # the same files, mostly
    return own, files


class Peak(threading.Thread):
    """Watches a process and keeps the largest numbers that it saw."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.own, self.files, self.ended = pid, 0, 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(LOOK):
            own, files = memory_of(self.pid)
            self.own, self.files = max(self.own, own), max(self.files, files)


def measure(path: Path) -> dict[str, float]:
    """Run a notebook in a folder outside of the repository, and watch its kernel.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=1200,
            startup_timeout=300,
            resources={"metadata": {"path": folder}},
        )
        started = time.monotonic()
        with client.setup_kernel():
            peak = Peak(client.km.provisioner.pid)
            peak.start()
            client.execute(cleanup_kc=False, reset_kc=False)
            peak.ended.set()
            peak.join()
    seconds = round(time.monotonic() - started)
    return {"own_bytes": peak.own, "file_bytes": peak.files, "seconds": seconds}


@contextlib.contextmanager
def server(patience: float = 300) -> Iterator[int]:
    """A learner's JupyterLab with nothing open: its process, once it answers.

    Raises:
        RuntimeError: it ended, or did not answer in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1"]
        command += ["--port=0", f"--ServerApp.root_dir={folder}"]
        command += ["--allow-root"] if os.geteuid() == 0 else []
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"JUPYTER_RUNTIME_DIR": folder},
        )
        try:
            end = time.monotonic() + patience
            while not list(Path(folder).glob("jpserver-*.json")):  # written when it listens
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("JupyterLab does not start: try `jupyter lab`, and read.")
                time.sleep(LOOK)
            yield process.pid
        finally:
            process.terminate()
            process.wait()


def measure_server(seconds: float = 5) -> dict[str, float]:
    with server() as pid:
        time.sleep(seconds)  # extensions load after it listens
        own, files = memory_of(pid)
    return {"own_bytes": own, "file_bytes": files}


def learners(gigabytes: float, report: dict[str, Any]) -> int:
    """How many fit if each runs the largest of the notebooks, all at the same time."""
    rows = report["notebooks"].values()
    each = max(row["own_bytes"] for row in rows) + report["server"]["own_bytes"]
    shared = max(row["file_bytes"] for row in rows)
    return int((gigabytes * 1e9 - SYSTEM - shared) // each)


def table(report: dict[str, Any]) -> str:
    lines = ["| open | a learner's own, GB | files, once for all, GB |", "|---|---|---|"]
    rows = {"JupyterLab alone": report["server"], **report["notebooks"]}
    for name, row in rows.items():
        title = re.sub(r"\w+/(?:\w+/)?(\d\d[a-z]?)_(\w+)\.ipynb", r"\1 \2", name).replace("_", " ")
        kind = "lab " if name.startswith("solutions") else ""
        own, files = row["own_bytes"] / 1e9, row["file_bytes"] / 1e9
        lines.append(f"| {kind}{title} | {own:.1f} | {files:.1f} |")
    fit = ", ".join(f"{learners(size, report)} on {size} GB" for size in MACHINES)
    machine = report["machine"]
    lines += [
        "",
        f"So if everybody runs the largest of these at the same time: {fit}.",
        f"(Measured on {machine['date']}, {machine['cpu']}, {machine['system']}, torch "
        f"{machine['torch']}, {machine['threads']} thread per kernel.)",
    ]
    return "\n".join(lines)


def write_table(report: dict[str, Any]) -> None:
    """Put the table between its marks in the README."""
    begin, end = MARKS
    head, rest = README.read_text().split(begin)
    tail = rest.split(end)[1]
    README.write_text(f"{head}{begin}\n{table(report)}\n{end}{tail}")


def describe_machine() -> dict[str, Any]:
    sys.path.insert(0, str(ROOT))
    from benchmarks.common import cpu_name

    return {
        "cpu": cpu_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": version("torch"),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NOTEBOOK", choices=[[], *NOTEBOOKS])
    parser.add_argument("--table", action="store_true", help="write the table alone")
    told = parser.parse_args()
    report: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not told.table:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads share what they work on
        os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
        kept = report.get("notebooks", {}) if told.names else {}
        report = {"machine": describe_machine(), "server": measure_server(), "notebooks": kept}
        for name in told.names or NOTEBOOKS:
            report["notebooks"][name] = measure(ROOT / name)
            print(name, report["notebooks"][name], flush=True)
            RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    write_table(report)


if __name__ == "__main__":
    main()
