"""A limit for the learner's code: a loop that never ends must not hang the notebook.

Ticks are counted, not seconds: a pause in which Python runs no line of the answer (a garbage
collection of a large process takes seconds) is one tick, however long it was.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

COMPUTING_S = 0.05  # a tick of time that this process computes
WAITING_S = 0.8  # a tick of time on the wall, for an answer that sleeps, or waits for a lock
TICKS = 20
# Of computing and of waiting, for a call that may do much besides, such as load a model or run the
# engine: some three minutes of the one, some thirteen of the other.
LONG_TICKS = (4000, 1000)
SECOND_CHANCE = 6  # times as much computing: a slow answer on a slow machine is not an endless one
AGAIN_S = 0.002  # for code that catches even this, and goes on
OWN = (__name__, "contextlib")  # what puts the timers back must not be disturbed


class TimeUp(BaseException):
    """Not an Exception: `except Exception` in the learner's code must not swallow it."""


class _Watch:
    """The ticks of the call that runs now."""

    def __init__(self) -> None:
        self.imports = 0  # that were under way when the watch began
        self.most = TICKS  # for limits that begin from now on
        self.allowed = (TICKS, TICKS)  # of computing and of waiting, by the limit that holds now
        self.longer = 1  # times as many ticks of computing
        self.timers: dict[int, tuple[int, float]] = {}  # set at present: by signal
        self.heard: dict[int, int] = {}  # ticks of each signal
        self.inside = False  # whether the learner's code runs
        self.pressing = False  # whether it was told to end

    def set_timers(self, again: bool) -> None:
        self.pressing = again
        for timer, tick in self.timers.values():
            signal.setitimer(timer, *(2 * [AGAIN_S if again else tick]))

    def tick(self, number: int, frame: FrameType | None) -> None:
        # An import that is broken off leaves half a module behind, and then nothing that needs it
        # works any more. torch imports some of its parts only when they are needed.
        if _imports(frame) > self.imports:
            return
        self.heard[number] = self.heard.get(number, 0) + 1
        if not self.inside or self.heard[number] < self.allowed[number == signal.SIGALRM]:
            return
        if not self.pressing:
            self.set_timers(again=True)
        if frame is not None and frame.f_globals.get("__name__") not in OWN:
            raise TimeUp

    @contextlib.contextmanager
    def quiet_finalizers(self) -> Iterator[None]:
        """A `TimeUp` within a `__del__` is not reported: it is raised again, in the answer.

        Any object may be collected while the answer runs. Python reports what is raised then, and
        the report is Python code too, which must not be broken off.
        """
        report: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook

        def unless_time_is_up(unraisable: sys.UnraisableHookArgs) -> None:
            if unraisable.exc_type is not TimeUp:
                outer, self.inside = self.inside, False
                report(unraisable)
                self.inside = outer

        sys.unraisablehook = unless_time_is_up
        try:
            yield
        finally:
            sys.unraisablehook = report


_WATCH = _Watch()


@contextlib.contextmanager
def patience_of(ticks: int) -> Iterator[None]:
    """Within it, `limit` is so many ticks.

    Fewer where an answer is known to hang, or where many inputs are tried; more where it is a part
    of something that takes its time.
    """
    before, _WATCH.most = _WATCH.most, ticks
    try:
        yield
    finally:
        _WATCH.most = before


@contextlib.contextmanager
def second_chance() -> Iterator[None]:
    """Within it, an answer may compute longer: it was too slow once, and may be no endless one."""
    before, _WATCH.longer = _WATCH.longer, SECOND_CHANCE
    try:
        yield
    finally:
        _WATCH.longer = before


def is_limited() -> bool:
    """Whether a limit holds already, here or further out."""
    return _WATCH.inside


@contextlib.contextmanager
def limit(ticks: tuple[int, int] | None = None) -> Iterator[None]:
    """Raise `TimeUp` inside the block after so many ticks, and again if it was swallowed.

    Works in the main thread of Unix, where notebook cells run. Elsewhere there is no limit. Many
    calls are cheaper within `watching`.

    Args:
        ticks: of computing and of waiting; None for `TICKS`, or what is said around the block.
    """
    with contextlib.nullcontext() if _WATCH.timers else watching():
        outer = _WATCH.inside, _WATCH.allowed
        usual = (_WATCH.longer * _WATCH.most, _WATCH.most)
        _WATCH.inside, _WATCH.allowed, _WATCH.heard = True, ticks or usual, {}
        try:
            yield
        finally:
            _WATCH.inside, _WATCH.allowed = outer
            if _WATCH.pressing:
                _WATCH.set_timers(again=False)


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Set the timers that `limit` needs, once for all calls within."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if _WATCH.timers or not hasattr(signal, "SIGVTALRM") or not in_main_thread:
        yield
        return
    _WATCH.imports = _imports(sys._getframe())
    _WATCH.timers = {
        signal.SIGVTALRM: (signal.ITIMER_VIRTUAL, COMPUTING_S),
        signal.SIGALRM: (signal.ITIMER_REAL, WAITING_S),
    }
    handlers = {number: signal.signal(number, _WATCH.tick) for number in _WATCH.timers}
    before = {timer: signal.getitimer(timer) for timer, _ in _WATCH.timers.values()}
    _WATCH.set_timers(again=False)
    try:
        with _WATCH.quiet_finalizers():
            yield
    finally:
        _WATCH.timers = {}
        for timer, times in before.items():
            signal.setitimer(timer, *times)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _imports(frame: FrameType | None) -> int:
    """How much of a stack belongs to imports that are under way."""
    count = 0
    while frame is not None:
        count += frame.f_globals.get("__name__") == "importlib._bootstrap"
        frame = frame.f_back
    return count
