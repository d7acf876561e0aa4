"""What lessons hold on a card: no more than the card has, and what is known from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tools.notebook_files import QUIZ, lessons
from utils.engine import EngineArgs, ModelConfig
from utils.pipeline.estimates.cards import CARD_OF_PROFILE, CARDS
from utils.pipeline.estimates.lessons import LESSONS, ON_CPU, ONE_CACHE, PART_ONE, on_card, table
from utils.profiles import PROFILES

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


def test_every_lesson_is_in_the_table() -> None:
    assert list(LESSONS) == sorted(
        path.name.partition("_")[0] for path in lessons() if path != QUIZ
    )
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table().splitlines()[2:]]
    assert sorted(", ".join(rows).split(", ")) == list(LESSONS)


@pytest.mark.parametrize(
    ("profile", "card"),
    [*CARD_OF_PROFILE.items(), ("gpu", "A100 40GB"), ("gpu", "A100 80GB"), ("gpu-bundled", "L4")],
)
def test_no_lesson_asks_for_more_than_the_card_has(profile: str, card: str) -> None:
    sizes = {lesson: on_card(lesson, PROFILES[profile], CARDS[card]) for lesson in LESSONS}
    assert {n: s for n, s in sizes.items() if s > CARDS[card].memory_bytes} == {}
    without = {"02", "04", "07b", "08b", "08d", *ON_CPU}
    assert {lesson for lesson in LESSONS if sizes[lesson] == 0} == without


def test_a_larger_model_needs_more_in_part_two_only() -> None:
    small, large = PROFILES["gpu-small"], PROFILES["gpu"]
    larger = {"09", "09b", "10", "12", "13", "13b", "14b"}
    for lesson in LESSONS:
        needs = [on_card(lesson, profile, CARDS["L4"]) for profile in (small, large)]
        assert (needs[0] < needs[1]) == (lesson in larger), lesson


def test_an_engine_takes_one_cache_of_the_default_size(model_path: Path) -> None:
    model = ModelConfig.from_pretrained(model_path)
    config = EngineArgs(device="cpu").create_engine_config(model)
    tokens = config.num_gpu_blocks * config.block_size
    assert tokens * model.kv_bytes_per_token(config.dtype) == pytest.approx(ONE_CACHE, rel=1e-3)


def test_lessons_on_the_cpu_name_no_other_device() -> None:
    for path in NOTEBOOKS.glob("*.ipynb"):
        if any(PART_ONE.get(path.name.partition("_")[0], (1,))):
            continue
        cells = nbformat.read(path, as_version=4).cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        engines = re.findall(r"\bLLM\((.*?)\)", code, re.DOTALL)
        settings = re.search(r"^settings = \{.*?\}$", code, re.MULTILINE)
        shared = "**settings" if settings and '"device": "cpu"' in settings[0] else "device="
        assert all("device=" in engine or shared in engine for engine in engines), path.name
