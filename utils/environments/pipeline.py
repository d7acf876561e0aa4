"""Which Python runs Part II: this one, or, on Colab and Kaggle, an environment of its own.

Part II needs exact versions of torch, vLLM, gptqmodel, peft and bitsandbytes. In the course's own
environment they are installed. There other versions are, and other notebooks rely on them. So
nothing there is replaced: the lock goes into a virtual environment in the course's cache folder,
and whatever needs those packages runs as a subprocess of its Python. No restart is needed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from utils.environments.virtual import MARKER, build, find_uv, package_sources, run
from utils.hosted import ABOUT_ITS_PACKAGES, host

ROOT = Path(__file__).resolve().parents[2]
# The locks hold for these; `tools/lock.py` checks it. Where another one runs, uv fetches the first.
PYTHONS = ("3.11", "3.12", "3.13")
BYTES_NEEDED = {"cpu": 6_000_000_000, "gpu": 14_000_000_000}
CUDA_OF_LOCK = (13, 0)  # gpu.lock's torch and vLLM are built for it
OVERRIDE = "COURSE_PIPELINE_PYTHON"


class PipelineEnvironmentError(RuntimeError):
    """Part II's environment cannot be built. The message says what to do."""


_run = partial(run, failed=PipelineEnvironmentError, advice="")


def pipeline_python() -> Path:
    """Return the Python that has Part II's packages; on Colab and Kaggle, build it once.

    `$COURSE_PIPELINE_PYTHON` names another Python. Anywhere else nothing is ever installed from
    here: the Python that runs this is the answer.

    Raises:
        PipelineEnvironmentError: no disk space, the card's driver is too old, or a package cannot
            be installed.
    """
    if named := os.environ.get(OVERRIDE):
        if not os.access(named, os.X_OK):
            raise PipelineEnvironmentError(f"{OVERRIDE}={named} is not a program. Unset it.")
        return Path(named)
    if not host() or (Path(sys.prefix) / MARKER).is_file():
        return Path(sys.executable)
    import torch  # here, so that a process that only asks starts quickly

    from utils.profiles import get_profile

    wants_card = torch.cuda.is_available() and get_profile().device == "cuda"
    target = "gpu" if wants_card else "cpu"
    if target == "gpu":
        require_driver()
    return environment_python(target)


def environment_python(target: str) -> Path:
    """Build the environment of a lock, "cpu" or "gpu", in the course's cache if it is not there.

    Raises:
        PipelineEnvironmentError: as `pipeline_python`.
    """
    from utils.model_folder import cache_dir

    lock, needed = lock_file(target), BYTES_NEEDED[target]
    packages = sum("==" in line for line in lock.read_text().splitlines())
    return build(
        cache_dir() / "pipeline-env" / fingerprint(target),
        lock,
        needed,
        lambda python: _install(python, lock, target),
        f"Part II runs in an environment of its own, so that nothing here is replaced: {packages} "
        f"packages, about {needed / 3e9:.0f} GB to download. Once; a few minutes.",
        lambda space: PipelineEnvironmentError(
            f"Part II's environment needs {space}. Free some, or set COURSE_CACHE to a folder on "
            "another disk."
        ),
    )


def require_driver() -> None:
    """Raise a PipelineEnvironmentError before gigabytes are downloaded that cannot run."""
    from utils.profiles import ENV_VAR, driver_cuda_version

    version = driver_cuda_version()
    if version is not None and version < CUDA_OF_LOCK:
        have, need = ("{}.{}".format(*v) for v in (version, CUDA_OF_LOCK))
        raise PipelineEnvironmentError(
            f"The NVIDIA driver here supports CUDA {have}, and Part II's packages need {need} "
            f"(driver R580 or newer). Update the driver, or set {ENV_VAR}=cpu before the first "
            "cell: the bundled model runs all of Part II without the card."
        )


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


def hashes_file(target: str) -> Path:
    """The hashes of what that lock brings: a file that has another one is refused."""
    return ROOT / "requirements" / "hashes" / f"{target}.txt"


def python_version() -> str:
    """The Python of Part II's environment: this one's version if the locks hold for it."""
    here = "{}.{}".format(*sys.version_info)
    return here if here in PYTHONS else PYTHONS[0]


def fingerprint(target: str) -> str:
    """Name of the environment: another lock makes another environment."""
    text = f"{python_version()} {lock_file(target).read_text()}"
    return f"{target}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _install(python: Path, lock: Path, target: str) -> None:
    """Create the virtual environment of `python` if needed, and install what it lacks."""
    uv, env = _uv(), os.environ | package_sources()
    for name in ABOUT_ITS_PACKAGES:
        env.pop(name, None)
    env.setdefault("UV_HTTP_TIMEOUT", "300")
    if not python.exists():
        base = python_version()
        if base == "{}.{}".format(*sys.version_info):
            base = sys.executable
        folder = str(python.parents[1])
        _run([uv, "venv", "--quiet", "--relocatable", "--python", base, folder], env)
    # The lock is complete, so dependencies are not resolved again (its header says why).
    install = [uv, "pip", "install", "--quiet", "-p", str(python), "--no-deps"]
    torch_index: list[str] = []
    if target == "cpu":
        pin = next(line for line in lock.read_text().splitlines() if line.startswith("torch=="))
        probe = subprocess.run([*install, "--dry-run", pin], env=env, capture_output=True)
        torch_index = ["--torch-backend", "cpu"] if probe.returncode else []
    _run([*install, *torch_index, "-r", str(lock), "-c", str(hashes_file(target))], env)


def _uv() -> str:
    """uv: what is here, or the locked version, fetched with pip into the cache folder."""
    from utils.model_folder import cache_dir

    if found := find_uv():
        return found
    pin = next(
        line for line in lock_file("cpu").read_text().splitlines() if line.startswith("uv==")
    )
    home = cache_dir() / pin.replace("==", "-")
    uv = home / "bin" / "uv"
    if not uv.exists():
        _run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--target",
                str(home),
                pin,
                "-c",
                str(hashes_file("cpu")),
            ],
            dict(os.environ),
        )
    return str(uv)
