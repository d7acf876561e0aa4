"""The way of a request, from `LLM.generate` to a token: vLLM's stations, and ours beside them.

Everything shown is read from the source that is installed: a station names a function and the call
in it that leads on. A call that is not there any more raises, so no lesson can show a way that vLLM
does not take.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from utils.environments.pipeline import is_isolated, pipeline_python

MOST_LINES = 4  # of one call; the rest of its arguments is cut off


@dataclass(frozen=True)
class Place:
    """A function, and the call in it that leads to the next station.

    Args:
        file: within the package.
        function: as `Class.method`, or a function's name.
        call: what is called, as it stands there: `self.scheduler.schedule`.
    """

    file: str
    function: str
    call: str


@dataclass(frozen=True)
class Station:
    """A step of the way: what happens, where in vLLM, and where in the course's engine.

    `ours` is None, and `why` says why, where the course has no such station.
    """

    what: str
    theirs: Place
    ours: Place | None
    why: str = ""


OFFLINE, ENGINE = "entrypoints/common/offline.py", "v1/engine/llm_engine.py"
CORE, RUNNER = "v1/engine/core.py", "v1/worker/gpu_model_runner.py"
STATIONS = (
    Station(
        "the class that a program calls",
        Place("entrypoints/llm.py", "LLM.generate", "self._run_completion"),
        Place("llm.py", "LLM.generate", "answer"),
    ),
    Station(
        "input processing: texts and parameters become requests",
        Place(ENGINE, "LLMEngine.add_request", "self.input_processor.process_inputs"),
        Place("llm.py", "LLM.generate", "self.llm_engine.inputs.from_prompts"),
    ),
    Station(
        "the request goes to the engine",
        Place(ENGINE, "LLMEngine.add_request", "self.engine_core.add_request"),
        Place("run_requests.py", "run_to_end", "engine.add"),
    ),
    Station(
        "the loop: a step, until all are answered",
        Place(OFFLINE, "OfflineInferenceMixin._run_engine", "self.llm_engine.step"),
        Place("run_requests.py", "run_to_end", "engine.advance"),
    ),
    Station(
        "one step asks the engine's core for news",
        Place(ENGINE, "LLMEngine.step", "self.engine_core.get_output"),
        None,
        "our engine is its own core",
    ),
    Station(
        "the client of the core, which may live in another process",
        Place("v1/engine/core_client.py", "InprocClient.get_output", "self.engine_core.step_fn"),
        None,
        "`AsyncLLM` talks to a thread, with mailboxes (notebook 14)",
    ),
    Station(
        "EngineCore: decide what runs in this step",
        Place(CORE, "EngineCore.step", "self.scheduler.schedule"),
        Place("llm_engine.py", "LLMEngine._start_step", "self.scheduler.schedule"),
    ),
    Station(
        "EngineCore: have it run",
        Place(CORE, "EngineCore.step", "self.model_executor.execute_model"),
        Place("worker/step_runner.py", "StepByStep._run", "self.executor.execute_model"),
    ),
    Station(
        "the executor: the same call for every worker",
        Place(
            "v1/executor/uniproc_executor.py",
            "UniProcExecutor.execute_model",
            "self.collective_rpc",
        ),
        Place(
            "distributed/executor.py",
            "MultiprocExecutor.execute_model",
            "self.workers.collective_rpc",
        ),
    ),
    Station(
        "the worker: one process, one device",
        Place("v1/worker/gpu_worker.py", "Worker.execute_model", "self.model_runner.execute_model"),
        Place("distributed/worker.py", "Worker.execute_model", "runner.execute_model"),
    ),
    Station(
        "the model runner: a flat batch goes through the model",
        Place(RUNNER, "GPUModelRunner._model_forward", "self.model"),
        Place("worker/model_runner.py", "ModelRunner._forward", "forward_pass"),
    ),
    Station(
        "the model runner: logits become tokens",
        Place(RUNNER, "GPUModelRunner._sample", "self.sampler"),
        Place("worker/model_runner.py", "ModelRunner._sample", "self.sampler"),
    ),
    Station(
        "EngineCore: book the new tokens",
        Place(CORE, "EngineCore.step", "self.scheduler.update_from_output"),
        Place("llm_engine.py", "LLMEngine._process", "self.scheduler.update_from_output"),
    ),
    Station(
        "tokens become text again",
        Place(ENGINE, "LLMEngine.step", "self.output_processor.process_outputs"),
        Place("llm_engine.py", "LLMEngine._end_step", "self.output_processor.process_outputs"),
    ),
)

# What four of these calls reach in vLLM, other than a next station. The spy looks for them, too.
SCHEDULER = "v1/core/sched/scheduler.py"
REACHED = (
    Place("v1/engine/input_processor.py", "InputProcessor.process_inputs", ""),
    Place(SCHEDULER, "Scheduler.schedule", ""),
    Place(SCHEDULER, "Scheduler.update_from_output", ""),
    Place("v1/engine/output_processor.py", "OutputProcessor.process_outputs", ""),
)


class LostStation(LookupError):
    """A function or a call that the installed source does not have."""


@cache
def vllm_folder() -> Path:
    """The folder of the vLLM that Part II runs.

    Raises:
        LostStation: it is not installed.
    """
    if is_isolated():
        find = "import importlib.util as u; print(u.find_spec('vllm').origin)"
        command = [str(pipeline_python()), "-c", find]
        origin = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    else:
        spec = importlib.util.find_spec("vllm")
        origin = spec.origin if spec and spec.origin else ""
    if not origin:
        raise LostStation("vLLM is not installed here. Run `make setup`.")
    return Path(origin).parent


def our_folder() -> Path:
    """The folder of the course's engine."""
    return Path(__file__).resolve().parents[1] / "engine"


def find_function(folder: Path, place: Place) -> ast.FunctionDef:
    """The function that a place names.

    Raises:
        LostStation: there is no such file or function.
    """
    file = folder / place.file
    body: list[ast.stmt] = ast.parse(file.read_text("utf-8")).body if file.is_file() else []
    for name in place.function.split("."):
        found = [
            n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name
        ]
        if not found:
            raise LostStation(f"{place.file} has no {place.function}: no {name} in it.")
        node, body = found[-1], found[-1].body
    if not isinstance(node, ast.FunctionDef):
        raise LostStation(f"{place.function} in {place.file} is no function.")
    return node


def call_lines(folder: Path, place: Place) -> tuple[int, str]:
    """Number and text of the lines that call the next station.

    Raises:
        LostStation: the function does not make that call.
    """
    for node in ast.walk(find_function(folder, place)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and _calls(node, place.call):
            lines = (folder / place.file).read_text("utf-8").splitlines()
            text = lines[node.lineno - 1 : node.end_lineno]
            if len(text) > MOST_LINES:
                indent = text[1][: len(text[1]) - len(text[1].lstrip())]
                text = [*text[: MOST_LINES - 2], f"{indent}...", text[-1]]
            return node.lineno, textwrap.dedent("\n".join(text))
    for node in ast.walk(find_function(folder, place)):  # in the head of a `for`, `while` or `with`
        if isinstance(node, ast.Call) and ast.unparse(node.func) == place.call:
            line = (folder / place.file).read_text("utf-8").splitlines()[node.lineno - 1]
            return node.lineno, line.strip()
    raise LostStation(f"{place.function} in {place.file} does not call {place.call}.")


def _calls(statement: ast.stmt, call: str) -> bool:
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(ast.unparse(node.func) == call for node in calls)
