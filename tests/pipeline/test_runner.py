"""Stages are complete or absent, done once, and redone when something changed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pipeline import fake_stages
from utils.pipeline.manifests import MANIFEST
from utils.pipeline.output_folder import WORK_PREFIX
from utils.pipeline.runner import Runner, Stage, StageError

ROOT = Path(__file__).parent.parent.parent


def leftovers(out: Path) -> list[Path]:
    return list(out.glob(f"{WORK_PREFIX}*"))


def skipped(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    return [line.split()[1].rstrip(":") for line in lines if line.endswith("skipped")]


def test_a_chain_runs_in_order_and_leaves_manifests(tmp_path: Path) -> None:
    manifests = Runner(tmp_path, fake_stages.chain(), {}).run()
    assert (tmp_path / "two" / "text").read_text() == "ab"
    manifest = json.loads((tmp_path / "two" / MANIFEST).read_text())
    assert manifest == manifests["two"]
    assert manifest["measures"] == {"length": 1}
    assert manifest["outputs"]["text"]["bytes"] == 2
    assert manifest["peak_memory_bytes"] > 1e6
    assert int((tmp_path / "one" / "pid").read_text()) != os.getpid()
    assert not leftovers(tmp_path)


def test_what_is_complete_is_skipped_and_what_changed_is_redone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Runner(tmp_path, fake_stages.chain(), {}).run()
    capsys.readouterr()
    Runner(tmp_path, fake_stages.chain(), {}).run()
    assert skipped(capsys) == ["one", "two"]
    Runner(tmp_path, fake_stages.chain(second="c"), {}).run()
    assert skipped(capsys) == ["one"]
    assert (tmp_path / "two" / "text").read_text() == "ac"
    Runner(tmp_path, fake_stages.chain(first="z", second="c"), {}).run()
    assert skipped(capsys) == []
    assert (tmp_path / "two" / "text").read_text() == "zc"
    assert not leftovers(tmp_path)


def test_a_read_only_folder_with_all_stages_is_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a shared disk, or an image. (Tests may run as root, whom file modes don't stop.)"""
    Runner(tmp_path, fake_stages.chain(), {}).run()
    capsys.readouterr()
    usual = Path.open

    def read_only(path: Path, mode: str = "r", *args: object, **named: object) -> object:
        if "w" in mode and path.is_relative_to(tmp_path):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return usual(path, mode, *args, **named)

    def no_folder(**_: object) -> str:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "open", read_only)
    monkeypatch.setattr(tempfile, "mkdtemp", no_folder)
    Runner(tmp_path, fake_stages.chain(), {}).run()
    assert skipped(capsys) == ["one", "two"]
    with pytest.raises(StageError, match=r"'two' must be run, but .* cannot be written to"):
        Runner(tmp_path, fake_stages.chain(second="c"), {}).run()
    assert (tmp_path / "two" / "text").read_text() == "ab"


def test_a_damaged_output_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Runner(tmp_path, fake_stages.chain(), {}).run()
    (tmp_path / "one" / "text").write_text("")
    capsys.readouterr()
    Runner(tmp_path, fake_stages.chain(), {}).run()
    assert "one" not in skipped(capsys)
    assert (tmp_path / "one" / "text").read_text() == "a"


def test_a_changed_source_folder_or_version_counts(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "text").write_text("x")

    def runner(version: int = 1) -> Runner:
        stage = Stage("one", fake_stages.write, ("base",), {"text": "a"}, version)
        return Runner(tmp_path / "out", [stage], {"base": source})

    def current(version: int = 1) -> bool:
        return runner(version).is_current(runner(version).stages["one"])

    assert not current()
    runner().run()
    assert current() and not current(2)
    (source / "text").write_text("y")
    assert not current()


def test_a_failing_stage_leaves_nothing_and_keeps_the_old_output(tmp_path: Path) -> None:
    Runner(tmp_path, fake_stages.chain(), {}).run()
    with pytest.raises(ValueError, match="on purpose"):
        Runner(tmp_path, [Stage("one", fake_stages.fail)], {}).run()
    assert (tmp_path / "one" / "text").read_text() == "a"
    assert not leftovers(tmp_path)


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    for stage in (fake_stages.full, fake_stages.full_in_safetensors):
        with pytest.raises(StageError, match="Not enough disk space for the stage 'one'"):
            Runner(tmp_path, [Stage("one", stage)], {}).run()
    with pytest.raises(StageError, match=r"needs about 1000000000\.0 GB"):
        Runner(tmp_path, [Stage("one", fake_stages.write, bytes_needed=10**18)], {}).run()
    assert not (tmp_path / "one").exists() and not leftovers(tmp_path)


def test_a_killed_stage_process_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"'one' was killed.*memory"):
        Runner(tmp_path, [Stage("one", fake_stages.die)], {}).run()
    assert not (tmp_path / "one").exists() and not leftovers(tmp_path)


def test_killed_in_the_middle_nothing_half_written_is_taken_for_done(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    script = Path(fake_stages.__file__)
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=env)
    try:
        deadline = time.monotonic() + 60
        begun = f"{WORK_PREFIX}one-*/pid"
        while not (written := "".join(file.read_text() for file in tmp_path.glob(begun))):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        child = psutil.Process(int(written))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "one").exists()
    assert leftovers(tmp_path)
    # The stage's own process does not go on alone.
    _, left = psutil.wait_procs([child], timeout=60)
    assert left == []
    Runner(tmp_path, fake_stages.chain(), {}).run()
    assert (tmp_path / "one" / "text").read_text() == "a"
    assert not leftovers(tmp_path)


def test_unknown_stages_and_missing_inputs_are_named(tmp_path: Path) -> None:
    runner = Runner(tmp_path, fake_stages.chain(), {})
    with pytest.raises(StageError, match=r"Unknown stage three.*one, two"):
        runner.run(["three"])
    with pytest.raises(StageError, match="'one' has no complete output"):
        runner.run(["two"])


def test_an_input_that_lost_a_file_is_named(tmp_path: Path) -> None:
    Runner(tmp_path, fake_stages.chain(), {}).run(["one"])
    (tmp_path / "one" / "text").write_text("cut")
    with pytest.raises(StageError, match=r"one/text has another length.*Run the stage 'one' again"):
        Runner(tmp_path, fake_stages.chain(), {}).run(["two"])
    (tmp_path / "one" / "text").unlink()
    with pytest.raises(StageError, match=r"one/text is missing.*Run the stage 'one' again"):
        Runner(tmp_path, fake_stages.chain(), {}).run(["two"])
    assert not (tmp_path / "two").exists() and not leftovers(tmp_path)
    Runner(tmp_path, fake_stages.chain(), {}).run()
    assert (tmp_path / "two" / "text").read_text() == "ab"


@pytest.mark.parametrize("file", ["one/text", "two/text"])
def test_a_flipped_bit_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    """The length tells nothing. An input is refused; in a run of all stages it is made anew."""
    Runner(tmp_path, fake_stages.chain(), {}).run()
    (tmp_path / file).write_text("b" * len((tmp_path / file).read_text()))
    if file == "one/text":
        with pytest.raises(StageError, match="one/text has other contents than it had"):
            Runner(tmp_path, fake_stages.chain(second="c"), {}).run(["two"])
    capsys.readouterr()
    Runner(tmp_path, fake_stages.chain(), {}).run()
    assert f"{file} has other contents than it had: made anew" in capsys.readouterr().out
    assert (tmp_path / "two" / "text").read_text() == "ab"


def test_any_flipped_byte_of_a_manifest_is_found(tmp_path: Path) -> None:
    runner = Runner(tmp_path, fake_stages.chain(), {})
    runner.run()
    stage, path = runner.stages["one"], tmp_path / "one" / "manifest.json"
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert not runner.is_current(stage), at


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "null", "3", '{"stage": "two"}', '{"outputs": {"text": null}}', "\udcff", ""],
)
def test_a_manifest_that_is_not_ours_is_none(tmp_path: Path, text: str) -> None:
    Runner(tmp_path, fake_stages.chain(), {}).run()
    (tmp_path / "one" / "manifest.json").write_text(text, errors="surrogateescape")
    with pytest.raises(StageError, match="no complete output"):
        Runner(tmp_path, fake_stages.chain(second="c"), {}).run(["two"])
    Runner(tmp_path, fake_stages.chain(), {}).run()
    assert (tmp_path / "two" / "text").read_text() == "ab"


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StageError, match="Another run"):
            Runner(tmp_path, fake_stages.chain(), {}).run()


def test_a_run_can_wait_for_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, asked = fcntl.flock, []

    def until_it_waits(file: Any, how: int) -> None:
        """The other run ends as soon as this one waits for it."""
        asked.append(how)
        if how == fcntl.LOCK_EX:
            assert not (tmp_path / "one").exists()
            flock(other, fcntl.LOCK_UN)
        flock(file, how)

    with (tmp_path / ".lock").open("w") as other:
        flock(other, fcntl.LOCK_EX)
        monkeypatch.setattr(fcntl, "flock", until_it_waits)
        Runner(tmp_path, fake_stages.chain(), {}).run(wait=True)
    assert asked[:2] == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX]
    assert "waiting for it" in capsys.readouterr().out
    assert (tmp_path / "two" / "text").read_text() == "ab"
