"""Make a talk of each lesson, from its own headings, formulas, figures and code: `make slides`.

Needs Python with pip alone, as `make site` does, and uses the site's environment. A talk is one
file in build/slides: it fetches nothing, and can be copied to any machine that has a browser.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "site"))
from build import install  # noqa: E402

OUT = ROOT / "build" / "slides"


def main() -> None:
    python = install()
    deck = Path(__file__).with_name("deck.py")
    if subprocess.run([str(python), str(deck), str(OUT)]).returncode:
        sys.exit("\nThe slides were not made; the reason stands above.")
    print(f"Open {OUT.relative_to(ROOT)}/index.html in a browser: no server is needed.")


if __name__ == "__main__":
    main()
