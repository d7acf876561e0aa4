"""One place owns "this was broken off"."""

from __future__ import annotations

import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from types import FrameType


class WholeSteps:
    """What changes the engine's books happens as a whole, or everything is forgotten.

    The interrupt of a cell can come between any two lines. Then a block has been taken and stands
    in no table yet, a request is in no queue, or a block was promised contents that are never
    computed. There are too many such states to mend them one by one. So the books are begun anew:
    no requests, all blocks free, nothing findable. If even that is interrupted, whoever comes next
    does it first.

    It is used as a context manager, one `with` at a time. What may come in the midst of another one
    says `soon`.

    Args:
        forget_everything: a method that begins the books anew, from whatever state they are in. Its
            object is not kept alive: an engine that is thrown away must give back its memory at
            once, not when Python next looks for circles.
    """

    def __init__(self, forget_everything: Callable[[], None]) -> None:
        self._method = weakref.WeakMethod(forget_everything)
        self._begun: FrameType | None = None  # whose `with` has not come to its end
        self._later: list[Callable[[], None]] = []

    def soon(self, change: Callable[[], None]) -> None:
        """Make a change now; or, if somebody is in the midst of a step, at the step's end.

        Python's garbage collector ends a stream that nobody reads any more: at any line, of
        any thread.

        Args:
            change: not needed any more when everything was forgotten.
        """
        self._later.append(change)  # if this is interrupted, whoever comes next makes the change
        if self._begun is None or not self._is_within(sys._getframe(1)):
            with self:
                pass

    def _is_within(self, caller: FrameType) -> bool:
        """Whether a step still runs that was begun, below the caller or in another thread.

        Else it was broken off, even if its frame is the caller: that cleans up after itself.
        """
        tops = sys._current_frames() | {threading.get_ident(): caller.f_back}
        stacks = (traceback.walk_stack(top) for top in tops.values() if top is not None)
        return any(frame is self._begun for stack in stacks for frame, _ in stack)

    def _forget_everything(self) -> None:
        forget_everything = self._method()
        assert forget_everything is not None  # who is within a step holds the engine
        self._later.clear()
        forget_everything()

    def __enter__(self) -> None:
        if self._begun is not None:
            self._forget_everything()
        self._begun = sys._getframe(1)

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            self._forget_everything()
        while self._later:
            self._later.pop()()
        self._begun = None
