"""The site, built once, and served on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from filelock import FileLock

from tests.browser.axe import SITE_LOCK
from tests.browser.cdp import Page, a_page

ROOT = Path(__file__).resolve().parents[2]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built site. Each warning of the build is an error."""
    of_this_run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        of_this_run = of_this_run.parent  # all workers'
    done = of_this_run / "site-is-built"
    SITE_LOCK.parent.mkdir(exist_ok=True)
    with FileLock(SITE_LOCK):  # one worker builds, the others wait for it
        if not done.exists():
            built = subprocess.run(
                [sys.executable, str(ROOT / "site" / "build.py")], capture_output=True, text=True
            )
            assert built.returncode == 0, built.stdout + built.stderr
            done.touch()
    return ROOT / "build" / "site" / "html"


@pytest.fixture(scope="session")
def site(pages: Path) -> Iterator[str]:
    """The site's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(pages)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with a_page(tmp_path_factory.mktemp("chromium")) as found:
        yield found
