"""What has moved in the newest vLLM: `python tools/newest_vllm.py`; behind the weekly workflow.

Fetches the newest wheel of vLLM without its dependencies, unpacks its Python sources, and looks up
every name of the lessons' tables there: whether it still exists, and whether its default is still
the one of the installed vLLM. Prints a table in Markdown. Needs the network and the course's
environment; installs nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.notebook_files import lessons  # noqa: E402
from tools.vllm_names import UnknownName, default, reading, table_rows  # noqa: E402


def names() -> dict[str, str]:
    """Each name of vLLM in the lessons' tables, with the first lesson that has it."""
    found: dict[str, str] = {}
    for lesson in lessons():
        for _, there in table_rows(lesson):
            for name in re.findall(r"`([^`]+)`", there):
                found.setdefault(name, lesson.name)
    return found


def moved(newest: Path) -> list[tuple[str, str, str]]:
    """Name, lesson, and what is different in the packages that lie in the folder `newest`."""
    rows = []
    for name, lesson in names().items():
        before = default(name.removesuffix("()"))
        try:
            with reading(newest):
                after = default(name.removesuffix("()"))
        except UnknownName as error:
            rows.append((name, lesson, f"gone: {error}"))
            continue
        if after != before:
            rows.append((name, lesson, f"its default was {before or 'none'}, is {after or 'none'}"))
    return rows


def fetch(folder: Path, package: str = "vllm") -> str:
    """Put the sources of a package's newest wheel into `folder`; the wheel's name.

    Raises:
        RuntimeError: the wheel could not be fetched.
    """
    with tempfile.TemporaryDirectory() as wheels:
        # The course's environment was made by uv and has no pip; the Python below it has.
        pip = [str(Path(sys.base_prefix) / "bin" / "python3"), "-m", "pip"]
        command = [*pip, "download", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run([*command, "--dest", wheels, package], capture_output=True, text=True)
        found = sorted(Path(wheels).glob("*.whl"))
        if done.returncode or not found:
            raise RuntimeError(f"The newest {package} could not be fetched: {done.stderr[-500:]}")
        unpack(found[0], folder)
        return found[0].name


def unpack(wheel: Path, folder: Path) -> None:
    """The Python sources of a wheel, and nothing else of it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [n for n in archive.namelist() if n.endswith(".py")])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel = fetch(Path(folder))
        except RuntimeError as error:
            sys.exit(str(error))
        rows = moved(Path(folder))
    print(f"{wheel}: {len(names())} names of the lessons' tables, {len(rows)} have moved\n")
    print("| name | first lesson | what is different |\n|---|---|---|")
    for name, lesson, what in rows:
        print(f"| `{name}` | {lesson} | {what} |")


if __name__ == "__main__":
    main()
