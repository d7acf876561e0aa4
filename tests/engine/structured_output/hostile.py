"""Follows hostile forms in a process of its own, whose memory is nobody else's.

A program: it gets the model's folder, and writes a line of JSON for each form: its name, what
became of it, and how many bytes more than before were in use at the worst moment.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
from pathlib import Path
from typing import Any

from utils.engine.sampling_params import StructuredOutputsParams
from utils.engine.structured_output import grammar as module
from utils.engine.structured_output.grammar import StructuredOutputManager, unpack_bitmask

HANG = 120  # seconds of the processor for one form, after which the system ends this program
EOS = 2
REFUSED, FOLLOWED, CUT = "refused", "followed", "cut"
HOSTILE: dict[str, dict[str, Any]] = {
    "deep": {"json": '{"items":' * 5000 + "{}" + "}" * 5000},
    "long": {"json": {"type": "string", "minLength": 10**9}},
    "many": {"json": {"type": "array", "minItems": 10**7, "items": {"type": "integer"}}},
    "repeated": {"regex": "((a{1,1000}){1,1000}){1,1000}"},
    "alternatives": {"regex": "(a|aa|aaa)*b(.*a.*){60}"},
    "lookback": {"regex": ".*a.{300}"},
    "in circles": {"json": {"$ref": "#"}},
    "multiples": {"json": {"type": "integer", "multipleOf": 999_983}},
    "more multiples": {"json": {"type": "integer", "multipleOf": 99_999_989}},
    "ambiguous": {"grammar": 'start: "0" e\ne: e e | e e e | /[a-z ]/'},
}


def follow(manager: StructuredOutputManager, form: dict[str, Any]) -> str:
    """Write something in this form, unless it is refused. CUT: the grammar has lost track."""
    try:
        grammar = manager.grammar_init(StructuredOutputsParams(**form))
    except ValueError as error:
        assert "cannot be used" in str(error)
        return REFUSED
    make, tokens = random.Random(0), list[int]()
    for _ in range(40):
        bits = grammar.bitmask(tokens, [])
        assert bits is not None
        choices = unpack_bitmask(bits, manager.vocab_size).nonzero().flatten().tolist()
        if choices == [EOS]:
            return FOLLOWED if grammar.accepts(tokens) else CUT
        tokens.append(make.choice(choices))
        if tokens[-1] == EOS:
            break
    return FOLLOWED


def memory(field: str) -> int:
    """VmRSS: bytes in use now; VmHWM: at most, since it was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    from utils.hub import load_tokenizer

    tokenizer = load_tokenizer(Path(sys.argv[1]))
    manager = StructuredOutputManager(tokenizer, len(tokenizer), (EOS,))
    follow(manager, {"choice": ["yes", "no"]})  # what all forms need is there from now on
    for name, form in HOSTILE.items():
        # Those that are refused by the clock take only this long. The ambiguous one is not.
        module.MAX_SECONDS = HANG if name == "ambiguous" else 2
        spent = sum(os.times()[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent) + HANG, resource.RLIM_INFINITY))
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what it is now
        before = memory("VmRSS")
        outcome = follow(manager, form)
        print(json.dumps([name, outcome, memory("VmHWM") - before]), flush=True)


if __name__ == "__main__":
    main()
