"""The archived tools' environment and patches, without building or running them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from utils.environments import virtual as virtual_environment
from utils.pipeline.quantizers.classic import environment
from utils.pipeline.quantizers.classic.environment import ClassicEnvironmentError, classic_python
from utils.pipeline.quantizers.classic.patches import cloned_state_dict


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    return tmp_path / "classic-env"


def test_lock_is_exact_and_has_no_cuda() -> None:
    packages = environment.locked_packages()
    assert packages["auto-gptq"] == "0.7.1"
    assert packages["autoawq"] == "0.2.9"
    assert packages["torch"].endswith("+cpu")
    assert not [name for name in packages if name.startswith(("nvidia", "triton"))]
    assert {"setuptools", "wheel"} <= set(packages)  # autoawq is built with them


def test_built_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def install(python: Path, packages: dict[str, str]) -> None:
        built.append(packages)
        python.parent.mkdir(parents=True)
        python.touch()

    monkeypatch.setattr(environment, "_install", install)
    python = classic_python()
    assert python.exists()
    assert classic_python() == python
    assert built == [environment.locked_packages()]
    assert python.parents[1].parent == cache


def test_a_killed_build_is_not_used_and_is_taken_up(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(python: Path, packages: dict[str, str]) -> None:
        python.parent.mkdir(parents=True)
        (python.parent / "half").touch()
        raise KeyboardInterrupt

    def go_on(python: Path, packages: dict[str, str]) -> None:
        assert (python.parent / "half").exists()
        python.touch()

    monkeypatch.setattr(environment, "_install", killed)
    with pytest.raises(KeyboardInterrupt):
        classic_python()
    assert not [
        folder for folder in cache.iterdir() if (folder / virtual_environment.MARKER).exists()
    ]
    monkeypatch.setattr(environment, "_install", go_on)
    assert classic_python().exists()


def test_another_lock_makes_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment.fingerprint()
    lock = tmp_path / "classic.lock"
    lock.write_text(environment.LOCK.read_text().replace("peft==", "peft==9."))
    monkeypatch.setattr(environment, "LOCK", lock)
    assert environment.fingerprint() != before


def test_a_missing_lock_and_a_full_disk_are_explained(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000_000)
    monkeypatch.setattr(virtual_environment.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ClassicEnvironmentError, match=r"2 GB .* 1\.0 GB are free.*COURSE_CACHE"):
        classic_python()
    monkeypatch.setattr(environment, "LOCK", tmp_path / "none.lock")
    with pytest.raises(ClassicEnvironmentError, match=r"none\.lock is missing.*gptqmodel"):
        classic_python()


def test_a_failed_install_says_what_failed(tmp_path: Path) -> None:
    with pytest.raises(
        ClassicEnvironmentError, match=r"goes on where it stopped(.|\n)*no such lib"
    ):
        environment._run(["sh", "-c", "echo no such lib; exit 3"], {})


def test_cpu_returns_an_alias_and_the_patch_returns_copies() -> None:
    """The cause of autoawq's corruption, and its cure, in six lines."""
    layer = torch.nn.Linear(2, 2, bias=False)
    original = layer.weight.detach().clone()

    def try_a_scale() -> Any:
        saved = {name: tensor.cpu() for name, tensor in layer.state_dict().items()}
        with torch.no_grad():
            layer.weight.mul_(2)
        layer.load_state_dict(saved)
        return layer.weight.detach()

    with cloned_state_dict(layer):
        assert torch.equal(try_a_scale(), original)
    assert torch.equal(try_a_scale(), 2 * original)  # unaided, the trial scale stays
