"""The widget of notebook 12 shows each file's weight, and its controls all redraw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from gguf import GGUFReader
from matplotlib.colors import to_rgba
from safetensors.torch import save_file

from utils.bundled_model import bundled_gguf
from utils.pipeline.studies.stored_weights import StoredWeight, read_tensor
from utils.quant import pack_awq, pack_gptq, rtn
from utils.viz.quant.checkpoints import (
    before_awq,
    checkpoint_explorer,
    plot_bytes,
    plot_stored_weight,
)
from utils.viz.style import ORANGE, use_course_style

GATE = "model.layers.0.mlp.gate_proj"
NORM = "model.layers.0.post_attention_layernorm.weight"


@pytest.fixture(autouse=True)
def _style() -> Iterator[None]:
    use_course_style()
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three models with one linear layer; AWQ's has its inputs scaled by 2."""
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    files = {
        "merged": {f"{GATE}.weight": weight, NORM: torch.ones(64)},
        "gptq": {f"{GATE}.{k}": v for k, v in pack_gptq(rtn(weight, group_size=32)).items()},
        "awq": {NORM: torch.full((64,), 0.5)}
        | {
            f"{GATE}.{k}": v for k, v in pack_awq(rtn(2 * weight, group_size=32, sym=False)).items()
        },
    }
    made = {}
    for name, tensors in files.items():
        made[name] = tmp_path_factory.mktemp(name)
        save_file(tensors, made[name] / "model.safetensors")
    return made


@pytest.fixture(scope="module")
def reader() -> GGUFReader:
    return GGUFReader(bundled_gguf())


def test_bytes_by_kind() -> None:
    files = {
        "merged": {"embedding": 50, "linear, 16 bits": 200, "norms": 1},
        "GPTQ": {"embedding": 50, "codes": 40, "scales": 5, "zeros": 5},
    }
    [axes] = plot_bytes(files).axes
    assert "takes 50%" in axes.get_title("left")
    widths = [bar.get_width() * 1e6 for bar in axes.patches]
    assert sum(widths) == pytest.approx(351)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["merged", "GPTQ"]


def test_picture_marks_the_weight() -> None:
    stored = StoredWeight(
        0x21, 8, (1, 2), ("in 0", "in 16"), 1, "2 · 0.5 + (0) = 1", 1.0, torch.tensor([0.5, 1.0]), 1
    )
    figure = plot_stored_weight(stored, "one", torch.tensor([0.4, 1.1]))
    top, bottom = figure.axes
    texts = [text.get_text() for text in top.texts]
    assert {"0x21", "0001", "0010", "in 0", "in 16"} <= set(texts)
    assert top.get_title("left") == "one: code 2"
    boxes = {box.get_x(): box.get_facecolor() for box in top.patches}  # highest bits left
    assert [x for x, color in boxes.items() if color == to_rgba(ORANGE)] == [0]
    assert "2 of 16 levels" in bottom.get_title("left")
    marked = bottom.lines[-1]
    assert (list(marked.get_xdata()), list(marked.get_ydata())) == ([1], [1.0])


def test_awq_scales_are_read_from_the_norm(folders: dict[str, Path]) -> None:
    row = before_awq(folders["merged"], folders["awq"], 0, "mlp.gate_proj", 3)
    assert row is not None
    torch.testing.assert_close(row, 2 * read_tensor(folders["merged"], f"{GATE}.weight")[3])
    assert before_awq(folders["merged"], folders["awq"], 0, "mlp.up_proj", 3) is None


def test_every_control_redraws(folders: dict[str, Path], reader: GGUFReader) -> None:
    explorer = checkpoint_explorer(**folders, reader=reader)
    seen = {explorer._image.value}
    for name, value in (
        ("output", 6),
        ("input", 40),
        ("file", "AWQ"),
        ("file", "GGUF (Q4_1)"),
        ("layer", 29),
        ("tensor", "mlp.down_proj"),
    ):
        explorer.controls[name].value = value
        assert explorer.error is None, explorer.error
        seen.add(explorer._image.value)
    assert len(seen) == 7
    assert plt.get_fignums() == []


def test_what_is_not_there_is_said_in_words(folders: dict[str, Path], reader: GGUFReader) -> None:
    explorer = checkpoint_explorer(**folders, reader=reader)
    explorer.controls["output"].value = 16
    assert "outputs 0 to 15" in explorer._message.value
    explorer.controls["output"].value = 5
    assert explorer.error is None
    explorer.controls["layer"].value = 9
    assert "No tensor" in explorer._message.value
