"""A program that compiles the grammar it reads, and writes what is wrong with it.

Some grammars of a few lines take hours to compile, or crash who tries. So each is tried out in a
process of its own first. This one needs no model and no PyTorch, and starts quickly.
"""

from __future__ import annotations

import resource
import sys
import threading
from pathlib import Path

MEMORY_BYTES = 256 << 20  # beside what the program itself takes
STACK_BYTES = 2 << 20  # a quarter of what threads have: what passes here has room enough there


def main() -> None:
    """From standard input to standard output. No output: nothing is wrong."""
    from llguidance import LLMatcher

    grammar = sys.stdin.read()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + STACK_BYTES + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    threading.stack_size(STACK_BYTES)
    trial = threading.Thread(target=lambda: print(LLMatcher.validate_grammar(grammar), end=""))
    trial.start()
    trial.join()


if __name__ == "__main__":
    main()
