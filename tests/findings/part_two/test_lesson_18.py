"""What notebook 18 says, on machines that are made up."""

from __future__ import annotations

from utils.findings.part_two.lesson_18 import company_pays, rounds_agree, who_leads


def test_a_clear_lead_and_none() -> None:
    said = who_leads(
        {"1 user": {"a": 30.0, "b": 10.0, "c": 20.0}, "8 users": {"a": 50.0, "b": 52.0}}
    )
    assert said == (
        "With 1 user, a writes most: 1.5 times as much as c. "
        "With 8 users, b and a write about the same."
    )


def test_company_helps_some_or_all() -> None:
    some = company_pays({"a": 10.0, "b": 10.0}, {"a": 40.0, "b": 11.0}, 8)
    assert "a 4.0, b 1.1" in some and some.endswith("No gain worth the name: b.")
    assert company_pays({"a": 10.0}, {"a": 20.0}, 8).endswith("All gain from company.")


def test_the_widest_spread_is_named() -> None:
    said = rounds_agree({"a": [10.0, 11.0], "b": [10.0, 14.0, 12.0]})
    assert "b differs most, by a factor of 1.40" in said
