"""The report: its numbers are those of the manifests, and a broken promise is called FAIL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from utils.pipeline.manifests import MANIFEST
from utils.pipeline.stages import report
from utils.pipeline.stages.promises import check_promises
from utils.viz.finetune import report_figure


def counted(before: float, after: float, won: int = 2) -> dict[str, int]:
    """Differences on 120 messages that make one share of right answers the other."""
    return {"lost": round(120 * (before - after)) + won, "won": won}


def measures(exact: dict[str, float], hit: float = 0.05) -> tuple[dict[str, Any], dict[str, Any]]:
    evaluated, served = {}, {}
    for number, (name, share) in enumerate(exact.items()):
        evaluated[name] = {
            "valid_json": 1.0,
            "exact_match": share,
            "field_accuracy": {"date": share},
            "perplexity": {"answer": 1.01, "text": 33.0},
            "bytes": 10**8 * (number + 1),
            "tokens_per_second": 100.0,
            "num_examples": 60 if name == "base" else 120,
        }
        if name in ("gptq", "awq"):
            evaluated[name] |= counted(exact["merge"], share)
        served[name] = {
            "tokens_per_second_without_prefix_caching": 100.0,
            "hit_rate": 0.7,
            "tokens_per_second": 150.0,
            "num_examples": 32,
            "ttft_miss_seconds": 0.1,
            "ttft_hit_seconds": hit,
        }
    served["server"] = {"is_valid_answer": True, "has_metrics": True}
    return evaluated, served


GOOD = {"base": 0.0, "merge": 0.95, "gptq": 0.93, "awq": 0.91}


def failed(exact: dict[str, float], **changes: Any) -> list[str]:
    evaluated, served = measures(exact, **changes)
    promises = check_promises(report.table_rows(evaluated, served), served["server"])
    return [text for text, kept in promises if not kept]


def test_a_good_run_keeps_all_promises() -> None:
    assert failed(GOOD) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"base": 0.5}, "The base model fails"),
        ({"base": 2 / 60}, "The base model fails the task: 3.3% exact match [1% to 11%]"),
        ({"merge": 0.75, "gptq": 0.75, "awq": 0.75}, "Fine-tuned"),
        ({"gptq": 0.70}, "GPTQ, 4 bit: 70.0% exact match, +25.0 points lost [+1"),
        ({"awq": 0.5}, "AWQ, 4 bit: 50.0% exact match"),
    ],
)
def test_each_broken_promise_is_found(change: dict[str, float], expected: str) -> None:
    [text] = failed(GOOD | change)
    assert text.startswith(expected)


def test_a_hit_that_is_no_faster_breaks_the_promise() -> None:
    assert len(failed(GOOD, hit=0.1)) == 4


def test_a_loss_that_chance_explains_breaks_no_promise() -> None:
    assert failed(GOOD | {"merge": 0.95, "awq": 0.78}) == []


def inputs(tmp_path: Path, exact: dict[str, float]) -> dict[str, Path]:
    evaluated, served = measures(exact)
    own = {
        "evaluate": evaluated,
        "serve": served,
        "gptq": {"tool": "gptqmodel"},
        "awq": {"tool": "autoawq"},
        "merge": {},
        "data": {},
        "finetune": {
            "first_loss": 2.5,
            "last_loss": 0.0123,
            "trained_parameters": 4_884_480,
            "tokens": 98_765,
        },
    }
    settings = {
        "finetune": {
            "steps": 130,
            "batch_size": 6,
            "learning_rate": 0.002,
            "lora_r": 16,
            "lora_alpha": 32,
            "dtype": "bfloat16",
            "device": "cpu",
            "seed": 7,
        },
        "data": {"train": 781, "held_out": 120, "seed": 7},
    }
    folders = {}
    for name, values in own.items():
        folders[name] = tmp_path / name
        folders[name].mkdir()
        manifest = {
            "measures": values,
            "seconds": 12.0,
            "peak_memory_bytes": 3 * 10**9,
            "versions": {"torch": "2", "vllm": "not installed"},
            "settings": settings.get(name, {}),
        }
        (folders[name] / MANIFEST).write_text(json.dumps(manifest))
    config = {"r": 16, "base_model_name_or_path": str(tmp_path / "model")}
    (folders["finetune"] / "adapter_config.json").write_text(json.dumps(config))
    (folders["finetune"] / "adapter_model.safetensors").write_bytes(b"weights")
    return folders


@pytest.mark.parametrize(("model", "noted"), [("bundled", True), ("other/model", False)])
def test_the_report_is_written_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, noted: bool
) -> None:
    folders = inputs(tmp_path, GOOD | {"merge": 0.70, "gptq": 0.70, "awq": 0.70})
    out = tmp_path / "report"
    out.mkdir()
    written = report.write_report({"profile": "cpu", "model": model}, folders, out)
    assert written == {"kept": False}
    text = (out / report.TABLE).read_text()
    assert "| GPTQ, 4 bit | 100.0% | 70.0% |" in text
    assert "60 by base, 16 bit, 120 by QLoRA" in text and "with 32 of the messages" in text
    assert "FAIL: Fine-tuned, it is right: 70.0%" in text
    assert ("Q4_1" in text) == noted
    assert (out / report.FIGURE).read_bytes().startswith(b"\x89PNG")
    assert report.print_report(out) is False
    printed = capsys.readouterr().out
    assert "FAIL" in printed and "70.0%" in printed


def test_right_answers_have_a_decimal_as_in_the_title(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    evaluated, served = measures(GOOD | {"gptq": 0.908, "awq": 0.925})
    report_figure.draw(report.table_rows(evaluated, served), Path("report.png"))
    right, size, *_ = drawn[0].axes
    assert [text.get_text() for text in right.texts] == ["0.0", "95.0", "90.8", "92.5"]
    assert [text.get_text() for text in size.texts] == ["100", "200", "300", "400"]


def test_the_figures_title_is_the_finding() -> None:
    evaluated, served = measures(GOOD)
    title = report_figure.finding(report.table_rows(evaluated, served))
    assert "from 0.0% to 95.0%" in title and "it is 93.0% (GPTQ) and 91.0% (AWQ)" in title
    assert title.endswith("with GPTQ a cached prefix brings the first token 2.0 times sooner")
