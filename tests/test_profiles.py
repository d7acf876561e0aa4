"""Profiles: chosen by the machine, overridable, refused with a reason."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest
import torch

from utils import profiles
from utils.profiles import (
    ENV_VAR,
    PROFILES,
    PROOF_PROFILE,
    bundled_profile,
    driver_cuda_version,
    get_profile,
    half_dtype,
    require_device,
    unused_card,
)


@pytest.mark.parametrize("name", PROFILES)
def test_environment_variable_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VAR, name)
    assert get_profile() == PROFILES[name]


def test_the_profile_of_the_tests_is_found_and_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VAR, "cpu-small")
    assert get_profile() == PROOF_PROFILE
    assert PROOF_PROFILE not in PROFILES.values()
    with pytest.raises(ValueError, match="Expected one of cpu, gpu-bundled, gpu-small, gpu\\."):
        get_profile("tiny")


@pytest.mark.parametrize(
    ("memory", "expected"),
    [(None, "cpu"), (6.4e9, "gpu-bundled"), (15.6e9, "gpu-small"), (24.1e9, "gpu"), (80e9, "gpu")],
)
def test_detection(memory: float | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_VAR, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: memory is not None)
    card = type("Card", (), {"total_memory": memory})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    assert get_profile().name == expected


def test_unknown_profile_names_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_VAR, "tpu")
    with pytest.raises(ValueError, match=rf"'tpu'.*cpu, gpu-bundled, gpu-small, gpu.*{ENV_VAR}"):
        get_profile()


def test_gpu_profile_without_gpu_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=f"{ENV_VAR}=cpu"):
        require_device(get_profile("gpu"))
    require_device(get_profile("cpu"))


@pytest.mark.parametrize(
    ("capability", "expected"),
    [(None, "bfloat16"), ((7, 5), "float16"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")],
)
def test_the_16_bit_type_of_a_machine(
    capability: tuple[int, int] | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert half_dtype() == expected


class FakeDriver:
    """libcuda, as far as it is asked."""

    def __init__(self, version: int, error: int = 0) -> None:
        self.version, self.error = version, error

    def cuDriverGetVersion(self, pointer: Any) -> int:
        pointer._obj.value = self.version
        return self.error


def test_the_drivers_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(12040))
    assert driver_cuda_version() == (12, 4)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(13000))
    assert driver_cuda_version() == (13, 0)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(0, error=100))
    assert driver_cuda_version() is None

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert driver_cuda_version() is None


@pytest.mark.parametrize(
    ("driver", "available", "cuda", "words"),
    [
        (None, False, None, None),  # no card
        ((13, 0), True, "13.0", None),  # all is well
        ((13, 0), False, None, "a build for CPUs.*environment-gpu.yml"),
        ((12, 4), False, "13.0", "supports CUDA 12.4, and this build was made for 13.0"),
    ],
)
def test_a_card_left_alone_is_mentioned(
    driver: Any,
    available: bool,
    cuda: str | None,
    words: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profiles, "driver_cuda_version", lambda: driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    said = unused_card()
    assert said is None if words is None else re.search(words, said or "")


@pytest.mark.parametrize(
    ("name", "expected"), [("cpu", "cpu"), ("gpu-small", "gpu-bundled"), ("gpu", "gpu-bundled")]
)
def test_a_lesson_with_many_models_takes_the_bundled_one(
    name: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_VAR, name)
    assert bundled_profile() == PROFILES[expected]
    assert bundled_profile().model == "bundled"
