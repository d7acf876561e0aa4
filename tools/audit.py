"""What the locks bring, and what is known against it: `make audit`. Needs the network.

For each lock a software bill of materials (CycloneDX) is written to build/audit, and each of its
versions is looked up in the public database of known vulnerabilities. The tools are not among the
course's packages: uv runs each in an environment of its own, at an exact version.

The archived quantizers' lock cannot be mended (auto-gptq and autoawq need an old transformers). It
is looked up, too; what is found there is shown, and is no failure: those programs run alone, on
models that the course made itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from setup import get_uv, uv_environment

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
SHOWN_ONLY = {"classic"}
OUT = ROOT / "build" / "audit"
BILL, AUDIT = "cyclonedx-bom==7.5.0", "pip-audit==2.10.1"


def commands(lock: Path) -> dict[str, list[str]]:
    """What is run for a lock: `bill` writes its bill of materials, `audit` looks it up."""
    run = [get_uv(), "tool", "run", "--quiet", "--python", sys.executable]
    bill = OUT / f"{lock.stem}.cdx.json"
    return {
        "bill": [*run, "--from", BILL, "cyclonedx-py", "requirements", str(lock),
                 "--pyproject", str(ROOT / "pyproject.toml"), "-o", str(bill)],
        # The lock is complete, so nothing is resolved. What the database doesn't know is an error.
        "audit": [*run, "--from", AUDIT, "pip-audit", "--strict", "--no-deps", "--disable-pip",
                  "--progress-spinner", "off", "-r", str(lock)],
    }  # fmt: skip


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    failed = []
    for lock in LOCKS:
        print(f"{lock.name} ...", flush=True)
        for name, command in commands(lock).items():
            code = subprocess.run(command, env=uv_environment(), cwd=ROOT).returncode
            if code and not (name == "audit" and lock.stem in SHOWN_ONLY):
                failed.append(f"{name} of {lock.name}")
    print(f"Bills of materials: {OUT.relative_to(ROOT)}")
    sys.exit(f"Not clean: {', '.join(failed)}." if failed else 0)


if __name__ == "__main__":
    main()
