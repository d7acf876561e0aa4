"""The environment of the archived quantizers, built on first use from requirements/classic.lock.

auto-gptq and autoawq were archived by their authors. They need transformers 4 and the course
transformers 5, so they live apart: in a folder of the cache that is named after the lock's hash.
It is a CPU environment; on a GPU the maintained tool is the one to use.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from utils.environments.virtual import build, find_uv, package_sources, run
from utils.model_folder import cache_dir

LOCK = Path(__file__).parents[4] / "requirements" / "classic.lock"
HASHES = LOCK.parent / "hashes" / "classic.txt"  # of all but torch's CPU build
# Built from source, so they come last: they need setuptools, wheel and torch in place.
SOURCE_PACKAGES = ("autoawq",)
# torch is pinned as "+cpu". The public registry does not have that build; this index does.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SMOKE_TEST = "import auto_gptq, awq, awq.models"
BYTES_NEEDED = 2_000_000_000


class ClassicEnvironmentError(RuntimeError):
    """The archived tools' environment cannot be built. The message says what to do."""


_run = partial(
    run, failed=ClassicEnvironmentError, advice='Or use the maintained tool, tool="gptqmodel". '
)


def classic_python() -> Path:
    """Return the Python of the archived tools' environment; build it when it is not there.

    Raises:
        ClassicEnvironmentError: no disk space, or a package cannot be installed.
    """
    packages = locked_packages()
    return build(
        cache_dir() / "classic-env" / fingerprint(),
        LOCK,
        BYTES_NEEDED,
        lambda python: _install(python, packages),
        f"Building the environment of auto-gptq and autoawq: {len(packages)} packages, about "
        "400 MB to download, 1.3 GB on disk. Once; 10 seconds to 3 minutes.",
        lambda space: ClassicEnvironmentError(
            f"auto-gptq and autoawq need {space}. Free some, set COURSE_CACHE to a folder on "
            'another disk, or use the maintained tool, tool="gptqmodel".'
        ),
    )


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
    torch = f"torch=={packages['torch']}"
    probe = [*install, "--quiet", "--dry-run", torch]
    configured = subprocess.run(probe, env=env, capture_output=True).returncode == 0
    _run([*install, *([] if configured else torch_index), torch], env)
    with_hashes = HASHES.read_text().replace("\\\n", "").splitlines()[1:]
    sources = [line for line in with_hashes if line.partition("==")[0] in SOURCE_PACKAGES]
    wheels = [line for line in with_hashes if line not in sources]
    # A build must see the environment's own Python packages and compile nothing for CUDA.
    for lines, how in ((wheels, []), (sources, ["--no-build-isolation"])):
        asked = python.parents[1] / "asked.txt"
        asked.write_text("\n".join(lines))
        _run([*install, "--require-hashes", *how, "-r", str(asked)], env)
    _run([str(python), "-W", "ignore", "-c", SMOKE_TEST], env)
