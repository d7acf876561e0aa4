"""The environment of the archived quantizers, built on first use from requirements/classic.lock.

auto-gptq and autoawq were archived by their authors. They need transformers 4 and the course
transformers 5, so they live apart: in a folder of the cache that is named after the lock's hash.
It is a CPU environment; on a GPU the maintained tool is the one to use.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from utils.hub import cache_dir

LOCK = Path(__file__).parents[4] / "requirements" / "classic.lock"
# Built from source, so they come last: they need setuptools, wheel and torch in place.
SOURCE_PACKAGES = ("autoawq",)
# torch is pinned as "+cpu". The public registry does not have that build; this index does.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SMOKE_TEST = "import auto_gptq, awq, awq.models"
BYTES_NEEDED = 2_000_000_000
MARKER = "complete"


class ClassicEnvironmentError(RuntimeError):
    """The archived tools' environment cannot be built. The message says what to do."""


def classic_python() -> Path:
    """Return the Python of the archived tools' environment; build it when it is not there.

    It is built in a folder beside its final one, tried, marked and renamed. A killed build is
    taken up where it stopped.

    Raises:
        ClassicEnvironmentError: no disk space, or a package cannot be installed.
    """
    folder = cache_dir() / "classic-env" / fingerprint()
    if not (folder / MARKER).is_file():
        _build(folder)
    return folder / "bin" / "python"


def locked_packages() -> dict[str, str]:
    """Read the lock: package -> exact version."""
    if not LOCK.is_file():
        raise ClassicEnvironmentError(
            f"{LOCK} is missing. auto-gptq and autoawq need the course's folder as it was cloned. "
            'Elsewhere use the maintained tool, tool="gptqmodel".'
        )
    lines = [line.partition("#")[0].strip() for line in LOCK.read_text().splitlines()]
    pairs = (line.split("==") for line in lines if line)
    return {package: version for package, version in pairs}


def fingerprint() -> str:
    """Name of the environment: another lock or another Python makes another environment."""
    text = f"{sys.version_info[:2]} {sorted(locked_packages().items())}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _build(folder: Path) -> None:
    from filelock import FileLock

    packages = locked_packages()
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < BYTES_NEEDED:
        raise ClassicEnvironmentError(
            f"auto-gptq and autoawq need {BYTES_NEEDED / 1e9:.0f} GB in {folder.parent}, and "
            f"{free / 1e9:.1f} GB are free. Free some, set COURSE_CACHE to a folder on another "
            'disk, or use the maintained tool, tool="gptqmodel".'
        )
    with FileLock(folder.with_suffix(".lock")):
        if (folder / MARKER).is_file():
            return  # another process built it while this one waited
        print(
            f"Building the environment of auto-gptq and autoawq: {len(packages)} packages, about "
            "400 MB to download, 1.3 GB on disk. Once; 10 seconds to 3 minutes.",
            flush=True,
        )
        started = time.monotonic()
        work = folder.with_suffix(".building")
        _install(work / "bin" / "python", packages)
        (work / MARKER).write_text(LOCK.read_text())
        os.replace(work, folder)
        print(f"Built in {time.monotonic() - started:.0f} s.", flush=True)


def _install(python: Path, packages: dict[str, str]) -> None:
    """Create the virtual environment of `python` if needed, and install what it lacks."""
    uv, env = find_uv(), os.environ | package_sources()
    env.pop("PYTHONPATH", None)
    if not python.exists():
        folder = str(python.parents[1])
        if uv:
            _run([uv, "venv", "--quiet", "--relocatable", "-p", sys.executable, folder], env)
        else:
            _run([sys.executable, "-m", "venv", "--without-pip", folder], env)
    if uv:
        # Compiled now (as pip does), or every start may take 20 s longer.
        install = [uv, "pip", "install", "-p", str(python), "--no-deps", "--compile-bytecode"]
        torch_index = ["--torch-backend", "cpu"]
    else:
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps"]
        torch_index = ["--extra-index-url", TORCH_CPU_INDEX]
    pins = [f"{name}=={version}" for name, version in packages.items()]
    wheels = [pin for pin in pins if pin.partition("==")[0] not in SOURCE_PACKAGES]
    probe = [*install, "--quiet", "--dry-run", f"torch=={packages['torch']}"]
    configured = subprocess.run(probe, env=env, capture_output=True).returncode == 0
    _run([*install, *([] if configured else torch_index), *wheels], env)
    sources = [pin for pin in pins if pin not in wheels]
    # The build must see the environment's own Python packages and compile nothing for CUDA.
    _run([*install, "--no-build-isolation", *sources], env)
    _run([str(python), "-W", "ignore", "-c", SMOKE_TEST], env)


def find_uv() -> str | None:
    """uv beside this Python or on the path, or None."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def package_sources() -> dict[str, str]:
    """uv reads none of pip's settings, so translate those that say where packages come from."""
    found = {}
    settings = {"index-url": "UV_DEFAULT_INDEX", "find-links": "UV_FIND_LINKS"}
    for setting, variable in settings.items():
        command = [sys.executable, "-m", "pip", "config", "get", f"global.{setting}"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode == 0 and variable not in os.environ:
            found[variable] = ",".join(result.stdout.split())
    return found


def _run(command: list[str], env: dict[str, str]) -> None:
    result = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode:
        tail = "\n".join(result.stdout.splitlines()[-15:])
        raise ClassicEnvironmentError(
            f"`{Path(command[0]).name} {' '.join(command[1:4])} ...` failed (exit code "
            f"{result.returncode}). Check the network and the disk, then run it again: it goes on "
            'where it stopped. Or use the maintained tool, tool="gptqmodel". Its last lines:\n'
            f"{tail}"
        )
