"""What notebook 11 says on a fast, a slow and a noisy machine."""

from __future__ import annotations

from utils.findings.part_two.lesson_11 import nearer, step_cost, surer


def test_cost_of_an_adapter() -> None:
    assert (
        step_cost(0.036, 1.19) == "4% more numbers, 19% more time: more than the numbers explain."
    )
    assert "about what the numbers explain" in step_cost(0.036, 1.04)
    assert "busy" in step_cost(0.036, 0.93)


def test_who_is_nearer() -> None:
    lengths = [0.093, 0.065]
    said = nearer([0.0022, 0.0021, 0.0023], [0.0016, 0.0016, 0.0016], lengths)
    assert "are 9.3% and 6.5% away" in said
    assert "is 0.0022 and 0.0016: a difference of -0.0006 ± 0.00011." in said
    assert said.endswith("So (f) is nearer to (a), as its weights are.")
    other = nearer([0.0010, 0.0011, 0.0009], [0.003, 0.003, 0.003], lengths)
    assert "So (c) is nearer to (a), though its weights are not: a length is not" in other
    noisy = nearer([0.0022, 0.0001, 0.0044], [0.0016, 0.0031, 0.0008], lengths)
    assert noisy.endswith("The interval holds 0: in KL, these tokens cannot tell which is nearer.")


def test_who_is_surer() -> None:
    noisy = surer([0.5, -0.6, 0.1, -0.1])
    assert "cannot tell the two apart" in noisy
    assert surer([-0.011, -0.010, -0.012]).endswith("(f) is surer of the right answers.")
    assert surer([0.011, 0.010, 0.012]).endswith("(c) is surer of the right answers.")
