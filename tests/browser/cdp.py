"""A headless Chromium, spoken to through its DevTools protocol: open a page, evaluate, press keys.

The protocol: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from websockets.sync.client import connect

from utils.processes.supervised import stop, supervised

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# As root in a container Chromium has no sandbox; and it shall look nothing up at its maker's.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--hide-scrollbars",
)
PATIENCE_S = 120  # on a busy machine
# The keys that have no letter: what the protocol wants beside their name.
KEYS = {"Enter": 13, "Tab": 9, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


class Page:
    """A tab. Keeps the addresses that it asked for in `asked`."""

    def __init__(self, address: str) -> None:
        # (No pings: while a page computes, its browser may leave them unanswered for long.)
        self._socket = connect(address, max_size=None, ping_interval=None)
        self._numbers = itertools.count(1)
        self.asked: list[str] = []
        for domain in ("Page", "Network", "Runtime"):
            self._send(f"{domain}.enable")
        # A page that nobody looks at has no focus, and JupyterLab then has no notebook in front.
        self._send("Emulation.setFocusEmulationEnabled", enabled=True)

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=PATIENCE_S))
            if message.get("method") == "Network.requestWillBeSent":
                self.asked.append(message["params"]["request"]["url"])
            elif message.get("method") == "Network.webSocketCreated":
                self.asked.append(message["params"]["url"])
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return message["result"]

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Go there, and wait until all that the page asks for has come."""
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])
        self._send("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression; of a promise, what it promises."""
        result = self._send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, script: str, patience_s: float = PATIENCE_S) -> Any:
        """Until the script's value is true (as JavaScript has it); that value."""
        end = monotonic() + patience_s
        while not (value := self.evaluate(script)):
            assert monotonic() < end, f"never true: {script}"
            sleep(0.1)
        return value

    def press(self, key: str) -> None:
        """A key of `KEYS`, goes to what has the focus."""
        about = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        written = {"text": "\r"} if key == "Enter" else {}
        self._send("Input.dispatchKeyEvent", type="keyDown", **about, **written)
        self._send("Input.dispatchKeyEvent", type="keyUp", **about)

    def write(self, text: str) -> None:
        """Text, goes to what has the focus."""
        self._send("Input.insertText", text=text)

    def picture(self, file: Path) -> None:
        """Save what is seen as a PNG, for a human to look at."""
        file.write_bytes(base64.b64decode(self._send("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._socket.close()


def chromium() -> str:
    """The program's path; skips the test, and says how to get one, where there is none."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("needs Chromium; on Debian and Ubuntu: apt-get install chromium")
    return program


@contextmanager
def a_page(folder: Path) -> Iterator[Page]:
    """One page of a new Chromium, which keeps its files in `folder` and ends with the test."""
    command = [chromium(), *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        supervised(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        said, end = folder / "DevToolsActivePort", monotonic() + PATIENCE_S
        while not (said.exists() and said.read_text()):
            assert process.poll() is None and monotonic() < end, "Chromium does not start"
            sleep(0.1)
        port = said.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            tabs = json.load(answer)
        page = Page(next(t["webSocketDebuggerUrl"] for t in tabs if t["type"] == "page"))
        yield page
        page.close()
    finally:
        stop(process)
