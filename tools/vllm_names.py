"""Check that names of another package exist, by reading its source, without importing it.

The lessons end in tables that say what each thing is called in vLLM. This module is behind the test
that proves those names. It reads source because much of vLLM imports only where there is a GPU.

    python tools/vllm_names.py vllm.sampling_params.SamplingParams.top_p --enable-prefix-caching
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

HEADER = re.compile(r"^\| here \| in vLLM \|")
_elsewhere: Path | None = None  # see `reading`


class UnknownName(LookupError):
    """A name that the installed package does not have. The message says where the search ended."""


def check(name: str) -> None:
    """Check one entry of a names table.

    Args:
        name: a dotted name (`vllm.config.CacheConfig.block_size`; a trailing `()` is allowed);
            an option of the server (`--max-num-seqs`); a file (`v1/core/block_pool.py`);
            an environment variable (`VLLM_CPU_KVCACHE_SPACE`); or a metric
            (`vllm:num_requests_running`).

    Raises:
        UnknownName: it does not exist, or it is of none of these forms.
    """
    if name.startswith("--"):
        _check_option(name)
    elif name.startswith("vllm:"):
        _check_metric(name)
    elif re.fullmatch(r"VLLM_[A-Z0-9_]+", name):
        if not _bound(package_folder("vllm") / "envs.py", [name]):
            raise UnknownName(f"vLLM reads no environment variable {name} (see vllm/envs.py)")
    elif name.endswith(".py"):
        if not (package_folder("vllm") / name.removeprefix("vllm/")).is_file():
            raise UnknownName(f"vLLM has no file {name}")
    elif re.fullmatch(r"vllm(\.\w+)+(\(\))?", name):
        resolve(name.removesuffix("()"))
    else:
        raise UnknownName(
            f"{name!r} cannot be checked. Write a dotted name (vllm.module.Class.member), an "
            "option (--name), a file (v1/core/block_pool.py), a VLLM_ variable or a vllm: metric"
        )


def resolve(dotted: str) -> ast.stmt | None:
    """Check a dotted name: modules, then classes and functions, then a class's members.

    Members are methods, class variables, fields of data classes and structs, and attributes set on
    `self`, in the class or in its bases within the package.

    Returns:
        the statement that defines it; None for a module.

    Raises:
        UnknownName: no such name.
    """
    package, *parts = dotted.split(".")
    place = package_folder(package)
    while parts:
        if (place / parts[0] / "__init__.py").is_file() or _is_namespace(place / parts[0]):
            place = place / parts.pop(0)
        elif (place / f"{parts[0]}.py").is_file():
            place = place / f"{parts.pop(0)}.py"
            break
        else:
            break
    file = place if place.suffix == ".py" else place / "__init__.py"
    if not parts:
        return None
    statement = _bound(file, parts)
    if statement is None:
        where = ".".join(dotted.split(".")[: -len(parts)])
        raise UnknownName(f"{dotted}: {where} has no {'.'.join(parts)}")
    return statement


def default(name: str) -> str:
    """The source of the value that a dotted name or an option is given where it is defined, or "".

    Raises:
        UnknownName: as `check`.
    """
    if name.startswith("--"):
        statement = _check_option(name)
    elif re.fullmatch(r"vllm(\.\w+)+", name):
        statement = resolve(name)
    else:
        check(name)
        return ""
    value = getattr(statement, "value", None)
    return ast.unparse(value) if isinstance(value, ast.expr) else ""


def table_rows(lesson: Path) -> Iterator[tuple[str, str]]:
    """The rows of a lesson's names table, as (here, in vLLM)."""
    for cell in json.loads(lesson.read_text(encoding="utf-8"))["cells"]:
        inside = False
        source = "".join(cell["source"])
        for line in source.splitlines() if cell["cell_type"] == "markdown" else ():
            if HEADER.match(line):
                inside = True
            elif not line.startswith("|"):
                inside = False
            elif inside and not re.fullmatch(r"[|\s:-]+", line):
                # Bars inside backticks belong to the code.
                columns = re.findall(r"(?:`[^`]*`|[^|`])+", line.strip().strip("|"))
                yield columns[0].strip(), columns[1].strip()


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Within it, names are looked up in the packages in `folder`, not in those installed."""
    global _elsewhere
    before, _elsewhere = _elsewhere, folder
    try:
        yield
    finally:
        _elsewhere = before


def package_folder(name: str) -> Path:
    if _elsewhere is not None:
        return _elsewhere / name
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise UnknownName(f"the package {name} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def _is_namespace(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("*.py"))


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class, including those under if, try and with."""
    for statement in body:
        yield statement
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statement, (ast.If, ast.Try, ast.With)):
                yield from _statements(getattr(statement, block, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)


def _assigned(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.AnnAssign):
        targets: list[ast.expr] = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    else:
        return set()
    return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}


def _bound(
    file: Path, parts: list[str], seen: frozenset[tuple[Path, str]] = frozenset()
) -> ast.stmt | None:
    """The statement with which the module `file` binds parts[0], or its member parts[1:]."""
    head, rest = parts[0], parts[1:]
    if (file, head) in seen:
        return None
    seen = seen | {(file, head)}
    for statement in _statements(_tree(file).body):
        if isinstance(statement, ast.ClassDef) and statement.name == head:
            if not rest:
                return statement
            if member := _member(file, statement, rest, seen):
                return member
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if statement.name == head and not rest:
                return statement
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if alias.name == "*" or (alias.asname or alias.name) == head:
                    source = head if alias.name == "*" else alias.name
                    target = _imported_file(file, statement)
                    if target and (found := _bound(target, [source, *rest], seen)):
                        return found
        elif head in _assigned(statement) and not rest:
            return statement
    return None


def _imported_file(file: Path, statement: ast.ImportFrom) -> Path | None:
    """The file that `from X import ...` reads, if it belongs to the same package."""
    if statement.level:
        base = file.parents[statement.level - 1]
        module = (statement.module or "").split(".") if statement.module else []
    else:
        package, *module = (statement.module or "").split(".")
        base = next((p for p in file.parents if p.name == package), None)
        if base is None:
            return None
        while base.parent.name == package:
            base = base.parent
    place = base.joinpath(*module)
    for candidate in (place.with_suffix(".py"), place / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _member(
    file: Path, cls: ast.ClassDef, parts: list[str], seen: frozenset[tuple[Path, str]]
) -> ast.stmt | None:
    head, rest = parts[0], parts[1:]
    for statement in _statements(cls.body):
        if isinstance(statement, ast.ClassDef) and statement.name == head:
            return _member(file, statement, rest, seen) if rest else statement
        if rest:
            continue
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if statement.name == head or head in _set_on_self(statement):
                return statement
        elif head in _assigned(statement):
            return statement
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in cls.bases]
    for base in bases:
        if isinstance(base, ast.Name) and (found := _bound(file, [base.id, *parts], seen)):
            return found
    return None


def _set_on_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _is_class_of(file: Path, name: str) -> bool:
    return f"class {name}(" in file.read_text(encoding="utf-8")


def _check_option(option: str) -> ast.stmt | None:
    """An option of `vllm serve` is a field of one of its argument classes: --max-x is max_x."""
    field = option.removeprefix("--").split("=")[0].replace("-", "_")
    classes = [(package_folder("vllm") / "engine" / "arg_utils.py", "AsyncEngineArgs")]
    # Its file has moved from folder to folder.
    entrypoints = sorted((package_folder("vllm") / "entrypoints").rglob("*.py"))
    classes += [(f, "FrontendArgs") for f in entrypoints if _is_class_of(f, "FrontendArgs")]
    for file, cls in classes:
        for name in (field, field.removeprefix("no_")):
            if statement := _bound(file, [cls, name]):
                return statement
    raise UnknownName(f"the server of the installed vLLM has no option {option}")


def _check_metric(metric: str) -> None:
    base = re.sub(r"_(total|sum|count|bucket)$", "", metric)
    for file in sorted(package_folder("vllm").glob("v1/**/*.py")):
        if re.search(rf"""["']{re.escape(base)}(_total)?["']""", file.read_text(encoding="utf-8")):
            return
    raise UnknownName(f"the installed vLLM exports no metric {metric}")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        check(argument)
        print(f"{argument}: exists")
