"""The models of the chain, and what lies where in a stage's folder.

A model always lies in the subfolder `model` of its stage.
"""

from __future__ import annotations

from pathlib import Path

MODEL = "model"
BASE, QUANTIZED = "base", ("gptq", "awq")
MODELS = (BASE, "merge", *QUANTIZED)
TRAIN_FILE, HELD_OUT_FILE = "train.jsonl", "held_out.jsonl"


def model_folder(inputs: dict[str, Path], name: str) -> Path:
    """Where a model lies: the base in its own folder, others below their stage's."""
    return inputs[name] if name == BASE else inputs[name] / MODEL


def weight_bytes(model_dir: Path) -> int:
    """Bytes on disk of the weights alone."""
    return sum(path.stat().st_size for path in model_dir.glob("*.safetensors"))
