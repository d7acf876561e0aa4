"""Write the tables of TEACHING.md: plans with their minutes, and what goes wrong in each lab.

python tools/teaching.py        writes them; a test says when they are out of step
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.gpu.table import MARKS  # noqa: E402
from tools.reading_time import stated  # noqa: E402
from utils.checks.kit.contracts import Contract  # noqa: E402

GUIDE = ROOT / "TEACHING.md"
COMMAND = "python tools/teaching.py"
PER_EXERCISE = 3  # mistakes shown: a contract names those first that most make

# Of each plan: its parts, each with lessons and labs ("lab 02: 1, 3" are exercises of a lab).
PLANS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "half a day": (("before the break", ("00", "02")), ("after it", ("04", "lab 04: 1, 2, 3"))),
    "two days": (
        ("day 1, morning", ("00", "02", "lab 02")),
        ("day 1, afternoon", ("04", "lab 04: 1, 2, 3", "05")),
        ("day 2, morning", ("06", "lab 06: 1, 2, 3, 4")),
        ("day 2, afternoon", ("13", "14")),
    ),
    "eight weeks": (
        ("week 1", ("00", "01", "lab 01")),
        ("week 2", ("02", "lab 02", "03", "lab 03")),
        ("week 3", ("04", "lab 04", "05", "lab 05")),
        ("week 4", ("06", "lab 06")),
        ("week 5", ("07", "lab 07", "07b", "lab 07b", "08", "08b", "08c", "08d", "lab 08")),
        ("week 6", ("09", "09b", "lab 09")),
        ("week 7", ("10", "11", "12", "12b", "lab 10")),
        ("week 8", ("13", "13b", "lab 13", "14", "14b", "18")),
    ),
}


def lesson(number: str) -> Path:
    [path] = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    return path


def lab(number: str) -> Path:
    [path] = (ROOT / "solutions").glob(f"{number}_*/*.ipynb")
    return path


def minutes(part: str) -> int:
    """Of a lesson's main line, of a lab, or of some of a lab's exercises."""
    if not part.startswith("lab "):
        return int(stated(nbformat.read(lesson(part), as_version=4)).main)
    number, _, chosen = part.removeprefix("lab ").partition(": ")
    notebook = nbformat.read(lab(number), as_version=4)
    if not chosen:
        return int(stated(notebook).main)
    exercise = re.compile(r"## Exercise (\d+)\w?:.*?· (\d+) minutes", re.DOTALL)
    found = {m[1]: int(m[2]) for cell in notebook.cells if (m := exercise.match(cell.source))}
    return sum(found[one] for one in chosen.split(", "))


def _link(part: str) -> str:
    if part.startswith("lab "):
        number, _, chosen = part.removeprefix("lab ").partition(": ")
        path = f"labs/{lab(number).parent.name}/{lab(number).name}"
        return f"[lab {number}]({path})" + (f" (exercises {chosen})" if chosen else "")
    return f"[{part}](notebooks/{lesson(part).name})"


def plan_table(name: str) -> str:
    lines = ["| when | what | minutes |", "|---|---|---|"]
    total = 0
    for when, parts in PLANS[name]:
        taken = sum(map(minutes, parts))
        total += taken
        lines.append(f"| {when} | {', '.join(map(_link, parts))} | {taken} |")
    lines.append(f"| | **in all** | **{total}** |")
    return "\n".join(lines)


def mistakes_of(number: str) -> list[tuple[str, list[str]]]:
    """A lab's exercises, each with the words for the mistakes that its check knows by name."""
    package = importlib.import_module(f"utils.checks.lab_{number}")
    contracts: dict[str, Contract] = {}
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("inside_vllm"):  # it imports vLLM, and holds no contract
            found = vars(importlib.import_module(module.name)).items()
            contracts |= {name: value for name, value in found if isinstance(value, Contract)}
    rows = []
    for check in vars(package).values():
        if hasattr(check, "max_points"):
            if hasattr(check, "contract"):
                mine = [check.contract]
            else:
                used = check.__wrapped__.__code__.co_names
                # The last exercise, with all parts together, uses several: they stand above it.
                mine = [contracts[name] for name in used if name in contracts]
            if len(mine) == 1 and mine[0].mistakes:
                said = [mistake.says for mistake in mine[0].mistakes[:PER_EXERCISE]]
                rows.append((check.title, said))
    return rows


def mistakes_list() -> str:
    blocks = []
    for path in sorted((ROOT / "solutions").glob("*/*.ipynb")):
        number = path.name.partition("_")[0]
        lines = [f"<details><summary>Lab {number}</summary>", ""]
        for title, said in mistakes_of(number):
            lines += [f"- *{title}*", *(f"  - {words}" for words in said)]
        blocks.append("\n".join([*lines, "", "</details>"]))
    return "\n\n".join(blocks)


def with_tables(guide: str) -> str:
    """The guide with its tables between their marks.

    Raises:
        ValueError: marks are missing.
    """
    tables = {name: plan_table(name) for name in PLANS} | {"mistakes": mistakes_list()}
    for name, text in tables.items():
        begin, end = f"<!-- {name}: {COMMAND} -->", MARKS[1].format(name)
        if begin not in guide or end not in guide:
            raise ValueError(f"TEACHING.md lacks the marks {begin} and {end}.")
        head, rest = guide.split(begin, 1)
        guide = f"{head}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}"
    return guide


if __name__ == "__main__":
    GUIDE.write_text(with_tables(GUIDE.read_text()))
