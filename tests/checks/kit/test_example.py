"""The check of notebook 00 knows right from wrong."""

from __future__ import annotations

from utils.checks.kit.example import mean_of_squares


def test_right_wrong_and_not_written() -> None:
    def unwritten(numbers: list[float]) -> float:
        raise NotImplementedError

    assert mean_of_squares(lambda numbers: sum(x**2 for x in numbers) / len(numbers)).passed
    wrong = mean_of_squares(lambda numbers: (sum(numbers) / len(numbers)) ** 2)
    assert not wrong.passed
    assert "numbers [1.0, -1.0]" in wrong.message
    assert not mean_of_squares(lambda numbers: None).passed
    assert "still raises NotImplementedError" in mean_of_squares(unwritten).message
