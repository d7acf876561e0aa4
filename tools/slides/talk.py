"""What of a lesson is shown in a talk, and what is said to it.

A lesson has some fifty cells; a talk has ten to twenty slides. A section becomes one slide: its
figure if it has one, else its formula, else a definition that fits, else its first sentences. All
of its prose becomes the notes. Where that makes too many slides, those go first that show least.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

FEWEST, MOST = 9, 20
MAX_CODE_LINES = 12
MAX_POINTS, MAX_LEAD = 4, 180  # characters
MAX_TABLE_ROWS = 7
LAST = ("Recap", "The same thing in vLLM")
FORMULA = re.compile(r"^\$\$(.+?)\$\$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#{2,3}) +(.+)$", re.MULTILINE)
SENTENCE = re.compile(r"(?<=[.?!:])(?<!e\.g\.)(?<!i\.e\.) +(?=[A-Z`*\"0-9$])")
DEFINITION = re.compile(r"^(def|class) ", re.MULTILINE)
DETAILS = re.compile(r"<details>.*?</details>", re.DOTALL)


@dataclass(frozen=True)
class Figure:
    """A picture in base64, and its text."""

    png: str
    text: str


@dataclass
class Slide:
    """One slide; `text`, `formula` and `notes` are Markdown.

    Attributes:
        kind: "title", "contents", "figure", "formula", "code", "text", "table", "recap" or
            "questions".
    """

    title: str
    kind: str
    text: str = ""
    formula: str = ""
    code: str = ""
    figure: Figure | None = None
    notes: str = ""


@dataclass
class Section:
    """A heading, and what stands below it."""

    title: str
    level: int
    prose: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # how much of the prose stands before each

    @property
    def notes(self) -> str:
        return "\n\n".join(self.prose)


def talk_of(notebook: dict[str, Any]) -> list[Slide]:
    """The slides of a lesson, `FEWEST` to `MOST` of them.

    Args:
        notebook: as JSON, executed.
    """
    opening, *sections = sections_of(notebook)
    shown = [s for s in sections if s.title not in LAST and "optional" not in s.title.lower()]
    last = {section.title: section for section in sections if section.title in LAST}
    title = Slide(opening.title, "title", _goal(opening.notes), notes=opening.notes)
    end = [_table(last[LAST[1]])] if LAST[1] in last else []
    if LAST[0] in last:
        end += _recap(last[LAST[0]])
    topics = [s for s in shown if s.level == 2]
    contents = Slide("What comes", "contents", "\n".join(f"1. {s.title}" for s in topics))
    slides = [slide for section in _merged(shown) for slide in _slides(section)]
    if len(slides) + len(end) + 2 < FEWEST:
        slides = [slide for section in shown for slide in _slides(section)]
    return [title, contents, *_fewer(slides, MOST - 2 - len(end)), *end]


def sections_of(notebook: dict[str, Any]) -> list[Section]:
    """Cut a lesson at its headings. The first section is its title cell."""
    sections: list[Section] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        tags = cell["metadata"].get("tags", [])
        if cell["cell_type"] == "markdown":
            if not sections:
                title, _, rest = source.partition("\n")
                sections.append(Section(title.lstrip("# "), 1, [rest.strip()]))
                continue
            before, *parts = re.split(HEADING, source)
            if before.strip():
                sections[-1].prose.append(before.strip())
            for marks, title, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
                in_recap = len(marks) == 3 and sections[-1].title == LAST[0]
                if in_recap:  # its questions and its reading belong to it
                    sections[-1].prose.append(f"### {title}\n\n{text.strip()}")
                else:
                    sections.append(Section(title.strip(), len(marks), [text.strip()]))
        elif "bootstrap" not in tags and sections:
            sections[-1].code.append(source)
            found = _figures(cell)
            sections[-1].figures += found
            sections[-1].places += [len(sections[-1].prose)] * len(found)
    return sections


def _figures(cell: dict[str, Any]) -> list[Figure]:
    found = []
    for output in cell.get("outputs", []):
        if png := output.get("data", {}).get("image/png"):
            text = output["metadata"]["image/png"]["alt"]  # tools/notebook_rules.py wants it
            found.append(Figure("".join(png).strip(), text))
    return found


def _merged(sections: list[Section]) -> list[Section]:
    """Sections of the second level, with all that stands in those of the third."""
    merged: list[Section] = []
    for section in sections:
        if section.level == 2 or not merged:
            merged.append(
                Section(
                    section.title,
                    2,
                    [*section.prose],
                    [*section.code],
                    [*section.figures],
                    [*section.places],
                )
            )
        else:
            before = len(merged[-1].prose)
            merged[-1].places += [before + place for place in section.places]
            first, *others = section.prose
            merged[-1].prose += [f"**{section.title}.** {first}", *others]
            merged[-1].code += section.code
            merged[-1].figures += section.figures
    return merged


def _slides(section: Section) -> list[Slide]:
    """A slide for each figure, and one for the first formula; else for code, or for the text."""
    slides = []
    notes, lead = section.notes, _points(section.notes, 1)
    if formula := FORMULA.search(notes):
        slides.append(Slide(section.title, "formula", lead, formula=formula[0], notes=notes))
    slides += [Slide(section.title, "figure", figure=figure) for figure in section.figures]
    if slides:
        # Each is said what stands behind its figure; the first, also what stands before.
        cuts = section.places if formula else section.places[1:]
        for slide, start, end in zip(slides, [0, *cuts], [*cuts, None], strict=True):
            slide.notes = "\n\n".join(section.prose[start:end])
        return slides
    code, points = _short(section.code), _points(notes, MAX_POINTS)
    if code and (DEFINITION.search(code) or points.count("\n") < 1):
        return [Slide(section.title, "code", lead, code=code, notes=notes)]
    return [Slide(section.title, "text", points, notes=notes)] if points else []


def _short(cells: list[str]) -> str:
    """The first cell that fits and defines something; else the first that fits; no drawing."""
    fit = [
        cell
        for cell in cells
        if 1 < len(cell.splitlines()) <= MAX_CODE_LINES
        and max(map(len, cell.splitlines())) <= 100
        and "utils.viz" not in cell
        and "utils.findings" not in cell
    ]
    return next(filter(DEFINITION.search, fit), next(iter(fit), ""))


def _points(prose: str, number: int) -> str:
    """First sentences of paragraphs, or the items of a list, as a list in Markdown."""
    points = []
    for block in re.split(r"\n\s*\n", FORMULA.sub("", DETAILS.sub("", prose))):
        block = " ".join(block.split("\n- ")[0].split()) if not block.startswith("- ") else block
        if not block.strip() or block.startswith(("|", "<", "```", "#", "    ", "![", "(")):
            continue
        if block.startswith("- "):
            items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
            points += [_sentence(item) for item in items]
        else:
            points.append(_sentence(re.sub(r"^\d+\. +", "", block)))
    points = [point for point in points if point and len(point) <= MAX_LEAD][:number]
    return "\n".join(f"- {point}" for point in points) if number > 1 else "".join(points)


def _sentence(text: str) -> str:
    """A text's first sentence; the second, too, where the first is very short."""
    first, *more = SENTENCE.split(" ".join(text.split()))
    if more and len(first) < 50 and len(first) + len(more[0]) < MAX_LEAD:
        first = f"{first} {more[0]}"
    return re.sub(r":$", ".", first)


def _goal(text: str) -> str:
    goal = re.search(r"\*\*Goal\.\*\* (.+?)(?=\n\s*\n|$)", text, re.DOTALL)
    return " ".join(goal[1].split()) if goal else ""


def _table(section: Section) -> Slide:
    """The table of names, cut where it is long."""
    rows = re.findall(r"^\|.*$", section.notes, re.MULTILINE)
    text = "\n".join(rows[: MAX_TABLE_ROWS + 2])
    if more := len(rows) - MAX_TABLE_ROWS - 2:
        text += f"\n\n{more} more in the lesson." if more > 0 else ""
    kind = "table" if rows else "text"
    return Slide(
        section.title,
        kind,
        text if rows else _points(section.notes, MAX_POINTS),
        notes=section.notes,
    )


def _recap(section: Section) -> list[Slide]:
    """What to keep; and the questions, their answers folded."""
    before, _, after = section.notes.partition("### Questions")
    slides = [Slide("Recap", "recap", before.strip(), notes=after.partition("###")[2])]
    if questions := DETAILS.findall(after):
        slides.append(Slide("Questions", "questions", "\n\n".join(questions)))
    return slides


def _fewer(slides: list[Slide], most: int) -> list[Slide]:
    """Leave out what shows least: text first, then code, then a section's further figures.

    What is said to a slide that goes is said to the one before it.
    """
    kept = list(slides)

    def weight(place: int) -> tuple[int, int]:
        slide = kept[place]
        further = place > 0 and kept[place - 1].title == slide.title
        rank = {"text": 0, "code": 1, "figure": 2 if further else 4, "formula": 3}[slide.kind]
        return rank, -place  # of equals the last: a lesson begins with what matters most

    while len(kept) > max(most, 1):
        place = min(range(1, len(kept)), key=weight)
        gone = kept.pop(place)
        if gone.title != kept[place - 1].title and gone.notes:
            kept[place - 1].notes += f"\n\n**{gone.title}.** {gone.notes}"
    return kept
