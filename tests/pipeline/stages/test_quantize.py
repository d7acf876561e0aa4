"""Quantizing without running a quantizer: arguments, calibration, file formats, clip search."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from utils.pipeline.quantizers.calibration import WINDOW, calibration_windows
from utils.pipeline.quantizers.checkpoint import (
    quantization_config,
    speak_both_dialects,
    write_checkpoint,
    write_source,
)
from utils.pipeline.quantizers.classic.clip_search import best_clip
from utils.pipeline.quantizers.packing import dequantized_state_dict
from utils.pipeline.quantizers.tool_process import QuantizeError
from utils.pipeline.stages import quantize as quantize_module
from utils.pipeline.stages.perplexity import load_text
from utils.pipeline.stages.quantize import DEFAULT_TOOLS, ROUTES, Route, quantize
from utils.profiles import PROFILES
from utils.quant.packing import dequantize_awq, dequantize_gptq, unpack_int4, unpack_int4_awq

# --- arguments: every mistake is answered before anything starts --------------------------------


@pytest.fixture
def texts() -> list[str]:
    return [load_text("emma")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "gptq", "tool": "autoawq"}, "gptq by auto-gptq"),
        ({"method": "awq", "tool": "auto-gptq"}, "awq by autoawq"),
        ({"method": "nf4", "tool": "gptqmodel"}, "No route"),
        ({"group_size": 128}, r"does not divide hidden_size=576.*\[32, 64\]"),
        ({"group_size": 48}, "multiple of 32"),
        ({"group_size": 0}, "multiple of 32"),
        ({"group_size": -1}, "multiple of 32"),
        ({"calibration_texts": []}, "holds none"),
        ({"calibration_texts": [""]}, "holds none"),
        ({"calibration_texts": "one text"}, "list of texts"),
        ({"calibration_texts": ["A short text."]}, "Too little calibration data.*1536"),
        ({"model_dir": Path("no/such/folder")}, "No model in"),
    ],
)
def test_wrong_arguments(
    arguments: dict[str, Any],
    message: str,
    model_path: Path,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quantize_module, "run_tool", lambda *_: pytest.fail("a tool was started"))
    good: dict[str, Any] = {
        "method": "gptq",
        "tool": "gptqmodel",
        "model_dir": model_path,
        "out_dir": tmp_path / "out",
        "calibration_texts": texts,
    }
    with pytest.raises(ValueError, match=message):
        quantize(**good | arguments)
    assert list(tmp_path.iterdir()) == []


def test_refuses_to_overwrite(model_path: Path, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ValueError, match="not empty"):
        quantize("gptq", "gptqmodel", model_path, tmp_path, texts)


def test_refuses_a_quantized_source(model_path: Path, texts: list[str], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_source(model_path, source)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = quantization_config("gptq", 64, "tool", "1")
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="quantized already"):
        quantize("gptq", "gptqmodel", source, tmp_path / "out", texts)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_has_default_tools_that_exist(profile: str) -> None:
    assert set(DEFAULT_TOOLS[profile]) == {"gptq", "awq"}
    assert DEFAULT_TOOLS[profile].items() <= set(ROUTES)


# --- the subprocess -----------------------------------------------------------------------------


def _use_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str) -> None:
    script = tmp_path / "worker.py"
    script.write_text(source)
    route = Route(script, lambda: Path(sys.executable), lambda: "0")
    monkeypatch.setitem(ROUTES, ("gptq", "gptqmodel"), route)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('layer 7 exploded')", "exit code 1(.|\n)*layer 7 exploded"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9.*memory ran out"),
    ],
)
def test_a_failing_tool_is_reported_and_leaves_nothing(
    source: str,
    message: str,
    model_path: Path,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _use_worker(monkeypatch, tmp_path, source)
    out = tmp_path / "models" / "out"
    with pytest.raises(QuantizeError, match=message):
        quantize("gptq", "gptqmodel", model_path, out, texts)
    assert list(out.parent.iterdir()) == []


def test_progress_lines_move_the_bar(
    model_path: Path,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = "print('tool | 3% ...@progress 6 8')\nprint('noise')\nraise SystemExit('stop')"
    _use_worker(monkeypatch, tmp_path, source)
    with pytest.raises(QuantizeError, match="noise\nstop"):
        quantize("gptq", "gptqmodel", model_path, tmp_path / "out", texts)
    assert "6/8" in capsys.readouterr().err
    with pytest.raises(QuantizeError, match="noise\nstop"):
        quantize("gptq", "gptqmodel", model_path, tmp_path / "out", texts, use_tqdm=False)
    assert capsys.readouterr().err == ""


# --- calibration --------------------------------------------------------------------------------


def test_calibration_windows_come_from_the_texts(model_path: Path, tokenizer: Any) -> None:
    text = load_text("emma")
    windows = calibration_windows(model_path, [text], widest_input=1536)
    assert {len(window) for window in windows} == {WINDOW}
    assert len(windows) * WINDOW >= 1536
    stream = tokenizer(text)["input_ids"]
    for window in windows:
        starts = [i for i in range(0, len(stream), WINDOW) if stream[i : i + WINDOW] == window]
        assert len(starts) == 1


def test_calibration_is_seeded_and_grows_with_the_model(model_path: Path) -> None:
    texts = [load_text("emma")]
    first, again, other = (calibration_windows(model_path, texts, 1536, s) for s in (1, 1, 2))
    assert first == again
    assert first != other
    wide = calibration_windows(model_path, texts, widest_input=6000)
    assert len(wide) * WINDOW >= 2 * 6000 - WINDOW


# --- packed formats, against vLLM's own packers -------------------------------------------------


def _random_layer(seed: int, inputs: int, outputs: int, group: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randint(0, 16, (inputs, outputs), generator=generator, dtype=torch.int32)
    zeros = torch.randint(0, 16, (inputs // group, outputs), generator=generator, dtype=torch.int32)
    scales = torch.rand(inputs // group, outputs, generator=generator) * 0.1
    return q, zeros, scales


def _reference(q: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, group: int) -> Any:
    """The definition, one weight at a time."""
    weight = torch.empty(q.shape[1], q.shape[0])
    for i in range(q.shape[0]):
        for o in range(q.shape[1]):
            weight[o, i] = (q[i, o] - zeros[i // group, o]) * scales[i // group, o]
    return weight


def test_gptq_layout_is_vllms() -> None:
    from vllm.model_executor.layers.quantization.utils.quant_utils import gptq_pack, pack_cols

    q, zeros, scales = _random_layer(0, inputs=64, outputs=24, group=32)
    zeros = zeros.clamp(min=1)  # zero - 1 is stored
    weight = dequantize_gptq(
        gptq_pack(q, 4, *q.shape),
        pack_cols(zeros - 1, 4, *zeros.shape),
        scales,
        torch.arange(64) // 32,
    )
    assert torch.equal(weight, _reference(q, zeros, scales, 32))


def test_gptq_groups_follow_g_idx() -> None:
    from vllm.model_executor.layers.quantization.utils.quant_utils import gptq_pack, pack_cols

    q, zeros, scales = _random_layer(1, inputs=64, outputs=8, group=32)
    zeros = zeros.clamp(min=1)
    packed = gptq_pack(q, 4, *q.shape), pack_cols(zeros - 1, 4, *zeros.shape), scales
    in_order = dequantize_gptq(*packed, torch.arange(64) // 32)
    swapped = dequantize_gptq(*packed, 1 - torch.arange(64) // 32)
    expected = _reference(q, zeros.flip(0), scales.flip(0), 32)
    assert torch.equal(swapped, expected)
    assert not torch.equal(swapped, in_order)


def test_awq_layout_is_vllms() -> None:
    from vllm.model_executor.layers.quantization.utils.quant_utils import awq_pack

    q, zeros, scales = _random_layer(2, inputs=64, outputs=24, group=32)
    weight = dequantize_awq(awq_pack(q, 4, *q.shape), awq_pack(zeros, 4, *zeros.shape), scales, 32)
    assert torch.equal(weight, _reference(q, zeros, scales, 32))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 15), min_size=8, max_size=8))
def test_unpack_every_nibble(nibbles: list[int]) -> None:
    word = sum(nibble << (4 * position) for position, nibble in enumerate(nibbles))
    packed = torch.tensor([word - (1 << 32) if word >= 1 << 31 else word], dtype=torch.int32)
    assert unpack_int4(packed).tolist() == nibbles
    by_output = unpack_int4_awq(packed).tolist()
    assert [by_output[channel] for channel in (0, 2, 4, 6, 1, 3, 5, 7)] == nibbles


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {"quant_method": "fp8"},
        {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq"},
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
    ],
)
def test_other_formats_are_refused(entry: dict[str, Any] | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": entry}))
    with pytest.raises(ValueError, match="no 4-bit GPTQ or AWQ gemm"):
        dequantized_state_dict(tmp_path)


# --- the checkpoint's folder --------------------------------------------------------------------


def test_both_dialects() -> None:
    modern = {
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0},
        "dtype": "bfloat16",
    }
    both = speak_both_dialects(modern)
    assert both["rope_theta"] == 5e5
    assert both["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0}
    assert both["torch_dtype"] == "bfloat16"
    assert both.items() >= modern.items()
    plain = speak_both_dialects({"rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}})
    assert plain["rope_theta"] == 1e5
    assert "rope_scaling" not in plain


def test_checkpoint_is_self_contained(model_path: Path, tmp_path: Path) -> None:
    source, weights, out = (tmp_path / name for name in ("source", "weights", "out"))
    for folder in (source, weights, out):
        folder.mkdir()
    write_source(model_path, source)
    tokenizer_config = json.loads((source / "tokenizer_config.json").read_text())
    tokenizer_config["tokenizer_class"] = "TokenizersBackend"  # what transformers 5 writes
    (source / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    for part in (1, 2):
        save_file({f"w{part}": torch.ones(part)}, weights / f"part-{part}.safetensors")
    write_checkpoint(source, weights, out, quantization_config("awq", 64, "autoawq", "0.2.9"))

    names = {path.name for path in out.iterdir()}
    assert {
        "config.json",
        "generation_config.json",
        "chat_template.jinja",
        "tokenizer.json",
    } <= names
    assert not any(path.is_symlink() for path in out.iterdir())
    written = json.loads((out / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["version"] == "gemm"
    index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    for name, file in index.items():
        assert name in load_file(out / file)
    assert set(index) == {"w1", "w2"}


def test_no_weights_is_an_error(model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(FileNotFoundError, match="wrote no"):
        write_checkpoint(model_path, tmp_path, tmp_path / "out", {})


# --- the clip search ----------------------------------------------------------------------------


def _round_trip(weight: torch.Tensor, group: int) -> torch.Tensor:
    """Asymmetric 4-bit rounding, as AWQ does it."""
    grouped = weight.unflatten(-1, (-1, group))
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scale = (high - low).clamp(min=1e-5) / 15
    zero = (-torch.round(low / scale)).clamp(0, 15)
    q = (torch.round(grouped / scale) + zero).clamp(0, 15)
    return ((q - zero) * scale).flatten(-2)


def test_clip_search_equals_the_search_over_tokens() -> None:
    """The definition: for each group, the ratio with the least output error on the tokens."""
    group, ratios = 16, [1 - step / 20 for step in range(10)]
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 64, generator=generator)
    inputs = torch.randn(3, 100, 64, generator=generator)
    found = best_clip(weight, inputs, group, lambda w: _round_trip(w, group))

    x = inputs.reshape(-1, 64).double()
    for g in range(4):
        columns = slice(g * group, (g + 1) * group)
        part = weight[:, columns]
        largest = part.abs().amax(1, keepdim=True)
        errors = []
        for ratio in ratios:
            rounded = _round_trip(part.clamp(-largest * ratio, largest * ratio), group)
            error = x[:, columns] @ (rounded - part).double().t()  # [tokens, out]
            errors.append(error.pow(2).mean(0))
        best = torch.tensor(ratios)[torch.stack(errors).argmin(0)]
        assert torch.allclose(found[:, g, 0], largest[:, 0] * best)
    # Not everything stays as it was, or the test would show nothing.
    assert (found[..., 0] < weight.unflatten(-1, (-1, group)).abs().amax(-1)).float().mean() > 0.2
