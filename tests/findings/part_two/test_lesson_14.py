"""What notebook 14 says on a fast, a slow and a noisy machine."""

from __future__ import annotations

from utils.findings.part_two.lesson_14 import (
    bursts_agree,
    execution_share,
    formula_holds,
    overload,
    promise_breaks,
    promises_kept,
)


def test_three_numbers_that_explain_a_wait_and_some_that_do_not() -> None:
    said = bursts_agree(0.079, 0.063)
    assert said == (
        "By these numbers a request alone waits 79 ms for its first token; measured: 63 ms."
    )
    assert "do not explain the wait. Either" in bursts_agree(0.033, 0.083)
    assert "That cannot be" in bursts_agree(0.2, 0.063)


def test_promises_that_break_where_the_simulation_said() -> None:
    said = promises_kept([1.3, 2.9, 6.9], [1.0, 0.7, 0.0], [1.0, 0.8, 0.1])
    assert said == (
        "In time, rate by rate: 100%, 70%, 0%; simulated with the same arrivals: 100%, 80%, 10%."
    )


def test_promises_that_break_elsewhere() -> None:
    noisy = promises_kept([1.3, 2.9], [0.6, 0.2], [1.0, 0.3])
    assert "otherwise: at 1.3/s 60% were in time, simulated 100%" in noisy
    assert "busy machine" in noisy
    fast = promises_kept([1.3, 2.9, 4.5], [1.0, 0.95, 0.4], [1.0, 0.6, 0.3])
    assert "better than simulated: at 2.9/s 95% were in time, simulated 60%" in fast


def test_up_to_which_rate_the_formula_holds() -> None:
    def said(*tpots: float) -> str:  # by the formula 0.05, 0.08 and 0.2 s, and then none
        return formula_holds(0.04, 10.0, [2.0, 5.0, 8.0, 12.0], tpots)

    assert said(0.05, 0.09, 0.1, 0.2) == "The formula gives the time per token up to 5.0/s"
    assert said(0.05, 0.08, 0.2, 0.3).endswith("up to 8.0/s")  # it has no value at 12.0
    assert said(0.05, 0.2, 0.2, 0.3).endswith("up to 2.0/s")  # a disturbed rate ends it
    assert said(0.03, 0.08, 0.2, 0.3) == "The formula misses the time per token from 2.0/s on"


def test_the_rate_at_which_the_promise_breaks() -> None:
    rates = [2.5, 5.0, 8.0]
    assert promise_breaks(rates, [1.0, 0.9, 0.19]) == (
        "At 8.0 requests per second only 19% are in time"
    )
    assert "At 2.5 requests per second only 80%" in promise_breaks(rates, [0.8, 1.0, 0.1])
    assert promise_breaks(rates, [1.0, 0.97, 0.95]) == (
        "At each of these rates at least 95% are in time"
    )


def test_goodput_shows_overload() -> None:
    said = overload([1.7, 2.3, 3.3, 4.5], [1.7, 2.1, 1.0, 0.0])
    assert "fall from 2.1 to 0.0" in said and "4.5 per second" in said
    assert "no overload" in overload([1.7, 2.3, 3.3], [1.7, 2.3, 3.2])
    assert "Does something else run" in overload([1.7, 4.0, 2.0], [1.7, 2.0, 0.1])


def test_no_answer_in_time_is_no_finding() -> None:
    said = overload([4.7, 6.1, 6.7, 9.2], [0, 0, 0, 0])
    assert said.startswith("At no rate was an answer in time") and "fall" not in said


def test_share_of_execution() -> None:
    assert execution_share(0.977).startswith("Execution is 97.7%: here the model is nearly")
    assert "no small change" in execution_share(0.7)
    assert "less than half" in execution_share(0.3)
