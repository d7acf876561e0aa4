"""What several tests share: ranks, which take seconds to start, and a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.tiny_engines import tiny_llama
from utils.engine import LLM
from utils.processes.ranks import RankProcesses


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[RankProcesses]:
    with RankProcesses(4, timeout=60) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of three layers."""
    path: Path = tmp_path_factory.mktemp("tiny")
    tiny_llama(path, seed=3, layers=3)
    return path


@pytest.fixture(scope="module")
def alone(request: pytest.FixtureRequest, folder: Path) -> LLM:
    """The engine in one process, with the `SETTINGS` of the test's module."""
    return LLM(folder, **request.module.SETTINGS)
