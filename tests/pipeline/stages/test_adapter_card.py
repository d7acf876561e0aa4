"""The adapter's model card: read by Hugging Face's own parser, and its numbers are the run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from tests.pipeline.stages.test_report import GOOD, inputs
from utils.pipeline.confidence import share_interval
from utils.pipeline.stages import report
from utils.pipeline.stages.adapter_card import BUNDLED_ID, adapter_card, base_of


def written(tmp_path: Path, model: str = "bundled", **exact: float) -> Path:
    """A report's folder `adapter`, of a run with these shares of right answers."""
    out = tmp_path / "report"
    out.mkdir()
    folders = inputs(tmp_path, GOOD | exact)
    report.write_report({"profile": "cpu", "model": model}, folders, out)
    return out / "adapter"


def test_programs_can_read_its_header(tmp_path: Path) -> None:
    data = ModelCard.load(written(tmp_path) / "README.md").data
    assert (data.license, data.library_name, data.language) == ("apache-2.0", "peft", "en")
    assert data.base_model == BUNDLED_ID and "lora" in data.tags
    assert {result.metric_type: result.metric_value for result in data.eval_results} == {
        "exact_match": 0.95,
        "valid_json": 1.0,
    }


def test_its_numbers_are_those_of_the_run(tmp_path: Path) -> None:
    text = (written(tmp_path, merge=0.9, gptq=0.8, awq=0.7) / "README.md").read_text()
    for said in (
        "781 generated messages (seed 7)",
        "4,884,480 parameters",
        "98,765 tokens",
        "from\n2.50 to 0.0123",
        "| steps | 130 |",
        "| LoRA's r | 16 |",
        "| seconds | 12 |",
        "| computed in | bfloat16 |",
        "| packages | torch 2 |",
        "profile `cpu`",
    ):
        assert said in text, said
    low, high = share_interval(108, 120)
    assert f"| QLoRA merged, 16 bit | 120 | 100.0% | 90.0% [{low:.0%} to {high:.0%}] |" in text
    assert "| base, 16 bit | 60 | 100.0% | 0.0% [0% to 6%] |" in text
    assert "is `date`: right in 90.0% of the messages" in text
    assert "None" not in text and "not installed" not in text


def test_another_run_has_another_card(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    folders = written(one), written(other, "a/b", merge=0.6, gptq=0.6, awq=0.6)
    cards = [ModelCard.load(folder / "README.md") for folder in folders]
    assert [card.data.base_model for card in cards] == [BUNDLED_ID, "a/b"]
    assert [card.data.eval_results[0].metric_value for card in cards] == [0.95, 0.6]
    assert ["Q4_1" in card.content for card in cards] == [True, False]


def test_the_adapter_comes_along_and_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    adapter = written(tmp_path)
    assert {path.name for path in adapter.iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert (adapter / "adapter_model.safetensors").read_bytes() == b"weights"
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config == {"r": 16, "base_model_name_or_path": BUNDLED_ID}
    assert str(tmp_path) not in "".join(
        path.read_text() for path in adapter.iterdir() if path.suffix != ".safetensors"
    )


def test_of_a_base_in_a_folder_only_its_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    assert base_of(str(tmp_path / "my-model")) == "my-model"
    assert base_of("mistralai/Mistral-7B-Instruct-v0.3") == "mistralai/Mistral-7B-Instruct-v0.3"


def test_it_holds_for_the_last_saved_run() -> None:
    """benchmarks/results has a real run's results; the stages' manifests were not saved."""
    root = Path(__file__).resolve().parents[3]
    results = json.loads((root / "benchmarks" / "results" / "pipeline_cpu.json").read_text())
    data: dict[str, Any] = {"settings": {"train": 780, "held_out": 120, "seed": 0}}
    tuned = {
        "settings": dict.fromkeys(
            (
                "steps",
                "batch_size",
                "learning_rate",
                "lora_r",
                "lora_alpha",
                "dtype",
                "device",
                "seed",
            ),
            1,
        ),
        "measures": {"trained_parameters": 1, "tokens": 1, "first_loss": 1, "last_loss": 1},
        "versions": {},
        "seconds": 1.0,
        "peak_memory_bytes": 1,
    }
    card = ModelCard(adapter_card(results, {"data": data, "finetune": tuned}))
    merged = next(row for row in results["rows"] if row["name"] == "merge")
    value = card.data.eval_results[0].metric_value
    assert value == pytest.approx(merged["exact_match"], abs=1e-4)
