"""What needs Linux says so elsewhere, and what to do. Its users: tests/house/test_platforms.py."""

from __future__ import annotations

import sys

import pytest

from utils.linux_only import linux_only


def test_nothing_is_said_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert linux_only("vLLM") == ""


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_it_names_what_where_and_a_way_out(
    monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    words = linux_only("The pipeline")
    assert words.startswith("The pipeline runs on Linux")
    assert platform in words
    assert "Colab" in words
