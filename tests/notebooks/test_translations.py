"""Lessons in other languages: the English one's code and outputs, its words translated or English.

No test here fails because English moved on and nobody has translated it yet. What fails is a
translated notebook that is not built from what there is now (`make translations`, which needs
nobody who knows the language), and a translation that loses a number, a link, a formula.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from tools import translate
from tools.course_contents import is_of_the_course
from tools.notebook_files import lessons
from tools.notebook_rules import BOOTSTRAP, MACHINE_PATH, headings
from tools.set_repository_url import configured_slug
from tools.translation.blocks import formulas, has_words, join, split
from tools.translation.faults import faults
from tools.translation.strings import String, read, refreshed, written

ROOT = Path(__file__).parents[2]
TRANSLATED = [(into, lesson) for into in translate.languages() for lesson in into.lessons()]
each_translation = pytest.mark.parametrize(
    ("into", "name"), TRANSLATED, ids=[f"{into.code}-{lesson}" for into, lesson in TRANSLATED]
)


def raw(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


# --- what is in the repository --------------------------------------------------------------------


def test_chinese_has_the_first_two_lessons() -> None:
    """They are the proof that the way works. What the English gained later may be missing."""
    chinese = translate.language("zh")
    assert {"00_start_here", "01_prefill_and_decode"} <= set(chinese.lessons())
    for name in chinese.lessons():
        strings, obsolete = read(chinese.strings(name))  # stale ones, too: nothing gets lost
        text = "".join(string.text for string in [*strings, *obsolete])
        assert len(re.findall(r"[一-鿿]", text)) > 1000


@each_translation
def test_notebook_is_built_from_its_strings_and_the_english(
    into: translate.Language, name: str
) -> None:
    is_there = into.notebook(name).read_text(encoding="utf-8")
    is_built = is_there == translate.text_of(translate.built(name, into))
    assert is_built, (
        "It is not what its strings and the English lesson give. Run `make translations` and "
        "commit what it writes. You need not know the language: what has no translation is shown "
        "in English."
    )


@each_translation
def test_code_and_outputs_are_the_english_ones(into: translate.Language, name: str) -> None:
    ours, theirs = raw(into.notebook(name)), raw(ROOT / "notebooks" / f"{name}.ipynb")
    assert ours["metadata"] == theirs["metadata"]
    assert len(ours["cells"]) == len(theirs["cells"])
    for our, their in zip(ours["cells"], theirs["cells"], strict=True):
        if their["cell_type"] == "markdown":
            our, their = ({k: v for k, v in c.items() if k != "source"} for c in (our, their))
        assert our == their


@each_translation
def test_headings_formulas_and_code_spans_are_the_english_ones(
    into: translate.Language, name: str
) -> None:
    """Read from the whole notebooks, and not by the tool's own parts."""

    def parts(path: Path) -> tuple[list[str], Counter, Counter]:
        notebook = nbformat.read(path, as_version=4)
        text = "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
        # Formulas without their words, and names between backticks.
        found = re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", text, re.DOTALL)
        plain = Counter(re.sub(r"\\text\{[^{}]*\}", "", formula) for formula in found)
        return [m for m, _ in headings(notebook)], plain, Counter(re.findall(r"`[^`\n]+`", text))

    english = parts(ROOT / "notebooks" / f"{name}.ipynb")
    assert parts(into.notebook(name)) == english
    assert english[0] and english[2]


@each_translation
def test_strings_have_no_faults(into: translate.Language, name: str) -> None:
    strings, _ = read(into.strings(name))
    wrong = {s.english[:50]: found for s in strings if (found := translate.faults_of(s, into))}
    assert wrong == {}


@each_translation
def test_links_lead_somewhere(into: translate.Language, name: str) -> None:
    path, slug = into.notebook(name), configured_slug()
    cells = [c for c in raw(path)["cells"] if c["cell_type"] == "markdown"]
    text = "\n".join("".join(cell["source"]) for cell in cells)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    relative = [target for target in targets if "://" not in target and target[0] != "#"]
    assert f"../../../notebooks/{name}.ipynb" in relative
    for target in relative:
        assert (path.parent / target.partition("#")[0]).exists(), target
    first = "".join(cells[0]["source"])
    clouds = [target for target in targets if "colab" in target or "kaggle" in target]
    clouds = [target for target in clouds if target in first]  # others lead to the next lesson
    assert len(clouds) == 2
    place = f"{slug}/blob/main/{path.relative_to(ROOT).as_posix()}"
    assert all(target.endswith(place) for target in clouds)


@each_translation
def test_nothing_of_one_machine_is_named(into: translate.Language, name: str) -> None:
    assert not any(MACHINE_PATH.search(s.text) for s in read(into.strings(name))[0])


def test_translated_notebooks_are_not_run_again_with_the_tests() -> None:
    """Their code and outputs are the English ones, which are run. None lies where tests are."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    collected = [ROOT / name for name in settings["ini_options"]["testpaths"]]
    for into, name in TRANSLATED:
        assert not any(folder in into.notebook(name).parents for folder in collected)
        assert into.notebook(name) not in lessons()


@each_translation
def test_jupyterlab_saves_them_as_they_are_committed(into: translate.Language, name: str) -> None:
    assert is_of_the_course(into.notebook(name))


@pytest.mark.parametrize("into", translate.languages(), ids=lambda into: into.code)
def test_first_cell_finds_the_course_from_their_folder(into: translate.Language) -> None:
    code = BOOTSTRAP.read_text().partition("from utils")[0] + "\nprint(roots[0])"
    # Isolated from this environment, where the course may be installed.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        cwd=into.notebook("x").parent,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert Path(done.stdout.strip()) == ROOT


# --- blocks ---------------------------------------------------------------------------------------


def test_cells_are_what_their_blocks_make_together() -> None:
    for path in lessons():
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                assert join(split(cell.source)) == re.sub(r"\n{3,}", "\n\n", cell.source.strip())


def test_code_and_formulas_of_several_lines_stay_whole() -> None:
    code = "```python\na = 1\n\n\nb = 2\n```"
    formula = "$$\nx\n\n= y\n$$"
    assert split(f"One.\n\n{code}\n\n{formula}\n\n\nTwo\nlines.") == [
        "One.",
        code,
        formula,
        "Two\nlines.",
    ]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("## Recap", True),
        (r"$$\text{bytes} = 2 n$$", True),
        (r"$$\mathrm{RMSNorm}(x) = \frac{x}{y} \cdot w$$", False),
        ("</details>", False),
        ("`a_name`, `another`", False),
        ("```python\nlet_it = be\n```", False),
        ("13 · 2 = 26", False),
        ("<details><summary>Why?</summary>", True),
        ("这里", True),
    ],
)
def test_what_has_words_is_translated(block: str, expected: bool) -> None:
    assert has_words(block) is expected


def test_dollars_in_code_are_no_formula() -> None:
    assert formulas("`$HOME` and $x$, `$y`, $$z$$") == ["$x$", "$$z$$"]


# --- faults ---------------------------------------------------------------------------------------

ENGLISH = """\
It takes **2 GB** in 16 bit, see [the paper](https://a.org/1), `code` and $\\sqrt{n}$.

| here | in vLLM |
|---|---|
| `LLM` | none |"""
CHINESE = """\
用 16 bit 时占 **2 GB**，见[论文](https://a.org/1)、`code` 和 $\\sqrt{n}$。

| 本课程 | vLLM |
|---|---|
| `LLM` | 无 |"""
# What is changed in the translation, and what is then said.
WRONG = {
    "number": ("16 bit", "十六 bit", "the number 16 is lost"),
    "link": ("a.org/1", "a.org/2", "link https://a.org/1 is lost"),
    "other link": ("a.org/1", "a.org/2", "link https://a.org/2 is not in the English"),
    "code": ("`code`", "`代码`", "code `code` is lost"),
    "formula": ("{n}", "{m}", "formula $\\sqrt{n}$ is lost"),
    "stars": ("**2 GB**", "2 GB", "emphasised words"),
    "row": ("\n| `LLM` | 无 |", "", "rows of tables: 1 here, 2 in English"),
    "cell": ("| `LLM` | 无 |", "| `LLM` | 无 |\n| | |", "cells of tables"),
    "heading": ("用 16", "## 用 16", "heading ## is not in the English"),
    "tag": ("用 16", "<b>用</b> 16", "tag <b is not in the English"),
    "shown stars": ("**2 GB**，", "*2 GB*，**注意：**注", "** is shown as it is"),
}


def test_a_good_translation_has_no_faults() -> None:
    assert faults(ENGLISH, CHINESE) == []
    assert faults(r"$$\text{bytes} = 2 n$$", r"$$\text{字节数} = 2 n$$") == []


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_found(name: str) -> None:
    right, wrong, says = WRONG[name]
    assert right in CHINESE
    found = faults(ENGLISH, CHINESE.replace(right, wrong))
    assert any(says in fault for fault in found), found


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("一个token", "a space stands"),
        ("8 GB内存", "a space stands"),
        ("内存,", "full-width"),
        ("内存(memory)", "full-width"),
        ("内存 ，", "no space"),
        ("一个词元", "stays a token"),
        ("您的机器", "你"),
    ],
)
def test_rules_of_chinese_can_be_broken(wrong: str, says: str) -> None:
    chinese = translate.language("zh")
    assert (
        translate.faults_of(String("memory", "内存（memory）里有 8 GB，一个 token。"), chinese)
        == []
    )
    assert any(says in f for f in translate.faults_of(String("memory", wrong), chinese))
    assert translate.faults_of(String("memory", wrong, fuzzy=True), chinese) == []  # not shown


# --- a language from nothing, in a course of one lesson -------------------------------------------

LESSON = """\
# 01 · Title

**Goal.** One sentence.

**In the cloud.** [Colab](https://colab.org/x/blob/main/notebooks/01_title.ipynb)"""
SECOND = """\
## Why

It costs 2 bytes. See [the next](02_next.ipynb), and ![a map](images/map.png).

It costs nothing else."""


@pytest.fixture
def course(tmp_path: Path) -> Path:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "translations/xx").mkdir(parents=True)
    shutil.copy(ROOT / "translations/zh/language.toml", tmp_path / "translations/xx")
    write_lesson(tmp_path, LESSON, SECOND)
    return tmp_path


def write_lesson(course: Path, *texts: str) -> None:
    cells: list[NotebookNode] = [nbformat.v4.new_markdown_cell(text) for text in texts]
    cells.append(nbformat.v4.new_code_cell("print(1)  # one", execution_count=1))
    for number, cell in enumerate(cells):
        cell.id = f"cell{number}"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), course / "notebooks/01_title.ipynb")


def translated(course: Path, **texts: str) -> translate.Language:
    """Give blocks that begin with such words a translation, as a translator would in an editor."""
    into = translate.language("xx", course)
    translate.refresh("01_title", into)
    strings, obsolete = read(into.strings("01_title"))
    changed = [
        String(
            s.english, next((t for k, t in texts.items() if k in s.english), s.text), cell=s.cell
        )
        for s in strings
    ]
    into.strings("01_title").write_text(written(changed, obsolete, "xx", "01_title"))
    return into


def sources(into: translate.Language) -> list[str]:
    translate.build("01_title", into)
    notebook = nbformat.read(into.notebook("01_title"), as_version=4)
    return [cell.source for cell in notebook.cells]


def test_what_is_not_translated_is_shown_in_english_with_a_word_of_warning(course: Path) -> None:
    into = translated(
        course, costs="要 2 字节。见[下一课](02_next.ipynb)和 ![图](images/map.png)。"
    )
    strings, _ = read(into.strings("01_title"))
    # The second "It costs nothing else." has no translation that is its own; see below.
    assert [s.cell for s in strings] == ["cell0", "cell0", "cell1", "cell1", "cell1"]
    first, second, code = sources(into)
    assert first.startswith(f"# 01 · Title\n\n{into.stale}\n\n**Goal.** One sentence.")
    assert "/blob/main/translations/xx/notebooks/01_title.ipynb" in first
    assert "](../../../notebooks/01_title.ipynb)" in first and "**In the cloud.**" not in first
    assert second.startswith(f"## Why\n\n{into.stale}\n\n要 2 字节。")
    assert "](../../../notebooks/02_next.ipynb)" in second
    assert "](../../../notebooks/images/map.png)" in second
    assert code == "print(1)  # one"


def test_a_link_leads_to_the_lesson_in_the_same_language(course: Path) -> None:
    into = translated(course, costs="要 2 字节。见[下一课](02_next.ipynb)。")
    into.strings("02_next").write_text(written([], [], "xx", "02_next"))
    assert "[下一课](02_next.ipynb)" in sources(into)[1]


def test_changed_english_is_shown_in_place_of_its_old_translation(course: Path) -> None:
    into = translated(course, Why="## 为什么", bytes="要 2 字节。", nothing="没有别的。")
    assert into.stale not in sources(into)[1]

    write_lesson(course, LESSON, SECOND.replace("2 bytes", "3 bytes"))
    for _ in range(2):  # before the strings are refreshed, and after
        text = sources(into)[1]
        assert "要 2 字节。" not in text
        assert f"## 为什么\n\n{into.stale}\n\nIt costs 3 bytes." in text
        assert text.endswith("没有别的。")
        translate.refresh("01_title", into)
    stale = next(s for s in read(into.strings("01_title"))[0] if "3 bytes" in s.english)
    assert (stale.text, stale.fuzzy) == ("要 2 字节。", True)
    assert stale.before.startswith("It costs 2 bytes.") and stale.before in SECOND

    # And English that returns brings its translation back.
    write_lesson(course, LESSON, SECOND)
    translate.refresh("01_title", into)
    assert "3 bytes" not in into.strings("01_title").read_text()


def test_lines_that_only_break_elsewhere_stay_translated(course: Path) -> None:
    into = translated(course, bytes="要 2 字节。", Why="## 为什么", nothing="没有别的。")
    write_lesson(course, LESSON, SECOND.replace("2 bytes. See", "2 bytes.\nSee"))
    assert into.stale not in sources(into)[1]


def test_strings_of_what_the_lesson_no_longer_has_are_kept(course: Path) -> None:
    into = translated(course, Why="## 为什么", bytes="要 2 字节。", nothing="没有别的。")
    write_lesson(course, LESSON, "## Why")
    translate.refresh("01_title", into)
    strings, obsolete = read(into.strings("01_title"))
    assert [s.text for s in obsolete] == ["要 2 字节。", "没有别的。"]
    assert "costs" not in " ".join(s.english for s in strings)
    write_lesson(course, LESSON, SECOND)
    translate.refresh("01_title", into)
    strings, obsolete = read(into.strings("01_title"))
    assert obsolete == [] and "没有别的。" in [s.text for s in strings if s.valid]


def test_an_english_lesson_that_was_run_anew_hands_on_its_code_and_outputs(course: Path) -> None:
    into, lesson = translated(course, Why="## 为什么"), course / "notebooks/01_title.ipynb"
    assert sources(into)[-1] == "print(1)  # one"
    lesson.write_text(lesson.read_text().replace("print(1)", "print(2)"))
    translate.rebuild(course / "solutions/01_title.ipynb", course)  # not a lesson
    assert "print(2)" not in into.notebook("01_title").read_text()
    translate.rebuild(lesson, course)
    assert "print(2)" in into.notebook("01_title").read_text()
    assert "## 为什么" in into.notebook("01_title").read_text()


def test_report_says_what_is_left(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    into = translated(course, Why="## 为什么", bytes="没有数。", nothing="没有别的。")
    write_lesson(course, LESSON, SECOND.replace("nothing else", "nothing more"))
    translate.refresh("01_title", into)
    wrong = translate.report("01_title", into)
    said = capsys.readouterr().out
    assert "xx 01_title: 2 of 5 blocks translated, 1 stale, 2 missing" in said
    assert "stale: cell cell1: It costs nothing more." in said
    assert "missing: cell cell0: # 01 · Title" in said
    assert any("the number 2 is lost" in fault for fault in wrong)


@pytest.mark.parametrize("text", ["One line.", 'Two\nlines, "quoted" and a \\ in $\\theta$.', ""])
def test_what_is_written_is_read_again(text: str, tmp_path: Path) -> None:
    strings = [
        String("## A", text, cell="a1", remarks=("Mind: 100 % sure",)),
        String("B\n  b", "乙", "Before\nthat", "b-2", (), True),
    ]
    obsolete = [String("Gone\naway", "走了")]
    file = tmp_path / "lesson.po"
    file.write_text(written(strings, obsolete, "zh_CN", "lesson"), encoding="utf-8")
    assert read(file) == (strings, obsolete)


def test_a_new_block_is_not_taken_for_an_old_one_that_is_still_there() -> None:
    old = [String("It costs 2 bytes.", "要 2 字节。")]
    strings, _ = refreshed(old, [], [("a", "It costs 2 bytes."), ("a", "It costs 3 bytes.")])
    assert [s.text for s in strings] == ["要 2 字节。", ""]


def test_errors_say_what_to_do(course: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no translations/yy/language\.toml\. Copy"):
        translate.language("yy", course)
    with pytest.raises(ValueError, match=r"no lesson notebooks/99_x\.ipynb"):
        translate.refresh("99_x", translate.language("xx", course))
    settings = course / "translations/xx/language.toml"
    settings.write_text('tag = "xx"\nspeed = 3\n')
    with pytest.raises(ValueError, match="sets tag, name, cloud, original and stale"):
        translate.language("xx", course)
    file = tmp_path / "bad.po"
    file.write_text('msgid "a"\nnonsense\n')
    with pytest.raises(ValueError, match=r"bad\.po is not a PO file"):
        read(file)
