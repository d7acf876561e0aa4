"""Which Python runs Part II: this one, or, on Colab, an environment of its own.

Part II needs exact versions of torch, vLLM, gptqmodel, peft and bitsandbytes. In the course's own
environment they are installed. On Colab other versions are, and other notebooks rely on them. So
nothing there is replaced: the lock goes into a virtual environment in the course's cache folder,
and whatever needs those packages runs as a subprocess of its Python. No restart is needed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKER = "complete"
PYTHON = "3.11"  # the locks are for this version; uv fetches it where it is missing
BYTES_NEEDED = {"cpu": 6_000_000_000, "gpu": 14_000_000_000}
OVERRIDE = "COURSE_PIPELINE_PYTHON"
# Colab sets some of these. They are about its own packages, and name files that are not there.
ABOUT_COLAB = (
    "PYTHONPATH", "VIRTUAL_ENV", "UV_SYSTEM_PYTHON", "UV_CONSTRAINT", "UV_BUILD_CONSTRAINT",
    "UV_OVERRIDE", "UV_PRERELEASE", "PIP_CONSTRAINT",
)  # fmt: skip


class PipelineEnvironmentError(RuntimeError):
    """Part II's environment cannot be built. The message says what to do."""


def pipeline_python() -> Path:
    """Return the Python that has Part II's packages; on Colab, build its environment once.

    `$COURSE_PIPELINE_PYTHON` names another Python. Anywhere but on Colab nothing is ever
    installed from here: the Python that runs this is the answer.

    Raises:
        PipelineEnvironmentError: no disk space, or a package cannot be installed.
    """
    if named := os.environ.get(OVERRIDE):
        if not os.access(named, os.X_OK):
            raise PipelineEnvironmentError(f"{OVERRIDE}={named} is not a program. Unset it.")
        return Path(named)
    if "COLAB_RELEASE_TAG" not in os.environ or (Path(sys.prefix) / MARKER).is_file():
        return Path(sys.executable)
    import torch  # here, so that a process that only asks starts quickly

    from utils.hub import cache_dir

    target = "gpu" if torch.cuda.is_available() else "cpu"
    folder = cache_dir() / "pipeline-env" / fingerprint(target)
    if not (folder / MARKER).is_file():
        _build(folder, target)
    return folder / "bin" / "python"


def is_isolated() -> bool:
    """Does Part II run in another environment than this process?"""
    return pipeline_python() != Path(sys.executable)


def worker_environment() -> dict[str, str]:
    """`PYTHONPATH` with which a Part II subprocess finds `utils`, wherever it is started.

    In an environment of its own it must not see this one's packages.
    """
    rest = "" if is_isolated() else os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{ROOT}{os.pathsep}{rest}" if rest else str(ROOT)}


def package_version(package: str) -> str:
    """The version of a package that Part II uses, or "not installed"."""
    if not is_isolated():
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    command = [str(pipeline_python()), "-c", code, package]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stdout.strip() or "not installed"


def lock_file(target: str) -> Path:
    """The exact versions for "cpu" or "gpu"."""
    return ROOT / "requirements" / f"{target}.lock"


def fingerprint(target: str) -> str:
    """Name of the environment: another lock makes another environment."""
    text = f"{PYTHON} {lock_file(target).read_text()}"
    return f"{target}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _build(folder: Path, target: str) -> None:
    """Build beside the final place, mark, rename. A killed build is taken up where it stopped."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(folder.parent).free, BYTES_NEEDED[target]
    if free < needed:
        raise PipelineEnvironmentError(
            f"Part II's environment needs {needed / 1e9:.0f} GB in {folder.parent}, and "
            f"{free / 1e9:.1f} GB are free. Free some, or set COURSE_CACHE to a folder on another "
            "disk."
        )
    from filelock import FileLock

    with FileLock(folder.with_suffix(".lock")):
        if (folder / MARKER).is_file():
            return  # another process built it while this one waited
        lock = lock_file(target)
        packages = sum("==" in line for line in lock.read_text().splitlines())
        print(
            f"Part II runs in an environment of its own, so that nothing here is replaced: "
            f"{packages} packages, about {needed / 3e9:.0f} GB to download. Once; a few minutes.",
            flush=True,
        )
        started = time.monotonic()
        work = folder.with_suffix(".building")
        _install(work / "bin" / "python", lock, target)
        (work / MARKER).write_text(lock.read_text())
        os.replace(work, folder)
        print(f"Built in {time.monotonic() - started:.0f} s.", flush=True)


def _install(python: Path, lock: Path, target: str) -> None:
    """Create the virtual environment of `python` if needed, and install what it lacks."""
    from utils.pipeline.quantizers.classic.environment import package_sources

    uv, env = _uv(), os.environ | package_sources()
    for name in ABOUT_COLAB:
        env.pop(name, None)
    env.setdefault("UV_HTTP_TIMEOUT", "300")
    if not python.exists():
        base = sys.executable if "{}.{}".format(*sys.version_info) == PYTHON else PYTHON
        folder = str(python.parents[1])
        _run([uv, "venv", "--quiet", "--relocatable", "--python", base, folder], env)
    # The lock is complete, so dependencies are not resolved again (its header says why).
    install = [uv, "pip", "install", "--quiet", "-p", str(python), "--no-deps"]
    torch_index: list[str] = []
    if target == "cpu":
        pin = next(line for line in lock.read_text().splitlines() if line.startswith("torch=="))
        probe = subprocess.run([*install, "--dry-run", pin], env=env, capture_output=True)
        torch_index = ["--torch-backend", "cpu"] if probe.returncode else []
    _run([*install, *torch_index, "-r", str(lock)], env)


def _uv() -> str:
    """uv: what is here, or the locked version, fetched with pip into the cache folder."""
    from utils.hub import cache_dir
    from utils.pipeline.quantizers.classic.environment import find_uv

    if found := find_uv():
        return found
    pin = next(
        line for line in lock_file("cpu").read_text().splitlines() if line.startswith("uv==")
    )
    home = cache_dir() / pin.replace("==", "-")
    uv = home / "bin" / "uv"
    if not uv.exists():
        _run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(home), pin],
             dict(os.environ))  # fmt: skip
    return str(uv)


def _run(command: list[str], env: dict[str, str]) -> None:
    result = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode:
        tail = "\n".join(result.stdout.splitlines()[-15:])
        raise PipelineEnvironmentError(
            f"`{Path(command[0]).name} {' '.join(command[1:4])} ...` failed (exit code "
            f"{result.returncode}). Check the network and the disk, then run it again: it goes on "
            f"where it stopped. Its last lines:\n{tail}"
        )
