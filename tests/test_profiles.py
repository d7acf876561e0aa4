"""Profiles: chosen by the machine, overridable, refused with a reason."""

from __future__ import annotations

import pytest
import torch

from utils.profiles import ENV_VAR, PROFILES, get_profile, require_device


@pytest.mark.parametrize("name", ["cpu", "gpu-small", "gpu"])
def test_environment_variable_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VAR, name)
    assert get_profile() == PROFILES[name]


@pytest.mark.parametrize(
    ("memory", "expected"), [(None, "cpu"), (16e9, "gpu-small"), (24.1e9, "gpu"), (80e9, "gpu")]
)
def test_detection(memory: float | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_VAR, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: memory is not None)
    card = type("Card", (), {"total_memory": memory})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    assert get_profile().name == expected


def test_unknown_profile_names_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VAR, "tpu")
    with pytest.raises(ValueError, match=rf"'tpu'.*cpu, gpu-small, gpu.*{ENV_VAR}"):
        get_profile()


def test_gpu_profile_without_gpu_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=f"{ENV_VAR}=cpu"):
        require_device(get_profile("gpu"))
    require_device(get_profile("cpu"))
