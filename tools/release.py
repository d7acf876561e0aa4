"""Make a release of the course from a tag. Behind .github/workflows/release.yml.

    python tools/release.py check v0.2.0    do the tag, pyproject.toml, CITATION.cff and
                                            CHANGELOG.md name the same version?
    python tools/release.py tested COMMIT   did the workflow `test` succeed on it (asks gh), and is
                                            there a proof at full size of every part?
    python tools/release.py build v0.2.0    after `make site`: everything into build/release

Needs Python and git alone. To release: put the version into the first two files, take
"(unreleased)" from its section in the third, commit, wait for the tests, and push the tag.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TAG = re.compile(r"v(\d+\.\d+\.\d+)")
FULL_PARTS = ("pipeline", "labs", "lessons", "engine", "rest")  # tools/proof/parts.py
SUMS, NOTES = "SHA256SUMS", "notes.md"
VERIFY = """
To see that the files are whole: put them into one folder, and there `sha256sum --check SHA256SUMS`.
"""


class ReleaseError(ValueError):
    """There is no release to be made of this. The message says what disagrees."""


def project(root: Path) -> dict[str, str]:
    """Name and version, from pyproject.toml."""
    found: dict[str, str] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return found


def changes(version: str, root: Path = ROOT) -> str:
    """The text of a version's section in CHANGELOG.md.

    Raises:
        ReleaseError: there is none, it is empty, or it says "(unreleased)".
    """
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^## +", text, flags=re.MULTILINE)[1:]
    for section in sections:
        title, _, body = section.partition("\n")
        if title.split()[:1] == [version]:
            if "unreleased" in title:
                raise ReleaseError(f"CHANGELOG.md calls {version} unreleased: {title!r}.")
            if not body.strip():
                raise ReleaseError(f"CHANGELOG.md says nothing about {version}.")
            return body.strip() + "\n"
    raise ReleaseError(f"CHANGELOG.md has no section `## {version}`.")


def check(tag: str, root: Path = ROOT) -> str:
    """The version that a tag releases.

    Raises:
        ReleaseError: the tag has another form, or a file names another version.
    """
    match = TAG.fullmatch(tag)
    if not match:
        raise ReleaseError(f"The tag is {tag!r}; expected a form such as v0.2.0.")
    version = match[1]
    citation = re.search(r"^version: *[\"']?([^\"'\s]+)", (root / "CITATION.cff").read_text(), re.M)
    said = {
        "pyproject.toml": project(root)["version"],
        "CITATION.cff": citation[1] if citation else "none",
    }
    if wrong := [f"{file} says {other}" for file, other in said.items() if other != version]:
        raise ReleaseError(f"The tag says {version}, but {' and '.join(wrong)}.")
    changes(version, root)
    return version


def require_tested(commit: str) -> None:
    """Look up whether the tests succeeded on a commit.

    Raises:
        ReleaseError: they did not, have not ended, or were not run.
    """
    command = ["gh", "run", "list", "--workflow", "test.yml", "--commit", commit]
    command += ["--json", "status,conclusion"]
    runs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if not any(run["conclusion"] == "success" for run in runs):
        found = ", ".join(run["conclusion"] or run["status"] for run in runs) or "no run"
        raise ReleaseError(
            f"The tests have not succeeded on {commit[:10]}: {found}. Wait for them on main, then "
            "run this workflow again."
        )


def require_full_proof(root: Path = ROOT) -> str:
    """The committed proof at full size, a line for each part.

    That its recipes are today's is a test of `make test`, which `require_tested` asks for.

    Raises:
        ReleaseError: a part was never proven at full size.
    """
    rows = json.loads((root / "proofs" / "full.json").read_text(encoding="utf-8"))["parts"]
    if missing := [part for part in FULL_PARTS if not rows.get(part, {}).get("tests")]:
        raise ReleaseError(
            f"Not proven at full size: {', '.join(missing)}. Run `make test-full`, and commit "
            "proofs/full.json."
        )
    return "\n".join(
        f"{part}: {row['tests']} tests at full size, {row['when']}, at {row['commit'][:10]}"
        for part, row in rows.items()
    )


def build(tag: str, root: Path = ROOT) -> list[Path]:
    """Write source, site, notes and checksums into build/release; the same bytes each time.

    Raises:
        ReleaseError: as `check`; or the site was not built.
    """
    version = check(tag, root)
    site, out = root / "build" / "site" / "html", root / "build" / "release"
    if not (site / "index.html").is_file():
        raise ReleaseError("There is no site in build/site/html. Run `make site` first.")
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        old.unlink()
    name = f"{project(root)['name']}-{version}"
    source = out / f"{name}.tar.gz"
    archive = ["git", "archive", "--format=tar", f"--prefix={name}/", "HEAD"]
    tar = subprocess.run(archive, cwd=root, check=True, capture_output=True).stdout
    source.write_bytes(gzip.compress(tar, mtime=0))
    pages = out / f"{name}-site.tar.gz"
    pages.write_bytes(gzip.compress(_tar(site, f"{name}-site"), mtime=0))
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in (source, pages)
    )
    (out / SUMS).write_text(sums)
    (out / NOTES).write_text(changes(version, root) + VERIFY, encoding="utf-8")
    return [source, pages, out / SUMS, out / NOTES]


def _tar(folder: Path, name: str) -> bytes:
    """A folder as an archive that depends on its files' names and contents alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                info = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
                info.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(info, file)
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("check", "tested", "build"))
    parser.add_argument("what", help="the tag; for `tested` the commit")
    options = parser.parse_args()
    try:
        if options.do == "tested":
            require_tested(options.what)
            print(require_full_proof())
        elif options.do == "check":
            print(f"{check(options.what)}: all files agree")
        else:
            for path in build(options.what):
                print(f"{path.stat().st_size / 1e6:8.2f} MB  {path.relative_to(ROOT)}")
    except ReleaseError as error:
        sys.exit(f"No release. {error}")


if __name__ == "__main__":
    main()
