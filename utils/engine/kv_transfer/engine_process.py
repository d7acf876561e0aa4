"""An engine in a process of its own, so that prefill and decode can be in two.

It is asked in lines of JSON, and answers a prompt when the answer is complete.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.processes.json_lines import LineProcess
from utils.processes.supervised import WorkerError, program_pid

ROOT = Path(__file__).resolve().parents[3]
CHILD = "utils.engine.kv_transfer.engine_child"


class EngineProcessError(RuntimeError):
    """The engine in the other process failed. The message holds what it said."""


@dataclass(frozen=True)
class ProcessAnswer:
    """The answer to one prompt, and when its tokens came.

    Times are those of `time.perf_counter`, which all processes of a Linux machine share.
    """

    token_ids: list[int]
    arrival: float
    times: list[float]  # a token each
    num_cached_tokens: int

    @property
    def ttft(self) -> float:
        """Seconds from the request's arrival to its first token."""
        return self.times[0] - self.arrival

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [b - a for a, b in itertools.pairwise(self.times)]


class EngineProcess:
    """An `LLM` in another process. Use it in a `with` block, or call `stop`.

    Args:
        kv_connector: name of its connector (see `engine_child`); None for none.
        kv_connector_extra_config: the connector's arguments.
        num_threads: for its computations. Two processes on two cores: one each.
        patience: seconds that it may take to start, or to answer.
        llm: what `LLM` takes, as far as it can be written in JSON.

    Raises:
        EngineProcessError: it could not start, and why.
    """

    def __init__(
        self,
        kv_connector: str | None = None,
        kv_connector_extra_config: dict[str, Any] | None = None,
        num_threads: int = 1,
        patience: float = 120.0,
        **llm: Any,
    ) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": str(num_threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        self._process = LineProcess([sys.executable, "-m", CHILD], environment, patience=patience)
        try:
            extra = kv_connector_extra_config or {}
            ready = self._ask("start", kv_connector=kv_connector, extra=extra, llm=llm)
        except BaseException:
            self.stop()
            raise
        self.port: int | None = ready["port"]  # where its connector listens, if it does
        self.pid = program_pid(self._process.process)

    def submit(self, prompt: list[int] | str, max_tokens: int = 16) -> int:
        """Start a greedy answer. Returns what `result` wants to know."""
        return self._in_words(
            lambda: self._process.tell("add", prompt=prompt, max_tokens=max_tokens)
        )

    def result(self, number: int) -> ProcessAnswer:
        """Wait for an answer.

        Raises:
            EngineProcessError: it failed, or took longer than `patience`.
        """
        return ProcessAnswer(**self._in_words(lambda: self._process.answer(number)))

    def generate(self, prompts: list[list[int]], max_tokens: int = 16) -> list[ProcessAnswer]:
        """Answers to many prompts, computed together."""
        return [self.result(n) for n in [self.submit(prompt, max_tokens) for prompt in prompts]]

    def stats(self) -> dict[str, Any]:
        """The fields of its connector's `KVConnectorStats`."""
        return self._ask("stats")

    def reset_prefix_cache(self) -> None:
        """Let it forget its own blocks. What is in a store stays there."""
        self._ask("reset")

    def stop(self) -> None:
        """End it. May be called twice."""
        self._process.stop()

    def kill(self) -> None:
        """A crash: it is gone at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _ask(self, do: str, **arguments: Any) -> Any:
        return self._in_words(lambda: self._process.ask(do, **arguments))

    def _in_words(self, exchange: Callable[[], Any]) -> Any:
        try:
            return exchange()
        except Exception as error:
            there = f"\n{error.__cause__}" if isinstance(error.__cause__, WorkerError) else ""
            raise EngineProcessError(f"The engine's process failed: {error}{there}") from error
