"""Which cells of a lesson its widget needs, and whether a recording is still in step with them."""

from __future__ import annotations

import ast
import functools
import hashlib
import symtable
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"


@dataclass(frozen=True)
class Lesson:
    """A lesson's code, and one of its widgets.

    Attributes:
        name: of the recording, `LESSON` or `LESSON-WIDGET`.
        codes: the source of each code cell, in order.
        printed: what each of them printed when the notebook was committed.
        bootstrap: number of the cell that finds the course's code.
        widget: number of the widget's cell.
    """

    name: str
    codes: list[str]
    printed: list[str]
    bootstrap: int
    widget: int

    @classmethod
    def read(cls, name: str) -> Lesson:
        """The lesson of one widget: of `02_kv_cache` the cell tagged `widget`, of
        `02_kv_cache-steps` the one tagged `widget-steps`, in the same notebook.

        Raises:
            ValueError: it has no cell with this tag, or several.
        """
        stem, dash, which = name.partition("-")
        notebook = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        tagged = {
            tag: [i for i, cell in enumerate(cells) if tag in cell.metadata.get("tags", [])]
            for tag in ("bootstrap", f"widget{dash}{which}")
        }
        if any(len(found) != 1 for found in tagged.values()):
            raise ValueError(f"{stem} must have one cell with each of these tags: {tagged}")
        printed = [
            "".join(o.text for o in cell.outputs if o.output_type == "stream") for cell in cells
        ]
        [bootstrap], [widget] = tagged.values()
        return cls(name, [cell.source for cell in cells], printed, bootstrap, widget)

    def to_run(self, given: Iterable[str] = ()) -> list[int]:
        """Numbers of the cells to run before the widget's, and the widget's own.

        Args:
            given: names that need no cell, because somebody else sets them.
        """
        before = range(self.bootstrap + 1, self.widget)
        needed = needed_cells([self.codes[i] for i in before], self.codes[self.widget], given)
        return [self.bootstrap, *(before[i] for i in needed), self.widget]


def needed_cells(before: Sequence[str], last: str, given: Iterable[str] = ()) -> list[int]:
    """The cells that define or change a name which `last`, or another needed cell, uses.

    A cell that changes an object only by calling one of its methods is not found.
    """
    given, cells, found = set(given), [_names(code) for code in before], set[int]()
    while True:
        # A function may read a name that only a later cell binds, before it is called.
        wanted = _names(last).used.union(*(cells[i].later for i in found)) - given
        now = set()
        for i, names in reversed([*enumerate(cells)]):
            if (names.bound | names.changed) & wanted:
                now.add(i)
                wanted = (wanted - names.bound) | (names.used - given)
        if now == found:
            return sorted(found)
        found = now


@dataclass
class _Names:
    """Of a cell: `used` from before it, `bound` anew in it, `changed` (maybe, or in part).

    `later`: what its functions use when they are called.
    """

    used: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)


_LOOPS = ast.For | ast.AsyncFor | ast.With | ast.AsyncWith
_SURE = ast.Assign | ast.AnnAssign | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_BINDS = _SURE | ast.Import | ast.ImportFrom | _LOOPS


def parse(code: str) -> ast.Module:
    """The syntax tree of a cell, which may `await` outside of a function, or of a file."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(code, "cell", "exec", flags)


@functools.cache
def _names(code: str) -> _Names:
    names = _Names()
    for statement in parse(code).body:
        table = symtable.symtable(ast.unparse(statement), "cell", "exec")
        bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
        used = set(_used(table))
        if isinstance(statement, _LOOPS):
            used -= bound & _targets(statement)
        names.used |= used - names.bound
        (names.bound if isinstance(statement, _BINDS) else names.changed).update(bound)
        names.changed |= set(_changed(statement))
        names.later.update(*(_used(child) for child in table.get_children()))
    return names


def _used(table: symtable.SymbolTable) -> Iterator[str]:
    """Globals that are read, in functions and comprehensions, too."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _used(child)


def _targets(statement: ast.stmt) -> set[str]:
    """What a loop or a `with` binds at its beginning."""
    places = [statement.target] if isinstance(statement, ast.For | ast.AsyncFor) else []
    if isinstance(statement, ast.With | ast.AsyncWith):
        places = [item.optional_vars for item in statement.items if item.optional_vars]
    return {n.id for place in places for n in ast.walk(place) if isinstance(n, ast.Name)}


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Names of objects of which an attribute or an item is set."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            part: ast.expr = node
            while isinstance(part, ast.Attribute | ast.Subscript):
                part = part.value
            if isinstance(part, ast.Name):
                yield part.id


def drawing_modules(codes: Sequence[str], last: str) -> list[str]:
    """The modules of `utils.viz` from which `last` has its names, as paths in the repository.

    What all widgets share is left out: it says how a figure is shown, not what it says.

    Args:
        codes: cells that may import them.
        last: the widget's cell.
    """
    used = _names(last).used | _names(last).bound
    modules = {
        node.module or ""
        for code in codes
        for node in ast.walk(parse(code))
        if isinstance(node, ast.ImportFrom) and any(a.name in used for a in node.names)
    }
    modules -= {"utils.viz.explore", "utils.viz.style"}
    return sorted(f"{m.replace('.', '/')}.py" for m in modules if m.startswith("utils.viz."))


def fingerprint(code: str) -> str:
    """Of a source, taken from its syntax tree: comments, docstrings and layout don't count."""
    return _hash(bare(parse(code)))


def bare(node: ast.stmt | ast.Module) -> str:
    """The code of a statement or a file, without docstrings."""
    tree = parse(ast.unparse(node))
    for inner in ast.walk(tree):
        body = getattr(inner, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            del body[0]
    return ast.unparse(tree)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprints(lesson: Lesson, plan: object) -> dict[str, str]:
    """Of all that a recording shows: the widget's cell, what draws it, and the plan."""
    cell = lesson.codes[lesson.widget]
    paths = drawing_modules(lesson.codes[: lesson.widget + 1], cell)
    modules = {path: fingerprint((ROOT / path).read_text()) for path in paths}
    return {"widget's cell": fingerprint(cell), "plan": _hash(repr(plan)), **modules}
