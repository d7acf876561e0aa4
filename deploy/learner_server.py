"""Give a learner the lessons, then become their Jupyter server. The command that hubs start.

It runs as the learner. Lessons are copied, not linked: who changes a cell changes their own. What
is there already is never touched, so work is kept from one start to the next; a lesson that was
broken comes back when its file is deleted. Labs come through nbgrader's exchange, unless
COURSE_FOLDERS names their folder, too.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]


def hand_out(course: Path, home: Path, folders: list[str]) -> None:
    """Copy the files of `folders` that the learner lacks to `home`/course, and make its labs/."""
    for folder in folders:
        if not (course / folder).is_dir():
            sys.exit(f"COURSE_FOLDERS names {folder!r}, and {course} has no such folder.")
        for source in sorted((course / folder).rglob("*.ipynb")):
            target = home / "course" / source.relative_to(course)
            if target.exists() or ".ipynb_checkpoints" in source.parts:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)  # without its mode: the course's may be read-only
    (home / "course" / "labs").mkdir(parents=True, exist_ok=True)  # nbgrader fetches into it


def main() -> None:
    hand_out(COURSE, Path.home(), os.environ.get("COURSE_FOLDERS", "notebooks").split())
    os.execv(sys.executable, [sys.executable, "-m", "jupyterhub.singleuser", *sys.argv[1:]])


if __name__ == "__main__":
    main()
