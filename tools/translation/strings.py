"""A lesson's strings in one language: a PO file, which gettext's editors (Poedit, Weblate) read.

Babel reads the file. It is written here, because Babel wraps the lines of the English before, and
writes dates and its own version, so that each run would give another file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path

from babel.messages.catalog import Message
from babel.messages.pofile import PoFileError, denormalize, escape, read_po

HEADER = (
    'msgid ""\nmsgstr ""\n'
    '"Content-Type: text/plain; charset=UTF-8\\n"\n'
    '"Content-Transfer-Encoding: 8bit\\n"\n'
    '"Language: {tag}\\n"\n'
)
SIMILAR = 0.6  # from this likeness on, an old block is taken for what a new one was before


@dataclass(frozen=True)
class String:
    """One block of a lesson and its translation.

    Args:
        english: the block, as it stands in the lesson
        text: its translation; empty if there is none
        before: the English that `text` translates, where that is another; then `text` is stale
        cell: the id of the cell that it stands in first; empty for what the lesson no longer has
        remarks: the translators' own comments
        fuzzy: a translator is not sure of `text`, or it is stale
    """

    english: str
    text: str = ""
    before: str = ""
    cell: str = ""
    remarks: tuple[str, ...] = field(default=())
    fuzzy: bool = False

    @property
    def valid(self) -> bool:
        """Whether the text may be shown."""
        return bool(self.text) and not self.fuzzy


def words(block: str) -> str:
    """What makes two blocks the same: their words. Where lines break does not matter."""
    return " ".join(block.split())


def read(path: Path) -> tuple[list[String], list[String]]:
    """The strings of a PO file, and those that its lesson no longer has.

    Raises:
        ValueError: it is not a PO file in UTF-8.
    """
    try:
        catalog = read_po(BytesIO(path.read_bytes()), abort_invalid=True)
    except (PoFileError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is not a PO file in UTF-8: {error}") from error
    strings = [_string(message) for message in catalog if message.id]
    return strings, [_string(message) for message in catalog.obsolete.values()]


def _string(message: Message) -> String:
    fuzzy = bool(message.fuzzy)
    comments = [str(comment) for comment in message.user_comments]
    before = [comment[1:].strip() for comment in comments if fuzzy and comment.startswith("|")]
    cells = [str(name) for name, _ in message.locations]
    return String(
        english=message.id,
        text=message.string,
        before=denormalize("\n".join(before).removeprefix("msgid ")) if before else "",
        cell=cells[0].rpartition("#")[2] if cells else "",
        remarks=tuple(comment for comment in comments if not comment.startswith("|")),
        fuzzy=fuzzy,
    )


def written(strings: list[String], obsolete: list[String], tag: str, lesson: str) -> str:
    """The PO file's text: the same strings give the same text, whatever wrote them last."""
    entries = [HEADER.format(tag=tag)]
    entries += ["".join(_lines(string, lesson)) for string in strings]
    for string in obsolete:
        lines = "".join(_lines(replace(string, cell="", before=""), lesson)).splitlines()
        entries.append("".join(f"#~ {line}\n" for line in lines if not line.startswith("#")))
    return "\n".join(entries)


def _lines(string: String, lesson: str) -> Iterator[str]:
    yield from (f"# {remark}".rstrip() + "\n" for remark in string.remarks)
    if string.cell:
        yield f"#: notebooks/{lesson}.ipynb#{string.cell}\n"
    if string.fuzzy:
        yield "#, fuzzy\n"
    if string.before:
        yield "".join(f"#| {line}\n" for line in f"msgid {quoted(string.before)}".splitlines())
    yield f"msgid {quoted(string.english)}\nmsgstr {quoted(string.text)}\n"


def quoted(text: str) -> str:
    """A text as PO writes it: a line of it in a line of the file."""
    lines = text.splitlines(keepends=True)
    return escape(text) if len(lines) < 2 else "\n".join(['""', *map(escape, lines)])


def refreshed(
    strings: list[String], obsolete: list[String], blocks: Iterable[tuple[str, str]]
) -> tuple[list[String], list[String]]:
    """The strings for a lesson as it stands now: nothing that was translated gets lost.

    A block whose words are the same keeps its translation, wherever it moved. A new block that is
    like one that is gone gets that one's translation as a proposal: it is fuzzy, so not shown, and
    holds the English that was translated, so that an editor shows what has changed.

    Args:
        blocks: (cell id, block) of the lesson, in order
    """
    known = {words(string.english): string for string in [*obsolete, *strings]}
    new: dict[str, String] = {}
    for cell, block in blocks:
        old = known.get(words(block), String(block))
        new.setdefault(words(block), replace(old, english=block, cell=cell))
    gone = {key: s for key, s in known.items() if key not in new and s.text}
    for key, string in new.items():
        if key not in known and (like := difflib.get_close_matches(key, gone, 1, SIMILAR)):
            old = gone.pop(like[0])
            new[key] = replace(
                string,
                text=old.text,
                before=old.before or old.english,
                remarks=old.remarks,
                fuzzy=True,
            )
    return list(new.values()), list(gone.values())
