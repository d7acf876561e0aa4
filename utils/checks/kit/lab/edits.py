"""Wrong answers as edits of a right one: `"min(self.lengths) => sum(self.lengths)"`.

A mistake changes a few characters of a right answer. Written as that change, it is as long as what
it changes, reads as what it is, and cannot fall behind: an edit whose old text doesn't stand in the
answer exactly once is an error.
"""

from __future__ import annotations
import __future__

import inspect
import itertools
import linecache
import textwrap
from collections.abc import Sequence
from typing import Any

ARROW = " => "
_numbers = itertools.count()


def edited(answer: Any, edits: Sequence[str]) -> Any:
    """`answer`, a function or class, with its source changed: each edit is `OLD => NEW`.

    Nothing behind the arrow deletes the old text.

    Raises:
        ValueError: an old text doesn't stand in the source exactly once, or there is no arrow.
    """
    source = textwrap.dedent(inspect.getsource(answer))
    for edit in edits:
        old, arrow, new = edit.partition(ARROW)
        if not arrow or source.count(old) != 1:
            raise ValueError(
                f"The edit {edit!r} of `{answer.__name__}` must be OLD{ARROW}NEW, with an OLD that "
                f"stands in the answer once. It stands there {source.count(old)} times."
            )
        source = source.replace(old, new)
    return compiled(source, answer)


def compiled(source: str, answer: Any) -> Any:
    """What a changed source defines, under the names of the module that `answer` stands in."""
    name = f"<{answer.__name__}, changed, {next(_numbers)}>"
    # So that feedback can quote the line that raised an error.
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    space = dict(vars(inspect.getmodule(answer))) | {"__name__": f"{answer.__module__}.changed"}
    code = compile(
        source, name, "exec", dont_inherit=True, flags=__future__.annotations.compiler_flag
    )
    exec(code, space)
    return space[answer.__name__]
