"""An engine in a process of its own, so that prefill and decode can be in two.

The parent writes commands to the child's standard input, the child answers on its standard output,
each a line of JSON. When the parent is gone, however it ended, the input ends, and so does the
child.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        self.patience = patience
        self._ids = itertools.count()
        self._replies: dict[int, dict[str, Any]] = {}
        self._news = threading.Condition()
        self._ended = False
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115, open till the end
        environment = os.environ | {
            "OMP_NUM_THREADS": str(num_threads), "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, text=True, env=environment,
            start_new_session=True,  # the interrupt of a cell shall not reach it
        )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()
        config = {"kv_connector": kv_connector, "extra": kv_connector_extra_config or {}}
        try:
            ready = self._ask(config | {"llm": llm})
        except BaseException:
            self.stop()
            raise
        self.port: int | None = ready["port"]  # where its connector listens, if it does

    @property
    def pid(self) -> int:
        return self._process.pid

    def submit(self, prompt: list[int] | str, max_tokens: int = 16) -> int:
        """Start a greedy answer. Returns what `result` wants to know."""
        return self._tell({"do": "add", "prompt": prompt, "max_tokens": max_tokens})

    def result(self, number: int) -> ProcessAnswer:
        """Wait for an answer.

        Raises:
            EngineProcessError: it failed, or took longer than `patience`.
        """
        reply = self._reply(number)
        return ProcessAnswer(
            reply["token_ids"], reply["arrival"], reply["times"], reply["num_cached_tokens"]
        )

    def generate(self, prompts: list[list[int]], max_tokens: int = 16) -> list[ProcessAnswer]:
        """Answers to many prompts, computed together."""
        return [self.result(n) for n in [self.submit(prompt, max_tokens) for prompt in prompts]]

    def stats(self) -> dict[str, Any]:
        """The fields of its connector's `KVConnectorStats`."""
        return self._ask({"do": "stats"})["stats"]

    def reset_prefix_cache(self) -> None:
        """Let it forget its own blocks. What is in a store stays there."""
        self._ask({"do": "reset"})

    def stop(self) -> None:
        """End it. May be called twice."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """A crash: it is gone at once."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- lines ------------------------------------------------------------------------------------

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        return self._reply(self._tell(command))

    def _tell(self, command: dict[str, Any]) -> int:
        number = next(self._ids)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(command | {"number": number}) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise EngineProcessError(f"The engine's process has ended. {self._tail()}") from error
        return number

    def _reply(self, number: int) -> dict[str, Any]:
        end = time.monotonic() + self.patience
        with self._news:
            while number not in self._replies:
                if self._ended:
                    raise EngineProcessError(f"The engine's process has ended. {self._tail()}")
                if not self._news.wait(end - time.monotonic()):
                    raise EngineProcessError(f"The engine was silent for {self.patience:.0f} s.")
            reply = self._replies.pop(number)
        if "error" in reply:
            raise EngineProcessError(f"The engine's process failed:\n{reply['error']}")
        return reply

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            with self._news:
                self._replies[reply["number"]] = reply
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _tail(self) -> str:
        self._log.seek(0)
        return f"The end of its output:\n{self._log.read()[-2000:]}"
