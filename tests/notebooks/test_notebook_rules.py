"""Every notebook keeps the rules, and every rule can be broken."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from tools.notebook_files import lessons
from tools.notebook_rules import BOOTSTRAP, cloud_links, problems
from tools.notebooks import WIDGET_VIEW
from tools.saved import in_step

ROOT = Path(__file__).parents[2]
LESSON_TEXT = """\
# 01 · Title

**Goal.** One sentence.

**Time.** 2 minutes. **You need.** Nothing.

CLOUD_LINKS

```python
# a comment, not a heading
```

## The same thing in vLLM

## Recap

### Questions

<details><summary>Why?</summary>

Because.
</details>

### Try it yourself

### Read on
""".replace("CLOUD_LINKS", cloud_links(Path("notebooks/01_title.ipynb")))


def test_keeps_the_rules(any_notebook: Path) -> None:
    assert problems(any_notebook) == []


def test_lessons_are_numbered_and_readme_says_which_are_missing() -> None:
    names = [path.name.partition("_")[0] for path in lessons()]  # 09 and 09b, too
    numbers = [int(name[:2]) for name in names]
    assert numbers[0] == 0 and len(set(names)) == len(names)
    missing = sorted(set(range(numbers[-1])) - set(numbers))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    announced = re.search(r"^Notebooks (.+) are being written", readme, re.MULTILINE)
    said = re.findall(r"\d\d", announced[1]) if announced else []
    assert missing == [int(number) for number in said if int(number) < numbers[-1]]


def _stream(text: str, name: str = "stdout") -> NotebookNode:
    return nbformat.v4.new_output("stream", name=name, text=text)


def _display(**data: str) -> NotebookNode:
    kinds = {kind.replace("_", "/", 1): content for kind, content in data.items()}
    return nbformat.v4.new_output("display_data", data=kinds)


def _good_lesson() -> NotebookNode:
    new_code = nbformat.v4.new_code_cell
    cells = [
        nbformat.v4.new_markdown_cell(LESSON_TEXT),
        new_code(
            BOOTSTRAP.read_text(),
            execution_count=1,
            outputs=[_stream("Ready.")],
            metadata={"jupyter": {"source_hidden": True}},
        ),
        new_code("print(1)", execution_count=2, outputs=[_stream("1\n")]),
        new_code(
            "slider()",
            execution_count=3,
            outputs=[_display(text_plain="A widget.")],
            metadata={"tags": ["widget", "nbval-ignore-output"]},
        ),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(
        cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}}
    )
    in_step.record(notebook, {})
    return notebook


def _write(notebook: NotebookNode, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not nbformat.write: it would repair what some tests break on purpose.
    path.write_text(nbformat.v4.writes(notebook))
    return path


def test_a_good_lesson_has_no_problems(tmp_path: Path) -> None:
    assert problems(_write(_good_lesson(), tmp_path / "notebooks/01_title.ipynb")) == []


def _outputs(*outputs: NotebookNode) -> Callable[[NotebookNode], None]:
    def change(notebook: NotebookNode) -> None:
        notebook.cells[2].outputs = list(outputs)

    return change


def _source(text: str, cell: int = 2) -> Callable[[NotebookNode], None]:
    def change(notebook: NotebookNode) -> None:
        notebook.cells[cell].source = text

    return change


def _tags(cell: int, *tags: str) -> Callable[[NotebookNode], None]:
    def change(notebook: NotebookNode) -> None:
        notebook.cells[cell].metadata["tags"] = list(tags)

    return change


def _cell_metadata(cell: int, metadata: dict) -> Callable[[NotebookNode], None]:
    def change(notebook: NotebookNode) -> None:
        notebook.cells[cell].metadata = nbformat.from_dict(metadata)

    return change


def _metadata(name: str, value: object) -> Callable[[NotebookNode], None]:
    def change(notebook: NotebookNode) -> None:
        notebook.metadata[name] = value

    return change


def _count(value: int | None) -> Callable[[NotebookNode], None]:
    def change(notebook: NotebookNode) -> None:
        notebook.cells[2].execution_count = value

    return change


def _invalid(notebook: NotebookNode) -> None:
    notebook.cells[3].id = "an id with spaces"


def _same_ids(notebook: NotebookNode) -> None:
    notebook.cells[3].id = notebook.cells[2].id


IMAGE = base64.b64encode(b"x" * 210_000).decode()
ERROR = nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])
BREAKS: dict[str, tuple[Callable[[NotebookNode], None], str]] = {
    "never run": (_count(None), "not all run"),
    "run out of order": (_count(7), "not all run"),
    "saved error": (_outputs(ERROR), "holds an error: ValueError"),
    "stderr": (_outputs(_stream("warning", "stderr")), "wrote to stderr"),
    "no way to Colab": (_source(LESSON_TEXT.replace("[Colab]", "[Co]"), 0), "lacks its links"),
    "folder printed": (_outputs(_stream("saved to /home/ada/x")), "folder of one machine"),
    "temporary folder shown": (_outputs(_display(text_html="<b>/tmp/a</b>")), "one machine"),
    "folder in code": (_source("open('/home/ada/x')"), "folder of one machine"),
    "windows folder": (_source(r"open('C:\\data')"), "folder of one machine"),
    "folder in prose": (_source(LESSON_TEXT + "See /Users/ada/x.", 0), "folder of one machine"),
    "progress bar": (_outputs(_stream(" 40%|####      | 4/10")), "progress bar"),
    "progress rate": (_outputs(_stream("10/10 [00:01, 8.31it/s]")), "progress bar"),
    "large image": (_outputs(_display(image_png=IMAGE)), "image of 210 kB"),
    "picture without text": (_outputs(_display(image_png="eA==")), "a picture without a text"),
    "large file": (_outputs(_stream("x" * 1_100_000)), "1.1 MB"),
    "live widget": (
        _outputs(nbformat.v4.new_output("display_data", data={WIDGET_VIEW: {"model_id": "1"}})),
        "dead without its kernel",
    ),
    "time compared": (_source("print(median_seconds(job))"), "cannot be compared"),
    "widget compared": (_tags(3, "widget"), "cannot be compared"),
    "unknown tag": (_tags(2, "nbval-ignore-outputs"), "unknown tags"),
    "comment marker": (_source("# NBVAL_SKIP\nprint(1)"), "in a comment"),
    "skip without reason": (_tags(2, "nbval-skip"), "without a reason"),
    "other kernel": (
        _metadata("kernelspec", {"name": "conda", "display_name": "x"}),
        "not python3",
    ),
    "extra metadata": (_metadata("colab", {}), "colab"),
    "an output without a record": (_metadata("recorded", {}), "nothing says which code"),
    "python version": (
        _metadata("language_info", {"name": "python", "version": "3.11.7"}),
        "language_info",
    ),
    "malformed": (_invalid, "not a valid notebook"),
    "same ids": (_same_ids, "same id"),
    "other bootstrap": (_source("import sys", 1), "first code cell"),
    "plumbing in sight": (_cell_metadata(1, {}), "is not folded"),
    "raw code in a summary": (
        _source(LESSON_TEXT.replace("Why?<", "Why `x`?<"), 0),
        "Markdown is not read",
    ),
    "two titles": (_source(LESSON_TEXT + "\n# Another\n", 0), "one first-level heading"),
    "skipped level": (_source("# 01\n\n### Deep\n" + LESSON_TEXT[2:], 0), "level 3 follows"),
    "long cell": (_source("\n".join(f"a{i} = {i}" for i in range(31))), "31 lines"),
    "no widget": (_tags(3, "nbval-ignore-output"), "no cell tagged 'widget'"),
    "no goal": (_source(LESSON_TEXT.replace("**Goal.**", ""), 0), "a goal"),
    "no minutes": (_source(LESSON_TEXT.replace("2 minutes", "short"), 0), "its minutes"),
    "wrong minutes": (
        _source(LESSON_TEXT.replace("2 minutes", "30 minutes"), 0),
        "its minutes are stated as 30; its words and code take",
    ),
    "no prerequisites": (_source(LESSON_TEXT.replace("**You need.**", ""), 0), "needs"),
    "no recap": (_source(LESSON_TEXT.replace("Recap", "End"), 0), "## Recap"),
    "no folded answer": (_source(LESSON_TEXT.replace("<details>", ""), 0), "folded answers"),
    "no names table": (_source(LESSON_TEXT.replace("same thing", "names"), 0), "same thing"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_each_rule_can_be_broken(name: str, tmp_path: Path) -> None:
    change, message = BREAKS[name]
    notebook = _good_lesson()
    change(notebook)
    found = problems(_write(notebook, tmp_path / "notebooks/01_title.ipynb"))
    assert any(message in problem for problem in found), found


def test_needless_tag_is_found(tmp_path: Path) -> None:
    notebook = _good_lesson()
    notebook.cells[2].outputs = []
    notebook.cells[2].metadata["tags"] = ["nbval-ignore-output"]
    found = problems(_write(notebook, tmp_path / "notebooks/01_title.ipynb"))
    assert found == ["cell 2: is marked nbval-ignore-output, but has no output to ignore"]


def test_explained_skip_is_allowed(tmp_path: Path) -> None:
    notebook = _good_lesson()
    notebook.cells[2].source = "# Not run in tests: it needs a GPU\nprint(1)"
    notebook.cells[2].metadata["tags"] = ["nbval-skip"]
    assert problems(_write(notebook, tmp_path / "notebooks/01_title.ipynb")) == []


def test_name_has_a_number(tmp_path: Path) -> None:
    assert "NN_name" in problems(_write(_good_lesson(), tmp_path / "notebooks/Title.ipynb"))[0]


def test_lab_with_outputs_is_found(tmp_path: Path) -> None:
    found = problems(_write(_good_lesson(), tmp_path / "labs/01_title/01_title.ipynb"))
    assert "cell 1: a lab is handed out without outputs" in found
