"""Wrong answers that nobody thought of: every small change of a right answer, one at a time.

A check must refuse each of them, but those that are right all the same. So the catch rate of a
check is a number, and no zoo has to grow for it. What a mutant is called is the first line that
differs from the right answer: `- x < y  + x <= y`.
"""

from __future__ import annotations

import ast
import copy
import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from utils.checks.kit.lab.edits import compiled

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq, ast.GtE),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
COMPUTED: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.FloorDiv),
    ast.Div: (ast.FloorDiv, ast.Mult),
    ast.FloorDiv: (ast.Div, ast.Mult),
    ast.Mod: (ast.FloorDiv,),
}
NAMES = {
    "min": ("max", "sum"),
    "max": ("min", "sum"),
    "sum": ("max",),
    "any": ("all",),
    "all": ("any",),
    "ceil": ("floor",),
    "argmax": ("argmin",),
    "append": ("extend",),
    "keys": ("values",),
    "values": ("keys",),
    "key": ("value",),
    "value": ("key",),
    "num_key_value_heads": ("num_attention_heads",),
}


def mutants(answer: Any) -> Iterator[tuple[str, Any]]:
    """The name and the changed answer, for each change of a function or class."""
    tree = bare(ast.parse(textwrap.dedent(inspect.getsource(answer))))
    right = ast.unparse(tree)
    seen = {right}
    for place, node in enumerate(ast.walk(tree)):
        for number in range(len(list(_changes(copy.deepcopy(node))))):
            mutant = copy.deepcopy(tree)
            [*_, target] = (n for n, _ in zip(ast.walk(mutant), range(place + 1), strict=False))
            list(_changes(target))[number]()
            source = ast.unparse(ast.fix_missing_locations(mutant))
            if source not in seen:
                seen.add(source)
                try:
                    yield name_of(right, source), compiled(source, answer)
                except (SyntaxError, NameError, AttributeError, ValueError):
                    continue  # what Python refuses needs no check


def name_of(right: str, changed: str) -> str:
    """The first line that differs, and what became of it."""
    lines = difflib.ndiff(right.splitlines(), changed.splitlines())
    return "  ".join([" ".join(line.split()) for line in lines if line[0] in "-+"][:2])


def bare(tree: ast.Module) -> ast.Module:
    """Without annotations and docstrings, which no check can see."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                node.returns = None
            case ast.arg():
                node.annotation = None
        documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if documented and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and not _is_dataclass(node):
                setattr(node, field, [_assignment(statement) for statement in block])
    return ast.fix_missing_locations(tree)


def _is_dataclass(node: ast.AST) -> bool:
    """Whether a node is a class whose annotations have a meaning."""
    return isinstance(node, ast.ClassDef) and bool(node.decorator_list)


def _assignment(statement: ast.stmt) -> ast.stmt:
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return ast.Assign([statement.target], statement.value, lineno=statement.lineno)
    return statement


def _changes(node: ast.AST) -> Iterator[Callable[[], None]]:
    """Functions, each of which changes the node in place."""

    def put(field: str, value: Any) -> Callable[[], None]:
        return lambda: setattr(node, field, value)

    def become(other: ast.AST) -> Callable[[], None]:
        def change() -> None:
            node.__class__ = other.__class__  # type: ignore[assignment]
            node.__dict__.clear()
            node.__dict__.update(vars(other))

        return change

    match node:
        case ast.Compare(ops=[op]):
            yield from (put("ops", [new()]) for new in COMPARED.get(type(op), ()))
        case ast.BinOp(left, op, right):
            yield from (put("op", new()) for new in COMPUTED.get(type(op), ()))
            yield from (become(left), become(right))
        case ast.BoolOp(op, values):
            yield put("op", ast.And() if isinstance(op, ast.Or) else ast.Or())
            yield from (put("values", [value, value]) for value in values)
        case ast.UnaryOp(ast.Not(), operand):
            yield become(operand)
        case ast.Constant(bool() as value):
            yield put("value", not value)
        case ast.Constant(int() | float() as value):
            yield from (put("value", value + step) for step in (1, -1))
        case ast.Name(name) if name in NAMES:
            yield from (put("id", other) for other in NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield from (put("attr", other) for other in NAMES[name])
        case ast.Call(ast.Name(), [one]):
            yield become(one)  # `list(x)` becomes `x`
        case ast.Slice():
            yield from (put(end, None) for end in ("lower", "upper") if getattr(node, end))
        case ast.Tuple([one, other]):
            yield put("elts", [other, one])
            yield put("elts", [one, one])
        case ast.IfExp(_, body, orelse):
            yield from (become(body), become(orelse))
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        if isinstance(block, list) and not isinstance(node, ast.Module | ast.ClassDef):
            for place, statement in enumerate(block):
                if not isinstance(statement, ast.Return):
                    yield put(field, [*block[:place], ast.Pass(), *block[place + 1 :]])
