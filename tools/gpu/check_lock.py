"""Install the GPU lock beside everything else, and import all of it: `make test-gpu-lock`.

No GPU is needed, 14 GB of disk and some 9 GB of downloads are. What it finds: pins that cannot be
installed, packages that overwrite each other's files, and modules that cannot be imported. The
environment is removed afterwards, unless `--keep` names a folder for it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from utils.environments.pipeline import BYTES_NEEDED, PYTHONS, hashes_file, lock_file  # noqa: E402

LOCK, HASHES, NEEDED = lock_file("gpu"), hashes_file("gpu"), BYTES_NEEDED["gpu"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="build it here, and leave it")
    parser.add_argument("--python", choices=PYTHONS, default=PYTHONS[0], help="its version")
    arguments = parser.parse_args()
    if keep := arguments.keep:
        keep.mkdir(parents=True, exist_ok=True)
        sys.exit(check(keep, arguments.python))
    with tempfile.TemporaryDirectory(prefix="gpu-lock-") as folder:
        sys.exit(check(Path(folder), arguments.python))


def check(folder: Path, version: str) -> int:
    """Install and import in `folder`, with a version of Python; returns the exit code."""
    free = shutil.disk_usage(folder).free
    if free < NEEDED:
        print(
            f"{NEEDED / 1e9:.0f} GB are needed in {folder}, and {free / 1e9:.1f} are free. "
            "Name a folder on another disk: --keep FOLDER"
        )
        return 1
    env = {"UV_HTTP_TIMEOUT": "300", "HF_HUB_OFFLINE": "1"}
    python = folder / "venv" / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "--quiet", "--no-deps", "--python", str(python)]
    look = [str(python), str(ROOT / "tools" / "distributions.py"), "--import-all"]
    for title, command in (
        (
            f"Python {version}",
            [*uv, "venv", "--quiet", "--python", version, str(python.parents[1])],
        ),
        (f"Packages of {LOCK.name}", [*install, "--require-hashes", "-r", str(HASHES)]),
        ("Files and imports", look),
    ):
        print(f"{title} ...", flush=True)
        begin = time.monotonic()
        done = subprocess.run(command, cwd=folder, env=os.environ | env)
        print(f"{title}: {time.monotonic() - begin:.0f} s, exit code {done.returncode}", flush=True)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    main()
