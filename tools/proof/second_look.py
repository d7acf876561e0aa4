"""What failed is run once more, file by file and alone.

Most tests that fail now and then fail because of the other worker: a busy processor, little memory,
a port that was taken. Alone, they pass, and are named UNSTEADY: the run is still green, and the
name is in its summary. What fails twice is broken.

pytest-rerunfailures can't do this: it runs a failed cell of a notebook again in a fresh kernel,
without the cells before it.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUARANTINE = ROOT / "tests" / "unsteady.toml"
MOST_UNSTEADY = 3  # files in one run; more of them are no accident
MOST_QUARANTINED = 5
# A second look is for clocks, processes and memory. What compares texts or integers either holds
# or does not.
EXACT = re.compile(
    r"tests/(house|findings|notebooks)/|tests/quant/test_(rtn|nf4)|tests/labs/test_labs"
    r"|tests/checks/test_known_mistakes"
)


@dataclass
class Verdict:
    """What became of the files that failed.

    Attributes:
        broken: failed, and failed again when alone, or were not given a second look.
        unsteady: failed beside another worker, passed alone.
        quarantined: tests whose failure is known and does not count.
    """

    broken: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)


def look_again(failed: Iterable[str], run_alone: Callable[[str], bool]) -> Verdict:
    """Decide about tests that failed.

    Args:
        failed: their node ids.
        run_alone: runs a file by itself; True if all of it passed.
    """
    known = quarantined()
    verdict = Verdict(quarantined=sorted(set(failed) & known))
    files = list(dict.fromkeys(node.partition("::")[0] for node in failed if node not in known))
    exact = [file for file in files if EXACT.search(file)]
    if exact or len(files) > MOST_UNSTEADY:
        verdict.broken = files
        why = f"{exact[0]} must be exact" if exact else f"more than {MOST_UNSTEADY} files failed"
        print(f"\nNo second look: {why}.", flush=True)
        return verdict
    for file in files:
        print(f"\n== A second look, alone: {file}", flush=True)
        (verdict.unsteady if run_alone(file) else verdict.broken).append(file)
    return verdict


def quarantined(file: Path = QUARANTINE) -> set[str]:
    """Node ids of the tests whose failure does not count for now.

    Raises:
        ValueError: an entry lacks something, is over, or must not be in quarantine; or there are
            too many.
    """
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("test", [])
    if len(entries) > MOST_QUARANTINED:
        raise ValueError(f"{file.name} holds {len(entries)} tests, at most {MOST_QUARANTINED} may.")
    for entry in entries:
        if missing := {"id", "reason", "until"} - entry.keys():
            raise ValueError(f"{file.name}: {entry} lacks {', '.join(sorted(missing))}.")
        if EXACT.search(entry["id"]):
            raise ValueError(f"{file.name}: {entry['id']} is exact: it cannot fail by accident.")
        if entry["until"] < datetime.date.today():
            raise ValueError(f"{file.name}: the time of {entry['id']} was over {entry['until']}.")
    return {entry["id"] for entry in entries}
