"""Runs a test once per notebook: name an argument `lesson` or `any_notebook`."""

from __future__ import annotations

import pytest

from tools.notebook_files import ROOT, executed_notebooks, labs, lessons


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    sources = {"lesson": lessons, "any_notebook": lambda: executed_notebooks() + labs()}
    for argument, find in sources.items():
        if argument in metafunc.fixturenames:
            paths = find()
            metafunc.parametrize(argument, paths, ids=[str(p.relative_to(ROOT)) for p in paths])
