"""Questions to another process and its answers, each a line of JSON on a pipe.

A question says what to `do`, with arguments by name, and bears a number; its answer bears the same
number, so that answers may come in another order. Whoever asks has a `LineProcess`; the program
that it runs answers with `serve`, or, if it answers later, with `questions` and `Answers`.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from utils.processes.supervised import Program, WorkerError


class Ended(WorkerError):
    """The other process has ended without an answer. The message holds the end of its log."""


class LineProcess(Program):
    """A program that answers.

    Args:
        command, env, keep_log: see `Program`.
        patience: seconds to wait for an answer; None: as long as it takes.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str] | None = None,
        *,
        keep_log: bool = True,
        patience: float | None = None,
    ) -> None:
        super().__init__(command, env, lines=True, keep_log=keep_log)
        self.patience = patience
        self._numbers = itertools.count()
        self._inbox = _Inbox()
        assert self.process.stdout is not None
        # It knows the inbox and not this object, which could never be thrown away else.
        listener = threading.Thread(
            target=self._inbox.listen, args=[self.process.stdout], daemon=True
        )
        listener.start()

    def ask(self, do: str, **arguments: Any) -> Any:
        """Ask, and wait for the answer. Raises as `answer`."""
        return self.answer(self.tell(do, **arguments))

    def tell(self, do: str, **arguments: Any) -> int:
        """Ask, and do not wait; the number under which the answer will come.

        Raises:
            Ended: nobody is there.
        """
        number = next(self._numbers)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([number, do, arguments]) + "\n")
            self.process.stdin.flush()
        except (OSError, ValueError) as error:  # the pipe is broken, or was closed by `stop`
            raise self._ended() from error
        return number

    def answer(self, number: int) -> Any:
        """Wait for an answer.

        Raises:
            Ended: the process ended.
            TimeoutError: it was silent for `patience` seconds.
            Exception: what was raised there. If its class is not known here: a WorkerError.
        """
        answer = self._inbox.wait_for(number, self.patience)
        if answer is None:
            raise self._ended()
        if "error" in answer:
            there = WorkerError(f"In its process:\n{answer['error']['traceback']}")
            raise as_exception(answer["error"]) from there
        return answer["result"]

    def _ended(self) -> Ended:
        # What is said of its end is true only when it has come to it.
        with contextlib.suppress(Exception):
            self.process.wait(5)
        return Ended(f"It has ended. The end of its output:\n{self.log()}")


class _Inbox:
    """Answers that have come, by their numbers."""

    def __init__(self) -> None:
        self._answers: dict[int, dict[str, Any]] = {}
        self._news = threading.Condition()
        self._ended = False

    def listen(self, lines: TextIO) -> None:
        with contextlib.suppress(ValueError):  # the pipe was closed, or a line cut off by a kill
            for line in lines:
                number, answer = json.loads(line)
                with self._news:
                    self._answers[number] = answer
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for(self, number: int, patience: float | None) -> dict[str, Any] | None:
        """The answer; None if none can come any more."""
        end = None if patience is None else time.monotonic() + patience
        with self._news:
            while number not in self._answers:
                if self._ended:
                    return None
                if not self._news.wait(None if end is None else end - time.monotonic()):
                    raise TimeoutError(f"The process was silent for {patience:.0f} s.")
            return self._answers.pop(number)


def as_exception(error: dict[str, Any]) -> Exception:
    """The other side's exception, if this side has its class; else a `WorkerError`."""
    with contextlib.suppress(ImportError, AttributeError, TypeError):  # or it takes more
        kind = getattr(importlib.import_module(error["module"]), error["name"])
        return kind(error["errno"], error["text"]) if error["errno"] else kind(error["text"])
    return WorkerError(f"{error['name']}: {error['text']}")


# --- the program's side --------------------------------------------------------------------------


class Answers:
    """Where a program writes its answers. What else it prints goes to stderr from now on."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def result(self, number: int, result: Any) -> None:
        self._write(number, {"result": result})

    def error(self, number: int, error: BaseException) -> None:
        """To be called where it is caught, so that its traceback is there."""
        kind, text, errno = type(error), str(error), getattr(error, "errno", None)
        if isinstance(error, OSError) and error.strerror:
            text = error.strerror + (f": {error.filename}" if error.filename else "")
        described = {
            "module": kind.__module__,
            "name": kind.__qualname__,
            "text": text,
            "errno": errno,
            "traceback": traceback.format_exc(),
        }
        self._write(number, {"error": described})

    def _write(self, number: int, answer: dict[str, Any]) -> None:
        self._out.write(json.dumps([number, answer]) + "\n")
        self._out.flush()


def questions() -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Number, what to do, and the arguments of each question, until nobody asks any more."""
    for line in sys.stdin:
        yield tuple(json.loads(line))


def serve(answer: Callable[[str, dict[str, Any]], Any]) -> None:
    """Answer each question, `answer(do, arguments)`, one after the other."""
    answers = Answers()
    for number, do, arguments in questions():
        try:
            result = answer(do, arguments)
        except Exception as error:
            answers.error(number, error)
        else:
            answers.result(number, result)
