"""What Colab and Kaggle bring along: refresh requirements/colab.txt and requirements/kaggle.txt.

    python tools/hosted/versions.py

Colab publishes the versions of its packages. Kaggle's image is Colab's with changes, and these it
publishes. Kept are the packages that the course has too, or that its kernel imports there.
`make test-hosted` runs the lessons on both.
"""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
COLAB, KAGGLE = "googlecolab/backend-info", "Kaggle/docker-python"
# What an older ipython and ipykernel need, and newer ones no longer.
OLD = {
    "backcall",
    "decorator",
    "entrypoints",
    "ipython-genutils",
    "nest-asyncio",
    "pickleshare",
    "peft",
    "torchao",
}


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def newest(repository: str, path: str) -> tuple[str, str]:
    """The text of a repository's file, and the commit and date of its last change."""
    query = f"https://api.github.com/repos/{repository}/commits?path={path}&per_page=1"
    [commit] = json.loads(fetch(query))
    text = fetch(f"https://raw.githubusercontent.com/{repository}/{commit['sha']}/{path}")
    return text, f"{commit['sha'][:7]} of {commit['commit']['committer']['date'][:10]}"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of_interest(root: Path = ROOT) -> set[str]:
    """The packages of both locks, and those that only older kernels need."""
    locks = "".join((root / "requirements" / f"{t}.lock").read_text() for t in ("cpu", "gpu"))
    pins = (line for line in locks.splitlines() if not line.startswith("#"))
    return {canonical(line.partition("==")[0]) for line in pins} | OLD


def kept(text: str, wanted: set[str]) -> list[str]:
    """The lines of a list that pin or bound one of the packages, without local version labels."""
    found = []
    for line in text.splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)((?:==|<=|>=|<|>)[^ +]+)", line.strip())
        if match and canonical(match[1]) in wanted:
            found.append(f"{canonical(match[1])}{match[2]}")
    return sorted(found)


def colab(freeze: str, system: str, commit: str, wanted: set[str]) -> str:
    """The text of requirements/colab.txt.

    Raises:
        ValueError: the lists name no Python or no torch, so they are not what they were.
    """
    python = re.search(r"Python (\d+\.\d+)", system)
    pins = kept(freeze, wanted)
    if python is None or not any(pin.startswith("torch==") for pin in pins):
        raise ValueError("Colab's lists name no Python or no torch. Look at what they are now.")
    return (
        f"# Python {python[1]}. What Colab's GPU runtime brings: {COLAB}, {commit}.\n"
        "# Only packages that matter to the course. Written by tools/hosted/versions.py.\n"
        + "".join(f"{pin}\n" for pin in pins)
    )


def kaggle(requirements: str, commit: str, wanted: set[str]) -> str:
    """The text of requirements/kaggle.txt."""
    return (
        f"# What Kaggle's image changes in Colab's: {KAGGLE}, {commit}.\n"
        "# Only packages that matter to the course. Written by tools/hosted/versions.py.\n"
        + "".join(f"{pin}\n" for pin in kept(requirements, wanted))
    )


def main() -> None:
    wanted = names_of_interest()
    freeze, commit = newest(COLAB, "pip-freeze.gpu.txt")
    system, _ = newest(COLAB, "os-info-gpu.txt")
    (REQUIREMENTS / "colab.txt").write_text(colab(freeze, system, commit, wanted))
    changes, commit = newest(KAGGLE, "kaggle_requirements.txt")
    (REQUIREMENTS / "kaggle.txt").write_text(kaggle(changes, commit, wanted))


if __name__ == "__main__":
    main()
