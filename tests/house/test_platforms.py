"""macOS and Windows: what is installed there, and what is said where something does not run.

Nobody has run the course on a Mac. What can be shown here: the lock is a part of the CPU lock, all
that Part I imports is in it, and everything else refuses with a reason.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.house.test_environments import pins
from tests.house.test_repository import code_of
from tools.setup import wrong_machine
from utils import bootstrap
from utils.engine.kernels.fast_ops import load_fast_ops
from utils.pipeline.__main__ import main
from utils.vllm.engine_settings import vllm_environment

ROOT = Path(__file__).resolve().parents[2]
# What only macOS has, and IPython asks for there.
ONLY_ON_MACOS = {"appnope"}
PART_ONE = [*ROOT.glob("notebooks/0[0-8]_*.ipynb"), *ROOT.glob("solutions/0[1-8]_*/*.ipynb")]


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


# --- the lock -----------------------------------------------------------------------------------


def test_the_lock_for_macos_is_a_part_of_the_cpu_lock() -> None:
    cpu = {name: version.removesuffix("+cpu") for name, version in pins("cpu").items()}
    macos = pins("macos")
    assert {n: v for n, v in macos.items() if cpu.get(n) != v}.keys() == ONLY_ON_MACOS
    assert not any(name.startswith("vllm") for name in macos)


def file_of(module: str) -> Path | None:
    """The file of a module of the course."""
    path = ROOT / module.replace(".", "/")
    return next((f for f in (path / "__init__.py", path.with_suffix(".py")) if f.is_file()), None)


def when_imported(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported: not those in functions."""
    for node in body:
        yield node
        if isinstance(node, ast.ClassDef | ast.Try | ast.With):
            yield from when_imported(node.body)


def imported(statements: Iterator[ast.stmt] | Iterator[ast.AST]) -> Iterator[str]:
    for node in statements:
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(str(module), names, 0):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)


def foreign_modules(notebooks: list[Path]) -> set[str]:
    """The packages that notebooks import, and the course's modules which they import, and so on."""
    waiting = {
        name
        for path in notebooks
        for cell in code_of(path)
        for name in imported(ast.walk(ast.parse(cell)))
    }
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        seen.add(module)
        if module.startswith("utils") and (file := file_of(module)):
            parents = module.split(".")
            names = set(imported(when_imported(ast.parse(file.read_text("utf-8")).body)))
            names |= {".".join(parents[:length]) for length in range(1, len(parents))}
            waiting |= names - seen
    return {module.split(".")[0] for module in seen} - sys.stdlib_module_names - {"utils"}


def test_all_that_part_one_imports_is_in_the_lock_for_macos() -> None:
    assert len(PART_ONE) == 17
    brought = packages_distributions()
    found = foreign_modules(PART_ONE)
    assert {"torch", "transformers", "xxhash", "ipywidgets"} <= found
    have = pins("macos")
    lacking = {
        module
        for module in found
        if not {canonicalize_name(name) for name in brought[module]} & have.keys()
    }
    assert lacking == set()


def test_what_part_two_imports_is_not_all_there() -> None:
    """The test above would notice: it looks through the course's modules."""
    assert "peft" in foreign_modules(list(ROOT.glob("notebooks/1[01]_*.ipynb")))


# --- set-up -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("system", "lock"), [("linux", "cpu"), ("darwin", "macos")])
def test_set_up_takes_the_lock_of_the_system(system: str, lock: str) -> None:
    code = f"import sys; sys.platform = {system!r}; import setup; print(setup.LOCK, setup.HASHES)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "tools", capture_output=True, text=True, check=True
    )
    chosen = [Path(word).relative_to(ROOT / "requirements") for word in done.stdout.split()]
    assert [str(path) for path in chosen] == [f"{lock}.lock", f"hashes/{lock}.txt"]


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (("linux", "x86_64", ""), ""),
        (("darwin", "arm64", "14.0"), ""),
        (("darwin", "arm64", "26.1"), ""),
        (("darwin", "arm64", "13.7.1"), "macOS 14 and later, and this is 13.7.1. Update"),
        (("darwin", "x86_64", "14.5"), "Apple silicon, and this Python is for x86_64"),
        (("win32", "AMD64", ""), "WSL2"),
        (("linux", "aarch64", ""), "for Linux on x86-64, and this is linux on aarch64"),
    ],
)
def test_set_up_says_what_to_do_where_there_is_no_lock(
    machine: tuple[str, str, str], says: str
) -> None:
    said = wrong_machine(*machine)
    assert says in said and bool(says) == bool(said)


# --- what does not run on macOS -----------------------------------------------------------------


def test_kernels_leave_their_place_to_torch(mac: None) -> None:
    with pytest.warns(UserWarning, match=r"slower\. The reason: They are written for Linux"):
        assert load_fast_ops.__wrapped__() is None


def test_a_package_of_part_two_is_refused_with_a_reason(
    mac: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(bootstrap.NEEDED_LATER, "no_such_module", ("no-such-package", "1 MB"))
    with pytest.raises(RuntimeError, match=r"no-such-package runs on Linux, .* Colab"):
        bootstrap.need("no_such_module")
    # What Part I needs is there: set-up was not run.
    monkeypatch.setitem(bootstrap.NEEDED, "no_such_module", ("no-such-package", "1 MB"))
    with pytest.raises(RuntimeError, match="make setup"):
        bootstrap.need("no_such_module")


def test_vllm_is_refused_with_a_reason(mac: None) -> None:
    with pytest.raises(RuntimeError, match="vLLM runs on Linux, and this is darwin"):
        vllm_environment()


def test_the_pipeline_is_refused_with_a_reason(
    mac: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--dry-run"]) == 1
    assert "The pipeline runs on Linux" in capsys.readouterr().err
