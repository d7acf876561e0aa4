"""A release is made of what agrees, holds what it should, and is the same bytes each time."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

from tools.proof.parts import PARTS
from tools.release import (
    FULL_PARTS,
    ReleaseError,
    build,
    changes,
    check,
    require_full_proof,
    require_tested,
)

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """\
# Changes

## 0.3.0 (unreleased)

- Not yet.

## 0.2.0

- Now. See `## 0.1.0`.

### Details

- More.

## 0.2.0.1

## 0.1.0

- First.
"""


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A small repository, at version 0.2.0, with a site that was built."""
    files = {
        "pyproject.toml": '[project]\nname = "course"\nversion = "0.2.0"\n',
        "CITATION.cff": 'cff-version: 1.2.0\nversion: "0.2.0"\n',
        "CHANGELOG.md": CHANGELOG,
        ".gitignore": "build/\n",
        "build/site/html/index.html": "<p>home</p>",
        "build/site/html/a/page.html": "<p>page</p>",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "all"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    return tmp_path


def test_what_agrees_is_released(course: Path) -> None:
    assert check("v0.2.0", course) == "0.2.0"


@pytest.mark.parametrize(
    ("tag", "file", "text", "says"),
    [
        ("0.2.0", "", "", "expected a form such as v0.2.0"),
        ("v0.2", "", "", "expected a form such as v0.2.0"),
        ("v0.1.0", "", "", "says 0.1.0, but pyproject.toml says 0.2.0 and CITATION.cff says 0.2.0"),
        ("v0.2.0", "CITATION.cff", "version: 0.1.9\n", "but CITATION.cff says 0.1.9"),
        ("v0.2.0", "CITATION.cff", "title: x\n", "but CITATION.cff says none"),
        ("v0.2.0", "CHANGELOG.md", "## 0.2.0 (unreleased)\n- x\n", "calls 0.2.0 unreleased"),
        ("v0.2.0", "CHANGELOG.md", "## 0.2.0\n\n## 0.1.0\n- x\n", "says nothing about 0.2.0"),
        ("v0.2.0", "CHANGELOG.md", "## 0.2.01\n- x\n", "has no section"),
    ],
)
def test_what_disagrees_is_not_released(
    course: Path, tag: str, file: str, text: str, says: str
) -> None:
    if file:
        (course / file).write_text(text)
    with pytest.raises(ReleaseError, match=re.escape(says)):
        check(tag, course)


def test_notes_are_the_versions_section(course: Path) -> None:
    assert changes("0.2.0", course) == "- Now. See `## 0.1.0`.\n\n### Details\n\n- More.\n"
    assert changes("0.1.0", course) == "- First.\n"


def test_archives_hold_source_and_site_and_are_reproducible(course: Path) -> None:
    paths = build("v0.2.0", course)
    assert [path.name for path in paths] == [
        "course-0.2.0.tar.gz",
        "course-0.2.0-site.tar.gz",
        "SHA256SUMS",
        "notes.md",
    ]
    source, site, sums, notes = paths
    with tarfile.open(source) as archive:
        names = {info.name for info in archive if info.isfile()}
    assert names == {
        f"course-0.2.0/{name}"
        for name in (".gitignore", "CHANGELOG.md", "CITATION.cff", "pyproject.toml")
    }
    with tarfile.open(site) as archive:
        page = archive.extractfile("course-0.2.0-site/a/page.html")
        assert page is not None and page.read() == b"<p>page</p>"
    said = dict(reversed(line.split()) for line in sums.read_text().splitlines())
    assert said == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (source, site)
    }
    assert notes.read_text().startswith("- Now.")

    before = [path.read_bytes() for path in paths]
    (course / "build" / "release" / "old.tar.gz").touch()
    (course / "build" / "site" / "html" / "index.html").touch()  # only its time has changed
    assert [path.read_bytes() for path in build("v0.2.0", course)] == before
    assert not (course / "build" / "release" / "old.tar.gz").exists()


def test_without_a_site_there_is_no_release(course: Path) -> None:
    (course / "build" / "site" / "html" / "index.html").unlink()
    with pytest.raises(ReleaseError, match="make site"):
        build("v0.2.0", course)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ('[{"status": "completed", "conclusion": "success"}]', ""),
        ('[{"status": "completed", "conclusion": "failure"}]', "failure"),
        ('[{"status": "in_progress", "conclusion": ""}]', "in_progress"),
        ("[]", "no run"),
    ],
)
def test_what_was_not_tested_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, says: str
) -> None:
    gh = tmp_path / "gh"
    gh.write_text(f"#!/bin/sh\ncase \"$*\" in *'--commit abcdef'*) echo '{answer}';; esac\n")
    gh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if not says:
        return require_tested("abcdef")
    with pytest.raises(ReleaseError, match=f"succeeded on abcdef: {says}"):
        require_tested("abcdef")


def test_what_was_never_proven_at_full_size_is_not_released(tmp_path: Path) -> None:
    assert set(FULL_PARTS) == set(PARTS)
    file = tmp_path / "proofs" / "full.json"
    file.parent.mkdir()
    row = {"tests": 9, "when": "2026-11-26", "commit": "a" * 40}
    file.write_text(json.dumps({"parts": dict.fromkeys(PARTS, row)}))
    assert "labs: 9 tests at full size, 2026-11-26" in require_full_proof(tmp_path)
    file.write_text(json.dumps({"parts": {part: row for part in PARTS if part != "labs"}}))
    with pytest.raises(ReleaseError, match="full size: labs"):
        require_full_proof(tmp_path)


def test_the_changelog_begins_with_this_version_or_the_next() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    titles = re.findall(r"^## +(\S+)(.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    released = [number for number, rest in titles if "unreleased" not in rest]
    assert released[0] == version
    assert changes(version)


def test_the_workflow_decides_nothing_by_itself() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # `on` is a truth value in YAML 1.1
    runs = [step["run"].strip() for step in workflow["jobs"]["release"]["steps"] if "run" in step]
    assert [run.split(maxsplit=3)[:3] for run in runs[:5]] == [
        ["python", "tools/release.py", "check"],
        ["python", "tools/release.py", "tested"],
        ["make", "site"],
        [".venv-site/bin/python", "-m", "tools.saved.in_step"],
        ["python", "tools/release.py", "build"],
    ]
    assert runs[3].endswith("--refuse")
    assert runs[5].startswith("gh release create") and len(runs) == 6
