"""How far somebody has come: the record of checks, counted against all exercises of all labs.

`make progress` prints it (`python -m utils.checks.kit.progress`); notebook 00 draws it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from utils.checks.kit.lab.words import WORDS, read_words
from utils.checks.kit.record import Entry, is_off, read_record, record_file
from utils.viz.course_map import PARTS, lesson_titles

CHECKS = Path(__file__).parents[1]
WIDTH = 20  # characters of a full bar


@dataclass(frozen=True)
class Exercise:
    """One check of a lab: the function's name, its title, and the points it gives."""

    name: str
    title: str
    points: float


@dataclass(frozen=True)
class LabProgress:
    """The best that each exercise of a lab has given so far, summed, and what is still missing."""

    lab: str
    points: float
    of: float
    last: str
    missing: tuple[Exercise, ...]

    @property
    def complete(self) -> bool:
        return not self.missing


@dataclass(frozen=True)
class Progress:
    """All labs in their order. `problem` says why the record could not be read, or ""."""

    labs: tuple[LabProgress, ...]
    problem: str = ""

    @property
    def points(self) -> dict[str, tuple[float, float]]:
        """For each lab: points so far, and points that there are."""
        return {lab.lab: (lab.points, lab.of) for lab in self.labs}

    @property
    def summary(self) -> str:
        """One sentence."""
        points, of = sum(lab.points for lab in self.labs), sum(lab.of for lab in self.labs)
        complete = sum(lab.complete for lab in self.labs)
        return (
            f"{points:g} of {of:g} points so far. {complete} of {len(self.labs)} labs are complete."
        )

    @property
    def table(self) -> str:
        """A line for each lab, part by part."""
        titles, by_lab = lesson_titles(), {lab.lab: lab for lab in self.labs}
        longest = max(map(len, titles.values()))
        lines = []
        for part, lessons in PARTS.items():
            lines += ["", part]
            for number in filter(by_lab.__contains__, lessons):
                lab = by_lab[number]
                bar = ("#" * int(WIDTH * lab.points / lab.of)).ljust(WIDTH, ".")
                score = f"{lab.points:>3g} of {lab.of:>2g}"
                name = titles[number].ljust(longest)
                lines.append(f"  {number:3} {name}  [{bar}]  {score}  {lab.last}".rstrip())
        return "\n".join(lines)

    @property
    def next_step(self) -> str:
        """What to do now, in one sentence."""
        titles = lesson_titles()
        begun = [lab for lab in self.labs if lab.points and lab.missing]
        open_labs = begun or [lab for lab in self.labs if lab.missing]
        if not open_labs:
            return "All is done. `make verify` runs your labs anew, and writes a page about it."
        lab = open_labs[0]
        return f"Next: lab {lab.lab} ({titles[lab.lab]}), {lab.missing[0].title}."


@functools.cache
def syllabus() -> dict[str, tuple[Exercise, ...]]:
    """Every lab's exercises, from its words: to import all checks takes long."""
    return {
        file.parent.name.removeprefix("lab_"): tuple(_exercises(file.parent))
        for file in sorted(CHECKS.glob(f"lab_*/{WORDS}"))
    }


def _exercises(folder: Path) -> Iterator[Exercise]:
    for name, words in read_words(folder / WORDS).items():
        yield Exercise(name, words["title"], float(words["points"]))


def progress() -> Progress:
    """Count the record. One that cannot be read counts as empty, and `problem` says why."""
    problem = ""
    try:
        entries = read_record()
    except (OSError, RuntimeError) as error:
        entries, problem = [], f"The record cannot be read: {error}"
    return Progress(
        tuple(_progress_of(lab, exercises, entries) for lab, exercises in syllabus().items()),
        problem,
    )


def points_in_lab(lab: str) -> str:
    """`5 of 20 in this lab`, as the record says; nothing if it can't be read, or no such lab is."""
    with contextlib.suppress(OSError, RuntimeError):
        found = _progress_of(lab, tuple(_exercises(CHECKS / f"lab_{lab}")), read_record())
        return f"{found.points:g} of {found.of:g} in this lab"
    return ""


def _progress_of(
    lab: str, exercises: tuple[Exercise, ...], entries: Iterable[Entry]
) -> LabProgress:
    """What the entries of the record say of one lab."""
    mine = [entry for entry in entries if entry.lab == lab]
    best: dict[str, float] = {}
    for entry in mine:
        share = entry.points / entry.of if entry.of else 0.0  # points may have been set anew since
        best[entry.exercise] = max(best.get(entry.exercise, 0.0), share)
    shares = {e: best.get(e.name, 0.0) for e in exercises}
    return LabProgress(
        lab,
        points=sum(e.points * share for e, share in shares.items()),
        of=sum(e.points for e in exercises),
        last=max((entry.at[:10] for entry in mine), default=""),
        missing=tuple(e for e, share in shares.items() if share < 1),
    )


def main() -> None:
    """Print the map, what comes next, and where the record lies."""
    done = progress()
    print(f"{done.table}\n\n{done.summary}\n{done.next_step}\n")
    if done.problem:
        print(done.problem)
        return
    print(f"Counted from {record_file()}, which the checks write and nothing sends anywhere.")
    if is_off():
        print("COURSE_PROGRESS=off: nothing is added to it.")
    else:
        print("COURSE_PROGRESS=off switches it off. Delete the file, and all is forgotten.")


if __name__ == "__main__":
    main()
