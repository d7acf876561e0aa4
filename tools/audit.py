"""What the locks bring, and what is known against it: `make audit`. Needs the network.

For each lock a software bill of materials (CycloneDX) is written to build/audit, and each of its
versions is looked up in the public database of known vulnerabilities. The tools are not among the
course's packages: uv runs each in an environment of its own, at an exact version.

Before that, one package is installed three times: with its right hash, with another one, which must
be refused, and without one, which must be refused as well. So the lists of hashes do their work.

The archived quantizers' lock cannot be mended (auto-gptq and autoawq need an old transformers). It
is looked up, too; what is found there is shown, and is no failure: those programs run alone, on
models that the course made itself.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
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
        "bill": [
            *run,
            "--from",
            BILL,
            "cyclonedx-py",
            "requirements",
            str(lock),
            "--pyproject",
            str(ROOT / "pyproject.toml"),
            "-o",
            str(bill),
        ],
        # The lock is complete, so nothing is resolved. What the database doesn't know is an error.
        "audit": [
            *run,
            "--from",
            AUDIT,
            "pip-audit",
            "--strict",
            "--no-deps",
            "--disable-pip",
            "--progress-spinner",
            "off",
            "-r",
            str(lock),
        ],
    }


def unrefused_hashes() -> list[str]:
    """What a list of hashes should refuse and does not, or should allow and does not."""
    hashes = (ROOT / "requirements" / "hashes" / "cpu.txt").read_text().replace("\\\n", "")
    right = next(line for line in hashes.splitlines() if line.startswith("tqdm=="))
    pin = right.split(" ", 1)[0]
    wrong = f"{pin} --hash=sha256:{'0' * 64}"
    found = []
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "asked.txt"
        for what, text, says in (
            ("the right hash", right, None),
            ("another hash", wrong, "Hash mismatch"),
            ("no hash", pin, "have a hash"),
        ):
            asked.write_text(text)
            command = [
                get_uv(),
                "pip",
                "install",
                "--no-deps",
                "--target",
                f"{folder}/here",
                "--reinstall",
                "--require-hashes",
                "-r",
                str(asked),
            ]
            done = subprocess.run(command, env=uv_environment(), capture_output=True, text=True)
            refused = bool(done.returncode)
            if refused != (says is not None) or (says or "") not in done.stderr:
                how = "is refused" if refused else "is installed"
                found.append(f"{pin} with {what} {how}: {done.stderr.strip()}")
    return found


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    print("Hashes ...", flush=True)
    failed = unrefused_hashes()
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
