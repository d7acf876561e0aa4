"""The site's page about dollars shows what the planner says today."""

from __future__ import annotations

import pytest

from utils.planning.page import PAGE, PLANS, cards, filled, plans
from utils.planning.prices import PRICES


def test_the_page_is_in_step() -> None:
    text = PAGE.read_text()
    assert filled(text) == text, "Run: python -m utils.planning.page"


def test_every_card_and_plan_has_a_row() -> None:
    assert cards().count("\n") == 1 + len(PRICES)
    assert plans().count("\n") == 1 + len(PLANS)
    assert "Even one request at a time" in plans()  # an L4 is too slow for 8B in 16 bits


def test_a_page_without_places_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the table 'cards'"):
        filled("# a page")
