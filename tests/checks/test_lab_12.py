"""The oracles of lab 12 against `utils.quant`, which is held against vLLM (tests/quant)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from utils.checks import lab_12
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_12 import answers, damage, layouts, real_files
from utils.quant import pack_awq, pack_gptq, rtn, unpack_awq, unpack_gptq, unpack_int4


def words(*shape: int) -> torch.Tensor:
    """int32 of any kind; the same in each run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_words_are_those_of_the_processor(bits: int) -> None:
    fields = layouts.unpack_last(words(5, 6), bits)
    assert torch.equal(layouts.pack_last(fields, bits), words(5, 6))
    lowest = words(5, 6).numpy().view("uint8") & (2**bits - 1)  # of each byte, the lowest first
    assert fields[:, :: 8 // bits].tolist() == lowest.tolist()
    assert (words(5, 6) < 0).any() and (words(5, 6) > 0).any()


def test_four_bits_are_those_of_the_course() -> None:
    assert torch.equal(layouts.unpack_last(words(3, 8), 4), unpack_int4(words(3, 8)).long())
    assert torch.equal(lab_12.cut_out(words(3, 8), 4), unpack_int4(words(3, 8)))


@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_reading_and_writing_are_those_of_the_course(form: str) -> None:
    weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(0))
    q, offset = rtn(weight, group_size=16, sym=form == "gptq"), int(form == "gptq")
    theirs = pack_gptq(q, zero_offset=offset)
    mine = layouts.by_hand(q.q, q.zeros, q.scales, q.g_idx, 4, form)
    assert layouts.tensors_differ(theirs, mine, layouts.PARTS) == ("", "")
    mixed = theirs | {"g_idx": theirs["g_idx"][torch.arange(64).flip(0)]}
    for tensors in (theirs, mixed):
        expected = unpack_gptq(tensors, zero_offset=offset).dequantize()
        assert torch.equal(layouts.weight_by_weight(tensors, 4, form), expected)


def test_what_the_writer_refuses_cannot_be_read_back() -> None:
    reasons = set()
    for given in sample(lab_12.draw_codes, 400):
        codes, zeros, scales, g_idx, bits, form = given.args
        reason = layouts.unfit(*given.args)
        reasons.add(reason)
        if reason:
            continue
        packed = layouts.by_hand(*given.args)
        group = g_idx.long()
        expected = (codes.long() - zeros.long()[:, group]) * scales.half().float()[:, group]
        assert torch.equal(layouts.weight_by_weight(packed, bits, form), expected)
    for named in ("a code", "a zero", "a scale", "the group", "no multiple", "bits", "the format"):
        assert any(named in reason for reason in reasons)


@pytest.mark.parametrize("positive", [False, True])
def test_a_converted_layer_has_the_same_weights(positive: bool) -> None:
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    q = rtn(weight.abs() if positive else weight, group_size=32, sym=False)
    awq = pack_awq(q)
    gptq, form = layouts.repacked(awq)
    assert form == ("gptq_v2" if positive else "gptq")
    read = layouts.weight_by_weight(gptq, 4, form)
    assert torch.equal(read, unpack_awq(awq).dequantize())


def test_what_the_course_writes_is_sound() -> None:
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(2))
    shapes = {"a": (32, 64), "b": (32, 64)}
    tensors = {
        f"{layer}.{part}": tensor
        for layer in shapes
        for part, tensor in pack_gptq(rtn(weight, group_size=16)).items()
    }
    entry: dict[str, Any] = {"bits": 4, "group_size": 16, "desc_act": False}
    assert damage.smallest(entry, shapes, tensors) == set()
    assert damage.smallest(entry | {"bits": 8}, shapes, tensors) == {"bits"}
    assert damage.smallest(entry | {"group_size": 32}, shapes, tensors) == {"group_size"}
    assert damage.smallest({"bits": 4}, shapes, tensors) == {"group_size", "desc_act"}
    del tensors["a.qzeros"]
    assert damage.smallest(entry | {"bits": "4"}, shapes, tensors) == {"bits", "a.qzeros"}


def test_all_kinds_of_damage_are_drawn() -> None:
    named = [damage.smallest(*given.args) for given in sample(damage.draw_damaged, 300)]
    assert {0, 1, 2, 3} <= set(map(len, named))
    assert set().union(*named) >= set(damage.KEYS)
    assert any(len(names & set(damage.KEYS)) > 1 for names in named)
    assert {name.rpartition(".")[2] for names in named for name in names} >= set(damage.PARTS)


def test_a_refusal_by_gptqmodel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(real_files.subprocess, "run", lambda *_, **__: ended)
    (tmp_path / real_files.REFUSED).write_text("ValueError: no such format")
    assert real_files.read_independently([tmp_path]) == ["ValueError: no such format"]
    monkeypatch.setattr(real_files, "write_folder", lambda *_: 1)
    monkeypatch.setattr(real_files, "read_independently", lambda _: ["ValueError: no such format"])
    with pytest.raises(Mismatch, match="refuses your checkpoint") as caught:
        real_files.read_by_gptqmodel(answers.make_checkpoint)
    assert ("Yours", "ValueError: no such format") in caught.value.details


def test_a_process_of_gptqmodel_that_fails_is_no_fault_of_the_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.CompletedProcess([], 1, "", "Traceback\nImportError: no gptqmodel\n")
    monkeypatch.setattr(real_files.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(RuntimeError, match="ImportError: no gptqmodel"):
        real_files.read_independently([tmp_path])


def test_what_is_damaged_in_the_real_checkpoint_can_be_told() -> None:
    sound, damaged = real_files.damaged_checkpoint()
    shapes: Any = {
        layer: tuple(real_files.real_state()[f"{layer}.weight"].shape)
        for layer in real_files.real_layers()
    }
    assert damage.smallest(sound[0], shapes, sound[1]) == set()
    named = damage.smallest(damaged[0], shapes, damaged[1])
    assert named == set(real_files.DAMAGED) == answers.find_damage(damaged[0], shapes, damaged[1])
    entry, tensors = real_files.replaced(damaged, sound, sorted(named))
    assert entry == sound[0]
    assert all(tensors[name] is tensor for name, tensor in sound[1].items())
    with pytest.raises(Mismatch, match="not for this checkpoint"):
        real_files.repaired_by(lambda *_: {"bits"})


def test_what_no_file_can_hold_is_told(tmp_path: Path) -> None:
    row = torch.zeros(4)
    with pytest.raises(Mismatch, match="can't be written"):
        real_files.write_folder(tmp_path, {}, {"a": row, "b": row})
    with pytest.raises(Mismatch, match="can't be written"):
        real_files.write_folder(tmp_path, {"bits": row}, {"a": row})


def test_other_weights_and_other_logits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = "model.layers.0.mlp.up_proj"
    linear = real_files.real_state()[f"{layer}.weight"]
    read = {
        layer: real_files.expected_weight(linear),
        "logits": torch.ones(2, 4),
        "text": torch.tensor([1]),
    }
    monkeypatch.setattr(real_files, "real_layers", lambda: [layer])
    monkeypatch.setattr(real_files, "write_folder", lambda *_: 1)
    monkeypatch.setattr(real_files, "read_independently", lambda _: [read])
    moved = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 2]])
    monkeypatch.setattr(real_files, "logits", lambda w: torch.ones(2, 4) if w else moved)
    said = real_files.read_by_gptqmodel(answers.make_checkpoint)
    assert "to the bit" in said
    read["logits"] = torch.full((2, 4), 1.5)
    with pytest.raises(Mismatch, match="gptqmodel's logits aren't"):
        real_files.read_by_gptqmodel(answers.make_checkpoint)
    read[layer] = read[layer].flip(0)
    with pytest.raises(Mismatch, match="reads other weights"):
        real_files.read_by_gptqmodel(answers.make_checkpoint)
