"""The framework of the checks: points for nbgrader, words for the learner."""

from __future__ import annotations

import os
import sys
import warnings

import pytest
import torch
from matplotlib.figure import Figure
from nbformat.v4 import new_code_cell, new_output
from nbgrader.utils import determine_grade

from utils.checks.kit.contracts import Contract, Given, Returns, inputs, mistake
from utils.checks.kit.feedback import Feedback, png
from utils.checks.kit.runner import Mismatch, Passed, call, describe, exercise

DOUBLED = Contract(
    inputs=lambda c: Given(inputs.tensor(c, [c.size(1, 8)], layouts=["contiguous"])),
    judge=Returns(lambda x: 2 * x),
    passed="Doubled.",
    mistakes=(mistake("You square.", "Use 2 * x.", lambda x: x * x),),
)


def doubled_check(function):
    return DOUBLED.check(function)


check = exercise("Exercise 0: doubled", points=3)(doubled_check)


def nbgraders_grade(feedback: Feedback, points: float) -> tuple[float | None, float]:
    """What nbgrader 0.9 makes of a cell that ends in this feedback."""
    cell = new_code_cell("check(f)")
    cell.metadata["nbgrader"] = {"grade": True, "solution": False, "points": points}
    data = feedback._repr_mimebundle_()
    cell.outputs = [new_output("execute_result", data, execution_count=1)]
    return determine_grade(cell)


def test_nbgrader_reads_all_points_for_a_right_answer():
    feedback = check(lambda x: 2 * x)
    assert feedback.passed
    assert nbgraders_grade(feedback, 3) == (3, 3)


@pytest.mark.parametrize(
    "answer", [lambda x: x * x, lambda x: None, lambda x: 1 / 0, lambda x: "text"]
)
def test_nbgrader_reads_no_points_for_a_wrong_answer(answer):
    assert nbgraders_grade(check(answer), 3) == (0, 3)


def test_a_stub_is_not_written_yet():
    def stub(x):
        raise NotImplementedError

    feedback = check(stub)
    assert feedback.status == "not written yet"
    assert "`stub` still raises NotImplementedError" in feedback.message
    assert "Traceback" not in feedback.message


def test_a_stub_called_by_other_code_is_named():
    def helper(x):
        raise NotImplementedError

    feedback = check(lambda x: helper(x))
    assert feedback.status == "not written yet"
    assert "`helper`" in feedback.message


def test_not_implemented_inside_a_library_is_an_error_like_any_other():
    feedback = check(lambda x: torch.ops.aten.mm.default(x.to("meta"), x) if x.ndim else x)
    assert feedback.status == "failed"


def test_an_error_is_told_with_the_learners_line():
    def answer(x):
        wrong_shape = torch.ones(2, 3)
        return x.view(1, 1) @ wrong_shape

    feedback = check(answer)
    assert "RuntimeError" in feedback.headline
    assert "return x.view(1, 1) @ wrong_shape" in feedback.message
    assert "in `answer`" in feedback.message
    assert "runner.py" not in feedback.message


def test_the_line_is_the_learners_when_a_library_raises():
    feedback = check(lambda x: torch.nn.functional.layer_norm(x, (7,)))
    assert "torch.nn.functional.layer_norm(x, (7,))" in feedback.message


def test_standard_error_is_held_back(capsys):
    """nbgrader gives no points to a cell that writes to it."""

    def noisy(x):
        warnings.warn("careful", stacklevel=1)
        print("progress 50%", file=sys.stderr)
        return 2 * x

    assert check(noisy).passed
    assert capsys.readouterr().err == ""


def test_outside_of_jupyter_the_words_are_printed(capsys):
    feedback = check(lambda x: x * x)
    assert capsys.readouterr().out.strip() == feedback.message
    assert str(feedback) == feedback.message


def test_checks_leave_the_learners_random_numbers_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    check(lambda x: x + torch.rand(1))
    assert torch.equal(torch.rand(3), expected)


def test_html_escapes_what_a_learner_wrote():
    def answer(x):
        raise ValueError("<script>alert('x')</script>")

    html = check(answer).to_html()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_a_picture_has_words_beside_it():
    figure = Figure()
    figure.subplots().plot([1, 2])

    @exercise("Exercise 0", points=1)
    def drawn():
        raise Mismatch("Wrong.", figure=figure, alt="A rising line.")

    html = drawn().to_html()
    assert 'src="data:image/png;base64,' in html
    assert 'alt="A rising line."' in html
    assert png(figure).startswith(b"\x89PNG")


def test_a_right_answer_may_have_a_picture():
    figure = Figure()
    figure.subplots().plot([1, 2])

    @exercise("Exercise 0", points=2)
    def drawn():
        return Passed("Right.", figure, "A rising line.")

    feedback = drawn()
    assert feedback.passed
    assert feedback.points == 2
    assert "Right." in feedback.message
    assert 'src="data:image/png;base64,' in feedback.to_html()
    assert 'alt="A rising line."' in feedback.to_html()


def test_a_fault_of_the_check_itself_is_not_blamed_on_the_learner():
    @exercise("Exercise 0", points=1)
    def broken():
        raise KeyError("in the check")

    feedback = broken()
    assert feedback.points == 0
    assert feedback.headline == "The check could not be completed: KeyError: 'in the check'"
    said = dict(feedback.details)
    assert 'raise KeyError("in the check")' in said["It stopped here"]
    assert "please report it" in said["Where to look"]


def test_advice_is_folded_and_the_line_with_an_error_is_not():
    wrong, raised = check(lambda x: x * x), check(lambda x: 1 / 0)
    assert "<summary" in wrong.to_html() and "Use 2 * x." in wrong.message
    assert "<summary" not in raised.to_html() and "1 / 0" in raised.to_html()


def test_a_long_list_is_shown_by_its_beginning():
    assert describe([1, 2]) == "`[1, 2]`"
    told = describe([*range(100)])
    assert told.startswith("`[0, 1, 2") and told.endswith("...` (a list of 100)")


def test_what_a_lab_has_given_so_far_stands_beside_the_points():
    feedback = Feedback("Exercise 1", "passed", 2, 2, "Right.", in_lab="5 of 20 in this lab")
    assert "(2 of 2 points; 5 of 20 in this lab)" in feedback.message
    assert "(2 of 2 points; 5 of 20 in this lab)" in feedback.to_html()


def test_call_passes_arguments_and_results_through():
    assert call(lambda a, b=1: a + b, 2, b=3) == 5


def test_noise_past_python_costs_no_points(capfd):
    """A library in C++ writes to the file descriptor. nbgrader would give no points."""

    def noisy(x):
        os.write(2, b"[W] a warning of a library\n")
        return 2 * x

    feedback = check(noisy)
    os.write(2, b"afterwards it is heard again\n")
    assert feedback.passed
    assert capfd.readouterr().err == "afterwards it is heard again\n"
