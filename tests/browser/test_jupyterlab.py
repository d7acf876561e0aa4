"""`make lab` in a real browser: what a newcomer sees, a lesson from end to end, keys and pictures.

tests/house/test_jupyterlab.py asks the same server over HTTP; here its page is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

import nbformat
import pytest

from tests.browser.axe import barriers
from tests.browser.cdp import Page, a_page, chromium
from tests.browser.lab import FRONT, ROOT, Lab, a_lab, open_notebook, outputs, run, run_cell
from tests.browser.lab import wait_for_notebook as wait

START = "notebooks/00_start_here.ipynb"
WITH_WIDGET = "notebooks/02_kv_cache.ipynb"
LESSON_PATIENCE_S = 400  # on a busy machine
TEXTS = "[...document.querySelectorAll('{}')].map(e => e.innerText.trim())"
SEEN = "(r => r.width > 200 && r.top >= 0 && r.top + r.height / 2 < innerHeight)"
# (rule, how the element begins): what JupyterLab 4.6 itself puts into a lesson's text and outputs.
FIGURE = '<img src="data:image'
JUPYTERLABS_OWN = {
    ("image-alt", FIGURE): "its renderer of figures writes no alt, though the output's metadata "
    "has the text, from which the site and nbconvert write it"
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    chromium()  # without one, no server is needed
    with a_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")
def page(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page that `make lab` opens, once the kernel of the first notebook is there."""
    with a_page(tmp_path_factory.mktemp("chromium")) as found:
        found.open(lab.address)
        wait(found, START)
        yield found


# --- the first screen ---------------------------------------------------------------------------


def test_a_newcomer_is_not_asked_and_not_told(page: Page) -> None:
    assert page.evaluate(TEXTS.format(".jp-Dialog, .Toastify__toast, .jp-toast")) == []


def test_a_newcomer_sees_no_instructors_menus(page: Page) -> None:
    menus = page.evaluate(TEXTS.format(".lm-MenuBar-itemLabel"))
    assert {"File", "Run", "Kernel"} <= set(menus) and "Nbgrader" not in menus
    shown = page.evaluate("document.body.innerText")
    assert "Validate" not in shown and "Create Assignment" not in shown


def test_names_of_lessons_are_readable(page: Page) -> None:
    names = page.evaluate(
        "[...document.querySelectorAll('.jp-DirListing-itemText')]"
        ".map(e => [e.innerText.trim(), e.scrollWidth > e.clientWidth])"
    )
    whole = [name for name, is_cut in names if not is_cut]
    lessons = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert lessons <= {name for name, _ in names} and "00_start_here.ipynb" in whole
    # The others are known by their beginning: only what is long is cut, and not much of it.
    assert [name for name in lessons if len(name) <= 25 and name not in whole] == []


def test_a_picture_is_on_the_first_screen(page: Page) -> None:
    pictures = "[...document.querySelectorAll('.jp-Notebook img')].filter(i => i.naturalWidth > 0)"
    first = f"{pictures}.find(i => {SEEN}(i.getBoundingClientRect()))"
    page.wait_for(f"!!{first}")
    assert "engine" in page.evaluate(f"{first}.alt")


def test_opening_changes_nothing(page: Page, lab: Lab) -> None:
    assert page.evaluate(f"{FRONT}.context.model.dirty") is False
    assert lab.changed() == ""


# --- at work ------------------------------------------------------------------------------------


def test_the_first_lesson_runs_to_its_end(page: Page) -> None:
    run(page, "notebook:run-all-cells", LESSON_PATIENCE_S)
    committed = nbformat.read(ROOT / START, as_version=4).cells
    code = [cell for cell in committed if cell.cell_type == "code"]
    kinds = [sorted({output.output_type for output in cell.outputs}) for cell in code]
    found = outputs(page)
    assert [number for number, _ in found] == list(range(1, len(code) + 1))
    assert [sorted(set(types)) for _, types in found] == kinds


def test_what_is_typed_into_a_widget_falls_into_tokens(page: Page) -> None:
    # (Not innerText: JupyterLab lays out only what is near the part that is seen.)
    shown = "document.querySelector('.jp-Notebook .widget-html').textContent"
    assert "for 47 characters" in page.evaluate(shown)
    page.evaluate("document.querySelector('.jp-Notebook .widget-text input').select()")
    page.write("antidisestablishmentarianism")
    page.wait_for(f"{shown}.includes('for 28 characters')")


def test_a_key_moves_a_slider_and_its_picture(page: Page) -> None:
    open_notebook(page, WITH_WIDGET)
    cells = nbformat.read(ROOT / WITH_WIDGET, as_version=4).cells
    tagged = {tag: n for n, cell in enumerate(cells) for tag in cell.metadata.get("tags", ())}
    for tag in ("bootstrap", "widget"):
        run_cell(page, tagged[tag])
    picture = f"{FRONT}.node.querySelector('img.widget-image')"
    page.wait_for(f"{picture}?.naturalWidth > 0")
    assert page.evaluate(f"{picture}.title || {picture}.alt")
    # A picture that has just been replaced cannot be fetched: then it is asked for again.
    drawn = (
        f"fetch({picture}.src).then(r => r.arrayBuffer())"
        ".then(b => new Uint8Array(b).join(), () => window.before)"
    )
    page.evaluate(f"{drawn}.then(now => {{ window.before = now }})")
    page.evaluate(f"{FRONT}.node.querySelector('.noUi-handle').focus()")
    page.press("ArrowRight")
    page.wait_for(f"{drawn}.then(now => now !== window.before)")


def test_play_moves_the_slider_and_its_picture(page: Page) -> None:
    open_notebook(page, WITH_WIDGET)
    cells = nbformat.read(ROOT / WITH_WIDGET, as_version=4).cells
    number = next(n for n, c in enumerate(cells) if "widget-steps" in c.metadata.get("tags", ()))
    run_cell(page, number)
    cell = f"{FRONT}.content.widgets[{number}].node"
    step = f"{cell}.querySelector('.widget-readout').textContent"
    page.wait_for(f"{cell}.querySelector('img.widget-image')?.naturalWidth > 0")
    begin = page.evaluate(f"Number({step})")
    page.evaluate(f"{cell}.querySelector('.widget-play button').click()")
    page.wait_for(f"Number({step}) >= {begin + 2}")


def test_a_glossary_link_leads_to_its_term(page: Page) -> None:
    open_notebook(page, WITH_WIDGET)
    link = f"[...{FRONT}.node.querySelectorAll('a')].find(a => a.hash === '#GQA')"
    page.evaluate(f"{link}.click()")
    page.wait_for(f"{FRONT}.context?.path === 'GLOSSARY.md'")
    shown = f"[...{FRONT}.node.querySelectorAll('h3')].find(h => h.textContent.startsWith('GQA'))"
    page.wait_for(f"!!{shown} && {SEEN}({shown}.getBoundingClientRect())")


def test_figures_are_dark_in_a_dark_theme(page: Page) -> None:
    open_notebook(page, START)
    look = f"getComputedStyle({FRONT}.node.querySelector('.jp-RenderedMarkdown img')).filter"
    assert page.evaluate(look) == "none"
    change = "jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab %s'}) && 0"
    page.evaluate(change % "Dark")
    page.wait_for(f"{look}.includes('invert')")
    page.evaluate(change % "Light")
    page.wait_for(f"{look} === 'none'")


# --- for everybody ------------------------------------------------------------------------------


def test_axe_finds_nothing_of_ours_in_a_lesson(page: Page) -> None:
    open_notebook(page, START)
    found = barriers(page, within=".jp-RenderedMarkdown, .jp-OutputArea-output")
    ours = [
        b
        for b in found
        if not any(b.rule == rule and b.element.startswith(tag) for rule, tag in JUPYTERLABS_OWN)
    ]
    assert ours == []
