"""Do the links of the course lead somewhere? In Markdown files and in notebooks' texts.

    python tools/links.py               to files, to headings, and to this repository's own address
    python tools/links.py --external    to other sites: asks each once, over the network

Also looked for: names of files in backticks that begin with a folder of the repository. Needs
Python and git alone. The tests call the first. The weekly workflow runs the second: the web changes
without us, and `make test` needs no network.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\]\(<?([^)\s>]+)|(?:src|href)=\"([^\"]+)\"|<(https?://[^>\s]+)>")
NAMED = re.compile(
    r"`((?:benchmarks|deploy|labs|notebooks|requirements|site|solutions|tests|tools|utils)"
    r"/[\w./-]*\w)/?`"
)
PLACEHOLDER = re.compile(r"NN|STUDENT")  # as in `notebooks/NN_name.ipynb`
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
# What opens a file of ours on another site is a question of ours: does the file exist?
OURS = re.compile(
    re.escape(REPOSITORY) + r"/(?:blob|tree|raw)/[^/]+/([^#?]+)"
    r"|(?:colab\.research\.google\.com/github|kaggle\.com/kernels/welcome\?src=https://github\.com)/"
    + re.escape(REPOSITORY.removeprefix("https://github.com/"))
    + r"/blob/[^/]+/([^#?]+)"
)
# Sites that answer programs otherwise than people. What they say is shown, and is no failure.
GONE = {404, 410}
PAUSE_S, TIMEOUT_S = 3.0, 30.0
AGENT = "Mozilla/5.0 (compatible; the course's link check, tools/links.py)"


@dataclass(frozen=True)
class Link:
    """Where a link stands, and where it leads."""

    file: Path
    target: str

    def __str__(self) -> str:
        name = self.file.relative_to(ROOT) if self.file.is_relative_to(ROOT) else self.file
        return f"{name}: {self.target}"


def texts_of(file: Path) -> list[str]:
    """A Markdown file, or the Markdown cells of a notebook."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".ipynb":
        return [text]
    cells = json.loads(text)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def links_of(file: Path) -> Iterator[Link]:
    """All links of a file, of Markdown and of HTML; what stands in code is none."""
    for text in texts_of(file):
        for found in LINK.findall(CODE.sub("", FENCE.sub("", text))):
            yield Link(file, next(filter(None, found)))


def named_files(file: Path) -> Iterator[Link]:
    """Files of the repository that a text names."""
    for text in texts_of(file):
        for name in NAMED.findall(text):
            if not PLACEHOLDER.search(name):
                yield Link(file, name)


def anchors(file: Path, in_jupyterlab: bool) -> set[str]:
    """The names of a file's headings: as GitHub makes them, and as JupyterLab does."""
    found: set[str] = set()
    for text in texts_of(file):
        for heading in HEADING.findall(FENCE.sub("", text)):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
            slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            number = sum(
                name == slug or re.fullmatch(rf"{slug}-\d+", name) is not None for name in found
            )
            found.add(f"{slug}-{number}" if number else slug)
            if in_jupyterlab:
                found.add(plain.replace(" ", "-"))
    return found


def broken(link: Link, root: Path = ROOT) -> str:
    """Why a link to a file of the repository leads nowhere; '' if it does not, or leads outside."""
    if ours := OURS.search(link.target):
        path, anchor = root / unquote(ours[1] or ours[2]), ""
    elif re.match(r"[a-z]+:", link.target):
        return ""
    else:
        name, _, anchor = link.target.partition("#")
        path = link.file.parent / unquote(name) if name else link.file
    if not path.resolve().is_relative_to(root.resolve()):
        return f"{link} leads out of the repository"
    if not path.exists():
        return f"{link} does not exist"
    in_jupyterlab = ".ipynb" in (path.suffix, link.file.suffix)
    checked = anchor and path.suffix in {".md", ".ipynb"}
    if checked and unquote(anchor) not in anchors(path, in_jupyterlab):
        return f"{link}: {path.name} has no heading of that name"
    return ""


def repository_files(*patterns: str) -> list[Path]:
    """The files that are, or are about to be, in version control; all, or those of patterns.

    Raises:
        FileNotFoundError, CalledProcessError: there is no git, or this is no checkout.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def course_files() -> list[Path]:
    """The course's Markdown files and notebooks.

    Without the site's own pages: Sphinx looks at their links, from another folder.
    """
    site = ROOT / "site"
    return [p for p in repository_files("*.md", "*.ipynb") if not p.is_relative_to(site)]


def problems(files: Iterable[Path], root: Path = ROOT) -> list[str]:
    """What leads nowhere, without the network; one sentence each."""
    found = []
    for file in files:
        found += [said for link in links_of(file) if (said := broken(link, root))]
        found += [
            f"{name} does not exist"
            for name in named_files(file)
            if not (root / name.target).exists()
        ]
    return found


# --- the web ------------------------------------------------------------------------------------


def ask(address: str) -> tuple[bool | None, str]:
    """Whether a page is there; None if its site does not say. And what it said."""
    for method in ("HEAD", "GET"):
        request = urllib.request.Request(address, method=method, headers={"User-Agent": AGENT})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return True, str(answer.status)
        except urllib.error.HTTPError as error:
            if method == "HEAD":
                continue  # some sites know GET alone
            return (False if error.code in GONE else None), f"{error.code} {error.reason}"
        except (OSError, ValueError) as error:
            return None, f"{getattr(error, 'reason', None) or error}"
    raise AssertionError("both methods have an end")


def external(files: Iterable[Path]) -> dict[str, Link]:
    """Addresses of other sites, without fragment, each with the first link to it."""
    found: dict[str, Link] = {}
    for file in files:
        for link in links_of(file):
            if link.target.startswith(("https:", "http:")) and not OURS.search(link.target):
                found.setdefault(link.target.partition("#")[0], link)
    return found


def check_external(addresses: dict[str, Link], pause: float = PAUSE_S) -> int:
    """Ask for each address, one after the other, and print what is not there.

    Returns:
        How many are gone; all of them, where no site said anything.
    """
    gone = unsure = 0
    asked: dict[str, float] = {}
    for address, link in sorted(addresses.items()):
        host = urlsplit(address).netloc
        time.sleep(max(0.0, asked.get(host, -pause) + pause - time.monotonic()))
        there, said = ask(address)
        asked[host] = time.monotonic()
        if not there:
            print(f"{'unsure' if there is None else 'GONE'}: {link} ({said})", flush=True)
        gone, unsure = gone + (there is False), unsure + (there is None)
    print(f"{len(addresses)} addresses: {gone} gone, {unsure} whose site does not say")
    if addresses and unsure == len(addresses):
        print("No site answered. Is there a network?")
        return unsure
    return gone


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--external", action="store_true", help="ask other sites, too")
    files = course_files()
    if parser.parse_args().external:
        sys.exit(check_external(external(files)) > 0)
    found = problems(files)
    print("\n".join(found) or f"{len(files)} files, and all their links lead somewhere")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
