"""A model's folder is refused with a reason where something is missing, cut off or damaged."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.engine.tiny_engines import tiny_llama
from utils import model_folder
from utils.engine import LLM
from utils.hub import resolve_model
from utils.model_folder import ModelError


def test_a_user_without_a_home_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a container that runs under any number: no HOME, and no entry for the user."""

    def homeless(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    monkeypatch.delenv("COURSE_CACHE", raising=False)
    with pytest.raises(ModelError, match="COURSE_CACHE to a folder"):
        model_folder.cache_dir()
    monkeypatch.undo()
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.delenv("HOME", raising=False)
    assert model_folder.cache_dir() == tmp_path


DAMAGE = ["", "[]", "null", "3", "{", "\udcff", "[" * 100_000]


def sharded(folder: Path) -> Path:
    """A model folder with two shards and their index, as save_pretrained writes them."""
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        save_file({f"layer.{number}": torch.ones(4)}, folder / name)
    weight_map = {f"layer.{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_models_own_code_is_refused(tmp_path: Path, file: str) -> None:
    """transformers would ask, and one "y" runs it."""
    sharded(tmp_path)
    (tmp_path / file).write_text(json.dumps({"auto_map": {"AutoConfig": "evil.Config"}}))
    with pytest.raises(ModelError, match=rf'{file} names code .*"auto_map"'):
        resolve_model(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    assert resolve_model(sharded(tmp_path)) == tmp_path
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors is missing"):
        resolve_model(tmp_path)


@pytest.mark.parametrize(("length", "expected"), [(-1, "its header announces"), (4, "no header")])
def test_a_file_that_was_cut_off_is_named(tmp_path: Path, length: int, expected: str) -> None:
    shard = sharded(tmp_path) / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:length])
    with pytest.raises(ModelError, match=rf"model-00001.*damaged.*{expected}"):
        resolve_model(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}']
)
def test_a_damaged_index_is_named(tmp_path: Path, text: str) -> None:
    (sharded(tmp_path) / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match=r"index\.json (is not|holds no|has no) .*Fetch the model"):
        resolve_model(tmp_path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder, seed=3)
    LLM(folder, device="cpu")  # as it is, it is right
    return folder


def damaged(tiny: Path, folder: Path, file: str, text: str) -> Path:
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    (folder / file).write_text(text, errors="surrogateescape")
    return folder


@pytest.mark.parametrize("text", DAMAGE)
@pytest.mark.parametrize(
    "file", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"]
)
def test_a_damaged_file_is_told_in_words(tiny: Path, tmp_path: Path, file: str, text: str) -> None:
    with pytest.raises((ModelError, ValueError), match=r"JSON|tokenizer in .* cannot be read"):
        LLM(damaged(tiny, tmp_path, file, text), device="cpu")


@pytest.mark.parametrize("eos", ["x", {"a": 1}, [1, "x"], True, 1.5])
def test_a_wrong_end_is_told_in_words(tiny: Path, tmp_path: Path, eos: object) -> None:
    folder = damaged(tiny, tmp_path, "generation_config.json", json.dumps({"eos_token_id": eos}))
    with pytest.raises(ValueError, match=r"eos_token_id is .*Expected a token's number, or more"):
        LLM(folder, device="cpu")


def test_an_entry_of_a_wrong_type_is_told_in_words(tiny: Path, tmp_path: Path) -> None:
    right = json.loads((tiny / "config.json").read_text())
    for name in right:
        for value in (None, "x", -1, 0, 1.5, [], [3], {}, True):
            text = json.dumps(right | {name: value})
            with contextlib.suppress(ValueError, ModelError):  # any other error is a traceback
                LLM(damaged(tiny, tmp_path, "config.json", text), device="cpu")
    for name, value in {
        "architectures": 3,
        "hidden_size": "x",
        "max_position_embeddings": None,
        "dtype": [],
        "rms_norm_eps": "x",
        "head_dim": 8.0,
    }.items():
        text = json.dumps(right | {name: value})
        with pytest.raises(ValueError, match=rf"config\.json has {name}=.*Expected "):
            LLM(damaged(tiny, tmp_path, "config.json", text), device="cpu")
