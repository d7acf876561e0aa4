"""What a submission names that no exercise needs. Read before it runs.

Learners' code and the check share one Python, where code can change everything: the check, the
comparison, the points. No reading proves that it does not. This one finds what such code has to
name, and the instructor reads the rest. Honest code is rarely held up: it needs mathematics,
collections and torch, not frames, modules of the interpreter, or the insides of the check.

Why they share one Python: checks judge what can't leave a process. A graph of gradients runs
through the learner's layers, the engine and the learner's pool change the same blocks, and whether
an argument was changed, or its memory returned, is seen only where that memory is.

Three rules close most ways at once. What is imported is looked up, and so is what is taken from it:
a module that is not plain is found under any name. An attribute may be set on what the submission
made, but not on an imported class, function or module, whatever names it went through (`Reach`).
And what `getattr` looks for there is written out.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType

import torch
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLAIN = _words(
    "__future__ abc array asyncio bisect cmath collections contextlib copy dataclasses decimal "
    "enum fractions functools hashlib heapq itertools json math numbers numpy operator random re "
    "statistics string struct textwrap time torch typing zlib"
)
# They lie in modules that are plain.
DEEP = (
    "torch.utils",
    "torch.hub",
    "torch.ops",
    "torch.package",
    "torch.jit",
    "torch.library",
    "torch.multiprocessing",
    "torch.serialization",
    "numpy.ctypeslib",
    "numpy.f2py",
    "asyncio.subprocess",
    "numpy.testing",  # its `measure` runs a string
)
# Functions of plain modules that read or write files. (/proc/self/mem is one.)
FILES = _words(
    "load save savez savez_compressed loadtxt savetxt genfromtxt fromfile fromregex memmap "
    "open_memmap from_file tofile"
)
# The first cell of each lab imports some of these.
INTERPRETER = _words("builtins ctypes gc importlib inspect os subprocess sys threading")
REACHES_OUT = _words(
    "__import__ __builtins__ __loader__ __spec__ attrgetter breakpoint compile delattr eval exec "
    "exit get_ipython get_type_hints getattr globals locals methodcaller open quit setattr vars "
    # They evaluate annotations, which may be strings that are put together.
    "ForwardRef singledispatch singledispatchmethod "
    # IPython's: what was typed and shown, and the shell itself.
    "In Out _dh _ih _ip _oh"
)
PLAIN_DUNDERS = _words(
    "__init__ __post_init__ __name__ __doc__ __len__ __getitem__ __setitem__ __delitem__ "
    "__contains__ __iter__ __next__ __call__ __enter__ __exit__ __aenter__ __aexit__ __aiter__ "
    "__anext__ __add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __neg__ __lt__ __hash__ "
    "__repr__ __str__ __bool__ __slots__ __future__"
)
VALUES = _words("Tensor int float bool complex str bytes list tuple dict set type")
FRAMES = re.compile(r"(f|tb|gi|cr|ag|co)_[a-z]+|mro")
DUNDER = re.compile(r"__[a-z_]+__")


def suspicious(submitted: NotebookNode, released: NotebookNode) -> list[str]:
    """Each place to read, such as "cell 7, line 3: import sys"; none if there is nothing.

    Args:
        submitted: what came back.
        released: the lab as it was handed out. Its own cells are allowed as they are, and
            elsewhere what they import of the course and the checks that they call.
    """
    given = [cell.source for cell in released.cells if cell.cell_type == "code"]
    lab = _Lab([tree for source in given if (tree := _parse(source))])
    own = {
        number: tree
        for number, cell in enumerate(submitted.cells)
        if cell.cell_type == "code" and cell.source not in given and (tree := _parse(cell.source))
    }
    found = []
    for number, line in sorted(lab.suspects(own)):
        lines = submitted.cells[number].source.splitlines()
        words = lines[min(line, len(lines)) - 1].strip()[:60]
        found.append(f"cell {number}, line {line}: {words}")
    return found


def _parse(source: str) -> ast.Module | None:
    """A cell as IPython runs it: commands such as `!ls` become calls of `get_ipython()`."""
    try:
        python = TransformerManager().transform_cell(source)
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        return compile(python, "cell", "exec", flags)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # it will not run either


def _imports(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """(module, name, as what) of all imports: `import x` has the name ""."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((a.name, "", a.asname or a.name) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", a.name, a.asname or a.name) for a in node.names)


class _Lab:
    """What a lab's own cells define, import and call."""

    def __init__(self, trees: list[ast.Module]) -> None:
        nodes = [node for tree in trees for node in ast.walk(tree)]
        self.imports = {line for tree in trees for line in _imports(tree)}
        self.of_course = {line for line in self.imports if line[0].split(".")[0] == "utils"}
        self.outside = {bound for module, _, bound in self.imports if module in INTERPRETER}
        self.defined = {
            node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        self.checks = {name for node in nodes if (name := _check_called(node))}

    def suspects(self, cells: dict[int, ast.Module]) -> set[tuple[int, int]]:
        """The cells and their lines to read. All cells share their names."""
        cell_of = {id(node): cell for cell, tree in cells.items() for node in ast.walk(tree)}
        nodes = [node for tree in cells.values() for node in ast.walk(tree)]
        found = self._suspects(nodes)
        return {(cell_of[id(node)], node.lineno) for node in found}  # type: ignore[attr-defined]

    def _suspects(self, nodes: list[ast.AST]) -> Iterator[ast.AST]:
        imported = self.imports.union(*(set(_imports(n)) for n in nodes))
        modules = {bound.split(".")[0] for _, name, bound in imported if not name} | {"check"}
        names = modules | {bound for _, _, bound in imported}
        reach = Reach(imported, nodes)
        # `torch.equal` is plain. `t = torch` may become `t.equal = ...`.
        plain = {
            id(node.value)
            for node in nodes
            if isinstance(node, ast.Attribute)
            and _root(node) not in self.outside | REACHES_OUT | {"check"}
        }
        for node in nodes:
            match node:
                case ast.Call(ast.Name("getattr") as function, [_, ast.Constant(), *_]):
                    plain.add(id(function))
                case ast.Call(ast.Name("setattr" | "delattr" | "getattr") as function, [asked, *_]):
                    if _root(asked) not in names and not reach.gives(asked):
                        plain.add(id(function))
                case ast.Call(ast.Attribute(value)) if _check_called(node) in self.checks:
                    plain.add(id(value))
        for node in nodes:
            suspect = any(getattr(node, kind, "") == "check" for kind in ("name", "rest"))
            if isinstance(node, ast.Import | ast.ImportFrom):
                new = set(_imports(node)) - self.of_course
                suspect = not all(_plain(*line) and reach.is_plain(line) for line in new)
            elif isinstance(node, ast.Name):
                suspect = node.id in REACHES_OUT | modules | self.outside and id(node) not in plain
            elif isinstance(node, ast.arg):
                suspect = node.arg == "check" or _computed(node.annotation)
            elif isinstance(node, ast.AnnAssign):
                suspect = _computed(node.annotation)
            elif isinstance(node, ast.Attribute):
                special = _root(node) in names or DUNDER.fullmatch(node.attr)
                replaced = not isinstance(node.ctx, ast.Load) and (
                    special or reach.gives(node.value)
                )
                private = node.attr.startswith("_") and _root(node) in names
                private = private and not DUNDER.fullmatch(node.attr)
                suspect = bool(replaced) or private or _inside(node.attr) or reach.is_outside(node)
            elif isinstance(node, ast.ClassDef):
                bases = {_root(base) for base in node.bases}
                suspect = bool(bases & VALUES or node.keywords)
                suspect |= any(reach.is_word(b) or reach.is_tensor(b) for b in node.bases)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                unknown = node.name not in self.defined
                suspect = node.name == "check" or (unknown and _inside(node.name))
                suspect |= _computed(node.returns)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                suspect = any(map(_inside, DUNDER.findall(node.value))) and "\n" not in node.value
            elif isinstance(node, ast.MatchClass):  # `case object(__globals__=found)`
                suspect = any(map(_inside, node.kwd_attrs))
            elif isinstance(node, ast.keyword):  # `dict(__torch_function__=...)`
                suspect = _inside(node.arg or "")
            if suspect:
                yield node


class Reach:
    """What of the imported classes, functions and modules a cell can reach, and by which words.

    Words are names and attributes that such a thing may have been given to. The order of statements
    does not count, nor whose attribute it is: this errs on the side of showing a line too many.
    """

    def __init__(self, imported: Iterable[tuple[str, str, str]], nodes: list[ast.AST]) -> None:
        self.found = {line[2].split(".")[0]: _look_up(line) for line in imported}
        self.scopes: dict[int, tuple[int, ...]] = {}  # node -> the functions that it is in
        for function in nodes:  # outer ones come first
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                within = (*self.scopes.get(id(function), ()), id(function))
                self.scopes |= {id(n): within for n in ast.walk(function) if n is not function}
        methods = {id(n) for node in nodes if isinstance(node, ast.ClassDef) for n in node.body}
        functions = {n.name: n for n in nodes if isinstance(n, ast.FunctionDef)}
        self.words: set[tuple[int, str]] = set()  # (the function that it is a name of, name)
        self.attributes: set[str] = set()
        self.returning: set[str] = set()  # functions of the cell that return such a thing
        before = -1
        while before < (before := len(self.words | self.attributes | self.returning)):
            for node in nodes:
                if isinstance(node, ast.arguments):
                    self._give([arg for arg, value in _defaults(node) if self.gives(value)])
                elif isinstance(node, ast.Return | ast.Yield) and self.gives(node):
                    self.returning |= {
                        n for n, f in functions.items() if id(f) in self.scopes.get(id(node), ())
                    }
                elif isinstance(node, ast.stmt) and self.gives(node):
                    self._give(_parts(node))
                elif isinstance(node, ast.Call) and self.gives(node):
                    for part in (
                        node.func,
                        *node.args,
                    ):  # `change(Tensor)`, `map(change, [Tensor])`
                        if called := functions.get(_last(part)):
                            given = [n for n in _parts(called.args) if isinstance(n, ast.arg)]
                            self._give(given[id(called) in methods :])  # without a method's `self`

    def _give(self, parts: Iterable[ast.AST]) -> None:
        """Note the words among these parts of a statement: each may stand for such a thing now."""
        for part in parts:
            scope = self.scopes.get(id(part), (0,))[-1]
            match part:
                case ast.Name(name, ast.Store()) | ast.arg(name):
                    self.words.add((scope, name))
                case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                    self.words.add((scope, name))
                case ast.Attribute(attr=name, ctx=ast.Store()):
                    self.attributes.add(name)

    def gives(self, node: ast.AST) -> bool:
        """Whether an expression, or a statement without those in it, hands such a thing on.

        To call it, to ask for its attribute, or for its instances hands on something else.
        """
        parts = list(_parts(node))
        used = {id(part.value) for part in parts if isinstance(part, ast.Attribute)}
        for part in parts:
            if isinstance(part, ast.Call):
                used.add(id(part.func))
                if isinstance(part.func, ast.Name) and part.func.id in ("isinstance", "issubclass"):
                    used |= {id(inner) for argument in part.args for inner in ast.walk(argument)}
            elif isinstance(part, ast.ClassDef):
                used |= {id(base) for base in part.bases}
        return any(id(part) not in used and self._is_one(part) for part in parts)

    def _is_one(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(ast.Name("type"), [_]):
                return True
            case ast.Call(function):
                return _last(function) in self.returning
            case ast.Name() | ast.Attribute() if isinstance(node.ctx, ast.Load):
                things = ModuleType | type | FunctionType | BuiltinFunctionType
                return self.is_word(node) or isinstance(self._look_up(node), things)
        return False

    def is_word(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return any(
                (scope, node.id) in self.words for scope in (0, *self.scopes.get(id(node), ()))
            )
        return isinstance(node, ast.Attribute) and node.attr in self.attributes

    def _look_up(self, node: ast.AST) -> object:
        """What `torch.nn.functional` stands for; None if it is nothing that was imported."""
        if isinstance(node, ast.Name):
            return self.found.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._look_up(node.value), node.attr, None)
        return None

    def is_outside(self, node: ast.Attribute) -> bool:
        """Whether something imported has this, and it is not plain: `torch.sys`, `torch.load`."""
        owner = self._look_up(node.value)
        if isinstance(owner, type):
            return node.attr in FILES
        if not isinstance(owner, ModuleType) or owner.__name__.split(".")[0] == "utils":
            return False
        return not _plain_thing(getattr(owner, node.attr, None), node.attr)

    def is_plain(self, line: tuple[str, str, str]) -> bool:
        return _plain_thing(_look_up(line), line[1])

    def is_tensor(self, base: ast.expr) -> bool:
        thing = self._look_up(base)
        return isinstance(thing, type) and issubclass(thing, torch.Tensor)


def _look_up(line: tuple[str, str, str]) -> object:
    """What an import brings. Only the course's own modules and plain ones are imported for it."""
    module, name, bound = line
    if not _plain(*line) and module.split(".")[0] != "utils":
        return ModuleType(module)
    try:
        found = importlib.import_module(module)
        if not name:  # `import torch.nn` binds `torch`
            return found if bound != module else importlib.import_module(module.split(".")[0])
        return (
            getattr(found, name)
            if hasattr(found, name)
            else importlib.import_module(f"{module}.{name}")
        )
    except Exception:  # it will not run there either
        return None


def _plain_thing(thing: object, name: str) -> bool:
    """Whether what a plain module has under this name is plain as well."""
    if name.startswith("_") or name in FILES | REACHES_OUT - {"compile"}:
        return DUNDER.fullmatch(name) is not None  # those have a rule of their own
    if isinstance(thing, ModuleType):
        return _plain(thing.__name__, "", "")
    home = getattr(thing, "__module__", None)
    return not (isinstance(home, str) and _deep(home))


def _deep(module: str) -> bool:
    return f"{module}.".startswith(tuple(f"{deep}." for deep in DEEP))


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is below it, without other statements and without annotations."""
    yield node
    for kind, value in ast.iter_fields(node):
        if kind not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.stmt):
                    yield from _parts(child)


def _defaults(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr]]:
    """A function's arguments that have a default, each with it."""
    by_place = [*arguments.posonlyargs, *arguments.args]
    yield from zip(reversed(by_place), reversed(arguments.defaults), strict=False)
    for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if value is not None:
            yield argument, value


def _last(node: ast.AST) -> str:
    """`b` of `a.b`, `a` of `a`."""
    return getattr(node, "attr", "") or getattr(node, "id", "")


def _check_called(node: ast.AST) -> str:
    """`rms_norm`, if the node is a call `check.rms_norm(...)`."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("check"), name)):
            return name
    return ""


def _plain(module: str, name: str, bound: str) -> bool:
    if bound == "check" or name == "*" or name in REACHES_OUT:
        return False
    private = any(part.startswith("_") for part in module.split(".")) and module != "__future__"
    deep = _deep(module) or _deep(f"{module}.{name}")
    return module.split(".")[0] in PLAIN and not private and not deep


def _inside(name: str) -> bool:
    """Whether an attribute leads into Python itself."""
    if DUNDER.fullmatch(name):
        return name not in PLAIN_DUNDERS
    return bool(FRAMES.fullmatch(name))


def _computed(annotation: ast.expr | None) -> bool:
    """Whether an annotation is put together when it runs; what that is may be evaluated later."""
    return annotation is not None and any(isinstance(n, ast.Call) for n in ast.walk(annotation))


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
