"""The quiz of notebook 00b: its right answers are right, and its advice follows from them."""

from __future__ import annotations

import re

import nbformat
import pytest

from tests.engine.core.bare_requests import make_request
from tools.notebook_files import QUIZ, lessons
from utils.engine.core.kv_cache_manager import KVCacheManager
from utils.engine.core.kv_cache_utils import get_hash_fn_by_name, get_request_block_hasher
from utils.placement import FILES, LETTERS, QUESTIONS, where_to_start
from utils.sim.memory import MODEL_SHAPES, kv_bytes_per_token

TEXT = "\n".join(cell.source for cell in nbformat.read(QUIZ, as_version=4).cells)
RIGHT = {number: question.right for number, question in QUESTIONS.items()}


def options(number: int) -> dict[str, str]:
    """The options of a question, by letter."""
    part = TEXT.split(f"**{number}.** ")[1].split("\n**")[0]
    return dict(re.findall(r"^- ([a-z])\) (.+)$", part, re.MULTILINE))


def said(number: int) -> float:
    """The first number of the option that is called right."""
    return float(re.search(r"[\d.]+", options(number)[RIGHT[number]])[0])


def test_each_question_has_four_options_and_a_lesson() -> None:
    assert re.findall(r"^\*\*(\d+)\.\*\*", TEXT, re.MULTILINE) == [str(n) for n in QUESTIONS]
    for number, question in QUESTIONS.items():
        assert "".join(options(number)) == LETTERS and len({*options(number).values()}) == 4
        assert any(path.name.startswith(f"{question.lesson}_") for path in lessons())
    lessons_of = [question.lesson for question in QUESTIONS.values()]
    assert lessons_of == sorted(lessons_of) and len(QUESTIONS) == 12


def test_what_can_be_computed_is_right() -> None:
    assert said(1) == 8e9 * 2 / 1e12 * 1e3  # ms
    assert said(4) * 1024 == kv_bytes_per_token(MODEL_SHAPES["Llama-3.1-8B"], 2)
    table, size, token = [7, 2, 9], 16, 20
    assert options(6)[RIGHT[6]] == f"in block {table[token // size]}, at place {token % size}"
    hasher = get_request_block_hasher(size, get_hash_fn_by_name("sha256"))
    manager = KVCacheManager(16, size, block_hasher=hasher)
    shared, found = list(range(40)), 0
    for name, own in (("a", [50] * 20), ("b", [60] * 20)):
        request = make_request([*shared, *own], name)
        blocks, found = manager.get_computed_blocks(request)
        manager.allocate_slots(request, request.num_tokens - found, blocks)
    assert said(8) == found
    assert said(11) == 2 + 1


def told(answers: dict[int, str]) -> str:
    return str(where_to_start(answers).data)


@pytest.mark.parametrize("nothing", ["?", "", " "])
def test_nothing_answered_is_no_verdict(nothing: str) -> None:
    assert told(dict.fromkeys(QUESTIONS, nothing)).startswith("Put your letters")


def test_all_right_leads_to_part_two() -> None:
    assert told(RIGHT).startswith("**12 of 12 right.** You know what Part I explains.")
    assert told({number: f" {letter.upper()})" for number, letter in RIGHT.items()}) == told(RIGHT)


@pytest.mark.parametrize("number", QUESTIONS)
def test_a_miss_leads_to_its_lesson(number: int) -> None:
    wrong = next(letter for letter in LETTERS if letter != RIGHT[number])
    text, lesson = told(RIGHT | {number: wrong}), QUESTIONS[number].lesson
    assert f"- {number}: {RIGHT[number]}. " in text
    assert f"**11 of 12 right.** Start with [notebook {lesson}]({lesson}_" in text
    advice = text.partition(".ipynb)")[2].partition("\n")[0]
    others = [n for n in range(1, 9) if n != int(lesson)]
    assert [int(name) for name in re.findall(r"\d\d", advice)] == others


def test_what_was_left_open_is_not_given_away() -> None:
    text = told(RIGHT | {6: "?", 8: "a"})
    assert "**10 of 12 right.** Start with [notebook 04]" in text
    assert "- 8: b." in text and "- 6:" not in text


def test_links_lead_to_lessons() -> None:
    names = {path.stem.partition("_")[0]: path.stem for path in lessons()}
    assert {number: names[number] for number in FILES} == FILES


@pytest.mark.parametrize(
    ("answers", "message"),
    [(RIGHT | {3: "e"}, "Question 3: expected"), ({1: "a"}, "1 to 12, got those to 1")],
)
def test_what_is_no_answer_is_refused(answers: dict[int, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        where_to_start(answers)
