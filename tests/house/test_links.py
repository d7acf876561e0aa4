"""Links and named files in texts and notebooks lead somewhere; and a dead one would be noticed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tools import links
from tools.notebook_files import executed_notebooks, labs

ROOT = Path(__file__).resolve().parents[2]


def test_all_links_lead_somewhere() -> None:
    files = links.course_files()
    assert {*executed_notebooks(), *labs(), ROOT / "README.md", ROOT / "TEACHING.md"} <= set(files)
    assert links.problems(files) == []
    # They were really seen: notebooks link to each other, to Colab, and to papers.
    seen = [link.target for file in executed_notebooks() for link in links.links_of(file)]
    assert sum("colab.research.google.com" in target for target in seen) >= 30
    assert sum("arxiv.org" in target for target in seen) >= 30


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A small course with one page, one lesson, and a text to be filled in."""
    (tmp_path / "page.md").write_text(
        "# A `KV` cache, [twice](x)!\n\n```sh\n# no heading\n```\n\n## Same\n\n## Same\n"
    )
    cells = [
        {"cell_type": "markdown", "source": ["## Why it hurts\n", "text"]},
        {"cell_type": "code", "source": ["# [no](link.md)"]},
    ]
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "one lesson.ipynb").write_text(json.dumps({"cells": cells}))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[a](page.md) ![b](page.md) <a href="page.md">c</a> [d](lessons) [e](#here)', []),
        ("[a](page.md#a-kv-cache-twice) [b](page.md#same-1)", []),
        ("[a](lessons/one%20lesson.ipynb#why-it-hurts) [b](<lessons/one%20lesson.ipynb>)", []),
        ("[a](lessons/one%20lesson.ipynb#Why-it-hurts)", []),
        ("`[a](nowhere.md)` and\n```\n[b](nowhere.md)\n```\n", []),
        ("[a](https://example.org/nowhere.md) [b](mailto:a@example.org)", []),
        (f"[a]({links.REPOSITORY}/blob/main/page.md)", []),
        ("[a](nowhere.md)", ["nowhere.md does not exist"]),
        ('<img src="nowhere.png">', ["nowhere.png does not exist"]),
        ("[a](page.md#no-heading)", ["page.md has no heading of that name"]),
        ("[a](page.md#same-2)", ["page.md has no heading of that name"]),
        ("[a](#there)", ["text.md has no heading of that name"]),
        ("[a](../../etc)", ["leads out of the repository"]),
        (f"[a]({links.REPOSITORY}/blob/main/nowhere.md)", ["does not exist"]),
    ],
)
def test_a_dead_link_is_found(course: Path, text: str, says: list[str]) -> None:
    file = course / "text.md"
    file.write_text(f"# Here\n\n{text}\n")
    found = [said for link in links.links_of(file) if (said := links.broken(link, course))]
    assert len(found) == len(says)
    assert all(words in said for words, said in zip(says, found, strict=True))


def test_links_in_a_notebook_are_those_of_its_texts(course: Path) -> None:
    cells = [
        {
            "cell_type": "markdown",
            "source": ["see [a](gone.md)\n", "and `utils/gone.py`, `utils/hub.py`, `labs/NN_name`"],
        },
        {"cell_type": "code", "source": ["# [no](link.md)"]},
    ]
    (course / "it.ipynb").write_text(json.dumps({"cells": cells}))
    (course / "utils").mkdir()
    (course / "utils" / "hub.py").touch()
    found = links.problems([course / "it.ipynb"], course)
    assert [said.rpartition(": ")[2] for said in found] == [
        "gone.md does not exist",
        "utils/gone.py does not exist",
    ]


# --- other sites --------------------------------------------------------------------------------


class Site(BaseHTTPRequestHandler):
    """Answers with the status that its address names; /get with 405 where it is not a GET."""

    def do_HEAD(self) -> None:
        self.do_GET(head=True)

    def do_GET(self, head: bool = False) -> None:
        name = self.path.strip("/")
        self.send_response((405 if head else 200) if name == "get" else int(name))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("page", "there"),
    [("200", True), ("get", True), ("404", False), ("410", False), ("403", None), ("503", None)],
)
def test_what_a_site_says(site: str, page: str, there: bool | None) -> None:
    assert links.ask(f"{site}/{page}")[0] is there


def test_gone_pages_are_counted_and_named(
    site: str, course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = course / "text.md"
    file.write_text(f"[a]({site}/200) [b]({site}/404#part) [c]({site}/404) [d]({site}/403)")
    addresses = links.external([file])
    assert list(addresses) == [f"{site}/200", f"{site}/404", f"{site}/403"]
    assert links.check_external(addresses, pause=0) == 1
    said = capsys.readouterr().out
    assert f"GONE: {file}: {site}/404#part (404" in said and f"unsure: {file}: {site}/403" in said


def test_no_network_is_not_taken_for_success() -> None:
    dead = links.Link(ROOT / "README.md", "http://127.0.0.1:9/")
    assert links.check_external({dead.target: dead}, pause=0) == 1


def test_other_sites_are_asked_each_week() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    job = workflow["jobs"]["links"]
    assert "schedule" in job["if"]
    assert "python tools/links.py --external" in [step.get("run") for step in job["steps"]]
