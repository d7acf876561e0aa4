"""Which Python runs Part II: this one in the course's environment, an isolated one on Colab."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from utils.environments import pipeline as environment
from utils.environments import virtual as virtual_environment
from utils.environments.pipeline import (
    OVERRIDE,
    PipelineEnvironmentError,
    is_isolated,
    package_version,
    pipeline_python,
    worker_environment,
)

Install = Callable[[Path, Path, str], None]


@pytest.fixture
def colab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Colab's variables, and an empty cache folder."""
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab-20261101")
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/env/python")
    return tmp_path / "pipeline-env"


def installing(built: list[Path]) -> Install:
    def install(python: Path, lock: Path, target: str) -> None:
        built.append(lock)
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()

    return install


def test_in_the_courses_own_environment_it_is_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert pipeline_python() == Path(sys.executable)
    assert not is_isolated()
    assert worker_environment()["PYTHONPATH"] == f"{environment.ROOT}:/somewhere"
    assert package_version("gptqmodel") in environment.lock_file("cpu").read_text()


def test_on_colab_an_environment_is_built_once_and_sees_nothing_of_this_one(
    colab: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built: list[Path] = []
    monkeypatch.setattr(environment, "_install", installing(built))
    python = pipeline_python()
    assert python.is_relative_to(colab) and python.exists()
    assert pipeline_python() == python and is_isolated()
    assert [lock.name for lock in built] == ["cpu.lock"]
    assert worker_environment()["PYTHONPATH"] == str(environment.ROOT)
    assert "nothing here is replaced" in capsys.readouterr().out


def test_inside_that_environment_nothing_more_is_built(
    colab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / virtual_environment.MARKER).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(environment, "_install", lambda *_: pytest.fail("built"))
    assert pipeline_python() == Path(sys.executable)


def test_a_killed_build_is_not_used_and_is_taken_up(
    colab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(python: Path, lock: Path, target: str) -> None:
        python.parent.mkdir(parents=True)
        (python.parent / "half").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "_install", killed)
    with pytest.raises(KeyboardInterrupt):
        pipeline_python()
    assert not list(colab.glob(f"*/{virtual_environment.MARKER}"))
    monkeypatch.setattr(environment, "_install", installing([]))
    assert (pipeline_python().parent / "half").exists()


def test_another_lock_makes_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment.fingerprint("cpu")
    assert before != environment.fingerprint("gpu")
    text = environment.lock_file("cpu").read_text()
    monkeypatch.setattr(environment, "lock_file", lambda _: tmp_path / "cpu.lock")
    (tmp_path / "cpu.lock").write_text(text.replace("peft==", "peft==9."))
    assert environment.fingerprint("cpu") != before


@pytest.mark.parametrize(
    ("here", "chosen"), [((3, 11), "3.11"), ((3, 12), "3.12"), ((3, 10), "3.11"), ((3, 19), "3.11")]
)
def test_the_hosts_python_serves_where_the_locks_hold_for_it(
    here: tuple[int, int], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (*here, 0, "final", 0))
    commands: list[list[str]] = []
    monkeypatch.setattr(environment, "_run", lambda command, env: commands.append(command))
    monkeypatch.setattr(environment, "_uv", lambda: "uv")
    environment._install(Path("nowhere/bin/python"), environment.lock_file("gpu"), "gpu")
    base = commands[0][commands[0].index("--python") + 1]
    assert base == (sys.executable if here in ((3, 11), (3, 12)) else chosen)


def test_a_full_disk_is_explained(colab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1_000_000_000)
    monkeypatch.setattr(virtual_environment.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(PipelineEnvironmentError, match=r"6 GB .* 1\.0 GB are free.*COURSE_CACHE"):
        pipeline_python()


def test_a_failed_install_says_what_failed() -> None:
    with pytest.raises(PipelineEnvironmentError, match=r"where it stopped(.|\n)*no such index"):
        environment._run(["sh", "-c", "echo no such index; exit 3"], {})


def test_another_python_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, sys.executable)
    assert pipeline_python() == Path(sys.executable)
    monkeypatch.setenv(OVERRIDE, str(tmp_path / "none"))
    with pytest.raises(PipelineEnvironmentError, match="not a program"):
        pipeline_python()


@pytest.mark.parametrize(("driver", "works"), [((12, 4), False), ((13, 0), True), (None, True)])
def test_a_driver_too_old_is_found_before_anything_is_downloaded(
    driver: tuple[int, int] | None, works: bool, colab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []
    monkeypatch.setattr(environment, "_install", installing(built))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("utils.profiles.driver_cuda_version", lambda: driver)
    monkeypatch.setenv("COURSE_PROFILE", "gpu-small")
    if works:
        pipeline_python()
        assert [lock.name for lock in built] == ["gpu.lock"]
        return
    with pytest.raises(PipelineEnvironmentError, match=r"CUDA 12.4.*need 13.0.*COURSE_PROFILE=cpu"):
        pipeline_python()
    assert built == []
    monkeypatch.setenv("COURSE_PROFILE", "cpu")  # what the message advises
    pipeline_python()
    assert [lock.name for lock in built] == ["cpu.lock"]
