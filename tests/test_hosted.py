"""Which service a notebook runs on."""

from __future__ import annotations

import pytest

from utils.hosted import MARKS, host


def test_kaggle_is_known_even_under_colabs_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    for mark in MARKS.values():
        monkeypatch.delenv(mark, raising=False)
    assert host() is None
    monkeypatch.setenv(MARKS["Colab"], "release-colab-external_20261101")
    assert host() == "Colab"
    monkeypatch.setenv(MARKS["Kaggle"], "Interactive")
    assert host() == "Kaggle"
