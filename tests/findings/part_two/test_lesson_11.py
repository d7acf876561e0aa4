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
    said = nearer([0.0022, 0.0016], [0.093, 0.065])
    assert "9.3% and 6.5% away" in said and "(f) is nearer to (a): 0.0016, and (c) 0.0022" in said
    assert "whose weights are nearer" in said
    assert "a length is not an effect" in nearer([0.001, 0.003], [0.093, 0.065])
    assert "equally far from (a)" in nearer([0.0020, 0.0019], [0.093, 0.065])


def test_who_is_surer() -> None:
    noisy = surer([0.5, -0.6, 0.1, -0.1])
    assert "cannot tell the two apart" in noisy
    assert surer([-0.011, -0.010, -0.012]).endswith("(f) is surer of the right answers.")
    assert surer([0.011, 0.010, 0.012]).endswith("(c) is surer of the right answers.")
