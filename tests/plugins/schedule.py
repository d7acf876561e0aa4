"""Which test runs when, and on which worker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Seconds of each file in an earlier run: what takes long begins early.
TIMES = ROOT / "proofs" / "times.json"

# What starts several vLLM servers, and takes 10 GB or more.
SERVERS = re.compile(r"notebooks/1[567]_|tests/\w+/test_vllm_")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker a whole file at a time, or all tests of one lab: a model is loaded once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    return ByFile(config, log)


def scope(nodeid: str) -> str:
    """What a worker takes at once: a file, or the tests of one lab within it."""
    file, _, test = nodeid.partition("::")
    if SERVERS.search(file):
        return "several vLLM servers"  # one worker, one after the other
    lab = re.search(r"\[(lab_\d\d[a-z]?)", test)
    return f"{file} {lab[1]}" if lab else file


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """First what failed the last time, then by rank; within a rank what takes longest."""
    cache = getattr(config, "cache", None)  # none with `-p no:cacheprovider`
    last = cache.get("cache/lastfailed", {}) if cache else {}
    failed = {node.partition("::")[0] for node in last}
    waiting = {item.path for item in items if "pipeline_run" in getattr(item, "fixturenames", ())}
    times = json.loads(TIMES.read_text())["seconds"] if TIMES.is_file() else {}
    keys = {}
    for path in {item.path for item in items}:
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
        # The servers' files go to one worker as one group, so they stay together.
        length = 0 if SERVERS.search(name) else -times.get(name, 0)
        keys[path] = (name not in failed, _rank(path, path in waiting), length)
    items.sort(key=lambda item: keys[item.path])  # stable: the tests of a file keep their order


def _rank(path: Path, waiting: bool) -> int:
    """0: the pipeline, which others wait for. 1: what needs most memory, while workers are small.

    2: everything else, the longest first. 3: what needs the pipeline's stages (`waiting`, and some
    notebooks): they are there by then, and no worker waits for the other. 4: the many answers of
    the bug zoo, lab by lab, so that both workers end at about the same time.
    """
    if path.name == "test_pipeline_run.py":
        return 0
    if SERVERS.search(path.as_posix()):
        return 1
    if waiting or (path.suffix == ".ipynb" and needs_stages(path)):
        return 3
    return 4 if path.name in ("test_known_mistakes.py", "test_bug_zoo.py") else 2


def needs_stages(notebook: Path) -> bool:
    """Whether a notebook reads what the pipeline has made."""
    return "need_stages" in notebook.read_text(encoding="utf-8")
