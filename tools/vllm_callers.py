"""Names of vLLM that nothing in vLLM uses: they exist, but they are dead, or only for its users.

It counts how often a name's last part is written anywhere in the installed source, definitions and
imports left out. A word that is used under another meaning counts, too, so this finds names that
are certainly unused, not all of them.

    python -m tools.vllm_callers vllm.v1.core.kv_cache_utils.check_enough_kv_cache_memory
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import Counter

from tools.vllm_names import package_folder, resolve

COMMENT = re.compile(r"#.*")
IMPORT = re.compile(r"^[ \t]*from [\w.]+ import (\([^)]*\)|.*)$", re.MULTILINE)
DEFINITION = re.compile(r"\b(?:def|class)\s+\w+")


def num_uses(name: str) -> int:
    """How often vLLM's source uses a dotted name, at most: 0 means that nothing does.

    Raises:
        UnknownName: no such name.
    """
    statement = resolve(name)
    if statement is None:
        return 1  # a module: whoever imports from it uses it
    written = _words()[name.rpartition(".")[2]]
    is_definition = isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    return written if is_definition else written - 1  # an assignment writes it once itself


@functools.cache
def _words() -> Counter[str]:
    words: Counter[str] = Counter()
    for file in package_folder("vllm").rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        for pattern in (COMMENT, IMPORT, DEFINITION):
            source = pattern.sub("", source)
        words.update(re.findall(r"[A-Za-z_]\w*", source))
    return words


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(f"{argument}: used {num_uses(argument)} times")
