"""The oracles of lab 12 against `utils.quant`, which is held against vLLM (tests/quant)."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from utils.checks.kit.contracts import Choices
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_12 import converting, damage, damaged, reading, real_files, rehearsal, writing
from utils.checks.lab_12 import fields as f
from utils.quant import pack_awq, pack_gptq, rtn, unpack_awq, unpack_gptq, unpack_int4


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_words_are_those_of_the_processor(bits: int) -> None:
    words = f.random_words((5, 6), seed=bits)
    fields = f.unpack_last(words, bits)
    assert torch.equal(f.pack_last(fields, bits), words)
    lowest = words.numpy().view("uint8") & (2**bits - 1)  # of each byte; the lowest byte first
    assert fields[:, :: 8 // bits].tolist() == lowest.tolist()
    assert (words < 0).any() and (words > 0).any()


def test_four_bits_are_those_of_the_course() -> None:
    words = f.random_words((3, 8), seed=1)
    assert torch.equal(f.unpack_last(words, 4), unpack_int4(words).long())
    assert torch.equal(f.cut_out(words, 4), unpack_int4(words))


@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
def test_reading_and_writing_are_those_of_the_course(form: str) -> None:
    weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(0))
    q, offset = rtn(weight, group_size=16, sym=form == "gptq"), int(form == "gptq")
    theirs = pack_gptq(q, zero_offset=offset)
    mine = writing.by_hand(q.q, q.zeros, q.scales, q.g_idx, 4, form)
    assert f.tensors_differ(theirs, mine, writing.PARTS) == ("", "")
    mixed = theirs | {"g_idx": theirs["g_idx"][torch.arange(64).flip(0)]}
    for tensors in (theirs, mixed):
        expected = unpack_gptq(tensors, zero_offset=offset).dequantize()
        assert torch.equal(reading.weight_by_weight(tensors, 4, form), expected)


def test_what_the_writer_refuses_cannot_be_read_back() -> None:
    reasons = set()
    for number in range(400):
        codes, zeros, scales, g_idx, bits, form = writing.draw_codes(
            Choices(random.Random(number))
        ).args
        reason = writing.unfit(codes, zeros, scales, g_idx, bits, form)
        reasons.add(reason)
        if reason:
            continue
        packed = writing.by_hand(codes, zeros, scales, g_idx, bits, form)
        group = g_idx.long()
        expected = (codes.long() - zeros.long()[:, group]) * scales.half().float()[:, group]
        assert torch.equal(reading.weight_by_weight(packed, bits, form), expected)
    for words in ("a code", "a zero", "a scale", "the group", "no multiples", "bits in"):
        assert any(words in reason for reason in reasons)


@pytest.mark.parametrize("positive", [False, True])
def test_a_converted_layer_has_the_same_weights(positive: bool) -> None:
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    q = rtn(weight.abs() if positive else weight, group_size=32, sym=False)
    awq = pack_awq(q)
    gptq, form = converting.repacked(awq)
    assert form == ("gptq_v2" if positive else "gptq")
    read = reading.weight_by_weight(gptq, 4, form)
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


def test_no_more_is_named_than_was_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each damage touches one thing, or one part of every layer; most checkpoints show some."""
    sizes = []
    for number in range(200):
        touched: set[str] = set()
        with monkeypatch.context() as patch:
            hurt, key, everywhere = damaged.hurt, damaged.wrong_key, damaged.in_every_layer
            otherwise, sound = damaged.stored_otherwise, damaged.sound

            def note_hurt(c: Any, tensors: Any, name: str, part: str, hurt: Any = hurt) -> None:
                touched.add(name)  # noqa: B023, called at once
                hurt(c, tensors, name, part)

            def note_key(c: Any, entry: Any, sizes: Any, name: str, key: Any = key) -> None:
                before = dict(entry)
                key(c, entry, sizes, name)
                touched.update(k for k in before if before[k] != entry.get(k))  # noqa: B023

            def note_all(c: Any, tensors: Any, everywhere: Any = everywhere) -> None:
                before = dict(tensors)
                everywhere(c, tensors)
                touched.update(n for n in before if before[n] is not tensors.get(n))  # noqa: B023

            def note_otherwise(
                c: Any, tensors: Any, layer: str, *more: Any, otherwise: Any = otherwise
            ) -> None:
                otherwise(c, tensors, layer, *more)
                touched.update(f"{layer}.{part}" for part in damaged.PARTS)  # noqa: B023

            def note_sound(
                shapes: Any, bits: int, size: int, *more: Any, sound: Any = sound
            ) -> Any:
                made = sound(shapes, bits, size, *more)
                if bits == 3 or any(size > 0 and width % size for _, width in shapes.values()):
                    touched.update(made, damage.KEYS)  # noqa: B023, no entry may name these
                return made

            patch.setattr(damaged, "sound", note_sound)
            patch.setattr(damaged, "hurt", note_hurt)
            patch.setattr(damaged, "wrong_key", note_key)
            patch.setattr(damaged, "in_every_layer", note_all)
            patch.setattr(damaged, "stored_otherwise", note_otherwise)
            given = damaged.draw_damaged(Choices(random.Random(number)))
        best = damage.smallest(*given.args)
        assert len(best) <= len(touched)
        assert touched or not best
        sizes.append(len(best))
    assert {0, 1, 2, 3} <= set(sizes)


def test_a_refusal_by_gptqmodel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess([], 1, "", "Traceback\nValueError: no such format\n")
    monkeypatch.setattr(real_files.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(Mismatch, match="cannot read your checkpoint") as caught:
        real_files.read_independently(tmp_path)
    assert ("Yours", "ValueError: no such format") in caught.value.details


def test_other_weights_and_other_logits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = "model.layers.0.mlp.up_proj"
    linear = real_files.real_state()[f"{layer}.weight"]
    read = {
        layer: real_files.expected_weight(linear),
        "logits": torch.ones(2, 4),
        "text": torch.tensor([1]),
    }
    monkeypatch.setattr(real_files, "LINEARS", ("mlp.up_proj",))
    monkeypatch.setattr(real_files, "NUM_BLOCKS", 1)
    monkeypatch.setattr(real_files, "write_folder", lambda *_: 1)
    monkeypatch.setattr(real_files, "read_independently", lambda _: read)
    moved = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 2]])
    monkeypatch.setattr(real_files, "logits", lambda w: torch.ones(2, 4) if w else moved)
    said = real_files.read_by_gptqmodel(rehearsal.right_checkpoint)
    assert "to the bit" in said
    read["logits"] = torch.full((2, 4), 1.5)
    with pytest.raises(Mismatch, match="logits are others"):
        real_files.read_by_gptqmodel(rehearsal.right_checkpoint)
    read[layer] = read[layer].flip(0)
    with pytest.raises(Mismatch, match="reads other weights"):
        real_files.read_by_gptqmodel(rehearsal.right_checkpoint)
