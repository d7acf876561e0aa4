"""Programs and servers of vLLM, started from a notebook: what is run, with what, and errors."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from utils.processes.supervised import WorkerError
from utils.vllm import command
from utils.vllm.run_program import run_program

PRINTS = "import os, sys; print(sys.argv[1:], *(os.environ.get(n) for n in %r))"


def test_a_program_says_what_it_says(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    names = ["VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CPU_KVCACHE_SPACE", "COLOUR"]
    script.write_text(PRINTS % names)
    printed = run_program([script, Path("model"), "x"], one_process=True, env={"COLOUR": "red"})
    assert printed == "['model', 'x'] 0 1 red\n"


def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise ValueError('no such model')")
    with pytest.raises(WorkerError, match=r"script.py .*failed(.|\n)*ValueError: no such model"):
        run_program([script, "m"])


@pytest.mark.parametrize("script", ["stop_here", "chat", "embed", "door"])
def test_scripts_need_nothing_of_the_course(script: str) -> None:
    file = Path(command.__file__).parent / "scripts" / f"{script}.py"
    text = file.read_text()
    compile(text, str(file), "exec")
    assert "utils" not in text and 'if __name__ == "__main__":' in text


def test_a_line_becomes_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(command, "LocalServer", lambda *args, **kwargs: started.append(args))
    command.serve("vllm serve some/model --seed 1", env={"COLOUR": "red"})
    command.serve("vllm serve m --served-model-name small other --api-key 'a b'")
    (first, env, name), (second, _, other) = started
    assert first == [*command.vllm_command(), "serve", "some/model", "--seed", "1"]
    assert env["COLOUR"] == "red" and env["VLLM_CPU_KVCACHE_SPACE"] and name == "some/model"
    assert second[-2:] == ["--api-key", "a b"] and other == "small"


def test_an_option_for_the_cache_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU vLLM takes the variable, whatever the option says."""
    started: list[Any] = []
    monkeypatch.setattr(command, "LocalServer", lambda *args, **kwargs: started.append(args))
    command.serve("vllm serve some/model --kv-cache-memory-bytes 64M")
    assert "VLLM_CPU_KVCACHE_SPACE" not in started[0][1]


def test_a_line_runs_to_its_end_and_reads_what_is_typed() -> None:
    line = "python -c 'import sys, os; print(sys.stdin.read().upper(), os.environ[\"COLOUR\"])'"
    assert command.run_line(line, env={"COLOUR": "red"}, typed="where\n") == "WHERE\n red\n"
    with pytest.raises(ValueError, match="begins with `vllm` or `python`"):
        command.run_line("ls; vllm serve m")


@pytest.mark.parametrize("line", ["vllm bench serve", "vllm serve", "python -m vllm serve m"])
def test_another_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="Expected `vllm serve MODEL`"):
        command.serve(line)


def test_the_command_runs_where_the_package_is_vllm_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "package_version", lambda name: "not installed")
    assert command.vllm_command() == [sys.executable, "-m", "utils.vllm.command"]
    monkeypatch.setattr(command, "package_version", lambda name: "0.32.0")
    assert command.vllm_command() == [str(Path(sys.executable).with_name("vllm"))]


def test_vllms_main_hears_of_a_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebook 18 runs the real one."""
    heard = []

    def stand_in() -> None:
        heard.extend(metadata.version(name) for name in ("vllm", "torch"))

    module = ModuleType("vllm.entrypoints.cli.main")
    monkeypatch.setattr(module, "main", stand_in, raising=False)
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.cli.main", module)
    there = {"vllm-cpu": "1.2", "torch": "3.4"}

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(metadata, "version", version)
    command.main()
    assert heard == ["1.2+cpu", "3.4"]
    there["vllm"] = "1.1"  # on a GPU
    monkeypatch.setattr(metadata, "version", version)
    command.main()
    assert heard[2:] == ["1.1", "3.4"]


def test_the_word_vllm_in_a_terminal_is_this_command() -> None:
    """Beside the environment's Python. vLLM's own program of this name ends in a traceback here."""
    program = Path(sys.executable).with_name("vllm")
    assert "from utils.vllm.command import main" in program.read_text()
