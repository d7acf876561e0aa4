"""Triton on a machine without a card, in a folder of its own: `make setup KERNELS=1`.

Its kernels run there in an interpreter, and compile for any card. PyTorch's builds for CUDA bring
Triton along; those for a CPU don't. Where torch.compile, bitsandbytes or vLLM find it, they choose
other ways, so only processes that ask for it get the folder, on their PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from utils.environments.virtual import build, find_uv, package_sources, run

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "kernels.lock"
HASHES = ROOT / "requirements" / "hashes" / "kernels.txt"
BYTES_NEEDED = 1_500_000_000


class KernelsEnvironmentError(RuntimeError):
    """Triton cannot be installed. The message says what to do."""


_run = partial(run, failed=KernelsEnvironmentError, advice="")


def triton_folder() -> Path:
    """The folder that has Triton, fetched on first use (200 MB).

    Raises:
        KernelsEnvironmentError: no disk space, no uv, no network, or not Linux on x86-64.
    """
    from utils.model_folder import cache_dir

    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = hashlib.sha256((python + LOCK.read_text()).encode()).hexdigest()[:12]
    marker_of = build(
        cache_dir() / "kernels" / name,
        LOCK,
        BYTES_NEEDED,
        lambda program: _install(program.parents[1]),
        "Triton for the kernels, in a folder of its own: 200 MB to download. Once.",
        lambda words: KernelsEnvironmentError(f"Triton needs {words}. Make room."),
    )
    return marker_of.parents[1]


def environment(interpret: bool) -> dict[str, str]:
    """Environment variables of a process that is to find Triton.

    Args:
        interpret: kernels run on the CPU, number by number, without being compiled. Triton looks
            when a kernel is defined, so a process does the one or the other.

    Raises:
        KernelsEnvironmentError: see `triton_folder`.
    """
    before = os.environ.get("PYTHONPATH")
    paths = [str(triton_folder()), str(ROOT), *([before] if before else [])]
    found = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    found.pop("TRITON_INTERPRET", None)
    return found | ({"TRITON_INTERPRET": "1"} if interpret else {})


def _install(folder: Path) -> None:
    if sys.platform != "linux":
        raise KernelsEnvironmentError(f"Triton is built for Linux, and this is {sys.platform}.")
    uv = find_uv()
    if uv is None:
        raise KernelsEnvironmentError(
            "Triton is fetched with uv, and there is none. Run make setup."
        )
    command = [uv, "pip", "install", "--target", str(folder), "--no-deps", "--require-hashes"]
    command += ["--python", sys.executable, "-r", str(HASHES)]
    _run(command, os.environ | package_sources())


def main() -> int:
    try:
        folder = triton_folder()
    except KernelsEnvironmentError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    version = [sys.executable, "-c", "import triton; print(triton.__version__)"]
    done = subprocess.run(version, env=environment(False), capture_output=True, text=True)
    print(f"Triton {done.stdout.strip()} is in {folder}.")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
