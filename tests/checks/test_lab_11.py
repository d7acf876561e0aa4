"""The oracles of lab 11 against peft and the course's own merge; the planted faults are far off."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from utils.checks.kit.contracts import Choices
from utils.checks.kit.runner import Mismatch
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_11 import arrived, layer, matching, planted, real_files, state, verdicts
from utils.checks.lab_11.adapters import PREFIX
from utils.pipeline.studies.merge_bases import surviving_share


def by_peft(folder: Path, **options: Any) -> tuple[Any, Any, Any, Any]:
    """An adapter's config and tensors, the base's state, and the state that peft merges."""
    model = TinyModel().hf
    base = {name: t.clone() for name, t in model.state_dict().items()}
    adapted = real_files.write_adapter(copy.deepcopy(model), folder, **options)
    config = json.loads((folder / real_files.ADAPTER[0]).read_text())
    tensors = load_file(folder / real_files.ADAPTER[1])
    merged = adapted.merge_and_unload().state_dict()
    return config, tensors, base, {name: t.detach() for name, t in merged.items()}


@pytest.mark.parametrize(
    "options", [{"r": 4, "lora_alpha": 16}, {"r": 3, "lora_alpha": 5, "use_rslora": True}]
)
def test_the_oracle_merges_as_peft_does(tmp_path: Path, options: dict[str, Any]) -> None:
    config, tensors, base, merged = by_peft(tmp_path, **options)
    expected = state.right_state(config, tensors, base)
    assert expected.keys() == merged.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(weight, merged[name], rtol=1e-6, atol=1e-7)
    assert verdicts.judged(config, tensors, base, merged) == {}
    changed = {n for n in base if not torch.equal(base[n], merged[n])}
    assert changed == set(matching.by_expression(config, tensors, base))
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config["use_rslora"] else config["r"])
    for wrong, word in (
        (base, "not merged"),
        (
            state.right_state(config | {"lora_alpha": config["lora_alpha"] / scale}, tensors, base),
            "scale forgotten",
        ),
        (state.right_state(config, tensors, merged), "merged twice"),
    ):
        assert verdicts.judged(config, tensors, base, wrong) == dict.fromkeys(changed, word)


def test_fan_in_fan_out_is_the_transposed_merge() -> None:
    weight, a, b = torch.randn(5, 3), torch.randn(2, 3), torch.randn(5, 2)
    config = {"r": 2, "lora_alpha": 3}
    plain = layer.in_float64(weight, a, b, config).nearest
    turned = layer.in_float64(weight.T, a, b, config | {"fan_in_fan_out": True}).nearest
    assert torch.equal(plain, turned.T)


def test_one_rounding_is_allowed_and_a_second_one_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, a, b = (torch.randn(s, generator=generator) for s in ((64, 64), (4, 64), (64, 4)))
    weight, config = weight.bfloat16(), {"r": 4, "lora_alpha": 4}
    right = layer.in_float64(weight, a, b, config)
    once = (weight.float() + b @ a).bfloat16()
    assert layer.not_rounded_once(right, once) == ""
    assert layer.not_rounded_once(right, weight + (b @ a).bfloat16())
    assert layer.not_rounded_once(right, torch.nextafter(once, torch.full_like(once, 9.0)))


def test_what_arrived_is_what_the_lesson_measures() -> None:
    before, delta = torch.randn(40, 30).bfloat16(), torch.randn(40, 30) * 1e-3
    after = (before.float() + delta).bfloat16()
    changed, off, share = arrived.number_by_number(before, after, delta)
    assert share == pytest.approx(float(surviving_share(before, after, delta)), rel=1e-4)
    assert changed == pytest.approx(float((after != before).float().mean()))
    rest = after.double() - before.double() - delta.double()
    assert off == pytest.approx(float(rest.norm() / delta.double().norm()))
    assert arrived.number_by_number(before.double(), before.double() + delta, delta)[1] < 1e-9


def test_each_spoiled_adapter_is_refused_and_each_reason_comes_up() -> None:
    refused, accepted = 0, 0
    for number in range(300):
        given = matching.draw_adapter(Choices(random.Random(number)))
        try:
            pairs = matching.by_expression(*given.args)
            accepted += 1
            assert sum(map(len, pairs.values())) == len(given.args[1])
            assert all(
                PREFIX + name[: -len(".weight")] + ".lora_A.weight" in given.args[1]
                for name in pairs
            )
        except ValueError:
            refused += 1
    assert min(refused, accepted) > 60


def test_planted_faults_of_all_kinds_are_told_apart() -> None:
    words: Counter[str] = Counter()
    right = 0
    for number in range(300):
        given = planted.draw_merged(Choices(random.Random(number)))
        found = verdicts.judged(*given.args)
        words.update(found.values())
        right += not found
    assert set(words) == {
        "missing",
        "extra",
        "shape",
        "not merged",
        "merged twice",
        "scale forgotten",
        "other",
        "changed",
    }
    assert right > 50


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_fault_is_far_from_what_rounding_explains(dtype: torch.dtype) -> None:
    exact = torch.randn(50, dtype=torch.float64) * 10.0 ** torch.randint(-7, 2, (50,))
    sizes = exact.abs()
    stored = exact.to(dtype)
    assert planted.near(stored, exact, sizes) == "yes"
    far = stored.double() + 10 * (planted.steps(exact, dtype) + planted.SIZES * sizes)
    assert planted.near(far.to(dtype), exact, sizes) == "no"
    beside = torch.nextafter(stored.float(), torch.tensor(9e9)) if dtype == torch.float32 else None
    if beside is not None:
        assert planted.near(beside, exact, 0 * sizes) == "perhaps"
    stored[3] = float("nan")
    assert planted.near(stored, exact, sizes) == "no"


def test_a_base_that_is_written_to_is_seen(tmp_path: Path) -> None:
    def merge_files(base: Path, adapter: Path, out: Path) -> None:
        (base / "model.safetensors").write_bytes(b"")

    base = tmp_path / "base"
    base.mkdir()
    with pytest.raises(Mismatch, match="only to be read"):
        real_files.called(merge_files, base, tmp_path / "adapter", tmp_path / "out", "")


def test_other_logits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Folder:
        name = "."

    monkeypatch.setattr(real_files, "real_adapter", lambda: (Folder, torch.ones(4), torch.zeros(4)))
    monkeypatch.setattr(real_files, "called", lambda *_: None)
    monkeypatch.setattr(real_files, "compare", lambda *_: {})
    monkeypatch.setattr(real_files, "load_hf_model", lambda *_, **__: None)
    monkeypatch.setattr(real_files, "logits", lambda _: torch.zeros(4))
    with pytest.raises(Mismatch, match="not the unmerged one's"):
        real_files.merge_the_real_model(lambda *_: None)
