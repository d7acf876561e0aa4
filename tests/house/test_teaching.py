"""The teacher's guide: its tables are those that its tool writes, and its plans fit their days."""

from __future__ import annotations

import pytest

from tools.teaching import GUIDE, PLANS, minutes, mistakes_of, plan_table, with_tables


def test_the_tables_are_up_to_date() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run python tools/teaching.py"


@pytest.mark.parametrize(("plan", "most"), [("half a day", 240), ("two days", 240)])
def test_no_half_day_is_longer_than_people_can_listen(plan: str, most: int) -> None:
    for _, parts in PLANS[plan]:
        assert sum(map(minutes, parts)) <= most


def test_exercises_are_counted_one_by_one() -> None:
    whole = minutes("lab 02")
    assert sum(minutes(f"lab 02: {number}") for number in range(1, 7)) == whole
    assert minutes("lab 02: 1, 3") == minutes("lab 02: 1") + minutes("lab 02: 3")
    assert f"**{minutes('00') + minutes('02') + minutes('04') + minutes('lab 04: 1, 2, 3')}**" in (
        plan_table("half a day")
    )


def test_a_labs_mistakes_stand_with_their_exercise() -> None:
    found = dict(mistakes_of("02"))
    assert any("key *and* a value" in words for words in found["Exercise 1: kv_cache_bytes"])


def test_missing_marks_are_named() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        with_tables("# Teach")
