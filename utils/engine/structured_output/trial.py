"""Compiles grammars; and a program that tries it, and writes what is wrong with the one it reads.

Some grammars of a few lines take hours to compile, or all memory, or crash who tries. So each is
compiled in a process of its own first, just as it will be after it. This program needs no model and
no PyTorch, and starts quickly.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

# An honest form as long as forms may be (`MAX_CHARS`) takes a fifth of a second and some 10 MB.
CPU_SECONDS = 5  # also of a trial whose server is killed meanwhile
MEMORY_BYTES = 64 << 20  # beside what the program itself takes
STACK_BYTES = 2 << 20  # a quarter of what threads have: what passes here has room enough there
MAX_LEXER_STATES = 50_000  # of one answer, about a kilobyte each
# In the search for one mask: milliseconds. Where grammars are ambiguous, it would be seconds, and
# everybody's next token waits for it. Honest ones need a few hundred.
MAX_ITEMS = 10_000


def compile_grammar(tokenizer: Any, grammar: str) -> Any:
    """llguidance's matcher, at the beginning of an answer. It says itself what is wrong with it."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_lexer_states=MAX_LEXER_STATES, step_max_items=MAX_ITEMS, verbose_errors=False
    )
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    matcher.compute_bitmask()  # that nothing at all fits is found only here
    return matcher


def main() -> None:
    """From standard input to standard output. No output: nothing is wrong."""
    import resource  # not on every system, and the engine imports this file

    from llguidance import LLTokenizer

    grammar = sys.stdin.read()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + STACK_BYTES + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    threading.stack_size(STACK_BYTES)
    wrong = ["it is too deep or too large"]  # unless the thread comes to its end

    def compile_it() -> None:
        wrong[0] = compile_grammar(LLTokenizer("byte"), grammar).get_error()

    trial = threading.Thread(target=compile_it)
    trial.start()
    trial.join()
    print(wrong[0], end="")


if __name__ == "__main__":
    main()
