"""The command line: dry run, and errors without a stack trace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from utils.pipeline.__main__ import main
from utils.pipeline.stages.chain import build_stages
from utils.profiles import PROFILES, get_profile


@pytest.mark.parametrize("profile", PROFILES)
def test_a_dry_run_names_every_stage_and_writes_nothing(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["--profile", profile, "--out", str(out), "--dry-run"]) == 0
    printed, _, together = capsys.readouterr().out.partition("\n\n")
    assert re.search(r"\d+ min", together)  # for all of them
    names = ["data", "finetune", "merge", "gptq", "awq", "evaluate", "serve", "report"]
    assert [line.split(":")[0] for line in printed.splitlines() if line[0] != " "] == names
    assert not out.exists()


def test_the_tool_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--profile", "cpu", "--dry-run", "--gptq-tool", "auto-gptq", "--awq-tool", "autoawq"])
    printed = capsys.readouterr().out
    assert "checkpoint by auto-gptq" in printed and "checkpoint by autoawq" in printed


def test_an_unknown_stage_is_an_error_that_lists_the_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--profile", "cpu", "--out", str(tmp_path), "--stages", "data,train"]) == 1
    message = capsys.readouterr().err
    assert "Unknown stage train" in message and "finetune" in message
    assert "Traceback" not in message


def test_no_stage_is_not_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty variable in a shell: `--stages "$STAGES"`."""
    assert main(["--profile", "cpu", "--out", str(tmp_path), "--stages", ""]) == 1
    message = capsys.readouterr().err
    assert "--stages names no stage" in message and "finetune" in message
    assert not [*tmp_path.iterdir()]


def test_an_output_folder_that_cannot_be_made_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    for out in (file, file / "below"):
        assert main(["--profile", "cpu", "--out", str(out), "--stages", "data"]) == 1
        message = capsys.readouterr().err
        assert f"Cannot make the folder {out}" in message and "--out" in message


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--profile", "tpu"])


def test_a_changed_setting_reaches_its_stage_and_no_earlier_one() -> None:
    profile = get_profile("cpu")
    first = build_stages(profile, "gptqmodel", "autoawq")
    second = build_stages(profile, "auto-gptq", "autoawq")
    changed = [a.name for a, b in zip(first, second, strict=True) if a.settings != b.settings]
    assert changed == ["gptq"]
