"""`make` alone lists the targets, and each of them works as far as `make -n` can tell."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tools.proof.parts import TESTPATHS

ROOT = Path(__file__).resolve().parents[2]
TARGETS = [
    "setup",
    "lab",
    "test",
    "test-full",
    "check",
    "test-gpu-lock",
    "test-hosted",
    "test-clients",
    "gpu-check",
    "gpu-parcels",
    "plan",
    "pipeline",
    "notebooks",
    "labs",
    "translations",
    "grade",
    "progress",
    "verify",
    "bench",
    "site",
    "frames",
    "slides",
    "audit",
    "repo-url",
    "clean",
]


def make(*arguments: str) -> str:
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_make_alone_lists_every_target() -> None:
    listed = re.findall(r"^\s+make ([a-z-]+)\s+\S", make(), flags=re.MULTILINE)
    assert set(listed) == {"help", *TARGETS}


@pytest.mark.parametrize("target", TARGETS)
def test_target_runs_programs_that_exist(target: str) -> None:
    commands = make("--dry-run", target)
    assert commands.strip()
    for program in re.findall(r"\b(?:tools|utils|site)/[\w/]+\.py\b", commands):
        assert (ROOT / program).is_file(), f"make {target} runs {program}, which does not exist"
    for module in re.findall(r"-m ((?:utils|tools)[\w.]*)", commands):
        folder = ROOT / module.replace(".", "/")
        assert (folder / "__main__.py").is_file() or folder.with_suffix(".py").is_file()


def test_every_target_is_phony() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)[1].split())
    assert phony == set(re.findall(r"^([a-z-]+):", text, flags=re.MULTILINE))


def test_readme_names_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make lab" in readme
    assert "make test" in readme
    named = set(re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)\b(?=[`\s])", "\n".join(code(readme))))
    assert named <= {"help", *TARGETS}, "the README names targets that do not exist"


def code(markdown: str) -> list[str]:
    """The inline code and code blocks of a markdown text."""
    return re.findall(r"```.*?```|`[^`\n]+`", markdown, flags=re.DOTALL)


def test_make_test_runs_tests_notebooks_and_labs() -> None:
    assert re.search(r"-m tools.proof.run --workers 2$", make("--dry-run", "test"), re.MULTILINE)
    full = make("--dry-run", "test-full", "PART=pipeline")
    assert re.search(r"-m tools.proof.run --full --workers 2 --part pipeline$", full, re.MULTILINE)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    # The labs are run by tests/labs, with nbgrader.
    assert set(settings["testpaths"]) == {"tests", "notebooks", "solutions"} == set(TESTPATHS)
    # Outputs compared, kernels of this environment, skips explained, the slowest ten printed.
    assert {"--nbval", "--nbval-current-env", "-ra", "--durations=10"} <= set(settings["addopts"])
    sanitizer = next(o for o in settings["addopts"] if o.startswith("--nbval-sanitize-with="))
    assert (ROOT / sanitizer.partition("=")[2]).is_file()
