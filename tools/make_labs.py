"""Generate labs/ from solutions/ with nbgrader. Behind `make labs`.

nbgrader works in a temporary course folder, so its grade book never lands in the repository.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parent.parent
ALL = "--assignment=*"  # of the course folder: nbgrader starts once, not once for each lab


def lab_names() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "solutions").glob("*/*.ipynb"))


def number_of(lab: str) -> str:
    """`07b` of `07b_medusa_eagle_mtp`."""
    return lab.partition("_")[0]


def generate(names: list[str], target: Path) -> None:
    """Write the learners' version of each named lab to `target`/NN_name/.

    Raises:
        RuntimeError: nbgrader refused a notebook; its log is in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder)
        shutil.copy(ROOT / "nbgrader_config.py", course)
        for name in names:
            source = ROOT / "solutions" / name / f"{name}.ipynb"
            (course / "solutions" / name).mkdir(parents=True)
            shutil.copy(source, course / "solutions" / name)
        nbgrader(course, "generate_assignment", ALL, "--no-db")  # the same, and three times as fast
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.rmtree(target / name, ignore_errors=True)
            (target / name).mkdir()
            shutil.copyfile(
                course / "labs" / name / f"{name}.ipynb", target / name / f"{name}.ipynb"
            )


def nbgrader(course: Path, *arguments: str) -> None:
    """Run one nbgrader command in the course folder: see `run_in_course`."""
    run_in_course(course, "nbgrader", *arguments)


def run_in_course(
    course: Path,
    module: str,
    *arguments: str,
    timeout: float | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run a Python module in the course folder, whose settings nbgrader reads.

    Raises:
        RuntimeError: it failed; its log is in the message.
        subprocess.TimeoutExpired: it took longer than `timeout` seconds, and was ended.
    """
    command = [sys.executable, "-m", module, *arguments]
    with tempfile.TemporaryDirectory() as settings:
        environment = os.environ | {
            # nbgrader starts `alembic`, which lies beside this Python.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            # The user's own Jupyter settings and kernels must not change the result. An empty
            # folder: Jupyter leaves a file there, and nbgrader finds the course's settings anyway.
            "JUPYTER_CONFIG_DIR": settings,
            "JUPYTER_PREFER_ENV_PATH": "1",
            **variables,
        }
        done = subprocess.run(
            command, cwd=course, env=environment, capture_output=True, text=True, timeout=timeout
        )
    if done.returncode:
        said = f"{done.stdout}{done.stderr}"
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NN_name", help="default: all labs")
    names = parser.parse_args().names or lab_names()
    if unknown := sorted(set(names) - set(lab_names())):
        parser.error(f"no such lab: {', '.join(unknown)}. Labs are: {', '.join(lab_names())}")
    generate(names, ROOT / "labs")
    for name in names:
        print(f"labs/{name}/{name}.ipynb")


if __name__ == "__main__":
    main()
