"""Recorded widgets in a real browser: by keyboard, in words, and no picture too many."""

from __future__ import annotations

import re

import pytest

from tests.browser.cdp import Page
from tools.frames.plans import NOT_RECORDED, PLANS, Calculator, Prompts

WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
WORDS = "shown.querySelector('.frames-words').textContent"
SHOWN = "shown.querySelector('.frames-place').innerHTML"
READY = "shown.dataset.ready === 'yes'"


def press(page: Page, key: str) -> None:
    """A key, as a keyboard sends it to what has the focus."""
    code = {" ": ("Space", 32), "ArrowDown": ("ArrowDown", 40)}.get(key)
    if code is None:
        page.press(key)
        return
    about = {"key": key, "code": code[0], "windowsVirtualKeyCode": code[1]}
    text = {"text": key} if key == " " else {}
    page._send("Input.dispatchKeyEvent", type="keyDown", **about, **text)
    page._send("Input.dispatchKeyEvent", type="keyUp", **about)


def come_near(page: Page, name: str) -> None:
    page.evaluate(f"window.shown = document.getElementById('widget-{name}'); !!shown")
    page.evaluate("shown.scrollIntoView({block: 'center'})")
    page.wait_for(READY)


def focus(page: Page, selector: str) -> None:
    page.evaluate(f"shown.querySelector('{selector}').focus()")


def open_widget(page: Page, site: str, name: str, **how: int) -> None:
    page.asked.clear()
    page.open(f"{site}/notebooks/{name.partition('-')[0]}.html", **how)
    come_near(page, name)


RECORDED = [name for name in PLANS if name not in NOT_RECORDED]
MOVED = [name for name in RECORDED if not isinstance(PLANS[name], Prompts)]  # has buttons


def test_a_slider_moved_by_keyboard_changes_picture_and_words(site: str, page: Page) -> None:
    open_widget(page, site, "04_paged_allocator")
    before = page.evaluate(WORDS), page.evaluate("shown.querySelector('img').src")
    assert before[0].startswith("5.")
    focus(page, "input[type=range]")
    press(page, "ArrowRight")
    page.wait_for(f"{WORDS}.startsWith('6.')")
    page.wait_for(f"shown.querySelector('img').src !== {before[1]!r}")
    page.wait_for("shown.querySelector('img').complete")
    image = "shown.querySelector('img')"
    assert page.evaluate(f"{image}.alt").startswith("6.")
    assert page.evaluate(f"{image}.naturalWidth") > 300
    assert page.evaluate("document.activeElement.getAttribute('aria-valuetext')") == "6"
    assert page.evaluate("shown.querySelector('output').textContent") == "6"
    live = page.evaluate("shown.querySelector('.frames-words').getAttribute('aria-live')")
    assert live == "polite"


def test_pictures_are_fetched_when_they_are_needed(site: str, page: Page) -> None:
    def fetched() -> set[str]:
        page.evaluate("1")  # what was asked for until now is read with an answer
        return {url.rsplit("/", 1)[1] for url in page.asked if "/frames/" in url}

    page.asked.clear()
    page.open(f"{site}/notebooks/04_paged_allocator.html")
    assert "states.js" not in fetched()  # it is far down the page
    come_near(page, "04_paged_allocator")
    page.wait_for("shown.querySelector('img').complete")
    start = {name for name in fetched() if name.endswith(".webp")}
    assert len(start) == 1
    focus(page, "input[type=range]")
    press(page, "ArrowRight")
    page.wait_for(f"{WORDS}.startsWith('6.')")
    page.wait_for("shown.querySelector('img').alt.startsWith('6.')")
    # The new picture, and one step on from it; one step back is the first.
    assert {name for name in fetched() if name.endswith(".webp")} > start
    assert len({name for name in fetched() if name.endswith(".webp")}) <= 3


def test_a_choice_moved_by_keyboard_changes_the_text(site: str, page: Page) -> None:
    open_widget(page, site, "00_start_here")
    before = page.evaluate(WORDS), page.evaluate(SHOWN)
    focus(page, "select")
    press(page, "ArrowDown")
    page.wait_for(f"{WORDS} !== {before[0]!r}")
    assert page.evaluate(SHOWN) != before[1]
    assert re.fullmatch(r"\d+ tokens? for \d+ characters\.", page.evaluate(WORDS))


@pytest.mark.parametrize("name", [n for n in PLANS if isinstance(PLANS[n], Calculator)])
def test_a_calculator_computes_at_once_and_by_keyboard(site: str, page: Page, name: str) -> None:
    open_widget(page, site, name)
    before = page.evaluate(WORDS), page.evaluate(SHOWN)
    assert before[0] and "<svg" in before[1]
    focus(page, "input[type=range]")
    press(page, "ArrowLeft")
    page.wait_for(f"{WORDS} !== {before[0]!r}")
    assert page.evaluate(SHOWN) != before[1]
    label = page.evaluate("shown.querySelector('svg').getAttribute('aria-label')")
    assert page.evaluate(WORDS) in label


def test_buttons_lead_through_a_prefix_cache(site: str, page: Page) -> None:
    open_widget(page, site, "05_prefix_caching")
    assert "1 running" in page.evaluate(WORDS)
    focus(page, "button")
    press(page, " ")
    page.wait_for(f"{WORDS}.includes('2 running')")
    assert "B has" in page.evaluate(WORDS) and " 0 found" not in page.evaluate(WORDS)
    page.wait_for("shown.querySelector('img').alt.includes('2 running')")
    page.evaluate("[...shown.querySelectorAll('button')].at(-1).click()")
    page.wait_for(f"{WORDS}.includes('0 running')")
    page.evaluate("[...shown.querySelectorAll('button')].at(-2).click()")
    page.wait_for(f"{WORDS}.includes('Send one first')")


def test_play_goes_from_step_to_step_until_a_hand_moves_the_slider(site: str, page: Page) -> None:
    open_widget(page, site, "04_paged_allocator")
    button, slider = "shown.querySelector('[data-plays]')", "shown.querySelector('[type=range]')"
    page.evaluate(f"{button}.click()")
    page.wait_for(f"{WORDS}.startsWith('8.')")
    assert page.evaluate(f"{button}.textContent") == "Stop"
    focus(page, "input[type=range]")
    press(page, "Home")
    stopped = page.evaluate(f"[{button}.textContent, {WORDS}.slice(0, 2)]")
    assert stopped == ["Play", "0."]
    press(page, "End")
    page.evaluate(f"{button}.click()")  # from the end it begins anew
    page.wait_for(f"{WORDS}.startsWith('1.')")
    assert page.evaluate(f"{slider}.getAttribute('aria-valuetext')") == "1"


@pytest.mark.parametrize("recorded", MOVED)
def test_every_recorded_widget_moves(site: str, page: Page, recorded: str) -> None:
    open_widget(page, site, recorded)
    first = page.evaluate(WORDS), page.evaluate(SHOWN)
    moved = page.evaluate("""(() => {
        for (const control of shown.querySelectorAll('[data-axis]')) {
          const last = control.options ? control.options.length - 1 : Number(control.max);
          control.value = Number(control.value) < last ? last : 0;
          control.dispatchEvent(new Event('input', {bubbles: true}));
        }
        return shown.querySelectorAll('[data-axis]').length;
    })()""")
    assert moved >= 1
    page.wait_for(f"{WORDS} !== {first[0]!r}")
    page.wait_for(f"{SHOWN} !== {first[1]!r} || !{SHOWN}")
    labels = page.evaluate("""[...shown.querySelectorAll('[data-axis]')]
        .filter(c => !c.labels.length || !c.labels[0].textContent.trim()).length""")
    assert labels == 0
    assert all("127.0.0.1" in url for url in page.asked if not url.startswith("data:"))


@pytest.mark.parametrize("recorded", RECORDED)
def test_a_widget_fits_a_phone(site: str, page: Page, recorded: str) -> None:
    open_widget(page, site, recorded, width=390, height=844)
    assert page.evaluate(WIDE) <= 0
    assert page.evaluate("shown.getBoundingClientRect().right") <= 390
