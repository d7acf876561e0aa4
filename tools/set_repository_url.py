"""Set the repository's address everywhere: `make repo-url URL=https://github.com/you/course`.

The address in pyproject.toml, [project.urls], is the one that counts. This program rewrites it, and
every link to the same repository: badges, the notebooks' first cell, the citation, the site.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORM = r"https://github\.com/([A-Za-z0-9-]+/[A-Za-z0-9._-]+?)(?:\.git)?/?"


def configured_slug(root: Path = ROOT) -> str:
    """The repository as "owner/name", from pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return slug_of(project["urls"]["Repository"])


def slug_of(url: str) -> str:
    """Return "owner/name" of a GitHub address.

    Raises:
        ValueError: it is not one. Colab and Binder badges need GitHub.
    """
    match = re.fullmatch(FORM, url.strip())
    if match is None:
        raise ValueError(f"{url!r} is not of the form https://github.com/OWNER/NAME")
    return match[1]


def site_of(slug: str) -> str:
    """Where GitHub publishes a repository's site."""
    owner, name = slug.split("/")
    return f"https://{owner.lower()}.github.io/{name}/"


def links_to(slug: str) -> re.Pattern[str]:
    """A pattern for links to a repository on GitHub, Colab and Binder."""
    hosts = (
        r"github\.com/",
        r"raw\.githubusercontent\.com/",
        r"colab\.research\.google\.com/github/",
        r"mybinder\.org/v2/gh/",
        r"mybinder\.org/badge/gh/",
    )
    return re.compile(rf"({'|'.join(hosts)}){re.escape(slug)}(?![\w-]|\.(?!git\b)\w)")


def rewrite(root: Path, url: str) -> list[Path]:
    """Point all links in the repository's files to `url`; return the files that changed."""
    old, new = configured_slug(root), slug_of(url)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    changed = []
    for name in filter(None, names.split("\0")):
        path = root / name
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # a picture, or deleted
        result = links_to(old).sub(lambda match: match[1] + new, text)
        result = result.replace(site_of(old), site_of(new))
        if result != text:
            path.write_text(result, encoding="utf-8")
            changed.append(path)
    return changed


def main() -> None:
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("Usage: make repo-url URL=https://github.com/OWNER/NAME")
    try:
        changed = rewrite(ROOT, sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
    for path in changed:
        print(path.relative_to(ROOT))
    print(f"{len(changed)} files changed.")


if __name__ == "__main__":
    main()
