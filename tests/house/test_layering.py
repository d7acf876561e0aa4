"""Arrows point down: which part of utils/ may import which."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UTILS = ROOT / "utils"
# A part imports from its own level and from those below it. `bootstrap` prepares a notebook.
LEVELS: list[set[str]] = [
    {"hub", "profiles", "timing"},
    {"engine", "quant"},
    {"pipeline", "serving", "checks", "viz", "sim"},
    {"bootstrap"},
]
LEVEL = {part: number for number, parts in enumerate(LEVELS) for part in parts}
# The engine can be copied out and used alone.
NOT_IN_ENGINE = {"matplotlib", "ipywidgets", "IPython", "nbformat", "vllm", "peft", "gptqmodel"}
# Lines of one file, all counted; lines of code of the path that a token takes, which is what one
# reads in an evening; and of all files. What surrounds the path (checked input, configuration,
# weights, text, beam search, swapping, the ways to guess ahead) is needed by whoever uses the
# engine, not to understand it.
MAX_ENGINE_FILE, MAX_PATH, MAX_ENGINE = 250, 1500, 3500
PATH = (
    "llm_engine", "request", "scheduler", "kv_cache_manager", "block_pool", "kv_cache_utils",
    "model_runner", "batch", "llama", "attention", "paged_attention", "paged_kv_cache", "sampler",
)  # fmt: skip


def imported_modules(file: Path, source: str | None = None) -> Iterator[str]:
    """The absolute names of all modules that a file imports, anywhere in it."""
    package = file.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(file.read_text() if source is None else source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *((node.module or "").split(".") if node.module else [])])
            yield module
            if module == "utils":
                yield from (f"utils.{alias.name}" for alias in node.names)


def part_of(file: Path) -> str:
    return file.relative_to(UTILS).parts[0].removesuffix(".py")


def upward_imports(file: Path, source: str | None = None) -> list[str]:
    """What `file` imports from a level above its own, or from outside the installed code."""
    found = []
    for module in imported_modules(file, source):
        top, _, rest = module.partition(".")
        outside = top in {"tests", "tools", "benchmarks"}
        above = top == "utils" and rest and LEVEL[rest.split(".")[0]] > LEVEL[part_of(file)]
        not_alone = part_of(file) == "engine" and top in NOT_IN_ENGINE
        if outside or above or not_alone:
            found.append(module)
    return found


FILES = [file for file in sorted(UTILS.rglob("*.py")) if part_of(file) != "__init__"]


def test_every_part_has_a_level() -> None:
    assert {part_of(file) for file in FILES} <= set(LEVEL)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_arrows_point_down(file: Path) -> None:
    assert upward_imports(file) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("engine/sampler.py", "from utils.viz import style"),
        ("engine/sampler.py", "def f():\n    from utils import checks"),
        ("engine/sampler.py", "from ..pipeline import data"),
        ("engine/sampler.py", "import matplotlib.pyplot as plt"),
        ("hub.py", "from utils.engine import LLM"),
        ("viz/style.py", "import tests.conftest"),
    ],
)
def test_upward_arrow_is_found(file: str, source: str) -> None:
    assert len(upward_imports(UTILS / file, source)) == 1


def test_downward_arrow_is_allowed() -> None:
    assert upward_imports(UTILS / "checks/runner.py", "from utils.engine import LLM") == []


def test_engine_loads_no_plots_and_no_jupyter() -> None:
    code = "import sys, utils.engine; print(*(set(sys.argv[1:]) & set(sys.modules)))"
    command = [sys.executable, "-c", code, *sorted(NOT_IN_ENGINE)]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert result.stdout.split() == []


def code_lines(source: str) -> int:
    """Lines of code: no blank lines, comments or docstrings."""
    code = {token.start[0] for token in tokens(source)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def tokens(source: str) -> list[tokenize.TokenInfo]:
    layout = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    every = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token for token in every if token.type not in layout]


def test_engine_can_be_read_in_an_evening() -> None:
    sources = {f.name: f.read_text() for f in (UTILS / "engine").glob("*.py")}
    lines = {name: len(source.splitlines()) for name, source in sources.items()}
    assert {name: n for name, n in lines.items() if n > MAX_ENGINE_FILE} == {}
    assert sum(code_lines(sources[f"{name}.py"]) for name in PATH) <= MAX_PATH
    assert sum(map(code_lines, sources.values())) <= MAX_ENGINE


def test_code_lines_are_counted() -> None:
    assert (
        code_lines('"""Doc."""\n\n# comment\nx = 1\n\ndef f():\n    """D\n    d"""\n    return 2\n')
        == 3
    )
