"""One folder layout for all quantizers: what vLLM and transformers 4 and 5 can all read.

The tools differ in what they write beside the weights. So only their weights are taken; every
other file comes from the model that was quantized.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

# Written anew (config), taken from the tool (weights), or of no use beside other weights.
_NOT_COPIED = ("config.json", "quantize_config.json", "manifest.json", "checksums.json")
_COPIED = ("*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")


def quantization_config(
    method: str, group_size: int, tool: str, tool_version: str
) -> dict[str, Any]:
    """The entry of config.json that tells vLLM and transformers how to read the weights."""
    common = {
        "quant_method": method,
        "bits": 4,
        "group_size": group_size,
        "lm_head": False,
        "meta": {"quantizer": [f"{tool}:{tool_version}"]},
    }
    if method == "gptq":
        return common | {"sym": True, "desc_act": False, "checkpoint_format": "gptq"}
    return common | {"zero_point": True, "version": "gemm", "modules_to_not_convert": None}


def speak_both_dialects(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json with the names of transformers 4 beside those of transformers 5.

    transformers 4 ignores `rope_parameters` silently and then rotates with the wrong base; it
    reads `rope_theta`, `rope_scaling` and `torch_dtype`.
    """
    config = dict(config)
    rope = dict(config.get("rope_parameters") or {})
    if rope:
        config["rope_theta"] = rope.pop("rope_theta", config.get("rope_theta", 10000.0))
        if rope.get("rope_type", "default") != "default":
            config["rope_scaling"] = rope
    if "dtype" in config:
        config["torch_dtype"] = config["dtype"]
    return config


def write_source(model_dir: Path, view: Path) -> None:
    """Make `view` a copy of a 16-bit model that transformers 4 and 5 read alike; weights linked."""
    copy_tokenizer(model_dir, view)
    config = speak_both_dialects(json.loads((model_dir / "config.json").read_text()))
    (view / "config.json").write_text(json.dumps(config, indent=2))
    for pattern in ("*.safetensors", "*.safetensors.index.json"):
        for file in model_dir.glob(pattern):
            (view / file.name).symlink_to(file.resolve())


def write_checkpoint(
    model_dir: Path, weights_dir: Path, out_dir: Path, quantization: dict[str, Any]
) -> None:
    """Assemble a self-contained checkpoint in `out_dir`.

    Args:
        model_dir: the model that was quantized: its config, tokenizer and chat template are kept.
        weights_dir: what the tool wrote; its safetensors files are moved.
        out_dir: an empty folder.
        quantization: see `quantization_config`.

    Raises:
        FileNotFoundError: the tool wrote no safetensors file.
    """
    weights = sorted(weights_dir.glob("*.safetensors"))
    if not weights:
        raise FileNotFoundError(f"The quantizer wrote no .safetensors file into {weights_dir}.")
    copy_tokenizer(model_dir, out_dir)
    for number, file in enumerate(weights, 1):
        if len(weights) == 1:
            target = "model.safetensors"
        else:
            target = f"model-{number:05d}-of-{len(weights):05d}.safetensors"
        shutil.move(file, out_dir / target)
    if len(weights) > 1:
        _write_index(out_dir)
    config = speak_both_dialects(json.loads((model_dir / "config.json").read_text()))
    config["quantization_config"] = quantization
    (out_dir / "config.json").write_text(json.dumps(config, indent=2))


def copy_tokenizer(model_dir: Path, out_dir: Path) -> None:
    """Copy all small files but the config, with a tokenizer class that both transformers know."""
    for pattern in _COPIED:
        for file in model_dir.glob(pattern):
            if file.name not in _NOT_COPIED and not file.name.endswith(".index.json"):
                shutil.copyfile(file, out_dir / file.name)
    file = out_dir / "tokenizer_config.json"
    if file.exists():
        config = json.loads(file.read_text())
        if config.get("tokenizer_class") == "TokenizersBackend":
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
        file.write_text(json.dumps(config, indent=2))


def _write_index(out_dir: Path) -> None:
    from safetensors import safe_open

    weight_map, total = {}, 0
    for file in sorted(out_dir.glob("*.safetensors")):
        total += file.stat().st_size
        with safe_open(file, framework="pt") as tensors:
            weight_map.update(dict.fromkeys(tensors.keys(), file.name))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out_dir / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
