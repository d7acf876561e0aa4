"""An event loop that has no clock, and stops as soon as everybody waits: for plays of coroutines.

asyncio asks its selector how long it may sleep: not at all (something is ready), until a timer, or
for ever. In the last case nobody will ever go on by himself, so the loop is stopped, and the play
says what happens next. It works within a notebook's cell, too, where another loop is running.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from utils.checks.kit.contracts.faults import attempt
from utils.checks.kit.patience import patience_of
from utils.checks.kit.runner import Mismatch

MOST_ROUNDS = 3000  # of a loop that has something to do again and again
ASLEEP, SPINS, TIMER = "sleeps", "goes around in circles", "waits for a timer"


class _Selector(selectors.SelectSelector):
    """Stops the loop when it would sleep."""

    stop: Callable[[], None]
    verdict, rounds = ASLEEP, 0

    def select(self, timeout: float | None = None) -> Any:
        self.rounds += 1
        if timeout is None or timeout > 0 or self.rounds > MOST_ROUNDS:
            self.verdict = ASLEEP if timeout is None else TIMER if timeout > 0 else SPINS
            self.stop()
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def time(self) -> float:
        return 0.0  # no timer is ever due


class OneLoop:
    """Runs coroutines until all of them wait."""

    def __init__(self) -> None:
        self._selector = _Selector()
        self._loop = _Loop(self._selector)
        self._loop.set_exception_handler(lambda *_: None)  # what is wrong, the play will say
        self._selector.stop = self._loop.stop

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._loop.create_task(coroutine)

    def settle(self) -> str:
        """Run until nobody can go on: `ASLEEP`; or else what keeps them awake."""
        self._selector.rounds = 0
        with _no_other_loop():
            self._loop.run_forever()
        return self._selector.verdict

    def close(self) -> None:
        """End everything that still waits."""
        with patience_of(1):
            for _ in range(3):  # a coroutine may swallow the first
                for task in asyncio.all_tasks(self._loop):
                    task.cancel()
                attempt(self.settle)
            with _no_other_loop():
                # Who swallows all of them, and goes on, is ended here: a garbage collection would
                # wait for it for ever.
                for task in asyncio.all_tasks(self._loop):
                    attempt(task.get_coro().close)
                self._loop.close()


@contextlib.contextmanager
def _no_other_loop() -> Iterator[None]:
    """A notebook's cell runs within the kernel's loop. For a moment, this one is forgotten."""
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)


def outputs_of(function: Callable[..., Any], *args: Any) -> Any:
    """Call an async generator function.

    Raises:
        Mismatch: it gives nothing to walk through and to close, such as one without a `yield`.
    """
    got = function(*args)
    if hasattr(got, "__aiter__") and hasattr(got, "aclose"):
        return got
    if asyncio.iscoroutine(got):
        with contextlib.suppress(StopIteration), contextlib.closing(got):
            got.send(None)  # a stub raises NotImplementedError here
    raise Mismatch(
        f"`{getattr(function, '__name__', 'It')}` isn't an async generator: its result can't be "
        "read with `async for`, or can't be closed with `aclose()`.",
        got=f"a {type(got).__name__}",
        look="`async def` with at least one `yield` in it makes an async generator.",
    )
