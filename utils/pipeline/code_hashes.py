"""What code a stage's result depends on: its function, and every file of the course behind it.

Found, not listed: a list is forgotten when somebody moves a function. Comments and formatting
change no result, so they change no hash; nor does what a package's `__init__.py` imports besides.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Its edits are many, and its tokens are those of Hugging Face: a suite of tests says so. What was
# made by an earlier engine is what today's would make.
NOT_FOLLOWED = "utils.engine"


def code_hashes(function: Callable[..., Any], files: Iterable[Path] = ()) -> dict[str, str]:
    """Hashes of a function's code and of all files of `utils` that it reaches.

    Args:
        function: a function of a module. Of its own module only those definitions count that it
            uses, directly or through others; of all other modules, everything.
        files: code that is reached in another way than by an import, such as a script that is
            started. Their imports count too.

    Returns:
        path from the repository's root (or the whole path, outside) -> SHA-256
    """
    home = Path(inspect.getfile(function)).resolve()
    used = _used_definitions(_parsed(home, home.stat().st_mtime_ns), function.__name__)
    found = {f"{_name(home)}:{function.__name__}": _hash("\n".join(map(ast.unparse, used)))}
    waiting = [path.resolve() for path in files]
    waiting += [file for node in used for file in _imported_files(node)]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        if file.suffix == ".py":
            tree = _parsed(file, file.stat().st_mtime_ns)
            found[_name(file)] = _hash(ast.unparse(tree))
            waiting += _imported_files(tree)
        else:
            found[_name(file)] = hashlib.sha256(file.read_bytes()).hexdigest()
    return dict(sorted(found.items()))


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else str(file)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _parsed(file: Path, modified: int) -> ast.Module:
    return ast.parse(file.read_text())


def _used_definitions(tree: ast.Module, name: str) -> list[ast.stmt]:
    """The statements of a module that bind `name`, and what these use, and so on."""
    binding = [(statement, _bound(statement)) for statement in tree.body]
    wanted, done = {name}, set[str]()
    chosen: set[int] = set()
    while wanted - done:
        name = (wanted - done).pop()
        done.add(name)
        for place, (statement, bound) in enumerate(binding):
            if name in bound and place not in chosen:
                chosen.add(place)
                wanted |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
    return [tree.body[place] for place in sorted(chosen)]


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top of a module binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _imported_files(tree: ast.AST) -> Iterator[Path]:
    """The files of `utils` that code imports, or names in a text: `python -m utils.x`."""
    for module in _modules(tree):
        if module.split(".")[0] == "utils" and not f"{module}.".startswith(f"{NOT_FOLLOWED}."):
            folder = ROOT.joinpath(*module.split("."))
            yield from filter(Path.is_file, (folder.with_suffix(".py"), folder / "__init__.py"))


def _modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
