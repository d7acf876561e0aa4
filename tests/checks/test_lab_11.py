"""The oracles of lab 11 against peft and the course's own merge; the planted faults are far off."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from utils.checks import lab_11
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.kit.runner import Mismatch
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_11 import planted, real_files, suspects
from utils.checks.lab_11.adapters import PREFIX, Config, Tensors, by_expression, told
from utils.checks.lab_11.merged import Rounded, in_float64, not_rounded_once
from utils.pipeline.studies.merge_bases import surviving_share


def right_state(config: Config, tensors: Tensors, base: Tensors) -> Tensors:
    """All weights; the merged ones are the nearest numbers of their dtype to the exact sums."""
    right = lab_11.all_rounded(config, tensors, base)
    return {name: w.nearest if isinstance(w, Rounded) else w for name, w in right.items()}


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
    expected = right_state(config, tensors, base)
    assert expected.keys() == merged.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(weight, merged[name], rtol=1e-6, atol=1e-7)
    assert planted.judged(config, tensors, base, merged) == {}
    changed = {n for n in base if not torch.equal(base[n], merged[n])}
    assert changed == set(by_expression(config, tensors, base))
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config["use_rslora"] else config["r"])
    for wrong, word in (
        (base, "not merged"),
        (
            right_state(config | {"lora_alpha": config["lora_alpha"] / scale}, tensors, base),
            "scale forgotten",
        ),
        (right_state(config, tensors, merged), "merged twice"),
    ):
        assert planted.judged(config, tensors, base, wrong) == dict.fromkeys(changed, word)


def test_fan_in_fan_out_is_the_transposed_merge() -> None:
    weight, a, b = torch.randn(5, 3), torch.randn(2, 3), torch.randn(5, 2)
    config = {"r": 2, "lora_alpha": 3}
    plain = in_float64(weight, a, b, config).nearest
    turned = in_float64(weight.T, a, b, config | {"fan_in_fan_out": True}).nearest
    assert torch.equal(plain, turned.T)


def test_one_rounding_is_allowed_and_a_second_one_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, a, b = (torch.randn(s, generator=generator) for s in ((64, 64), (4, 64), (64, 4)))
    weight, config = weight.bfloat16(), {"r": 4, "lora_alpha": 4}
    right = in_float64(weight, a, b, config)
    once = (weight.float() + b @ a).bfloat16()
    assert not_rounded_once(right, once) is None
    assert not_rounded_once(right, weight + (b @ a).bfloat16())
    assert not_rounded_once(right, torch.nextafter(once, torch.full_like(once, 9.0)))


def test_what_arrived_is_what_the_lesson_measures() -> None:
    before, delta = torch.randn(40, 30).bfloat16(), torch.randn(40, 30) * 1e-3
    after = (before.float() + delta).bfloat16()
    changed, off, share = lab_11.number_by_number(before, after, delta)
    assert share == pytest.approx(float(surviving_share(before, after, delta)), rel=1e-4)
    assert changed == pytest.approx(float((after != before).float().mean()))
    rest = after.double() - before.double() - delta.double()
    assert off == pytest.approx(float(rest.norm() / delta.double().norm()))
    assert lab_11.number_by_number(before.double(), before.double() + delta, delta)[1] < 1e-9


def test_each_spoiled_adapter_is_refused_and_each_reason_comes_up() -> None:
    refused, accepted = 0, 0
    for given in sample(lab_11.draw_adapter, 300):
        try:
            pairs = by_expression(*given.args)
            accepted += 1
            assert sum(map(len, pairs.values())) == len(given.args[1])
            layers = {PREFIX + name.removesuffix(".weight") for name in pairs}
            assert {key.rpartition(".lora_")[0] for key in given.args[1]} == layers
        except ValueError:
            refused += 1
    assert min(refused, accepted) > 60


def test_names_are_parts_of_other_names_and_tensors_have_two() -> None:
    """With matrices for both names, or for one of them; in the base, or missing there."""
    ends: Counter[tuple[bool, bool]] = Counter()
    for given in sample(planted.draw_merged, 300):
        adapted = by_expression(*given.args[:3])
        for name in given.args[2]:
            longer = [n for n in given.args[2] if n != name and n.endswith(f".{name}")]
            for other in longer:
                ends[name in adapted, other in adapted] += 1
    assert min(ends[True, False], ends[False, True], ends[True, True]) > 5
    states = sample(lab_11.draw_state, 300)
    assert sum(bool(given.tied) for given in states) > 20
    twice = next(given for given in states if given.tied)
    base = twice.copied().args[2]
    assert base[twice.tied[0]] is base[twice.tied[1]]


def test_the_input_that_is_told_hides_no_key_of_the_config_that_matters() -> None:
    for given in sample(lab_11.draw_adapter, 100):
        for key, value in given.args[0].items():
            assert key in lab_11.adapters.UNIMPORTANT or f"{key!r}: {value!r}" in told(given)


def test_planted_faults_of_all_kinds_are_told_apart() -> None:
    found = [planted.judged(*given.args) for given in sample(planted.draw_merged, 300)]
    words = Counter(word for of in found for word in of.values())
    assert set(words) == {
        *("missing", "extra", "shape", "not merged", "merged twice", "scale forgotten"),
        *("other", "changed"),
    }
    assert sum(not of for of in found) > 50


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_step_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    powers = torch.randint(-9, 2, (200,))
    exact = (torch.randn(200, dtype=torch.float64) * 10.0**powers).to(dtype)
    above = torch.nextafter(exact.abs(), torch.tensor(torch.inf, dtype=dtype))
    assert torch.equal(planted.steps(exact.double(), dtype), above.double() - exact.abs().double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_fault_is_far_from_what_rounding_explains(dtype: torch.dtype) -> None:
    exact = torch.randn(50, dtype=torch.float64) * 10.0 ** torch.randint(-7, 2, (50,))
    sizes, stored, step = exact.abs(), exact.to(dtype), planted.steps(exact, dtype)
    assert planted.near(stored, exact, sizes) == "yes"
    by_float32 = (exact + 0.9 * planted.FLOAT32 * sizes).to(dtype)
    assert planted.near(by_float32, exact, sizes) == "yes"
    border = torch.maximum(planted.SURELY * step, planted.SIZES * sizes)
    far = (stored.double() + 1.3 * border).to(dtype)
    assert planted.near(far, exact, sizes) == "no"
    between = (stored.double() + 2 * step + 2.0**-18 * sizes).to(dtype)
    assert planted.near(between, exact, sizes) == "perhaps"
    stored[3] = float("nan")
    assert planted.near(stored, exact, sizes) == "no"


def test_a_base_that_is_written_to_is_seen(tmp_path: Path) -> None:
    def merge_files(base: Path, adapter: Path, out: Path) -> None:
        (base / "model.safetensors").write_bytes(b"")

    base = tmp_path / "base"
    base.mkdir()
    with pytest.raises(Mismatch, match="may only read them"):
        real_files.called(merge_files, base, tmp_path / "adapter", tmp_path / "out", "")


def test_a_folder_that_transformers_cannot_load_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(Mismatch, match="transformers can't load your folder"):
        real_files.loaded(tmp_path)


def test_other_logits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Folder:
        name = "."

    monkeypatch.setattr(real_files, "real_adapter", lambda: (Folder, torch.ones(4), torch.zeros(4)))
    monkeypatch.setattr(real_files, "accepted", lambda *_: {})
    monkeypatch.setattr(real_files, "loaded", lambda _: None)
    monkeypatch.setattr(real_files, "logits", lambda _: torch.zeros(4))
    with pytest.raises(Mismatch, match="away from the unmerged"):
        real_files.merge_the_real_model(lambda *_: None)


@pytest.mark.parametrize("done", suspects.SUSPECTS)
def test_each_suspect_has_done_what_the_case_says(done: str) -> None:
    given = suspects.evidence(suspects.SUSPECTS[done](suspects.scene()[2]))
    assert planted.judged(*given) == suspects.verdict_on(done, *given[:3])


def test_a_check_that_fails_on_the_real_model_is_told_so() -> None:
    with pytest.raises(Mismatch, match="not on the real one") as caught:
        suspects.judged_by(lambda *_: {})
    assert "6 x scale forgotten" in str(caught.value.details)
