"""Merge a LoRA adapter into the 16-bit base: W + (alpha / r) B A, computed in float32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "*.jinja", "vocab.json", "merges.txt")

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


class AdapterError(RuntimeError):
    """The adapter is damaged or was trained on another base. The message says which."""


def merged_model(base_dir: Path, adapter_dir: Path) -> Any:
    """Return the base, in float32, with the adapter merged in.

    bfloat16 keeps 8 bits of a number. A sum rounded to it would lose most of a small update, so
    the sum is taken in float32 and rounded once, when it is saved.

    Where the base's output head is its embedding, and the adapter changes one of them or both in
    two ways, the result has two tensors, and its config says that they are not tied.

    Raises:
        AdapterError: the adapter is missing, damaged, or belongs to another base.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    from utils.pipeline.stages.finetune import quiet_peft

    tensors = read_adapter(adapter_dir)
    quiet_peft()
    base = AutoModelForCausalLM.from_pretrained(
        base_dir, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
    )
    _check_rows(adapter_dir, tensors, base)
    untied = _untie(base, tensors)
    mismatch = (
        f"The adapter in {adapter_dir} does not fit the model in {base_dir}: it was trained on "
        "another base. Run the finetune stage again, with this base."
    )
    try:
        model = PeftModel.from_pretrained(base, adapter_dir)
    except (RuntimeError, ValueError) as error:  # shapes or layer names do not fit
        raise AdapterError(f"{mismatch} peft says: {error}") from error
    # peft itself goes on: it only warns of layers without matrices, and not of the opposite.
    strangers = set(tensors) ^ set(get_peft_model_state_dict(model))
    if strangers:
        raise AdapterError(f"{mismatch} Not in both: {min(strangers)}.")
    try:
        merged: Any = model.merge_and_unload(safe_merge=True)  # refuses NaN
    except (RuntimeError, ValueError) as error:  # an option for which peft has no merging
        raise AdapterError(f"The adapter in {adapter_dir} cannot be merged: {error}") from error
    if untied:
        _tie_if_equal(merged)
    return merged


def merge(base_dir: Path, adapter_dir: Path, out_dir: Path) -> dict[str, Any]:
    """Write the merged model into `out_dir`, a plain folder in the base's own 16-bit type.

    Raises:
        AdapterError: see `merged_model`; or a merged weight is too large for that type, or the
            adapter's tokenizer has tokens that the model has no row for.
    """
    model = merged_model(base_dir, adapter_dir)
    tokenizer_dir = _tokenizer_dir(base_dir, adapter_dir, len(model.get_input_embeddings().weight))
    config = json.loads((base_dir / "config.json").read_text())
    dtype = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    model = model.to(getattr(torch, dtype))
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise AdapterError(
                f"With the adapter in {adapter_dir} the weight {name} is too large for {dtype}. "
                "Train with a smaller learning rate or lora_alpha, or from a bfloat16 base."
            )
    model.save_pretrained(out_dir)
    # The tokenizer's files and config.json are the base's own: tools that are older than this
    # transformers can read them. Only what the adapter changed is changed in them.
    for pattern in TOKENIZER_FILES:
        for path in tokenizer_dir.glob(pattern):
            shutil.copy2(path, out_dir / path.name)
    if config.get("tie_word_embeddings", False) and not _is_tied(model):
        config["tie_word_embeddings"] = False
        (out_dir / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    else:
        shutil.copy2(base_dir / "config.json", out_dir / "config.json")
    return {"parameters": sum(parameter.numel() for parameter in model.parameters())}


def check_adapter(adapter_dir: Path) -> None:
    """Raise an AdapterError when a file of the adapter is missing."""
    for name in ADAPTER_FILES:
        if not (adapter_dir / name).is_file():
            raise AdapterError(
                f"{adapter_dir / name} is missing. Run the finetune stage first; pickled adapters "
                "(.bin) are not read, because loading them can run code."
            )


def read_adapter(adapter_dir: Path) -> dict[str, Tensor]:
    """The tensors of an adapter by name, all of them finite.

    Raises:
        AdapterError: a file is missing, cut off or otherwise damaged, or a number is NaN.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    check_adapter(adapter_dir)
    config, weights = (adapter_dir / name for name in ADAPTER_FILES)
    try:
        json.loads(config.read_text())
        tensors = load_file(weights)
    except (ValueError, SafetensorError) as error:
        raise AdapterError(
            f"The adapter in {adapter_dir} is damaged: {error}. Run the finetune stage again, or "
            "copy the adapter again."
        ) from error
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise AdapterError(
                f"The adapter in {adapter_dir} is damaged: {name} holds NaN or infinity. Its "
                "training diverged; run the finetune stage again, with a smaller learning rate."
            )
    return tensors


def _check_rows(adapter_dir: Path, tensors: dict[str, Tensor], base: Any) -> None:
    """Raise an AdapterError when the vocabulary was resized before training."""
    rows = len(base.get_input_embeddings().weight)
    for name, tensor in tensors.items():
        is_whole = name.endswith(("embed_tokens.weight", "lm_head.weight"))
        if is_whole and len(tensor) != rows:
            raise AdapterError(
                f"The adapter in {adapter_dir} holds a {name} of {len(tensor)} rows, and the base "
                f"has {rows}: its vocabulary was resized before training. Resize the base in the "
                "same way, save it, and merge into that."
            )


def _untie(base: Any, tensors: dict[str, Tensor]) -> bool:
    """Give a head that is the embedding a copy of its own, if the adapter changes one of them.

    What peft adds to one of the two would be added to both. Returns whether it was done.
    """
    head = base.get_output_embeddings()
    changed = any(
        part in ("embed_tokens", "lm_head") for name in tensors for part in name.split(".")
    )
    if not (changed and _is_tied(base)):
        return False
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    return True


def _is_tied(model: Any) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


def _tie_if_equal(model: Any) -> None:
    """Make head and embedding one tensor again; or say in the config that they are two."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    equal = torch.equal(head.weight, embedding.weight)
    if equal:
        head.weight = embedding.weight
    model.config.tie_word_embeddings = equal


def _tokenizer_dir(base_dir: Path, adapter_dir: Path, rows: int) -> Path:
    """Whose tokenizer the merged model has: the adapter's, if it knows other tokens.

    Raises:
        AdapterError: a token's id is beyond the embedding.
    """
    from transformers import AutoTokenizer

    if not (adapter_dir / "tokenizer.json").is_file():
        return base_dir
    vocabularies = [
        AutoTokenizer.from_pretrained(folder, trust_remote_code=False).get_vocab()
        for folder in (base_dir, adapter_dir)
    ]
    if vocabularies[0] == vocabularies[1]:
        return base_dir
    token, largest = max(vocabularies[1].items(), key=lambda entry: entry[1])
    if largest >= rows:
        raise AdapterError(
            f"The tokenizer in {adapter_dir} has the token {token!r} with id {largest}, but the "
            f"model's embedding has {rows} rows. Merge into the base that was resized for it."
        )
    return adapter_dir
