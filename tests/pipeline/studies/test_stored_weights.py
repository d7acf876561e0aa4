"""A weight read bit by bit is the weight that whole-tensor readers give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from utils.pipeline.studies.stored_weights import (
    PROJECTIONS,
    awq_weight,
    gguf_weight,
    gptq_weight,
    read_tensor,
)
from utils.quant import QuantizedWeight, pack_awq, pack_gptq, rtn, unpack_int4, unpack_int4_awq

NAME = "mlp.gate_proj"
SPOTS = [(0, 0), (5, 9), (15, 95), (8, 32), (3, 63)]


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    return torch.randn(16, 96, generator=torch.Generator().manual_seed(0))


def save(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    named = {f"model.layers.0.{NAME}.{part}": tensor for part, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors")
    return folder


def half(weight: QuantizedWeight) -> torch.Tensor:
    """What a file holds: the scales are float16."""
    group = weight.g_idx.long()
    scales = weight.scales.half().float()[:, group]
    return (weight.q.float() - weight.zeros.float()[:, group]) * scales


@pytest.mark.parametrize(("row", "channel"), SPOTS)
def test_gptq(weight: torch.Tensor, tmp_path: Path, row: int, channel: int) -> None:
    quantized = rtn(weight, group_size=32)
    folder = save(tmp_path, tensors := pack_gptq(quantized))
    stored = gptq_weight(folder, 0, NAME, row, channel)
    assert stored.value == pytest.approx(half(quantized)[row, channel].item())
    start = channel // 32 * 32
    torch.testing.assert_close(stored.group, half(quantized)[row, start : start + 32])
    assert stored.owners[stored.place] == f"in {channel}"
    assert stored.codes[stored.place] == quantized.q[row, channel]
    word = tensors["qweight"][channel // 8, row]
    assert list(stored.codes) == unpack_int4(word[None]).tolist()
    assert stored.word == int(word) % 2**32 < 2**32


@pytest.mark.parametrize(("row", "channel"), SPOTS)
def test_awq(weight: torch.Tensor, tmp_path: Path, row: int, channel: int) -> None:
    quantized = rtn(weight, group_size=32, sym=False)
    folder = save(tmp_path, tensors := pack_awq(quantized))
    stored = awq_weight(folder, 0, NAME, row, channel)
    assert stored.value == pytest.approx(half(quantized)[row, channel].item())
    start = channel // 32 * 32
    torch.testing.assert_close(stored.group, half(quantized)[row, start : start + 32])
    assert stored.owners[stored.place] == f"out {row}"
    in_order = unpack_int4_awq(tensors["qweight"][channel, row // 8][None]).tolist()
    assert stored.codes[stored.place] == in_order[row % 8]


class Tensor:
    """One Q4_1 tensor, as `gguf.GGUFReader` has it."""

    def __init__(self, name: str, values: np.ndarray) -> None:
        self.name, self.tensor_type = name, gguf.GGMLQuantizationType.Q4_1
        self.data = gguf.quantize(values, self.tensor_type)


@pytest.mark.parametrize(("row", "channel"), SPOTS)
def test_gguf(weight: torch.Tensor, row: int, channel: int) -> None:
    tensor = Tensor("blk.3.ffn_gate.weight", weight.numpy())
    wanted = gguf.dequantize(tensor.data, tensor.tensor_type)
    reader: Any = type("Reader", (), {"tensors": [tensor]})
    stored = gguf_weight(reader, 3, NAME, row, channel)
    assert stored.value == pytest.approx(wanted[row, channel])
    start = channel // 32 * 32
    torch.testing.assert_close(stored.group, torch.tensor(wanted[row, start : start + 32]))
    assert stored.owners[stored.place] == f"in {channel}"
    with pytest.raises(ValueError, match=r"No Q4_1 tensor 'blk\.0\.ffn_gate"):
        gguf_weight(reader, 0, NAME, row, channel)


def test_refuses_what_is_not_there(weight: torch.Tensor, tmp_path: Path) -> None:
    folder = save(tmp_path, pack_gptq(rtn(weight, group_size=32)))
    with pytest.raises(ValueError, match=r"No tensor 'model\.layers\.7"):
        gptq_weight(folder, 7, NAME, 0, 0)
    with pytest.raises(ValueError, match="outputs 0 to 15 and inputs 0 to 95; got output 16"):
        gptq_weight(folder, 0, NAME, 16, 0)
    with pytest.raises(ValueError, match="No tensor"):
        read_tensor(tmp_path / "nowhere", "x")


def test_reads_models_in_several_files(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-1.safetensors"}}'
    )
    assert read_tensor(tmp_path, "a").tolist() == [1, 1]
    with pytest.raises(ValueError, match="No tensor 'b'"):
        read_tensor(tmp_path, "b")


def test_projections_are_those_of_the_quantizers() -> None:
    from utils.quant import SAME_INPUT

    assert set(PROJECTIONS) < {name for names in SAME_INPUT for name in names}
