"""The bases: read back as bitsandbytes does it, merged as peft does it; what rounding keeps."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from utils.engine.models.weights import read_safetensors
from utils.pipeline.stages.finetune import quiet_peft
from utils.pipeline.stages.merge import AdapterError, merged_model
from utils.pipeline.stages.packed_batches import ATTENTION, Tokens, answer_perplexity, pack
from utils.pipeline.studies.merge_bases import (
    linear_weights,
    load_adapter,
    merge_into,
    nf4_read_back,
    put_beside,
    room_in_bfloat16,
    room_in_nf4,
    save_checkpoint,
    set_weights,
    surviving_share,
)
from utils.pipeline.studies.merge_measures import answer_logits, compare_logits, text_perplexity
from utils.quant import quantize_nf4

IDS = torch.arange(40, 56)[None]


@pytest.fixture(scope="module")
def adapter_dir(small_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter with random A and B for the small model, as peft saves it."""
    from peft import LoraConfig, get_peft_model

    quiet_peft()
    base = AutoModelForCausalLM.from_pretrained(small_model_dir, dtype=torch.float32)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=12, target_modules="all-linear")
    torch.manual_seed(0)
    model = get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    folder = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def model(small_model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(small_model_dir, dtype=torch.float32).eval()


def weight_of(rows: int = 64, columns: int = 192, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.1


@pytest.mark.parametrize("double", [False, True])
def test_read_back_equals_bitsandbytes(double: bool) -> None:
    weight = weight_of().bfloat16()
    packed, state = bnb.functional.quantize_4bit(
        weight, blocksize=64, compress_statistics=double, quant_type="nf4"
    )
    ours = nf4_read_back(weight, compress_statistics=double)
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, dequantize_4bit(packed, state))


def test_reading_back_twice_changes_nothing_without_double_quantization() -> None:
    once = nf4_read_back(weight_of(), compress_statistics=False)
    assert torch.equal(nf4_read_back(once, compress_statistics=False), once)
    once = nf4_read_back(weight_of(512, 576))
    assert torch.equal(quantize_nf4(once).codes, quantize_nf4(weight_of(512, 576)).codes)
    assert not torch.equal(nf4_read_back(once), once)  # the scales are rounded once more


def test_merging_equals_peft(model: Any, small_model_dir: Path, adapter_dir: Path) -> None:
    adapter = load_adapter(adapter_dir)
    assert (adapter.r, adapter.lora_alpha, adapter.scaling) == (4, 12, 3)
    merged = merge_into(linear_weights(model, adapter.matrices), adapter)
    expected = merged_model(small_model_dir, adapter_dir)
    assert len(merged) == 14
    for name, weight in merged.items():
        torch.testing.assert_close(weight, expected.get_submodule(name).weight.data)
    rounded = merge_into(linear_weights(model, adapter.matrices), adapter, torch.bfloat16)
    assert all(torch.equal(rounded[name], weight.bfloat16()) for name, weight in merged.items())
    with torch.no_grad():
        logits = expected(IDS).logits
        set_weights(model, merged)
        torch.testing.assert_close(model(IDS).logits, logits, atol=1e-3, rtol=1e-4)


def test_beside_equals_merged(model: Any, adapter_dir: Path) -> None:
    adapter = load_adapter(adapter_dir)
    base = linear_weights(model, adapter.matrices)
    with torch.no_grad():
        before = model(IDS).logits
        set_weights(model, merge_into(base, adapter))
        merged = model(IDS).logits
        set_weights(model, base)
        assert torch.equal(model(IDS).logits, before)
        put_beside(model, adapter)
        torch.testing.assert_close(model(IDS).logits, merged, atol=1e-3, rtol=1e-4)
        assert (merged - before).abs().max() > 0.1  # the adapter does something
        set_weights(model, {n: nf4_read_back(w) for n, w in base.items()})  # under the adapter
        assert (model(IDS).logits - merged).abs().max() > 0.01


def test_merging_into_four_bits_equals_peft() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    quiet_peft()
    weight = weight_of().bfloat16()
    layer = bnb.nn.Linear4bit(
        192,
        64,
        bias=False,
        compute_dtype=torch.bfloat16,
        quant_type="nf4",
        compress_statistics=True,
    )
    layer.weight = bnb.nn.Params4bit(weight, requires_grad=False, quant_type="nf4")
    layer = layer.to("cpu")
    layer.support_avx512bf16_for_cpu = False
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["0"])
    wrapped = nn.Sequential(layer)
    wrapped.is_loaded_in_4bit = True  # type: ignore[assignment]  # what transformers sets; peft asks for it
    theirs = inject_adapter_in_model(config, wrapped)[0]
    nn.init.normal_(theirs.lora_B["default"].weight, std=0.05)
    with torch.no_grad():  # everything in bfloat16 there
        summed = nf4_read_back(weight) + theirs.get_delta_weight("default")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of exactly what is tested here
        theirs.merge()
    merged = theirs.base_layer.weight
    assert torch.equal(nf4_read_back(summed), dequantize_4bit(merged.data, merged.quant_state))
    assert not torch.equal(nf4_read_back(summed), nf4_read_back(weight))


def test_a_grid_swallows_small_updates_of_weights_that_are_on_it() -> None:
    weight = weight_of(256, 576)
    read = nf4_read_back(weight, compress_statistics=False)
    noise = weight_of(256, 576, seed=1)
    shares = {}
    for size in (0.01, 1.0):
        update = size * noise
        for name, base in (("W", weight), ("Q(W)", read)):
            before, after = (
                nf4_read_back(w, compress_statistics=False) for w in (base, base + update)
            )
            shares[name, size] = surviving_share(before, after, update)
    assert shares["Q(W)", 0.01] < 0.2 < 0.6 < shares["W", 0.01] < 1.4
    assert shares["Q(W)", 1.0] > 0.8
    assert surviving_share(weight, weight + noise, noise) == pytest.approx(1)
    assert surviving_share(weight, weight, noise) == 0
    with pytest.raises(ValueError, match="update is zero"):
        surviving_share(weight, weight, torch.zeros_like(weight))


def test_room_is_the_way_to_the_next_code() -> None:
    weight = weight_of(8, 64)
    sign = torch.where(weight_of(8, 64, seed=2) > 0, 1.0, -1.0)
    room = room_in_nf4(weight, sign)
    codes = quantize_nf4(weight).codes
    block_max = weight.abs() == weight.abs().amax(dim=1, keepdim=True)
    for factor, changes in ((0.99, False), (1.01, True)):
        moved = weight + sign * factor * room.clamp(max=1)
        moved = torch.where(block_max | ~room.isfinite(), weight, moved)  # the scale stays
        for row in range(8):  # one weight at a time, so that no other becomes the largest
            for column in (3, 30, 60):
                if block_max[row, column] or not room[row, column].isfinite():
                    continue
                one = weight.clone()
                one[row, column] = moved[row, column]
                same = quantize_nf4(one).codes[row, column] == codes[row, column]
                assert bool(same) != changes


def test_room_in_bfloat16() -> None:
    weight = weight_of().bfloat16().float()  # away from 0: below a power of two, steps are halved
    room = room_in_bfloat16(weight)
    assert torch.equal((weight + 0.99 * room * weight.sign()).bfloat16().float(), weight)
    assert not ((weight + 1.01 * room * weight.sign()).bfloat16().float() == weight).any()


def test_a_saved_checkpoint_is_a_plain_model(
    model: Any, small_model_dir: Path, adapter_dir: Path, tmp_path: Path
) -> None:
    adapter = load_adapter(adapter_dir)
    merged = merge_into(linear_weights(model, adapter.matrices), adapter)
    save_checkpoint(merged, small_model_dir, tmp_path / "out")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    stored = dict(read_safetensors(tmp_path / "out"))
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    for name, weight in merged.items():
        assert torch.equal(saved.get_submodule(name).weight.data, weight.bfloat16())
    assert torch.equal(saved.model.norm.weight.float(), model.model.norm.weight)
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    with pytest.raises(AdapterError, match="has no other"):
        save_checkpoint({"other": torch.ones(2, 2)}, small_model_dir, tmp_path / "bad")


def test_measures(model: Any, small_model_dir: Path, tokenizer: Any) -> None:
    batch = pack([Tokens([5, 6, 7, 8], [9, 10]), Tokens([5, 6, 11, 12], [13, 14, 15])])
    logits = answer_logits(model, batch)
    assert logits.shape == (5, model.config.vocab_size)
    same = compare_logits(logits, logits, batch.targets)
    assert (same.max_logit, same.kl, same.same_token) == (0, 0, 1) and math.isnan(same.text)
    model.set_attn_implementation(ATTENTION)
    examples = [Tokens([5, 6, 7, 8], [9, 10]), Tokens([5, 6, 11, 12], [13, 14, 15])]
    # Of noise the perplexity is e to the 48: compared are the losses, to six digits.
    loss = math.log(answer_perplexity(model, examples))
    assert math.log(same.answer) == pytest.approx(loss)
    best = int(logits[2].argmax())
    other = logits.clone()
    other[2, best] -= 30
    measured = compare_logits(logits, other, batch.targets, text=2.0)
    p, q = logits[2].softmax(-1), other[2].softmax(-1)
    assert measured.max_logit == pytest.approx(30) and measured.text == 2
    assert measured.same_token == pytest.approx(0.8)
    assert measured.kl == pytest.approx(float((p * (p / q).log()).sum()) / 5, rel=1e-3)
    assert measured.token_kl.nonzero().flatten().tolist() == [2]  # the others are as they were
    assert float(measured.token_kl.mean()) == pytest.approx(measured.kl)
    with pytest.raises(ValueError, match="same tokens"):
        compare_logits(logits, logits[:4], batch.targets)
    # The other attention is back for plain text, and does not disturb what comes after.
    assert text_perplexity(model, tokenizer, max_tokens=64) > 1
    torch.testing.assert_close(answer_logits(model, batch), logits)


def edited(adapter_dir: Path, folder: Path, rename: Any = None, **config: Any) -> Path:
    """A copy of the adapter, with other tensor names or another configuration."""
    shutil.copytree(adapter_dir, folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    if rename:
        tensors = {new: t.clone() for old, t in tensors.items() if (new := rename(old))}
    save_file(tensors, folder / "adapter_model.safetensors")
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return folder


def test_bad_adapters_are_refused(model: Any, adapter_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"adapter_config\.json is missing"):
        load_adapter(tmp_path)
    with pytest.raises(AdapterError, match="use_rslora"):
        load_adapter(edited(adapter_dir, tmp_path / "rs", use_rslora=True))
    half = edited(
        adapter_dir, tmp_path / "half", lambda k: None if "1.mlp.up_proj.lora_B" in k else k
    )
    with pytest.raises(AdapterError, match=r"up_proj.*no B beside it"):
        load_adapter(half)
    deeper = load_adapter(
        edited(adapter_dir, tmp_path / "deep", lambda k: k.replace("layers.1.", "layers.7."))
    )
    with pytest.raises(AdapterError, match=r"no layer model\.layers\.7"):
        linear_weights(model, deeper.matrices)
    adapter = load_adapter(adapter_dir)
    with pytest.raises(AdapterError, match=r"Not in both.*layers\.1"):
        merge_into(linear_weights(model, adapter.matrices), deeper)
    other = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
        )
    )
    with pytest.raises(AdapterError, match="another base"):
        merge_into(linear_weights(other, adapter.matrices), adapter)
    with pytest.raises(AdapterError, match="another base"):
        set_weights(other, linear_weights(model, adapter.matrices))
    with pytest.raises(AdapterError, match="expected a plain linear layer"):
        linear_weights(model, ["model.norm"])
