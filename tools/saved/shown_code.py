"""The code whose result a saved output shows: its cell, what that needs, and what draws it.

Taken from the syntax tree, so comments, docstrings, layout and the place of a function don't count.
Of `utils.viz` and `utils.findings` only the functions count that the cell reaches. All that lies
below them (the engine, the simulators) is one hash for the whole notebook: see `deeper_hash`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.frames.cells import bare, needed_cells, parse
from tools.saved.definitions import used_definitions

ROOT = Path(__file__).resolve().parents[2]
# What draws figures and words findings. The last two lie elsewhere: the pipeline's own figure, and
# the stations that lesson 18's figure names.
DRAWS = ("utils.viz.", "utils.findings.", "utils.pipeline.stages.report.", "utils.vllm.chain.")
# How all figures look. A change of it makes no picture wrong, so it counts as something deeper.
STYLE = {"utils.viz.style", "utils.viz.explore", "utils.viz.figure_text"}
WHOLE = "*"
_bare, _parse = functools.cache(bare), functools.cache(parse)


def shown_code(codes: Sequence[str], number: int) -> list[ast.stmt]:
    """The statements behind the output of a cell, imports left out.

    Args:
        codes: the code cells of a notebook, in order.
        number: of the cell among them.

    Returns:
        what the cell needs of the cells before it, the cell itself, and every definition of
        `utils.viz` and `utils.findings` that these reach.
    """
    before = [node for code in codes[:number] for node in _parse(code).body]
    needed = needed_cells([*map(_text, before)], codes[number])
    cells = [*(before[place] for place in needed), *_parse(codes[number]).body]
    found: dict[tuple[str, str], list[ast.stmt]] = {}
    waiting = list(_drawers(cells))
    while waiting:
        place = waiting.pop()
        if place not in found:
            found[place] = _definitions(*place)
            waiting += _drawers(found[place])
    statements = [*cells, *(node for nodes in found.values() for node in nodes)]
    return [node for node in statements if not isinstance(node, ast.Import | ast.ImportFrom)]


def code_hash(codes: Sequence[str], number: int) -> str:
    """A short hash of `shown_code`; the order of the definitions and their files don't count."""
    texts = sorted({_bare(node) for node in shown_code(codes, number)})
    return _hash("\n".join(texts))


def deeper_hash(codes: Sequence[str]) -> str:
    """A short hash of all other code of `utils` that a notebook reaches: files, by their imports.

    What is no Python (kernels in C++, tables) counts with the Python beside it.
    """
    waiting = [module for code in codes for module in _modules(_parse(code))]
    files: set[Path] = set()
    while waiting:
        module = waiting.pop()
        for file in _files(module):
            if file not in files:
                files.add(file)
                waiting += _modules(_module(file))
    texts = [_bare(_module(file)) for file in sorted(files) if not _draws(_name(file))]
    folders = sorted({file.parent for file in files})
    texts += [
        hashlib.sha256(other.read_bytes()).hexdigest()
        for folder in folders
        for other in sorted(folder.iterdir())
        if other.is_file() and other.suffix in (".cpp", ".h", ".cu", ".json", ".toml")
    ]
    return _hash("\n".join(texts))


def title_patterns(codes: Sequence[str], number: int) -> Iterator[re.Pattern[str]]:
    """What a title in a cell's figures can begin with: the texts in `shown_code`.

    Of an f-string the fixed parts count; a text with fewer than three letters says nothing.
    """
    for statement in shown_code(codes, number):
        yield from _patterns(statement)


@functools.cache
def _patterns(statement: ast.stmt) -> list[re.Pattern[str]]:
    found = []
    for node in ast.walk(statement):
        match node:
            case ast.Constant(str(text)):
                fixed: list[str | None] = [text]
            case ast.JoinedStr(values):
                fixed = [str(v.value) if isinstance(v, ast.Constant) else None for v in values]
            case _:
                continue
        if sum(map(str.isalpha, "".join(filter(None, fixed)))) >= 3:
            words = (r".*?" if text is None else _spaced(text) for text in fixed)
            found.append(re.compile(r"(\d+\. )?" + "".join(words), re.DOTALL))
    return found


def _spaced(text: str) -> str:
    """A pattern for a text whose line breaks have become spaces."""
    return re.sub(r"(\\?\s)+", r"\\s+", re.escape(text.strip("\n")))


@functools.cache
def _text(node: ast.stmt) -> str:
    return ast.unparse(node)


@functools.cache
def _uses(node: ast.stmt) -> tuple[dict[str, set[str]], list[tuple[str, str, str]]]:
    """What a statement reads (name -> its attributes, or WHOLE), and what it imports from where."""
    walked = [*ast.walk(node)]
    inside = {id(n.value): n.attr for n in walked if isinstance(n, ast.Attribute)}
    read: dict[str, set[str]] = {}
    for inner in walked:
        if isinstance(inner, ast.Name):
            read.setdefault(inner.id, set()).add(inside.get(id(inner), WHOLE))
    imported = [
        (alias.asname or alias.name, inner.module or "", alias.name)
        for inner in walked
        if isinstance(inner, ast.ImportFrom)
        for alias in inner.names
    ]
    return read, imported


def _drawers(nodes: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    """What statements use of the modules that draw: (module, name or WHOLE)."""
    read: dict[str, set[str]] = {}
    for node in nodes:
        for name, attributes in _uses(node)[0].items():
            read[name] = read.get(name, set()) | attributes
    for node in nodes:
        for bound, module, name in _uses(node)[1]:
            if bound not in read:
                continue
            if _files(inner := f"{module}.{name}"):  # a module: what is used of it
                yield from ((inner, attribute) for attribute in read[bound] if _draws(inner))
            elif _draws(module):
                yield module, name


def _draws(module: str) -> bool:
    return f"{module}.".startswith(DRAWS) and module not in STYLE


@functools.cache
def _definitions(module: str, name: str) -> list[ast.stmt]:
    """The statements of a module that define `name`, and what they use of the same module."""
    tree = ast.Module(body=[node for file in _files(module) for node in _module(file).body])
    return tree.body if name == WHOLE else used_definitions(tree, name)


@functools.cache
def _files(module: str) -> list[Path]:
    """The file of a module of `utils`; none for others, and for a package without code."""
    if module.split(".")[0] != "utils":
        return []
    place = ROOT.joinpath(*module.split("."))
    return [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]


def _name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


@functools.cache
def _modules(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


@functools.cache
def _module(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
