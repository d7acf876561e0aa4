"""Style, types, house rules, and the tests of what changed: `make check`, before each commit.

It takes some three minutes; `make test` runs everything. What changed is what differs from
`origin/main`, or, on a clone without it, what is not committed yet.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.proof.style import HOUSE, broken_style  # noqa: E402

MARKS = "not slow and not gpu"
WORKERS = ["-n", "2", "--no-loadscope-reorder"]
# The many answers of each lab. They name the lab in the test's own name.
ANSWERS = (
    "tests/checks/test_known_mistakes.py",
    "tests/checks/test_mutants.py",
    "tests/labs/test_bug_zoo.py",
)


def git(*arguments: str) -> list[str]:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def changed_files() -> list[str]:
    """Files that differ from where this branch left `origin/main`, and files not yet added."""
    base = git("merge-base", "HEAD", "origin/main") or ["HEAD"]
    new = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", base[0]), *new})


def lab_of(file: str) -> str | None:
    """The lab whose answers judge a file, such as "lab_05": its checks, or its zoo."""
    found = re.match(
        r"(?:utils/checks/|tests/labs/bug_zoo/|tests/checks/(?:test_)?)(lab_\d\d[a-z]?)", file
    )
    return found[1] if found else None


def tests_of(file: str) -> list[str]:
    """The tests of a file.

    `utils/engine/core/x.py` has those in `tests/engine/core`, which mirrors it; a file of a folder
    without tests of its own has those of the folder above. A lesson or a solution is a test itself.
    What lies elsewhere has the tests that name it.
    """
    path = Path(file)
    top = path.parts[0]
    if top == "tests":
        is_test = path.name.startswith("test_") and path.suffix == ".py"
        return [file] if is_test and (ROOT / path).exists() else []
    if path.suffix == ".ipynb":
        runs = top in ("notebooks", "solutions") and (ROOT / path).exists()
        steps = ["tests/labs/test_labs.py"] if top in ("solutions", "labs") else []
        return [file] * runs + steps
    if top in ("tools", "site", "benchmarks", "deploy"):
        return naming(path)
    if path.parts[:2] == ("utils", "checks"):
        lab = path.parts[2]
        found = [f"tests/checks/test_{lab}.py", f"tests/checks/{lab}"]
        return [name for name in found if (ROOT / name).exists()] or ["tests/checks/kit"]
    if top != "utils" or path.suffix != ".py":
        return []
    if len(path.parts) == 2:  # utils/hub.py
        name = f"tests/test_{path.name}"
        return [name] if (ROOT / name).exists() else []
    folder = Path("tests", *path.parts[1:-1])
    while len(folder.parts) > 1:
        here = sorted(test.relative_to(ROOT) for test in (ROOT / folder).glob("test_*.py"))
        named = [test for test in here if path.stem in test.stem]
        if here:
            return [str(test) for test in named or here]
        folder = folder.parent
    return []


def naming(path: Path) -> list[str]:
    """The tests that name a file or import it; of a file that none names, its folder's tests."""
    module = ".".join(path.with_suffix("").parts)
    package, _, name = module.rpartition(".")
    says = re.compile(
        rf"\b{re.escape(module)}\b|\bfrom {re.escape(package)} import [^\n]*\b{name}\b"
        rf"|{re.escape(path.as_posix())}"
    )
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    tests.remove(ROOT / "tests" / "house" / "test_check.py")  # it names many, as examples
    found = [test for test in tests if says.search(test.read_text(encoding="utf-8"))]
    if not found and path.parts[0] in ("site", "benchmarks", "deploy"):
        found = [test for test in tests if test.relative_to(ROOT).parts[1] == path.parts[0]]
    return [test.relative_to(ROOT).as_posix() for test in found]


def main() -> None:
    started = time.monotonic()
    files = changed_files()
    tests = sorted({*HOUSE, *(test for file in files for test in tests_of(file))})
    labs = sorted({lab for file in files if (lab := lab_of(file))})
    tests = [test for test in tests if not test.startswith(tuple(f"{h}/" for h in HOUSE))]
    print(f"{len(files)} files changed; tests: {' '.join([*tests, *labs])}", flush=True)
    commands = [["-q", *WORKERS, "-m", MARKS, *tests]]
    if labs:
        commands.append(["-q", *WORKERS, "-k", " or ".join(labs), *ANSWERS])
    # Each command says itself what is wrong. All run, so that one look shows everything.
    failed = broken_style()
    failed += [
        "pytest"
        for command in commands
        if subprocess.run([sys.executable, "-m", "pytest", *command], cwd=ROOT).returncode
    ]
    print(f"{time.monotonic() - started:.0f} s", flush=True)
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
