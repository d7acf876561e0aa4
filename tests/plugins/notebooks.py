"""How nbval runs the notebooks: sizes of this scale, patience, and the tests' own artifacts."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.schedule import needs_stages
from tests.scale import FULL, PIPELINE_PROFILE, SCALE
from tests.scaled_cells import EDITS

ROOT = Path(__file__).parents[2]
ENV_VAR = "COURSE_PROFILE"  # utils.profiles has it, too, and imports torch
# nbval waits five seconds for the output of a cell that has ended; a busy machine needs more.
OUTPUT_TIMEOUT_S = 120
TRAINS = re.compile(r"ensure_(draft_model|medusa|eagle)\b")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each cell its size at this scale."""
    cells: dict[Path, list[Any]] = {}
    for item in items:
        if item.path.suffix == ".ipynb":
            cells.setdefault(item.path, []).append(item)
            item.output_timeout = OUTPUT_TIMEOUT_S  # type: ignore[attr-defined]
    for path, of_notebook in cells.items():
        if path.is_relative_to(ROOT / "solutions"):
            # A check's answer is its points, as text, and HTML with pictures, which may differ.
            of_notebook[0].parent.skip_compare += ("text/html",)
        if SCALE != FULL:
            name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
            sources = scaled([item.cell.source for item in of_notebook], name)
            for item, source in zip(of_notebook, sources, strict=True):
                item.cell.source = source


def scaled(sources: list[str], name: str) -> list[str]:
    """The cells of a notebook with its edits for the small size.

    Raises:
        pytest.UsageError: an edit's text does not stand in exactly one place.
    """
    for old, new in EDITS.get(name, ()):
        found = [place for place, source in enumerate(sources) if old in source]
        if len(found) != 1 or sources[found[0]].count(old) != 1:
            raise pytest.UsageError(
                f"tests/scaled_cells.py edits {old!r} in {name}, where it stands in "
                f"{len(found)} cells. It must stand in one place: quote the text as it is now."
            )
        sources[found[0]] = sources[found[0]].replace(old, new)
    return sources


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let the notebooks that read the pipeline's stages find those of this scale."""
    if item.path.suffix != ".ipynb" or ENV_VAR in os.environ or not needs_profile(item.path):
        return (yield)
    os.environ[ENV_VAR] = PIPELINE_PROFILE
    try:
        return (yield)
    finally:
        del os.environ[ENV_VAR]


@functools.cache  # it is asked for each cell
def needs_profile(notebook: Path) -> bool:
    """Whether a notebook uses what is trained: the pipeline's stages or the drafts."""
    return needs_stages(notebook) or bool(TRAINS.search(notebook.read_text(encoding="utf-8")))
