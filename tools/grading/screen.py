"""What a submission names that no exercise needs. Read before it runs.

Learners' code and the check share one Python, where code can change everything: the check, the
comparison, the points. No reading proves that it does not. This one finds what such code has to
name, and the instructor reads the rest. Honest code is rarely held up: it needs mathematics,
collections and torch, not frames, modules of the interpreter, or the insides of the check.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

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
DEEP = _words("torch.utils torch.hub torch.ops torch.package torch.jit torch.library")
# The first cell of each lab imports some of these.
INTERPRETER = _words("builtins ctypes gc importlib inspect os subprocess sys threading")
REACHES_OUT = _words(
    "__import__ __builtins__ __loader__ __spec__ attrgetter breakpoint compile delattr eval exec "
    "exit get_ipython get_type_hints globals locals methodcaller open quit setattr vars"
)
PLAIN_DUNDERS = _words(
    "__init__ __post_init__ __name__ __doc__ __len__ __getitem__ __setitem__ __delitem__ "
    "__contains__ __iter__ __next__ __call__ __enter__ __exit__ __aenter__ __aexit__ __aiter__ "
    "__anext__ __add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __neg__ __lt__ __hash__ "
    "__repr__ __str__ __bool__ __slots__ __future__"
)
VALUES = _words("Tensor int float bool complex str bytes list tuple dict set type")
FRAMES = re.compile(r"(f|tb|gi|cr|ag|co)_[a-z]+")
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
    found = []
    for number, cell in enumerate(submitted.cells):
        if cell.cell_type != "code" or cell.source in given:
            continue
        lines = cell.source.splitlines()
        for line in sorted(set(lab.suspects(_parse(cell.source)))):
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
        self.defined = {node.name for node in nodes
                        if isinstance(node, ast.FunctionDef | ast.ClassDef)}  # fmt: skip
        self.checks = {name for node in nodes if (name := _check_called(node))}

    def suspects(self, tree: ast.Module | None) -> Iterator[int]:
        """Numbers of the lines to read."""
        nodes = list(ast.walk(tree)) if tree else []
        imported = self.imports.union(*(set(_imports(n)) for n in nodes))
        modules = {bound.split(".")[0] for _, name, bound in imported if not name} | {"check"}
        names = modules | {bound for _, _, bound in imported}
        # `torch.equal` is plain. `t = torch` may become `t.equal = ...`.
        plain = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)
                 and _root(node) not in self.outside | {"check"}}  # fmt: skip
        for node in nodes:
            match node:
                case ast.Call(ast.Name("setattr" | "delattr") as function, [changed, *_]):
                    if _root(changed) not in names:
                        plain.add(id(function))
                case ast.Call(ast.Attribute(value)) if _check_called(node) in self.checks:
                    plain.add(id(value))
        for node in nodes:
            suspect = False
            if isinstance(node, ast.Import | ast.ImportFrom):
                new = set(_imports(node)) - self.of_course
                suspect = not all(_plain(*line) for line in new)
            elif isinstance(node, ast.Name):
                suspect = node.id in REACHES_OUT | modules | self.outside and id(node) not in plain
            elif isinstance(node, ast.arg):
                suspect = node.arg == "check"
            elif isinstance(node, ast.Attribute):
                special = _root(node) in names or DUNDER.fullmatch(node.attr)
                replaced = not isinstance(node.ctx, ast.Load) and special
                suspect = bool(replaced) or _inside(node.attr)
            elif isinstance(node, ast.ClassDef):
                bases = {_root(base) for base in node.bases}
                suspect = bool(bases & VALUES or node.keywords) or node.name == "check"
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                unknown = node.name not in self.defined
                suspect = node.name == "check" or (unknown and _inside(node.name))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                suspect = any(map(_inside, DUNDER.findall(node.value))) and "\n" not in node.value
            if suspect:
                yield node.lineno


def _check_called(node: ast.AST) -> str:
    """`rms_norm`, if the node is a call `check.rms_norm(...)`."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("check"), name)):
            return name
    return ""


def _plain(module: str, name: str, bound: str) -> bool:
    if bound == "check" or name == "*" or name in REACHES_OUT:
        return False
    return module.split(".")[0] in PLAIN and not {module, f"{module}.{name}"} & DEEP


def _inside(name: str) -> bool:
    """Whether an attribute leads into Python itself."""
    if DUNDER.fullmatch(name):
        return name not in PLAIN_DUNDERS
    return bool(FRAMES.fullmatch(name))


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
