"""Which statements of a module stand behind a name."""

from __future__ import annotations

import ast


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
