"""axe-core (https://github.com/dequelabs/axe-core) looks for what keeps people out of a page.

Its script comes with the environment that builds the site: requirements/site.lock.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

from filelock import FileLock

from tests.browser.cdp import Page

ROOT = Path(__file__).resolve().parents[2]
# Two workers of one run share the site's environment and its folder.
SITE_LOCK = ROOT / "build" / "site.filelock"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


@dataclass(frozen=True)
class Barrier:
    """What axe found: its rule, where on the page, and the words that say what is wrong."""

    rule: str
    where: str
    element: str
    why: str


@cache
def _script() -> str:
    """The text of axe.min.js. Installs the site's environment where it is not there yet."""
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "site" / "build.py")
    assert spec and spec.loader
    build = importlib.util.module_from_spec(spec)
    with mock.patch.object(sys, "path", [*sys.path]):  # the program adds to it
        spec.loader.exec_module(build)
    SITE_LOCK.parent.mkdir(exist_ok=True)
    with FileLock(SITE_LOCK):
        environment = build.install().parents[1]
    [script] = environment.glob("lib/python*/site-packages/axe_playwright_python/axe.min.js")
    return script.read_text(encoding="utf-8")


def barriers(page: Page, within: str = "body", without: str = "") -> list[Barrier]:
    """What axe finds wrong on the page that is open.

    Args:
        within: CSS selector of what it looks at
        without: of what it leaves out there
    """
    if not page.evaluate("!!window.axe"):
        page.evaluate(_script() + "; true")
    options = {"resultTypes": ["violations"], "runOnly": RULES}
    place = {"include": [within], "exclude": [without] if without else []}
    found = page.evaluate(
        f"axe.run({json.dumps(place)}, {json.dumps(options)}).then(r => "
        "r.violations.flatMap(v => v.nodes.map(n => [v.id, n.target.flat().join(' '), n.html,"
        " n.failureSummary])))"
    )
    return [Barrier(*words) for words in found]
