"""Run a learner's code against an oracle, and say in words what came of it."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.feedback import WHERE_TO_LOOK, Feedback, png
from utils.checks.kit.patience import LONG_TICKS, TimeUp, is_limited, limit
from utils.checks.kit.progress import points_in_lab
from utils.checks.kit.record import note

STDERR = 2  # its file descriptor
SHOWN = 200  # characters of a value
NO_END = "Your code does not come to an end."
NO_END_LOOK = (
    "Is there a loop whose condition never changes? Or does the work grow much faster than the "
    "input, as in a loop over everything inside a loop over everything?"
)

# Frames in these folders are not the learner's code.
_FOLDERS = [
    Path(__file__).parents[2],
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
]
_LIBRARIES = tuple(str(path) + os.sep for folder in _FOLDERS for path in (folder, folder.resolve()))


class Mismatch(Exception):
    """The learner's answer is wrong; the fields become the feedback."""

    def __init__(
        self,
        headline: str,
        *,
        input: str = "",
        expected: str = "",
        got: str = "",
        look: str = "",
        figure: Figure | None = None,
        alt: str = "",
    ) -> None:
        super().__init__(headline)
        self.headline = headline
        self.details = tuple(
            (label, text)
            for label, text in (
                ("Input", input),
                ("Expected", expected),
                ("Yours", got),
                (WHERE_TO_LOOK, look),
            )
            if text
        )
        self.figure = figure
        self.alt = alt


@dataclass(frozen=True)
class Passed:
    """What a check says of a right answer, with a picture of it; `alt` says the same in words."""

    headline: str
    figure: Figure
    alt: str


class NotWritten(Exception):
    """The learner's code still raises NotImplementedError."""


def exercise(
    title: str, points: float
) -> Callable[[Callable[..., str | Passed]], Callable[..., Feedback]]:
    """Turn a function that raises `Mismatch`, or returns words of success, into a check.

    Standard error is held back while the check runs, also what libraries in C++ write past
    Python: nbgrader gives no points to a cell that writes there, and a warning or a progress bar
    is no mistake.
    """

    def decorate(body: Callable[..., str | Passed]) -> Callable[..., Feedback]:
        @functools.wraps(body)
        def check(*args: Any, **kwargs: Any) -> Feedback:
            with _quiet(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                feedback = _answer(body, args, kwargs)
            if lab := note(body, feedback):
                feedback = replace(feedback, in_lab=points_in_lab(lab))
            if not _in_notebook():
                print(feedback.message)
            return feedback

        check.max_points = points  # type: ignore[attr-defined]
        check.title = title  # type: ignore[attr-defined]
        return check

    def _answer(body: Callable[..., str | Passed], args: Any, kwargs: Any) -> Feedback:
        try:
            right = body(*args, **kwargs)
            if isinstance(right, str):
                return Feedback(title, "passed", points, points, right)
            drawn = png(right.figure)
            return Feedback(title, "passed", points, points, right.headline, (), drawn, right.alt)
        except NotWritten as missing:
            return Feedback(title, "not written yet", 0.0, points, str(missing))
        except Mismatch as wrong:
            picture = png(wrong.figure) if wrong.figure is not None else None
            return Feedback(
                title, "failed", 0.0, points, wrong.headline, wrong.details, picture, wrong.alt
            )
        except Exception as error:
            return Feedback(title, "failed", 0.0, points, *_stopped_by(error))

    return decorate


def _stopped_by(error: Exception) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Words for an error that nobody foresaw: in a check, or in what uses the answer there."""
    lines = traceback.format_tb(error.__traceback__)
    return (
        f"The check could not be completed: {type(error).__name__}: {_first_line(error)}",
        (
            ("It stopped here", "\n".join(lines[-1:]).rstrip()),
            (
                WHERE_TO_LOOK,
                "Does your answer return what the contract says? If it does, this is a fault of "
                "the course: please report it, with these lines.",
            ),
        ),
    )


def call(function: Callable[..., Any], *args: Any, given: str = "", **kwargs: Any) -> Any:
    """Call the learner's code; `given` describes the input, for the case that it raises.

    No call is without a limit: where none holds yet, a long one does, which what the engine does
    besides does not reach.
    """
    if not is_limited():
        try:
            with limit(LONG_TICKS):
                return call(function, *args, given=given, **kwargs)
        except TimeUp:
            raise Mismatch(NO_END, input=given, look=NO_END_LOOK) from None
    try:
        return function(*args, **kwargs)
    except (Mismatch, NotWritten):
        raise
    except Exception as error:
        frame = _learner_frame(error)
        if isinstance(error, NotImplementedError) and frame is not None and _is_stub(frame):
            raise NotWritten(
                f"`{frame.name}` still raises NotImplementedError. "
                "Replace that line with your code, run the cell, then run this check again."
            ) from None
        where = "in the code that called it"
        if frame is not None:
            where = f"at line {frame.lineno} of your code, in `{frame.name}`:\n    {frame.line}"
        raise Mismatch(
            f"Your code raised {type(error).__name__}: {_first_line(error)}",
            input=given,
            look=where,
        ) from None


def describe(value: Any, mask: Tensor | None = None) -> str:
    """A value in words: small tensors in full, large ones by shape and first differing entry."""
    if not isinstance(value, Tensor):
        text, kind = repr(value), type(value).__name__
        if len(text) < SHOWN:
            return f"`{text}`"
        many = isinstance(value, Collection) and not isinstance(value, str | bytes)
        return f"`{text[:SHOWN]} ...` (a {kind}" + (f" of {len(value)})" if many else ")")
    kind = f"shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    if value.numel() <= 16:
        numbers = str(torch.round(value.detach().double(), decimals=4).tolist())
        return f"`{numbers}` ({kind})"
    if mask is not None and mask.shape == value.shape and mask.any():
        index = tuple(int(i) for i in mask.nonzero()[0])
        return f"`{value[index].item():.5g}` at index {list(index)} ({kind})"
    return kind


def _learner_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost line that the learner wrote."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<frozen", *_LIBRARIES))
    ]
    return frames[-1] if frames else None


def _is_stub(frame: traceback.FrameSummary) -> bool:
    return "NotImplementedError" in (frame.line or "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["(no message)"])[0]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
        open(os.devnull, "w") as nowhere,
    ):
        warnings.simplefilter("ignore")
        usual = os.dup(STDERR)
        os.dup2(nowhere.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(usual, STDERR)
            os.close(usual)


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this, so that the HTML will be seen."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
