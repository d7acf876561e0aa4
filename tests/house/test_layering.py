"""Arrows point down: which part of utils/ may import which."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UTILS = ROOT / "utils"
# A part imports from its own level and from those below it. `bootstrap` prepares a notebook.
LEVELS: list[set[str]] = [
    {"processes"},
    {
        "bundled_model",
        "findings",
        "gguf_to_hf",
        "hosted",
        "hub",
        "linux_only",
        "model_folder",
        "placement",
        "profiles",
        "timing",
    },
    {"environments"},
    {"engine", "quant"},
    {"kv_events", "vllm"},
    {"serving"},
    {"routing"},
    {"disaggregation"},
    {"checks", "distributed", "pipeline", "planning", "sim", "viz"},
    {"bootstrap"},
]
LEVEL = {part: number for number, parts in enumerate(LEVELS) for part in parts}
# The engine can be copied out and used alone.
NOT_IN_ENGINE = {"matplotlib", "ipywidgets", "IPython", "nbformat", "vllm", "peft", "gptqmodel"}
# Lines of one file of `utils` (without checks), all counted; and lines of code of the path that a
# token takes, which is what one reads in an evening. The rest of the engine (checked input,
# configuration, weights, text, guesses, the rooms that scale it out) is needed by whoever uses it,
# not to understand it.
MAX_FILE, MAX_PATH = 250, 1520
PATH = (
    "llm_engine",
    "request",
    "core/sched/scheduler",
    "core/kv_cache_manager",
    "core/block_pool",
    "core/kv_cache_utils",
    "worker/model_runner",
    "attention/batch",
    "models/llama",
    "attention/attention",
    "attention/ops",
    "attention/paged_attention",
    "attention/paged_kv_cache",
    "sample/sampler",
)
READING_ORDER = UTILS / "engine" / "README.md"
MAX_FILES = 13  # of code in one folder, so that one look shows them all


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


def test_arrows_point_down() -> None:
    found = {str(file.relative_to(ROOT)): upward_imports(file) for file in FILES}
    assert {file: modules for file, modules in found.items() if modules} == {}


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("engine/sample/sampler.py", "from utils.viz import style"),
        ("engine/sample/sampler.py", "def f():\n    from utils import checks"),
        ("engine/sample/sampler.py", "from ...pipeline.task import data"),
        ("engine/sample/sampler.py", "import matplotlib.pyplot as plt"),
        ("hub.py", "from utils.engine import LLM"),
        ("processes/ranks.py", "from utils.hub import cache_dir"),
        ("vllm/serve.py", "from utils.serving.launch import course_server"),
        ("serving/__main__.py", "from utils.routing.router.router import Router"),
        ("routing/router/router.py", "from utils.disaggregation.proxy import Proxy"),
        ("viz/style.py", "import tests.conftest"),
    ],
)
def test_upward_arrow_is_found(file: str, source: str) -> None:
    assert len(upward_imports(UTILS / file, source)) == 1


def test_downward_arrow_is_allowed() -> None:
    assert upward_imports(UTILS / "checks/kit/runner.py", "from utils.engine import LLM") == []


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(file): file for file in UTILS.rglob("*.py")}


def import_graph(sources: dict[str, str] | None = None) -> dict[str, set[str]]:
    """For each module of utils/, those it imports, also in functions and for types only."""
    graph: dict[str, set[str]] = {}
    for module, file in MODULES.items():
        tree = ast.parse((sources or {}).get(module) or file.read_text())
        found: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                # `from package import name` reads the package only where `name` is no file in it.
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= full & MODULES.keys() if full <= MODULES.keys() else full | {node.module}
        graph[module] = (found & MODULES.keys()) - {module}
    return graph


def circles(graph: dict[str, set[str]]) -> list[str]:
    """The modules that import each other, directly or by way of others."""
    found = []
    for module in graph:
        reached: set[str] = set()
        waiting = [*graph[module]]
        while waiting:
            if (following := waiting.pop()) not in reached:
                reached.add(following)
                waiting += graph[following]
        if module in reached:
            found.append(module)
    return found


def test_no_imports_run_in_a_circle() -> None:
    assert circles(import_graph()) == []


def test_a_circle_is_found_also_where_only_types_are_imported() -> None:
    utilities = "utils.engine.core.kv_cache_utils"
    back = "if TYPE_CHECKING:\n    from utils.engine.request import Request\n"
    sources = {utilities: MODULES[utilities].read_text() + back}
    assert {utilities, "utils.engine.request"} <= set(circles(import_graph(sources)))


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    counts = Counter(file.parent.relative_to(ROOT).as_posix() for file in UTILS.rglob("*.py"))
    assert {folder: n for folder, n in counts.items() if n > MAX_FILES} == {}


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


def test_a_file_has_few_lines() -> None:
    files = [file for file in UTILS.rglob("*.py") if file.relative_to(UTILS).parts[0] != "checks"]
    lines = {str(file.relative_to(UTILS)): len(file.read_text().splitlines()) for file in files}
    assert {name: n for name, n in lines.items() if n > MAX_FILE} == {}


def test_the_path_of_a_token_can_be_read_in_an_evening() -> None:
    sources = [(UTILS / "engine" / f"{name}.py").read_text() for name in PATH]
    assert sum(map(code_lines, sources)) <= MAX_PATH


def test_the_reading_order_is_true() -> None:
    """Every file that it names exists, and is on the path."""
    rows = re.findall(
        r"^\| \d+ \| \[`(\S+)\.py`\]\((\S+)\.py\) \|", READING_ORDER.read_text(), re.M
    )
    assert len(rows) == 10
    for name, link in rows:
        assert name == link and name in PATH


def test_code_lines_are_counted() -> None:
    assert (
        code_lines('"""Doc."""\n\n# comment\nx = 1\n\ndef f():\n    """D\n    d"""\n    return 2\n')
        == 3
    )


def test_importing_the_engine_changes_nothing_in_the_process() -> None:
    """No variables, no signal handlers, no threads' number, no folder."""
    code = (
        "import os, signal, torch, transformers, warnings\n"
        "def state():\n"
        "    return (dict(os.environ), os.getcwd(), torch.get_num_threads(), warnings.filters[:],\n"
        "            torch.get_default_dtype(), [signal.getsignal(s) for s in (2, 15)])\n"
        "before = state()\n"
        "import utils.engine\n"
        "assert state() == before, [pair for pair in zip(before, state()) if pair[0] != pair[1]]\n"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
