"""A step happens as a whole: an interrupt waits for its end."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any


class WholeSteps:
    """What changes the engine's books happens as a whole, or everything is forgotten.

    The interrupt of a cell could come between any two lines: when a block has been taken and stands
    in no table yet, or was promised contents that are never computed. So it waits for the end of
    the step, which is near. A second one cuts through, for a learner's class may never return.
    Then, and when a step fails, the books are begun anew: no requests, all blocks free, nothing
    findable.

    It is used as a context manager, one `with` at a time. What may come in the midst of another one
    says `soon`.

    Args:
        forget_everything: a method that begins the books anew, from whatever state they are in. Its
            object is not kept alive: an engine that is thrown away must give back its memory at
            once, not when Python next looks for circles.
    """

    def __init__(self, forget_everything: Callable[[], None]) -> None:
        self._method = weakref.WeakMethod(forget_everything)
        self._later: list[Callable[[], None]] = []
        self._lock = threading.Lock()  # held in the midst of a step
        self._owner: int | None = None  # the thread that has it
        self._num_interrupts = 0  # in this step
        self._usual: Any = None  # who else handles interrupts: Jupyter's kernel, for example

    def soon(self, change: Callable[[], None]) -> None:
        """Make a change now; or, if somebody is in the midst of a step, at the step's end.

        Python's garbage collector ends a stream that nobody reads any more: at any line, of
        any thread.

        Args:
            change: not needed any more when everything was forgotten.
        """
        self._later.append(change)
        self._catch_up()

    def _catch_up(self) -> None:
        # Never wait here: in a step's midst somebody may wait for this very thread. Whoever has the
        # lock comes here when they have given it back.
        if self._later and not self._lock.locked() and self._begin(blocking=False):
            self.__exit__()

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            raise RuntimeError("In the midst of a step the engine takes no other one. Use `soon`.")
        self._begin(blocking=True)

    def _begin(self, blocking: bool) -> bool:
        """Hold interrupts, then take the lock. False: another thread has it."""
        usual: Any = None
        if threading.current_thread() is threading.main_thread():  # interrupts come only to it
            usual = signal.getsignal(signal.SIGINT)
        if callable(usual):
            if usual != self._interrupted:  # else Python collects a stream in these very lines
                self._num_interrupts = 0
            signal.signal(signal.SIGINT, self._interrupted)
        has_lock = self._lock.acquire(blocking)
        if has_lock:
            self._owner = threading.get_ident()
            self._usual = usual if callable(usual) else None
        elif callable(usual):
            signal.signal(signal.SIGINT, usual)
            if self._num_interrupts:
                signal.raise_signal(signal.SIGINT)
        return has_lock

    def __exit__(self, error_type: type[BaseException] | None = None, *_: object) -> None:
        if error_type is not None:
            self._later.clear()
            if (forget_everything := self._method()) is not None:
                forget_everything()
        while self._later:
            self._later.pop()()
        usual, self._usual, self._owner = self._usual, None, None
        self._lock.release()
        self._catch_up()
        if usual is not None:
            signal.signal(signal.SIGINT, usual)
            if self._num_interrupts and error_type is None:
                signal.raise_signal(signal.SIGINT)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self._num_interrupts += 1
        begins_or_ends = (WholeSteps.__enter__, WholeSteps._begin, WholeSteps.__exit__)
        codes = {m.__code__ for m in (*begins_or_ends, WholeSteps.soon, WholeSteps._catch_up)}
        while frame is not None:
            if frame.f_code in codes:
                return  # it will not be long
            frame = frame.f_back
        if self._num_interrupts > 1:
            self._usual(number, frame)
