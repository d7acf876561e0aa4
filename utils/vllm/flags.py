"""Options of tutorials, judged by the argument parser of the installed vLLM.

Run as a program of its own, `python -m utils.vllm.flags`, it reads JSON from its argument
and prints JSON. `judge` starts it.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from utils.vllm.run_program import run_program

# Where the job of an option is done today. A candidate counts only if vLLM's parser knows it.
SUCCESSORS = {
    "--speculative-model": "--spec-model",
    "--num-speculative-tokens": "--spec-tokens",
    "--ngram-prompt-lookup-max": "--speculative-config",
    "--guided-decoding-backend": "--structured-outputs-config",
    "--worker-use-ray": "--distributed-executor-backend",
    "--disable-log-requests": "--no-enable-log-requests",
    "--rope-scaling": "--hf-overrides",
    "--task": "--runner",
}


@dataclass(frozen=True)
class Verdict:
    """What became of an option.

    Attributes:
        words: the option, with its value if it has one.
        fate: "same", "renamed" or "gone".
        now: the option of today, if it is renamed; another name of it, if it has one.
        said: what the parser said about it; empty if it took it.
    """

    words: list[str]
    fate: str
    now: str = ""
    said: str = ""


def options_of(line: str) -> list[list[str]]:
    """The options of a command line, each with its value if it has one."""
    found: list[list[str]] = []
    for word in shlex.split(line):
        if re.match(r"--\w", word):
            found.append([word])
        elif found:
            found[-1].append(word)
    return found


def judge(line: str) -> list[Verdict]:
    """Show each option of a command line to vLLM's parser, alone.

    Raises:
        WorkerError: vLLM's parser cannot be made.
    """
    options = options_of(line)
    job = {"options": options, "candidates": sorted(set(SUCCESSORS.values()))}
    answer = run_program(["-m", "utils.vllm.flags", json.dumps(job)])
    said, known, aliases = json.loads(answer.splitlines()[-1])
    pairs = zip(options, said, strict=True)
    return [verdict(words, word, known, aliases.get(words[0], "")) for words, word in pairs]


def verdict(words: list[str], said: str, known: Sequence[str], alias: str = "") -> Verdict:
    """Sort one option.

    Args:
        words: the option and its value.
        said: the parser's complaint, or "".
        known: the candidates of `SUCCESSORS` that the parser has.
        alias: another name that the parser has for the option.
    """
    if not said:
        return Verdict(words, "same", alias)
    now = SUCCESSORS.get(words[0])
    if now in known:
        return Verdict(words, "renamed", str(now), said)
    return Verdict(words, "gone", "", said)


def complaint(parse: Callable[[Sequence[str]], tuple[Any, list[str]]], words: list[str]) -> str:
    """What a parser's `parse_known_args` says against an option; "" if it takes it."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            _, unknown = parse(words)
    except SystemExit:
        return errors.getvalue().strip().splitlines()[-1].partition("error: ")[2]
    return f"unrecognized arguments: {' '.join(unknown)}" if unknown else ""


def main(job_text: str) -> None:
    """Judge the options of a job, and print the parser's complaints and the known candidates."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    job = json.loads(job_text)
    parser = make_arg_parser(FlexibleArgumentParser())
    said = [complaint(parser.parse_known_args, words) for words in job["options"]]
    names = {name for action in parser._actions for name in action.option_strings}
    aliases = {
        words[0]: other
        for action in parser._actions
        for words in job["options"]
        if words[0] in action.option_strings
        for other in action.option_strings
        if other.startswith("--") and other not in (words[0], f"--no-{words[0][2:]}")
    }
    known = [name for name in job["candidates"] if name in names]
    print(json.dumps([said, known, aliases]))


if __name__ == "__main__":
    main(sys.argv[1])
