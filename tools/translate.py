"""Build the lessons in other languages, and say what is left to translate. `make translations`.

    python tools/translate.py                   refresh all strings, build all notebooks, report
    python tools/translate.py zh 02_kv_cache    the same, with a lesson that zh does not have yet

Translations live apart from the lessons: a PO file for each lesson in translations/LANG/strings.
From it and from the English notebook comes translations/LANG/notebooks/NN_name.ipynb, which has
that notebook's code and outputs. Where there is no translation, or the English has changed since,
it shows the English, and says so. translations/README.md explains how to work with this.
"""

from __future__ import annotations

import argparse
import itertools
import posixpath
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools import glossary  # noqa: E402
from tools.translation.blocks import has_words, join, split  # noqa: E402
from tools.translation.faults import faults  # noqa: E402
from tools.translation.strings import String, read, refreshed, words, written  # noqa: E402

CLOUD = "**In the cloud.**"  # the line of links, which is made here and not translated
TARGET = re.compile(r"(\]\(|\b(?:src|href)=\")(?!\w+:|#|/)([^)\s\"#]+)")


@dataclass(frozen=True)
class Language:
    """A folder of translations/, with what its language.toml says.

    Args:
        code: the folder's name
        tag: the language as HTML names it, such as zh-CN
        name: in the language itself
        cloud: what stands before the links to Colab and Kaggle
        original: the line with the link to the English, which replaces {link}
        stale: what stands before text that is still in English
        rules: (pattern, what it breaks): what no translation may hold
    """

    code: str
    tag: str
    name: str
    cloud: str
    original: str
    stale: str
    rules: tuple[tuple[str, str], ...] = ()
    root: Path = ROOT

    @property
    def folder(self) -> Path:
        return self.root / "translations" / self.code

    def strings(self, lesson: str) -> Path:
        return self.folder / "strings" / f"{lesson}.po"

    def notebook(self, lesson: str) -> Path:
        return self.folder / "notebooks" / f"{lesson}.ipynb"

    def lessons(self) -> list[str]:
        """The lessons that have strings."""
        return sorted(path.stem for path in (self.folder / "strings").glob("*.po"))


def language(code: str, root: Path = ROOT) -> Language:
    """The language of that folder.

    Raises:
        ValueError: it has no settings, or they are not complete.
    """
    path = root / "translations" / code / "language.toml"
    if not path.is_file():
        raise ValueError(
            f"There is no translations/{code}/language.toml. Copy that of another language, and "
            "translate its sentences: translations/README.md says how a language is added."
        )
    settings = tomllib.loads(path.read_text(encoding="utf-8"))
    rules = tuple((rule["pattern"], rule["says"]) for rule in settings.pop("rule", []))
    try:
        return Language(code=code, rules=rules, root=root, **settings)
    except TypeError as error:
        raise ValueError(
            f"translations/{code}/language.toml sets tag, name, cloud, original and stale, and "
            f"nothing else but [[rule]]: {error}"
        ) from error


def languages(root: Path = ROOT) -> list[Language]:
    """Every language of the course but English."""
    found = sorted((root / "translations").glob("*/language.toml"))
    return [language(path.parent.name, root) for path in found]


def english(lesson: str, root: Path = ROOT) -> NotebookNode:
    """The lesson as it is written, without its links to the glossary, which is in English.

    Raises:
        ValueError: there is no such lesson.
    """
    path = root / "notebooks" / f"{lesson}.ipynb"
    if not path.is_file():
        raise ValueError(f"There is no lesson notebooks/{lesson}.ipynb.")
    notebook = nbformat.read(path, as_version=4)
    for cell in glossary.texts_of(notebook):
        cell.source = glossary.unlinked(cell.source)
    return notebook


def blocks_of(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """What a translator translates, as (cell id, block)."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from ((cell.id, block) for block in split(cell.source) if _is_translated(block))


def _is_translated(block: str) -> bool:
    return has_words(block) and not block.startswith(CLOUD)


def built(lesson: str, into: Language) -> NotebookNode:
    """The notebook in the other language: only the text of its Markdown cells differs."""
    notebook = english(lesson, into.root)
    strings = {words(s.english): s.text for s in read(into.strings(lesson))[0] if s.valid}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = join(list(_translated(split(cell.source), strings, lesson, into)))
    return notebook


def _translated(
    blocks: list[str], strings: dict[str, str], lesson: str, into: Language
) -> Iterator[str]:
    """The blocks of a cell in the language; English ones after a word of warning."""

    def is_english(block: str) -> bool:
        return _is_translated(block) and words(block) not in strings

    for left_out, group in itertools.groupby(blocks, is_english):
        warned = not left_out
        for block in group:
            if not warned and not block.startswith("#"):
                yield into.stale
                warned = True
            if block.startswith(CLOUD):
                yield _cloud(block, lesson, into)
                link = f"../../../notebooks/{lesson}.ipynb"
                yield into.original.replace("{link}", link)
            else:
                yield _relinked(strings.get(words(block), block), into)
        if not warned:  # headings only
            yield into.stale


def _cloud(block: str, lesson: str, into: Language) -> str:
    here = into.notebook(lesson).relative_to(into.root).as_posix()
    block = block.replace(CLOUD, into.cloud)
    return block.replace(f"/notebooks/{lesson}.ipynb", f"/{here}")


def _relinked(text: str, into: Language) -> str:
    """Relative links, which are those of the English, from the folder of the translations."""
    here = into.notebook("x").parent.relative_to(into.root).as_posix()

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("notebooks", match[2]))
        folder, name = posixpath.split(path)
        if folder == "notebooks" and Path(name).stem in into.lessons():
            path = f"{here}/{name}"
        return match[1] + posixpath.relpath(path, here)

    return TARGET.sub(target, text)


def refresh(lesson: str, into: Language) -> None:
    """Bring a lesson's strings up to date with the English; makes the file where there is none."""
    path = into.strings(lesson)
    strings, obsolete = read(path) if path.exists() else ([], [])
    strings, obsolete = refreshed(strings, obsolete, blocks_of(english(lesson, into.root)))
    _write(path, written(strings, obsolete, into.tag.replace("-", "_"), lesson))


def build(lesson: str, into: Language) -> None:
    """Write the notebook in the other language."""
    _write(into.notebook(lesson), text_of(built(lesson, into)))


def text_of(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def faults_of(string: String, into: Language) -> list[str]:
    """What is wrong with a translation; one that is missing or stale is not wrong."""
    if not string.valid:
        return []
    found = faults(string.english, string.text)
    for pattern, says in into.rules:
        if match := re.search(pattern, string.text):
            found.append(f"{says}: {match[0]!r}")
    return found


def report(lesson: str, into: Language) -> list[str]:
    """Print how far a lesson is translated, and what is wrong with it; return the latter."""
    strings = {words(string.english): string for string in read(into.strings(lesson))[0]}
    blocks = dict.fromkeys(words(block) for _, block in blocks_of(english(lesson, into.root)))
    now = [strings.get(block, String(block)) for block in blocks]
    done = sum(string.valid for string in now)
    stale = [string for string in now if string.text and not string.valid]
    missing = len(now) - done - len(stale)
    print(
        f"{into.code} {lesson}: {done} of {len(now)} blocks translated, {len(stale)} stale, "
        f"{missing} missing"
    )
    for string in now:
        if not string.valid:
            kind = "stale" if string.text else "missing"
            print(f"    {kind}: cell {string.cell or '?'}: {words(string.english)[:60]}")
    found = [f"cell {s.cell}: {fault}" for s in now for fault in faults_of(s, into)]
    for fault in found:
        print(f"    wrong: {fault}")
    return found


def rebuild(path: Path, root: Path = ROOT) -> None:
    """After an English notebook has changed: its translations take over its code and outputs."""
    if path.parent == root / "notebooks":
        for into in languages(root):
            if path.stem in into.lessons():
                refresh(path.stem, into)
                build(path.stem, into)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("language", nargs="?", help="a folder of translations/; default: all")
    parser.add_argument("lessons", nargs="*", metavar="NN_name", help="default: those it has")
    arguments = parser.parse_args()
    wrong = False
    try:
        chosen = [language(arguments.language)] if arguments.language else languages()
        for into in chosen:
            for lesson in sorted({*into.lessons(), *arguments.lessons}):
                refresh(lesson, into)
                build(lesson, into)
            # Once all are there: a link leads to the lesson in this language, where there is one.
            for lesson in into.lessons():
                build(lesson, into)
                wrong |= bool(report(lesson, into))
    except ValueError as error:
        sys.exit(str(error))
    if wrong:
        sys.exit("Strings above are wrong: correct them in the PO files, and run this again.")


if __name__ == "__main__":
    main()
