"""What a contributor runs before a commit: style, types, house rules, unit tests of what changed.

`make check` takes some three minutes, `make test` runs everything. What changed is what differs
from `origin/main`, or, on a clone without it, what is not committed yet.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STYLE = (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"])
HOUSE = ("tests/house", "tests/notebooks/test_notebook_rules.py")
MARKS = "not slow and not gpu"
WORKERS = ["-n", "2", "--no-loadscope-reorder"]


def git(*arguments: str) -> list[str]:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def changed_files() -> list[str]:
    """Files that differ from where this branch left `origin/main`, and files not yet added."""
    base = git("merge-base", "HEAD", "origin/main") or ["HEAD"]
    new = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", base[0]), *new})


def tests_of(file: str) -> list[str]:
    """The tests that mirror a file: `utils/engine/core/x.py` has those in `tests/engine/core`.

    A file of a folder without tests of its own has those of the folder above.
    """
    path = Path(file)
    top = path.parts[0]
    if top == "tests":
        is_test = path.name.startswith("test_") and path.suffix == ".py"
        return [file] if is_test and (ROOT / path).exists() else []
    if path.parts[:2] == ("utils", "checks"):
        found = f"tests/checks/test_{path.parts[2]}.py"
        return [found] if (ROOT / found).exists() else ["tests/checks/kit"]
    if top != "utils" or path.suffix != ".py":
        return []
    if len(path.parts) == 2:  # utils/hub.py
        found = f"tests/test_{path.name}"
        return [found] if (ROOT / found).exists() else []
    folder = Path("tests", *path.parts[1:-1])
    while len(folder.parts) > 1:
        here = sorted(test.relative_to(ROOT) for test in (ROOT / folder).glob("test_*.py"))
        named = [test for test in here if path.stem in test.stem]
        if here:
            return [str(test) for test in named or here]
        folder = folder.parent
    return []


def main() -> None:
    started = time.monotonic()
    files = changed_files()
    tests = sorted({*HOUSE, *(test for file in files for test in tests_of(file))})
    print(f"{len(files)} files changed; tests: {' '.join(tests)}", flush=True)
    pytest = ["pytest", "-q", *WORKERS, "-m", MARKS, *tests]
    # Each command says itself what is wrong. All run, so that one look shows everything.
    failed = [
        command[0]
        for command in (*STYLE, pytest)
        if subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode
    ]
    print(f"{time.monotonic() - started:.0f} s", flush=True)
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
