"""The rules for notebooks that running them cannot check. Each broken rule is one sentence.

python tools/notebook_rules.py [NOTEBOOK ...]
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.validator import iter_validate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools import glossary, prose_numbers, reading_time  # noqa: E402
from tools.navigation import END, TOP, course, end_line, on_colab, public, top_line  # noqa: E402
from tools.notebook_files import (  # noqa: E402
    FOLDED,
    METADATA,
    NAME,
    QUIZ,
    RECORDED,
    executed_notebooks,
    labs,
    published,
)
from tools.saved import in_step  # noqa: E402
from tools.set_repository_url import configured_slug  # noqa: E402

BOOTSTRAP = ROOT / "tools" / "bootstrap_cell.py"

MAX_NOTEBOOK_BYTES = 1_000_000
MAX_IMAGE_BYTES = 200_000
MAX_CELL_LINES = 30
KNOWN_TAGS = {"bootstrap", "widget", "nbval-ignore-output", "raises-exception", "nbval-skip"}
# The lesson's own widget, and further ones. On the site a recording takes the place of each.
WIDGET = re.compile(r"widget(-[a-z]+)?")
# Folders of one machine. Not preceded by a word or a dot, so that `docs.org/work/` may stand.
MACHINE_PATH = re.compile(r"(?<![\w./:-])(/(home|root|work|tmp|Users|mnt)/|[A-Z]:\\\\?\w)")
PROGRESS_BAR = re.compile(r"\d+%\|.*\||\d(it/s|s/it)\b")
# What prints a time or a ratio of times prints another one at every run.
TIMING = re.compile(r"\b(median_seconds|fastest_seconds)\(")


def problems(path: Path) -> list[str]:
    """All rules that the notebook at `path` breaks; an empty list if it is fine."""
    # Not nbformat.read: it repairs what the rules look for.
    notebook = nbformat.v4.reads(path.read_text(encoding="utf-8"))
    error = next(iter_validate(notebook), None)
    if error is not None:
        return [f"not a valid notebook: {error.message}"]
    found = [*_file_rules(path), *_common_rules(notebook)]
    if cloud_links(path) not in notebook.cells[0].source:
        found.append(f"the first cell lacks its links to Colab and Kaggle: {cloud_links(path)}")
    found += _navigation_rules(path, notebook)
    if path.parent.parent.name == "labs":
        found += _untouched_rules(notebook)
    else:
        found += _executed_rules(notebook)
        found += in_step.problems(notebook, in_step.KNOWN_OLD.get(path.stem, frozenset()))
    if path.parent.name == "notebooks":
        found += [*_text_rules(notebook), *_glossary_rules(path, notebook)]
        found += [] if path == QUIZ else _lesson_rules(notebook)
    return found


def cloud_links(path: Path) -> str:
    """The line with which a lesson or lab is opened elsewhere; a solution's opens its lab.

    Words, not badges: a picture would be fetched from the network whenever the notebook is opened.
    """
    place = f"{configured_slug()}/blob/main/{published(path)}"
    return (
        f"**In the cloud.** {on_colab(path, 'Colab')} · "
        f"[Kaggle](https://kaggle.com/kernels/welcome?src=https://github.com/{place})"
    )


def _glossary_rules(path: Path, notebook: NotebookNode) -> Iterator[str]:
    for cell, text in zip(
        glossary.texts_of(notebook), glossary.with_links(notebook, path), strict=True
    ):
        if cell.source != text:
            yield (
                f"cell {notebook.cells.index(cell)}: the first use of a glossary's term must be a "
                "link, and no other: run `python tools/glossary.py`"
            )


def _navigation_rules(path: Path, notebook: NotebookNode) -> Iterator[str]:
    """One can go on from here by clicking. Of the course's own notebooks; tests have others."""
    source = next((one for one in course() if path in (one, public(one))), None)
    if source is None:
        return
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    for text, mark, line in ((texts[0], TOP, top_line(source)), (texts[-1], END, end_line(source))):
        if text.count(mark) != 1 or line not in text.splitlines():
            yield f"lacks the line {line!r}: run `python tools/navigation.py`"


def _file_rules(path: Path) -> Iterator[str]:
    if not re.fullmatch(NAME, path.stem):
        yield f"{path.name}: the name has the form NN_name.ipynb, in lower case"
    if path.stat().st_size > MAX_NOTEBOOK_BYTES:
        size = path.stat().st_size / 1e6
        yield f"the file has {size:.1f} MB; at most {MAX_NOTEBOOK_BYTES / 1e6:.0f} MB"


def _common_rules(notebook: NotebookNode) -> Iterator[str]:
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        yield "the file format is older than 4.5, which has cell ids"
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "the kernel is not python3"
    if extra := set(notebook.metadata) - {*METADATA, RECORDED}:
        yield f"the notebook's metadata hold {sorted(extra)}, beside {sorted(METADATA)}"
    if set(notebook.metadata.get("language_info", {})) - {"name"}:
        yield "language_info holds more than the name, and changes with every Python version"
    ids = [cell.get("id") for cell in notebook.cells]
    if len(set(ids)) != len(ids):
        yield "two cells have the same id"

    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    expected = BOOTSTRAP.read_text().strip()
    if not code or code[0].source.strip() != expected:
        yield f"the first code cell is not {BOOTSTRAP.name}"
    if code and code[0].metadata.get("jupyter") != FOLDED:
        yield f"the first code cell is not folded: its metadata lack 'jupyter': {FOLDED}"
    yield from _heading_rules(notebook)
    for number, cell in enumerate(notebook.cells):
        where = f"cell {number}"
        if match := re.search(r"<summary>[^<]*`[^<]*", cell.source):
            yield f"{where}: Markdown is not read in {match[0]!r}; use <code>"
        if match := MACHINE_PATH.search(cell.source):
            yield f"{where}: names a folder of one machine: {match[0]!r}"
        if cell.cell_type == "code":
            yield from (f"{where}: {problem}" for problem in _tag_rules(cell))


def _heading_rules(notebook: NotebookNode) -> Iterator[str]:
    levels = [len(marks) for marks, _ in headings(notebook)]
    if levels.count(1) != 1 or levels[0] != 1:
        yield "there is one first-level heading, and it comes first"
    for before, after in itertools.pairwise(levels):
        if after > before + 1:
            yield f"a heading of level {after} follows one of level {before}"


def headings(notebook: NotebookNode) -> list[tuple[str, str]]:
    """The headings in the notebook's text, as (marks, title); lines in code blocks are none."""
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^(#+) +(.+?)\s*$", text, flags=re.MULTILINE)


def _tag_rules(cell: NotebookNode) -> Iterator[str]:
    tags = set(cell.metadata.get("tags", []))
    widgets = set(filter(WIDGET.fullmatch, tags))
    if unknown := tags - KNOWN_TAGS - widgets:
        yield f"unknown tags {sorted(unknown)}; known are {sorted(KNOWN_TAGS)}, widget-NAME"
    if re.search(r"^\s*#\s*(NBVAL_|PYTEST_VALIDATE_)", cell.source, flags=re.MULTILINE):
        yield "says in a comment how it is tested; use the cell's tags, which readers do not see"
    if "nbval-skip" in tags and not re.search(
        r"^# Not run in tests: \w+", cell.source, re.MULTILINE
    ):
        yield "is skipped in tests without a reason. Add a comment: # Not run in tests: <why>"


def _untouched_rules(notebook: NotebookNode) -> Iterator[str]:
    if RECORDED in notebook.metadata:
        yield f"a lab was never executed, but its metadata hold {RECORDED!r}"
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None):
            yield f"cell {number}: a lab is handed out without outputs"


def _executed_rules(notebook: NotebookNode) -> Iterator[str]:
    code = [(n, c) for n, c in enumerate(notebook.cells) if c.cell_type == "code"]
    counts = [cell.execution_count for _, cell in code]
    if counts != list(range(1, len(code) + 1)):
        yield "the cells were not all run once, from top to bottom: run `make notebooks`"
    for number, cell in code:
        yield from (f"cell {number}: {problem}" for problem in _output_rules(cell))


def _output_rules(cell: NotebookNode) -> Iterator[str]:
    tags = set(cell.metadata.get("tags", []))
    executed = cell.execution_count is not None
    if executed and "nbval-ignore-output" in tags and not cell.outputs:
        yield "is marked nbval-ignore-output, but has no output to ignore"
    if cell.outputs and TIMING.search(cell.source) and "nbval-ignore-output" not in tags:
        yield "measures time, so its output cannot be compared: tag it nbval-ignore-output"
    for output in cell.outputs:
        if output.output_type == "error" and "raises-exception" not in tags:
            yield f"holds an error: {output.ename}"
        if output.get("name") == "stderr":
            yield f"wrote to stderr: {output.text.strip()[:60]!r}"
        data = output.get("data", {})
        if any(kind.startswith("application/vnd.jupyter.widget") for kind in data):
            yield "holds a widget that is dead without its kernel: save with `make notebooks`"
        if any(map(WIDGET.fullmatch, tags)) and "nbval-ignore-output" not in tags:
            yield "shows a widget, so its output cannot be compared: tag it nbval-ignore-output"
        if "image/png" in data and not output.metadata.get("image/png", {}).get("alt"):
            yield "holds a picture without a text (its figure needs a title): run it anew"
        for kind, content in data.items():
            if kind.startswith("image/") and kind != "image/svg+xml":
                size = len(content) * 3 // 4  # base64
                if size > MAX_IMAGE_BYTES:
                    limit = MAX_IMAGE_BYTES / 1e3
                    yield f"holds an image of {size / 1e3:.0f} kB; at most {limit:.0f} kB"
        for text in output_texts(output):
            if match := MACHINE_PATH.search(text):
                yield f"printed a folder of one machine: {match[0]!r}"
            if PROGRESS_BAR.search(text):
                yield "holds the remains of a progress bar: switch it off (use_tqdm=False)"


def output_texts(output: NotebookNode) -> list[str]:
    """All text in one output; images are left out."""
    kinds = output.get("data", {})
    texts = [value for kind, value in kinds.items() if not kind.startswith("image/")]
    texts += [output.get("text", ""), *output.get("traceback", [])]
    return [text for text in texts if isinstance(text, str)]


# What every lesson has: how it is called in messages, and a pattern in its markdown text.
HEAD_PARTS = {
    "a goal (**Goal.** ...)": r"\*\*Goal\.\*\* \S",
    "its minutes (**Time.** N minutes)": r"\*\*Time\.\*\* \d+ minutes",
    "what the reader needs (**You need.** ...)": r"\*\*You need\.\*\* \S",
}
LESSON_PARTS = {
    "the section '## The same thing in vLLM'": r"^## The same thing in vLLM$",
    "the section '## Recap'": r"^## Recap$",
    "the section '### Questions'": r"^### Questions$",
    "folded answers (<details>)": r"<details><summary>.+?</summary>.+?</details>",
    "the section '### Try it yourself'": r"^### Try it yourself$",
    "the section '### Read on'": r"^### Read on$",
}


def _text_rules(notebook: NotebookNode) -> Iterator[str]:
    """Of lessons, and of the quiz among them."""
    for name, pattern in HEAD_PARTS.items():
        if not re.search(pattern, notebook.cells[0].source):
            yield f"the first cell lacks {name}"
    yield from reading_time.problems(notebook)
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            lines = sum(bool(line.strip()) for line in cell.source.splitlines())
            if lines > MAX_CELL_LINES:
                yield f"cell {number}: {lines} lines; at most {MAX_CELL_LINES}, better 25"


def _lesson_rules(notebook: NotebookNode) -> Iterator[str]:
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for name, pattern in LESSON_PARTS.items():
        if not re.search(pattern, text, flags=re.MULTILINE | re.DOTALL):
            yield f"the lesson lacks {name}"
    yield from prose_numbers.problems(notebook)
    if not any("widget" in cell.metadata.get("tags", []) for cell in notebook.cells):
        yield "the lesson has no cell tagged 'widget'"


def main() -> None:
    paths = [Path(argument).resolve() for argument in sys.argv[1:]]
    found = False
    for path in paths or executed_notebooks() + labs():
        for problem in problems(path):
            print(f"{path.relative_to(ROOT)}: {problem}")
            found = True
    sys.exit(int(found))


if __name__ == "__main__":
    main()
