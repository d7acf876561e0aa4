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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit.feedback import Feedback, png

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
                ("Where to look", look),
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

    Standard error is held back while the check runs: nbgrader gives no points to a cell that
    writes there, and a warning or a progress bar is no mistake.
    """

    def decorate(body: Callable[..., str | Passed]) -> Callable[..., Feedback]:
        @functools.wraps(body)
        def check(*args: Any, **kwargs: Any) -> Feedback:
            with _quiet(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                feedback = _answer(body, args, kwargs)
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

    return decorate


def call(function: Callable[..., Any], *args: Any, given: str = "", **kwargs: Any) -> Any:
    """Call the learner's code; `given` describes the input, for the case that it raises."""
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


@dataclass(frozen=True)
class Case:
    """One input with the oracle's answer. Cases are listed from the smallest to the largest."""

    given: str
    args: tuple[Any, ...]
    expected: Tensor
    rtol: float = 1e-4
    atol: float = 1e-5


@dataclass(frozen=True)
class Bug:
    """A known mistake: `wrong` computes what it makes of the same input, `says` names it."""

    says: str
    look: str
    wrong: Callable[..., Any]


def compare(
    function: Callable[..., Any],
    cases: Sequence[Case],
    bugs: Sequence[Bug] = (),
    picture: Callable[[Case, Tensor], tuple[Figure, str]] | None = None,
) -> None:
    """Check `function` on each case; raise `Mismatch` about the first case that is wrong.

    A bug is named only if it explains the learner's answers on all cases, so that an accidental
    agreement on a small input does not mislead.
    """
    for case in cases:
        got = _call_on(function, case)
        problem = _problem(got, case)
        if not problem:
            continue
        bug = _diagnose(function, cases, bugs)
        figure, alt = (None, "")
        # A picture is an extra: it must not hide the words if the code fails on its input.
        if picture is not None and isinstance(got, Tensor):
            with contextlib.suppress(Exception):
                figure, alt = picture(case, got)
        raise Mismatch(
            bug.says if bug else problem,
            input=case.given,
            expected=describe(case.expected, _differing(got, case)),
            got=describe(got, _differing(got, case)),
            look=bug.look if bug else "",
            figure=figure,
            alt=alt,
        )


@dataclass(frozen=True)
class NumberCase:
    """One input of a function that returns a number or a tuple of numbers."""

    given: str
    args: tuple[Any, ...]
    expected: Any


def compare_numbers(
    function: Callable[..., Any], cases: Sequence[NumberCase], bugs: Sequence[Bug] = ()
) -> None:
    """Like `compare`, for exact numbers: an int may come as a float of the same value."""
    answers = [(case, call(function, *case.args, given=case.given)) for case in cases]
    for case, got in answers:
        if got is None:
            raise Mismatch("Your function returned None. Is the `return` missing?")
        if got == case.expected:
            continue
        for bug in bugs:
            if all(answer == bug.wrong(*c.args) for c, answer in answers):
                says, look = bug.says, bug.look
                break
        else:
            says, look = "The number is wrong.", ""
            if isinstance(got, int | float) and got and isinstance(case.expected, int):
                says = f"The number is {got / case.expected:.4g} times what it should be."
        raise Mismatch(
            says, input=case.given, expected=describe(case.expected), got=describe(got), look=look
        )


def describe(value: Any, mask: Tensor | None = None) -> str:
    """A value in words: small tensors in full, large ones by shape and first differing entry."""
    if not isinstance(value, Tensor):
        return f"`{value!r}`" if len(repr(value)) < 200 else f"{type(value).__name__}"
    kind = f"shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    if value.numel() <= 16:
        numbers = str(torch.round(value.detach().double(), decimals=4).tolist())
        return f"`{numbers}` ({kind})"
    if mask is not None and mask.shape == value.shape and mask.any():
        index = tuple(int(i) for i in mask.nonzero()[0])
        return f"`{value[index].item():.5g}` at index {list(index)} ({kind})"
    return kind


def _call_on(function: Callable[..., Any], case: Case) -> Any:
    """Call on copies of the inputs, and refuse an answer that changed them."""
    args = tuple(a.clone() if isinstance(a, Tensor) else a for a in case.args)
    got = call(function, *args, given=case.given)
    for position, (before, after) in enumerate(zip(case.args, args, strict=True)):
        if isinstance(before, Tensor) and not torch.equal(before, after):
            raise Mismatch(
                f"Your function changes its argument number {position + 1} in place. "
                "The caller still needs the old values.",
                input=case.given,
                look="Operations such as `x *= y`, `x[...] = y` and `x.mul_(y)` write into `x`. "
                "Compute a new tensor instead.",
            )
    return got


def _problem(got: Any, case: Case) -> str:
    """What is wrong with an answer, in one sentence; empty if nothing is."""
    expected = case.expected
    if got is None:
        return "Your function returned None. Is the `return` missing?"
    if not isinstance(got, Tensor):
        return f"Your function returned a {type(got).__name__}; expected a torch.Tensor."
    if got.shape != expected.shape:
        return f"The shape is {tuple(got.shape)}; expected {tuple(expected.shape)}."
    if got.dtype != expected.dtype:
        return (
            f"The dtype is {_dtype(got)}; expected {_dtype(expected)}, that of the input. "
            "Convert back at the end."
        )
    if got.isnan().any():
        return "Your result contains NaN (0 / 0, or a softmax over nothing but -inf)."
    if not torch.allclose(got.double(), expected.double(), rtol=case.rtol, atol=case.atol):
        difference = (got.double() - expected.double()).abs()
        share = _differing(got, case)
        count = int(share.sum()) if share is not None else 0
        return (
            f"{count} of {got.numel()} numbers are wrong; the largest difference is "
            f"{difference.max().item():.3g} (allowed: {case.atol:g} + {case.rtol:g} x |expected|)."
        )
    return ""


def _differing(got: Any, case: Case) -> Tensor | None:
    if not isinstance(got, Tensor) or got.shape != case.expected.shape:
        return None
    return ~torch.isclose(got.double(), case.expected.double(), rtol=case.rtol, atol=case.atol)


def _diagnose(
    function: Callable[..., Any], cases: Sequence[Case], bugs: Sequence[Bug]
) -> Bug | None:
    answers = [_outcome(function, case) for case in cases]
    for bug in bugs:
        wrong = [_outcome(bug.wrong, case) for case in cases]
        if all(_same(a, w, c) for a, w, c in zip(answers, wrong, cases, strict=True)):
            return bug
    return None


def _outcome(function: Callable[..., Any], case: Case) -> Any:
    """The answer on copies of the inputs, or the type of the error."""
    try:
        return function(*(a.clone() if isinstance(a, Tensor) else a for a in case.args))
    except Exception as error:
        return type(error)


def _same(one: Any, other: Any, case: Case) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other
    if one.shape != other.shape:
        return False
    return torch.allclose(
        one.double(), other.double(), rtol=10 * case.rtol, atol=10 * case.atol, equal_nan=True
    )


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


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this, so that the HTML will be seen."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
