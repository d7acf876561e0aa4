"""One place owns "this was broken off"."""

from __future__ import annotations

import weakref
from collections.abc import Callable


class WholeSteps:
    """What changes the engine's books happens as a whole, or everything is forgotten.

    The interrupt of a cell can come between any two lines. Then a block has been taken and stands
    in no table yet, a request is in no queue, or a block was promised contents that are never
    computed. There are too many such states to mend them one by one. So the books are begun anew:
    no requests, all blocks free, nothing findable. If even that is interrupted, whoever comes next
    does it first.

    It is used as a context manager, one `with` at a time.

    Args:
        forget_everything: a method that begins the books anew, from whatever state they are in. Its
            object is not kept alive: an engine that is thrown away must give back its memory at
            once, not when Python next looks for circles.
    """

    def __init__(self, forget_everything: Callable[[], None]) -> None:
        self._method = weakref.WeakMethod(forget_everything)
        self._begun = False

    def _forget_everything(self) -> None:
        forget_everything = self._method()
        assert forget_everything is not None  # who is within a step holds the engine
        forget_everything()

    def __enter__(self) -> None:
        if self._begun:
            self._forget_everything()
        self._begun = True

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            self._forget_everything()
        self._begun = False
