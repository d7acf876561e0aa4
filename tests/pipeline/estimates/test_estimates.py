"""Estimates for GPUs: they follow from shapes, agree with what the CPU run measured, and refuse."""

from __future__ import annotations

import dataclasses
import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.scale import PIPELINE_PROFILE
from utils.pipeline.__main__ import main
from utils.pipeline.estimates.cards import CARD_OF_PROFILE, CARDS, USABLE, get_card
from utils.pipeline.estimates.dry_run import card_for, dry_run, misfits
from utils.pipeline.estimates.estimates import HOST_LIBRARIES, Estimate, estimate_stages
from utils.pipeline.estimates.train_shapes import TRAIN_SHAPES
from utils.pipeline.estimates.training_memory import training_memory
from utils.pipeline.estimates.workload import (
    SHAPE_OF_MODEL,
    EstimateError,
    answer_seconds,
    compute_seconds,
    int4_bytes,
    kv_bytes_per_token,
    shape_of,
    task_lengths,
)
from utils.pipeline.manifests import MANIFEST
from utils.pipeline.quantizers.calibration import calibration_windows
from utils.pipeline.stages.chain import build_stages
from utils.pipeline.stages.folders import MODELS
from utils.pipeline.stages.functions import calibration_texts
from utils.profiles import PROFILES, Profile, fast_dtype, get_profile
from utils.sim.memory import MODEL_SHAPES
from utils.sim.memory import kv_bytes_per_token as kv_bytes_of_notebook_02

GPU_PROFILES = sorted(CARD_OF_PROFILE)


def manifest(run: Path, stage: str) -> dict[str, Any]:
    return json.loads((run / stage / MANIFEST).read_text())


def on_its_card(profile: Profile) -> dict[str, Estimate]:
    return estimate_stages(profile, CARDS[CARD_OF_PROFILE[profile.name]])


# --- against what is known and what was measured ------------------------------------------------


def test_shapes_have_the_published_numbers_of_parameters() -> None:
    published = {"SmolLM2-1.7B": 1_711_376_384, "Mistral-7B": 7_248_023_552}
    assert {name: TRAIN_SHAPES[name].num_parameters() for name in published} == published
    for profile in PROFILES.values():
        shape = shape_of(profile)
        known = MODEL_SHAPES[shape.name]  # the table of notebook 02
        assert kv_bytes_per_token(shape) == kv_bytes_of_notebook_02(known)
        assert shape.num_parameters() == pytest.approx(known.num_parameters, rel=1e-3)


def test_training_work_is_what_the_cpu_run_measured(pipeline_run: Path) -> None:
    profile, measured = (
        get_profile(PIPELINE_PROFILE),
        manifest(pipeline_run, "finetune")["measures"],
    )
    per_step = measured["tokens"] / profile.train_steps
    assert task_lengths().batch(profile.train_batch_size) == pytest.approx(per_step, rel=0.03)
    assert shape_of(profile).lora_parameters(profile.lora_r) == measured["trained_parameters"]


def test_weights_are_as_large_as_the_cpu_runs_checkpoints(pipeline_run: Path) -> None:
    profile, shape = get_profile(PIPELINE_PROFILE), shape_of(get_profile(PIPELINE_PROFILE))
    measured = manifest(pipeline_run, "evaluate")["measures"]
    assert 2 * shape.num_parameters() == pytest.approx(measured["merge"]["bytes"], rel=0.001)
    for name, size in (("gptq", profile.gptq_group_size), ("awq", profile.awq_group_size)):
        assert int4_bytes(shape, size) == pytest.approx(measured[name]["bytes"], rel=0.02)


def test_memory_of_the_cpu_run(pipeline_run: Path) -> None:
    shape = shape_of(get_profile(PIPELINE_PROFILE))
    # The merge: float32 weights and the libraries, and little else.
    merge = on_its_card(dataclasses.replace(PROFILES["gpu-small"], model="bundled"))["merge"]
    assert merge.host == HOST_LIBRARIES + 4 * shape.num_parameters()
    peak = manifest(pipeline_run, "merge")["peak_memory_bytes"]
    # How much the libraries take differs between machines: it must be right within a factor of 2.
    assert 0.5 < peak / merge.host < 2
    # Training: tensors by formula. What the CPU's kernels need in passing comes on top, attention's
    # scores, and gaps between the tensors, in float32 about as large as they; but not a part that
    # grows with the steps: to 7 GB and more, where nothing is given back.
    profile, lengths = get_profile(PIPELINE_PROFILE), task_lengths()
    tensors = training_memory(
        shape,
        "qlora",
        lengths.batch(profile.train_batch_size),
        r=profile.lora_r,
        num_predicted=round(profile.train_batch_size * lengths.answer),
    )
    total = tensors.total
    if fast_dtype() == "float32":  # what is 16 bits wide elsewhere
        total += tensors.weights + tensors.gradients + tensors.activations
    peak = manifest(pipeline_run, "finetune")["peak_memory_bytes"]
    assert 0.4 < peak / (total + HOST_LIBRARIES) < 2.5


def test_enough_calibration_text_for_the_widest_model(pipeline_run: Path, model_path: Path) -> None:
    texts = calibration_texts(model_path, pipeline_run / "data")
    for profile in PROFILES.values():
        windows = calibration_windows(model_path, texts, shape_of(profile).intermediate_size)
        assert sum(map(len, windows)) >= shape_of(profile).intermediate_size


# --- vLLM's share -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GPU_PROFILES)
@pytest.mark.parametrize("stage", ["evaluate", "serve"])
def test_the_kv_cache_fills_vllms_share_to_the_last_block(name: str, stage: str) -> None:
    profile, card = PROFILES[name], CARDS[CARD_OF_PROFILE[name]]
    estimate = on_its_card(profile)[stage]
    budget = profile.gpu_memory_utilization * card.memory_bytes
    block = 16 * kv_bytes_per_token(shape_of(profile))
    assert 0 <= budget - estimate.card_bytes < block
    tokens = estimate.card["KV cache"] / kv_bytes_per_token(shape_of(profile))
    assert tokens >= profile.max_model_len  # vLLM refuses to start otherwise
    assert f"{tokens:,.0f} tokens" in estimate.note


# --- what fits and what does not ----------------------------------------------------------------


@pytest.mark.parametrize("name", GPU_PROFILES)
def test_every_profile_fits_its_card(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    card = CARD_OF_PROFILE[name]
    assert main(["--profile", name, "--dry-run", "--card", card]) == 0
    printed = capsys.readouterr().out
    assert f"Estimated from formulas, not measured: {name} on an NVIDIA {card}" in printed
    assert "Every stage fits." in printed and "learning_rate" in printed
    for estimate in on_its_card(PROFILES[name]).values():
        assert estimate.card_bytes < CARDS[card].memory_bytes and estimate.seconds > 0
        assert not estimate.problem


def test_what_does_not_fit_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--profile", "gpu", "--dry-run", "--card", "T4"]) == 1
    printed = capsys.readouterr().out
    assert "The profile gpu does not fit" in printed
    assert "evaluate: 90% of an NVIDIA T4 are" in printed and "fewer than max_model_len" in printed


def test_a_batch_that_is_too_large_does_not_fit() -> None:
    profile = dataclasses.replace(
        PROFILES["gpu"], train_batch_size=128, gradient_checkpointing=False
    )
    problem = on_its_card(profile)["finetune"].problem
    assert "most of it for activations; an NVIDIA L4" in problem


def test_larger_models_and_slower_cards_take_longer() -> None:
    small, large = (on_its_card(PROFILES[name]) for name in ("gpu-small", "gpu"))
    fast = estimate_stages(PROFILES["gpu"], CARDS["A100 40GB"])
    for stage in ("finetune", "merge", "gptq", "awq", "evaluate"):
        assert large[stage].seconds > small[stage].seconds, stage
        assert large[stage].seconds > fast[stage].seconds, stage


def test_prefix_caching_saves_prefill() -> None:
    shape, lengths, card = shape_of(PROFILES["gpu"]), task_lengths(), CARDS["L4"]
    cached, uncached = (
        answer_seconds(100, shape, lengths, card, int4_bytes(shape, 128), 64, caching)
        for caching in (True, False)
    )
    shared = 100 * (lengths.prompt - lengths.message)  # tokens of the system prompt
    assert uncached - cached == pytest.approx(compute_seconds(shared, shape, card))


# --- which card ---------------------------------------------------------------------------------


def test_the_card_of_this_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    here = types.SimpleNamespace(name="NVIDIA A10", total_memory=20e9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: here)
    card = card_for(PROFILES["gpu"], None)
    assert card is not None and card.name == "A10"
    assert card.memory_bytes == pytest.approx(20e9, rel=1e-3)
    assert card_for(PROFILES["gpu"], "T4") == CARDS["T4"]  # asked for by name
    here.name = "NVIDIA A100-SXM4-40GB"
    card = card_for(PROFILES["gpu"], None)
    assert card is not None and card.name == "A100 40GB"


def test_bad_cards_and_models_are_named() -> None:
    with pytest.raises(ValueError, match=r"Unknown card 'T5'.*T4, L4"):
        get_card("T5")
    with pytest.raises(ValueError, match="uses no card"):
        card_for(PROFILES["cpu"], "T4")
    with pytest.raises(EstimateError, match=r"No shape is known for 'a/b'.*TRAIN_SHAPES"):
        shape_of(dataclasses.replace(PROFILES["gpu"], model="a/b"))


def test_tables_are_complete() -> None:
    assert {profile.model for profile in PROFILES.values()} == set(SHAPE_OF_MODEL)
    assert set(CARD_OF_PROFILE) == {p.name for p in PROFILES.values() if p.device == "cuda"}
    assert set(MODELS) == {"base", "merge", "gptq", "awq"}
    # get_profile takes "gpu" from 22 GB of card memory on, "gpu-small" below.
    for name, card in CARD_OF_PROFILE.items():
        assert (CARDS[card].memory_mib * 2**20 * USABLE >= 22e9) == (name == "gpu")


def test_too_little_host_memory_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Only on a machine that has the card: else the estimate is about another machine."""
    profile = PROFILES["gpu"]
    stages = build_stages(profile, "gptqmodel", "gptqmodel")
    card = types.SimpleNamespace(name="NVIDIA L4", total_memory=23.5e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    for gigabytes, expected in ((12.7, 1), (256, 0)):
        memory = types.SimpleNamespace(total=gigabytes * 1e9)
        monkeypatch.setattr("psutil.virtual_memory", lambda memory=memory: memory)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert dry_run(profile, stages, tmp_path) == expected
        said = "GB of host memory; this machine has 12.7." in capsys.readouterr().out
        assert said == bool(expected)
        assert bool(misfits(profile, stages)) == bool(expected)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert dry_run(profile, stages, tmp_path) == 0


def test_what_does_not_fit_is_said_before_anything_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    card = types.SimpleNamespace(name="Tesla T4", total_memory=15.6e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("utils.hub.resolve_model", lambda model: pytest.fail("downloaded"))
    assert main(["--profile", "gpu", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "gpu does not fit." in said and "--profile gpu-bundled" in said
    assert "Traceback" not in said and list(tmp_path.iterdir()) == []
