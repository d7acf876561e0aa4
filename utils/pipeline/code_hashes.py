"""What code a stage's result depends on: its function, and every file of the course behind it.

Found, not listed: a list is forgotten when somebody moves a function. Comments and formatting
change no result, so they change no hash; nor does what a package's `__init__.py` imports besides.

`utils.engine` is left out, though two draft stages run it. Learners are asked to change the engine,
and each change would make stages anew that take 20 to 50 minutes. What it would protect from is an
engine that computes something else, and such an engine is wrong: tests hold its tokens to those of
Hugging Face and of vLLM. So what an earlier engine made is what today's would make.
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
    used = used_definitions(_parsed(home, home.stat().st_mtime_ns), function.__name__)
    found = {f"{_name(home)}:{function.__name__}": _hash("\n".join(map(ast.unparse, used)))}
    waiting = [path.resolve() for path in files]
    waiting += [file for node in used for file in _imported_files(node, home)]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        if file.suffix == ".py":
            tree = _parsed(file, file.stat().st_mtime_ns)
            found[_name(file)] = _hash(ast.unparse(tree))
            waiting += _imported_files(tree, file)
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


def used_definitions(tree: ast.Module, name: str) -> list[ast.stmt]:
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
    """The names that a statement at the top of a module binds, or whose contents it changes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    found = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(name, ast.Store()):
                found.add(name)
            case ast.Subscript(inner, ctx=ast.Store()) | ast.Attribute(inner, ctx=ast.Store()):
                found.add(_root(inner))
            case ast.Call(ast.Attribute(inner)):  # `TABLE.update(...)`
                found.add(_root(inner))
    return found


def _root(node: ast.expr) -> str:
    """`a` of `a.b[0]`; "" if it begins otherwise."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported_files(tree: ast.AST, home: Path) -> Iterator[Path]:
    """The files of `utils` that a file's code imports, or names in a text: `python -m utils.x`."""
    for module in _modules(tree, home):
        if module.split(".")[0] == "utils" and not f"{module}.".startswith(f"{NOT_FOLLOWED}."):
            folder = ROOT.joinpath(*module.split("."))
            yield from filter(Path.is_file, (folder.with_suffix(".py"), folder / "__init__.py"))


def _modules(tree: ast.AST, home: Path) -> Iterator[str]:
    package = home.relative_to(ROOT).parent.parts if home.is_relative_to(ROOT) else ()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
