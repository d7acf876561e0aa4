"""Build the site from the committed notebooks, without running them. Behind `make site`.

Needs Python with pip alone, not the course's environment: what it builds with stands in
requirements/site.lock, and is installed into .venv-site at the first time. After that nothing is
fetched. The site is in build/site/html; each of its pages works without a network.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tools"))
from setup import get_uv, run, uv_environment  # noqa: E402

VENV = ROOT / ".venv-site"
LOCK = ROOT / "requirements" / "site.lock"
HASHES = ROOT / "requirements" / "hashes" / "site.txt"
BUILD = ROOT / "build" / "site"
SOURCE, PAGES = BUILD / "source", BUILD / "html"
# What becomes a page, or is read by one. Solutions are left out: nobody should see them by chance.
COPIED = (
    "notebooks",
    "labs",
    "benchmarks",
    "docs",
    "README.md",
    "GLOSSARY.md",
    "TEACHING.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
    "translations",
)


def install() -> Path:
    """The environment that builds; made anew when its lock has changed."""
    python, stamp = VENV / "bin" / "python", VENV / ".complete"
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(VENV, ignore_errors=True)
    uv, env = get_uv(), uv_environment()
    run([uv, "venv", "--quiet", "--python", sys.executable, str(VENV)], env)
    files = ["-r", str(LOCK), "-c", str(HASHES)]
    run([uv, "pip", "install", "--quiet", "--no-deps", "-p", str(python), *files], env)
    stamp.write_text(wanted)
    return python


def copy_sources() -> None:
    """Copy what the pages are made of: Sphinx keeps its own order, the repository keeps its own."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(HERE, SOURCE, ignore=shutil.ignore_patterns("__pycache__", "build.py"))
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, SOURCE / name)


def main() -> None:
    started = time.monotonic()
    python = install()
    copy_sources()
    shutil.rmtree(PAGES, ignore_errors=True)
    command = [str(python), "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    command += ["--jobs", "2", "-d", str(BUILD / "doctrees"), str(SOURCE), str(PAGES)]
    if subprocess.run(command).returncode:
        sys.exit("\nThe site was not built: each warning above is an error here.")
    size = sum(file.stat().st_size for file in PAGES.rglob("*") if file.is_file())
    print(
        f"{size / 1e6:.0f} MB in {time.monotonic() - started:.0f} s. Open it with:\n"
        f"  python3 -m http.server --bind 127.0.0.1 --directory {PAGES.relative_to(ROOT)}"
    )


if __name__ == "__main__":
    main()
