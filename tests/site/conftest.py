"""The site, built once, and served on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.site.browser import Page, a_page

ROOT = Path(__file__).resolve().parents[2]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def pages() -> Path:
    """The folder with the built site. Each warning of the build is an error."""
    built = subprocess.run(
        [sys.executable, str(ROOT / "site" / "build.py")], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
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
