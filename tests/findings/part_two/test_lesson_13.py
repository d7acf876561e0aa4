"""What notebook 13 says on a fast, a slow and a noisy machine."""

from __future__ import annotations

from utils.findings.part_two.lesson_13 import form_and_truth, guesses_pay, largest_step, line_holds


def test_the_line_holds() -> None:
    said = line_holds(miss=1.1, hit=0.82, drift=1.0)
    assert said.startswith("Within 18% for both") and "hits and misses alike" in said


def test_the_line_is_off() -> None:
    noisy = line_holds(miss=1.46, hit=1.34, drift=1.4)
    assert "+46% for misses and +34% for hits" in noisy
    assert "long random prompts that fixed it take 1.40" in noisy
    curved = line_holds(miss=0.97, hit=1.6, drift=1.02)
    assert "-3% for misses" in curved and "too simple" in curved


def test_guesses() -> None:
    said = guesses_pay([1.7, 2.1, 1.9], 0.79)
    assert "each of the 3 is served faster with guesses (1.70 to 2.10" in said
    assert said.endswith("All at once it is slower: 0.79 times as fast.")
    assert "slower with guesses" in guesses_pay([0.5, 0.9], 1.3)
    assert "all at once it is faster" in guesses_pay([0.5, 0.9], 1.3).lower()
    unclear = guesses_pay([0.9, 1.2], 1.02)
    assert "do not agree" in unclear and "no faster" in unclear


def test_form_is_not_truth() -> None:
    said = form_and_truth((0, 0), (1, 0.1), (1, 0.9))
    assert "from 0% to 100%" in said and said.endswith("A schema gives form, not truth.")
    assert "was enough" in form_and_truth((0.1, 0.1), (1, 0.95), (1, 0.95))
    assert "cut off" in form_and_truth((0.9, 0.1), (0.7, 0.1), (1, 0.95))


def test_largest_step() -> None:
    assert largest_step(5.4, 1.9).startswith("The largest step here is that requests run together")
    assert largest_step(1.2, 3.0).startswith("The largest step here is the prefix cache")
    assert "busy" in largest_step(1.0, 0.9)
