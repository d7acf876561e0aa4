"""`AsyncLLM`: an engine that runs in a thread, and callers that wait for it with `await`.

A step takes long and must not hold up those who speak HTTP. So the engine has a thread of its own,
and nobody else touches it: callers put what they want into an inbox, and find what has happened in
a mailbox. The name and `generate` are those of vLLM's `v1/engine/async_llm.py`, which goes one step
further and puts the engine into a process of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter

from utils.engine import LLMEngine, RequestOutput
from utils.engine.output_processor import RequestState
from utils.serving.mailbox import (
    Answers,
    EngineDeadError,
    EngineGenerateError,
    Mailbox,
    QueueOverflowError,
)
from utils.serving.metrics import ServerMetrics

logger = logging.getLogger(__name__)


@dataclass
class Running:
    """A request in the engine, and who waits for it."""

    request: RequestState
    mailbox: Mailbox
    index: int  # of the prompt, among those that its caller sent together
    num_seen: list[int] = field(default_factory=list)  # tokens of each answer that were counted


class AsyncLLM:
    """Serves an engine to the coroutines of one event loop.

    Args:
        engine: nobody else may use it from now on.
        metrics: where to count what happens.
        max_num_queued_reqs: the most requests at a time, running and waiting. None: no limit.
    """

    def __init__(
        self, engine: LLMEngine, metrics: ServerMetrics, max_num_queued_reqs: int | None = None
    ) -> None:
        self.engine, self.metrics = engine, metrics
        self.max_num_queued_reqs = max_num_queued_reqs
        self.num_requests = 0
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._running: dict[str, Running] = {}  # only the engine's thread looks at it
        self._callers: set[Answers] = set()
        self._dead: EngineDeadError | None = EngineDeadError("The engine has not been started.")
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to work for the event loop that calls this."""
        self._loop, self._dead = asyncio.get_running_loop(), None
        self._thread.start()

    def stop(self) -> None:
        """Stop after the step that is running. Requests that are not done fail."""
        self._inbox.put(partial(setattr, self, "_stopping", True))

    def shutdown(self, patience: float = 10.0) -> None:
        """Stop, and wait for it."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(patience)

    def check_health(self) -> None:
        """Raise `EngineDeadError` unless the engine can take requests."""
        if self._dead is not None:
            raise self._dead

    def check_admission(self, num_requests: int) -> None:
        """Refuse more requests than there is room for.

        Raises:
            QueueOverflowError: not now. Later there may be room.
            ValueError: never, not even alone.
        """
        limit = self.max_num_queued_reqs
        if limit is None:
            return
        if num_requests > limit:
            raise ValueError(
                f"These are {num_requests} prompts. This server takes at most {limit} requests at "
                "a time (--max-num-queued-reqs). Send them in several parts."
            )
        if self.num_requests + num_requests > limit:
            self.metrics.count("vllm:admission_rejections", reason="max_num_queued_reqs")
            raise QueueOverflowError(
                f"The server is busy: {self.num_requests} requests are in progress, and "
                f"{limit} is the limit (--max-num-queued-reqs). Try again later."
            )

    @contextmanager
    def room_for(self, num_requests: int) -> Iterator[None]:
        """Count requests that are still prepared. Raises as `check_admission`."""
        self.check_admission(num_requests)
        self.num_requests += num_requests
        try:
            yield
        finally:
            self.num_requests -= num_requests

    def generate(self, requests: Sequence[RequestState]) -> Answers:
        """Queue requests, and return their answers as they grow. Close it when you go.

        Raises:
            EngineDeadError, QueueOverflowError, ValueError: nothing has been queued then.
        """
        self.check_health()
        self.check_admission(len(requests))
        answers = Answers(requests, self._let_go)
        self._callers.add(answers)
        self.num_requests += len(requests)
        for i, request in enumerate(requests):
            running = Running(request, answers.mailbox, i, [0] * len(request.family))
            self._inbox.put(partial(self._add, running))
        return answers

    def _let_go(self, answers: Answers, unfinished: list[str]) -> None:
        """A caller goes, whether its requests are finished or not."""
        self._callers.discard(answers)
        self.num_requests -= answers.num_requests
        if unfinished:
            self._inbox.put(partial(self._abort, unfinished))

    def _die(self, error: EngineDeadError) -> None:
        self._dead = error
        for answers in self._callers:
            answers.mailbox.fail(error)

    # --- in the engine's thread -----------------------------------------------------------------

    def _run(self) -> None:
        error = EngineDeadError("The server is shutting down.")
        try:
            while not self._stopping:
                self._read_inbox()
                if self.engine.has_unfinished_requests():
                    self._step()
        except Exception as unexpected:
            logger.exception("The engine's thread ends")
            error = EngineDeadError(f"The engine has died: {unexpected}")
        try:
            self._fail_all(error)
        finally:
            # In the event loop, where nobody can come between: whoever waits still, or comes later.
            self._tell(partial(self._die, error))

    def _read_inbox(self) -> None:
        """Do what callers want. Without requests, wait until one comes."""
        wait = not self.engine.has_unfinished_requests()
        try:
            while True:
                self._inbox.get(block=wait)()
                wait = False
        except Empty:
            self.metrics.observe_engine(self.engine)

    def _add(self, running: Running) -> None:
        self._running[running.request.request_id] = running
        self.engine.add(running.request)

    def _abort(self, request_ids: list[str]) -> None:
        self.engine.abort_requests(request_ids)
        for request_id in request_ids:
            if running := self._running.pop(request_id, None):
                self.metrics.observe_end(running.request)

    def _step(self) -> None:
        self.engine.step_trace = []
        try:
            gained = self.engine.advance()
        except Exception as error:
            logger.exception("A step failed; its requests fail, and the next ones can come")
            self._fail_all(EngineGenerateError(f"The engine failed in a step: {error}"))
            return
        begin = perf_counter()
        for step in self.engine.step_trace:
            self.metrics.observe_step(step)
        news = {member.family[0].request_id: self._book(member) for member in gained}
        outputs = [(running, running.request.output()) for running in news.values()]
        for running, output in outputs:
            if output.finished:
                del self._running[output.request_id]
                self.metrics.observe_end(running.request)
        self.metrics.observe_engine(self.engine)
        # Last of all, so that whoever gets an answer finds it counted.
        self._tell(partial(_deliver, outputs))
        self.metrics.count("course:engine_seconds", perf_counter() - begin, part="deliver")

    def _book(self, member: RequestState) -> Running:
        """Count an answer's new tokens. Returns the request that it belongs to."""
        running = self._running[member.family[0].request_id]
        self.metrics.observe_tokens(member, running.num_seen[member.index])
        running.num_seen[member.index] = member.metrics.num_generation_tokens
        return running

    def _fail_all(self, error: Exception) -> None:
        """Every request in the engine fails. (A step that raises has dropped them all.)"""
        failed, self._running = list(self._running.values()), {}
        self.engine.abort_requests([running.request.request_id for running in failed])
        for running in failed:
            self.metrics.observe_end(running.request)
            self._tell(partial(running.mailbox.fail, error))
        self.metrics.observe_engine(self.engine)

    def _tell(self, message: Callable[[], None]) -> None:
        """Let the event loop do something."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(message)
        except RuntimeError:  # the loop is closed: nobody waits for anything any more
            self._stopping = True


def _deliver(outputs: list[tuple[Running, RequestOutput]]) -> None:
    for running, output in outputs:
        running.mailbox.put(running.index, output)
