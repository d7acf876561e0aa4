"""The hub: names and folders are resolved, and what cannot be had is refused with a reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from utils import hub
from utils.hub import resolve_model
from utils.model_folder import ModelError


@pytest.mark.parametrize("model", ["no-such-model", "./nowhere", "/nowhere/at/all", "a/b/c"])
def test_unknown_model_is_refused(model: str) -> None:
    with pytest.raises(ModelError, match="No model at"):
        resolve_model(model)


def test_local_folder(tmp_path: Path, model_path: Path) -> None:
    assert resolve_model(model_path) == model_path
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_model(tmp_path)
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(ModelError, match="not valid JSON"):
        resolve_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds no JSON object"):
        resolve_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        resolve_model(tmp_path)
    # transformers would read the pickled file, in spite of this one.
    save_file({"a": torch.ones(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        resolve_model(tmp_path)


def test_whatever_fails_in_a_download_is_told_in_one_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx
    import huggingface_hub

    def fail(*_: object, **__: object) -> None:
        raise httpx.ConnectError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    with pytest.raises(ModelError, match="ConnectError: Name or service not known\nCheck the net"):
        resolve_model("nobody/no-such-model")


def test_hub_id_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ModelError, match=r"Cannot download 'nobody/no-such-model'.*\n.*HF_HUB_OFFLINE"
    ):
        resolve_model("nobody/no-such-model")


def test_a_download_that_does_not_fit_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=12_000_000_000)
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    hub._require_space("mistralai/Mistral-7B-Instruct-v0.3", 10_900_000_000)
    with pytest.raises(ModelError, match=r"14\.5 GB, and 12\.0 GB are free.*HF_HUB_CACHE"):
        hub._require_space("mistralai/Mistral-7B-Instruct-v0.3", 14_500_000_000)
