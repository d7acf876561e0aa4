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
import re
import sys
from collections.abc import Iterator
from pathlib import Path


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
        if not _is_bound(_package("vllm") / "envs.py", [name]):
            raise UnknownName(f"vLLM reads no environment variable {name} (see vllm/envs.py)")
    elif name.endswith(".py"):
        if not (_package("vllm") / name.removeprefix("vllm/")).is_file():
            raise UnknownName(f"vLLM has no file {name}")
    elif re.fullmatch(r"vllm(\.\w+)+(\(\))?", name):
        resolve(name.removesuffix("()"))
    else:
        raise UnknownName(
            f"{name!r} cannot be checked. Write a dotted name (vllm.module.Class.member), an "
            "option (--name), a file (v1/core/block_pool.py), a VLLM_ variable or a vllm: metric"
        )


def resolve(dotted: str) -> None:
    """Check a dotted name: modules, then classes and functions, then a class's members.

    Members are methods, class variables, fields of data classes and structs, and attributes set on
    `self`, in the class or in its bases within the package.

    Raises:
        UnknownName: no such name.
    """
    package, *parts = dotted.split(".")
    place = _package(package)
    while parts:
        if (place / parts[0] / "__init__.py").is_file() or _is_namespace(place / parts[0]):
            place = place / parts.pop(0)
        elif (place / f"{parts[0]}.py").is_file():
            place = place / f"{parts.pop(0)}.py"
            break
        else:
            break
    file = place if place.suffix == ".py" else place / "__init__.py"
    if parts and not _is_bound(file, parts):
        where = ".".join(dotted.split(".")[: -len(parts)])
        raise UnknownName(f"{dotted}: {where} has no {'.'.join(parts)}")


def _package(name: str) -> Path:
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


def _is_bound(
    file: Path, parts: list[str], seen: frozenset[tuple[Path, str]] = frozenset()
) -> bool:
    """Whether the module `file` binds parts[0], and that has the members parts[1:]."""
    head, rest = parts[0], parts[1:]
    if (file, head) in seen:
        return False
    seen = seen | {(file, head)}
    for statement in _statements(_tree(file).body):
        if isinstance(statement, ast.ClassDef) and statement.name == head:
            if not rest or _has_member(file, statement, rest, seen):
                return True
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if statement.name == head and not rest:
                return True
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if alias.name == "*" or (alias.asname or alias.name) == head:
                    source = head if alias.name == "*" else alias.name
                    target = _imported_file(file, statement)
                    if target and _is_bound(target, [source, *rest], seen):
                        return True
        elif head in _assigned(statement) and not rest:
            return True
    return False


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


def _has_member(
    file: Path, cls: ast.ClassDef, parts: list[str], seen: frozenset[tuple[Path, str]]
) -> bool:
    head, rest = parts[0], parts[1:]
    for statement in _statements(cls.body):
        if isinstance(statement, ast.ClassDef) and statement.name == head:
            return not rest or _has_member(file, statement, rest, seen)
        if rest:
            continue
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if statement.name == head or head in _set_on_self(statement):
                return True
        elif head in _assigned(statement):
            return True
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in cls.bases]
    return any(
        isinstance(base, ast.Name) and _is_bound(file, [base.id, *parts], seen) for base in bases
    )


def _set_on_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _check_option(option: str) -> None:
    """An option of `vllm serve` is a field of one of its argument classes: --max-x is max_x."""
    field = option.removeprefix("--").split("=")[0].replace("-", "_")
    argument_classes = [
        "vllm.engine.arg_utils.AsyncEngineArgs",
        "vllm.entrypoints.launchers.cli_args.FrontendArgs",
    ]
    for cls in argument_classes:
        for name in (field, field.removeprefix("no_")):
            with contextlib.suppress(UnknownName):
                return resolve(f"{cls}.{name}")
    raise UnknownName(f"the server of the installed vLLM has no option {option}")


def _check_metric(metric: str) -> None:
    base = re.sub(r"_(total|sum|count|bucket)$", "", metric)
    for file in sorted(_package("vllm").glob("v1/**/*.py")):
        if re.search(rf"""["']{re.escape(base)}(_total)?["']""", file.read_text(encoding="utf-8")):
            return
    raise UnknownName(f"the installed vLLM exports no metric {metric}")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        check(argument)
        print(f"{argument}: exists")
