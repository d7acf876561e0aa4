"""Notebooks find the pipeline's stages, or make the missing ones, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline import fake_stages
from utils.pipeline import artifacts
from utils.pipeline.artifacts import ESTIMATES, measures_of, need_stages
from utils.pipeline.runner import Runner, Stage, StageError
from utils.pipeline.stages.chain import build_stages
from utils.profiles import PROFILES


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    made = Runner(tmp_path, fake_stages.chain(), {})
    monkeypatch.setattr(artifacts, "pipeline_runner", lambda profile: made)
    return made


def test_missing_stages_are_made_with_what_they_need(runner: Runner, capsys: Any) -> None:
    assert measures_of("two") is None
    folders = need_stages("two")
    assert folders == {"two": runner.out / "two"}
    assert (folders["two"] / "text").read_text() == "ab"
    assert "made now, once: one (unknown), two (unknown)" in capsys.readouterr().out
    manifest = measures_of("two")
    assert manifest is not None and manifest["measures"] == {"length": 1}
    (folders["two"] / "text").write_text("another")
    assert measures_of("two") is None  # it is no longer what was measured


def test_what_is_there_is_taken_silently(runner: Runner, capsys: Any) -> None:
    need_stages("two")
    pid = (runner.out / "two" / "pid").read_text()
    capsys.readouterr()
    need_stages("two", "one")
    assert capsys.readouterr().out == ""
    assert (runner.out / "two" / "pid").read_text() == pid


KINDS = sorted(fake_stages.MODEL_FILES)


@pytest.mark.parametrize("file", [*KINDS, "manifest.json"])
def test_a_byte_flipped_in_any_kind_of_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    stage = Stage("model", fake_stages.write_model)
    monkeypatch.setattr(artifacts, "pipeline_runner", lambda _: Runner(tmp_path, [stage], {}))
    folder = need_stages("model")["model"]
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.name in KINDS}
    assert len(whole) == len(KINDS)
    path = next(folder.rglob(file))
    data, made = bytearray(path.read_bytes()), path.stat().st_ino
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert need_stages("model") == {"model": folder}
    assert path.stat().st_ino != made
    assert {path: path.read_bytes() for path in whole} == whole


def test_measures_that_were_changed_are_not_given(runner: Runner) -> None:
    need_stages("one")
    path = runner.out / "one" / "manifest.json"
    for key, value in (("measures", {"length": 7}), ("versions", {"torch": "0"}), ("seconds", 0.1)):
        text = path.read_text()
        path.write_text(json.dumps(json.loads(text) | {key: value}))
        assert measures_of("one") is None
        path.write_text(text)
        assert measures_of("one") is not None


def test_only_what_is_needed_is_made(runner: Runner) -> None:
    need_stages("one")
    assert not (runner.out / "two").exists()


def test_unknown_stage(runner: Runner) -> None:
    with pytest.raises(StageError, match="Unknown stage three"):
        need_stages("three")


def test_every_real_stage_has_an_estimate() -> None:
    stages = build_stages(PROFILES["cpu"], "gptqmodel", "gptqmodel")
    assert {stage.name for stage in stages} == set(ESTIMATES)


def test_the_real_runner_writes_to_the_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_ARTIFACTS", str(tmp_path))
    assert artifacts.pipeline_runner(PROFILES["cpu"]).out == tmp_path
