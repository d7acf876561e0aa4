"""Merge a LoRA adapter into the 16-bit base: W + (alpha / r) B A, computed in float32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "*.jinja", "vocab.json", "merges.txt")

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


class AdapterError(RuntimeError):
    """The adapter is damaged or was trained on another base. The message says which."""


def merged_model(base_dir: Path, adapter_dir: Path) -> Any:
    """Return the base, in float32, with the adapter merged in.

    bfloat16 keeps 8 bits of a number. A sum rounded to it would lose most of a small update, so
    the sum is taken in float32 and rounded once, when it is saved.

    Raises:
        AdapterError: the adapter is missing, damaged, or belongs to another base.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    from utils.pipeline.stages.finetune import quiet_peft

    check_adapter(adapter_dir)
    quiet_peft()
    base = AutoModelForCausalLM.from_pretrained(
        base_dir, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
    )
    mismatch = (
        f"The adapter in {adapter_dir} does not fit the model in {base_dir}: it was trained on "
        "another base. Run the finetune stage again, with this base."
    )
    try:
        model = PeftModel.from_pretrained(base, adapter_dir)
    except (RuntimeError, ValueError) as error:  # shapes or layer names do not fit
        raise AdapterError(mismatch) from error
    # peft itself goes on: it only warns of layers without matrices, and not of the opposite.
    with safe_open(adapter_dir / ADAPTER_FILES[1], "pt") as file:
        strangers = set(file.keys()) ^ set(get_peft_model_state_dict(model))
    if strangers:
        raise AdapterError(f"{mismatch} Not in both: {min(strangers)}.")
    return model.merge_and_unload(safe_merge=True)  # refuses NaN


def merge(base_dir: Path, adapter_dir: Path, out_dir: Path) -> dict[str, Any]:
    """Write the merged model into `out_dir`, a plain folder in the base's own 16-bit type.

    Raises:
        AdapterError: see `merged_model`.
    """
    model = merged_model(base_dir, adapter_dir)
    config = json.loads((base_dir / "config.json").read_text())
    dtype = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(out_dir)
    # The tokenizer's files and config.json are the base's own: nothing in them changed, and tools
    # that are older than this transformers can read them.
    for pattern in (*TOKENIZER_FILES, "config.json"):
        for path in base_dir.glob(pattern):
            shutil.copy2(path, out_dir / path.name)
    return {"parameters": sum(parameter.numel() for parameter in model.parameters())}


def check_adapter(adapter_dir: Path) -> None:
    """Raise an AdapterError when a file of the adapter is missing."""
    for name in ADAPTER_FILES:
        if not (adapter_dir / name).is_file():
            raise AdapterError(
                f"{adapter_dir / name} is missing. Run the finetune stage first; pickled adapters "
                "(.bin) are not read, because loading them can run code."
            )
