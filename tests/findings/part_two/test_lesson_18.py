"""What notebook 18 says, on machines that are made up."""

from __future__ import annotations

from typing import Any

from utils.findings.part_two.lesson_18 import company_pays, leader, rounds_agree, who_leads


def servers(**rounds: list[float]) -> dict[str, dict[str, Any]]:
    """Measures as in the report, of three rounds each."""
    return {
        name: {"tokens_per_second": sorted(speeds)[1], "rounds": speeds}
        for name, speeds in rounds.items()
    }


def test_a_clear_lead_and_none() -> None:
    quiet = servers(a=[29.8, 30.0, 30.5], b=[10.0, 10.1, 9.9], c=[20.0, 20.0, 20.0])
    noisy = servers(a=[190.0, 251.0, 259.0], b=[201.0, 186.0, 197.0])  # b wins the first round
    assert who_leads({"1 user": quiet, "8 users": noisy}) == (
        "With 1 user, a writes most in every round: at least 1.4 times as much as c. "
        "With 8 users, there is no clear lead: round by round, a wrote 0.95 to 1.35 times as much "
        "as b."
    )


def test_a_small_lead_in_every_round_is_none() -> None:
    assert "no clear lead: round by round, a wrote 1.05 to 1.20 times as much as b" in leader(
        "8 users", servers(a=[105.0, 120.0, 110.0], b=[100.0, 100.0, 100.0])
    )


def test_a_machine_that_slows_down_for_a_round_takes_no_lead_away() -> None:
    said = leader("8 users", servers(a=[400.0, 40.0, 400.0], b=[200.0, 20.0, 200.0]))
    assert said.endswith("a writes most in every round: at least 2.0 times as much as b.")


def test_who_comes_nearest_in_any_round_is_compared_with() -> None:
    found = servers(a=[100.0, 100.0, 100.0], b=[80.0, 80.0, 80.0], c=[70.0, 120.0, 70.0])
    assert "a wrote 0.83 to 1.43 times as much as c" in leader("8 users", found)


def test_company_helps_some_or_all() -> None:
    some = company_pays({"a": 10.0, "b": 10.0}, {"a": 40.0, "b": 11.0}, 8)
    assert "a 4.0, b 1.1" in some and some.endswith("No gain worth the name: b.")
    assert company_pays({"a": 10.0}, {"a": 20.0}, 8).endswith("All gain from company.")


def test_the_widest_spread_is_named() -> None:
    said = rounds_agree(
        {
            "a with 1 user": [10.0, 11.0],
            "b with 1 user": [10.0, 14.0, 12.0],
            "b with 8 users": [100.0, 101.0],
        }
    )
    assert "b with 1 user differs most, by a factor of 1.40. So look at the thin lines" in said
