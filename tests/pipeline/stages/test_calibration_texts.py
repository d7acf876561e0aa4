"""What GPTQ and AWQ are calibrated on: many customers' answers, the system prompt seldom."""

from __future__ import annotations

from pathlib import Path

import pytest

from utils.pipeline.quantizers.calibration import WINDOW, calibration_windows
from utils.pipeline.stages.folders import TRAIN_FILE
from utils.pipeline.stages.functions import (
    CALIBRATION_EXAMPLES,
    CUSTOMERS_PER_CHAT,
    calibration_texts,
)
from utils.pipeline.stages.perplexity import load_text
from utils.pipeline.task.data import SYSTEM_PROMPT, write_jsonl
from utils.pipeline.task.messages import generate
from utils.profiles import PROFILES, PROOF_PROFILE


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / TRAIN_FILE, generate("train", 420))
    return tmp_path


def test_each_customer_stands_in_one_chat(model_path: Path, data_dir: Path) -> None:
    examples = generate("train", 420)[:20]
    *chats, english = calibration_texts(model_path, data_dir, examples=20)
    assert english == load_text("emma")
    assert len(chats) == -(-20 // CUSTOMERS_PER_CHAT)
    for chat in chats:
        assert chat.count(SYSTEM_PROMPT) == 1
        assert chat.index(SYSTEM_PROMPT) < chat.index('"customer": ', len(SYSTEM_PROMPT) + 100)
    for number, example in enumerate(examples):
        chat = chats[number // CUSTOMERS_PER_CHAT]
        message, answer = chat.index(example.message), chat.index(example.answer_text())
        assert message < answer


def test_most_of_the_budget_is_task_and_little_of_that_the_system_prompt(
    model_path: Path, data_dir: Path, tokenizer: object
) -> None:
    texts = calibration_texts(model_path, data_dir)
    decode = tokenizer.decode  # type: ignore[attr-defined]
    shares, answers = [], 0
    for seed in range(5):
        windows = [decode(ids) for ids in calibration_windows(model_path, texts, 1536, seed)]
        task = [text for text in windows if "<|im_start|>" in text]
        shares.append(len(task) / len(windows))
        answers += sum(text.count('"issue": "') for text in task)
    assert 0.5 < sum(shares) / len(shares) < 0.95  # and English beside it
    assert answers / 5 > 2 * (4096 / WINDOW)  # two answers or more for each window


def test_every_profile_has_enough_training_examples() -> None:
    profiles = [*PROFILES.values(), PROOF_PROFILE]
    assert all(profile.train_examples >= CALIBRATION_EXAMPLES for profile in profiles)
