"""Reading Hugging Face's `config.json`, and refusing what the engine would run wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")


def read_json(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except FileNotFoundError as error:
        raise ValueError(f"{file} does not exist: no Hugging Face model folder.") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is not valid JSON: {error}.") from error


def rope_parameters(raw: dict[str, Any]) -> dict[str, Any]:
    # transformers 5 writes `rope_parameters`; transformers 4 wrote `rope_scaling`, null for none.
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def eos_token_ids(path: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    file = path / "generation_config.json"
    generation = read_json(file) if file.is_file() else {}
    eos = generation.get("eos_token_id", raw.get("eos_token_id"))
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)


def refuse_unsupported(raw: dict[str, Any]) -> None:
    """Raise a ValueError where running the model would silently give wrong numbers."""
    architectures = raw.get("architectures") or ["none named"]
    if architectures[0] not in SUPPORTED_ARCHITECTURES:
        raise ValueError(
            f"Unsupported architecture {architectures[0]}. "
            f"This engine runs {' and '.join(SUPPORTED_ARCHITECTURES)}."
        )
    rope = rope_parameters(raw)
    found_and_supported = {
        "rope_type": (rope.get("rope_type") or rope.get("type") or "default", "default"),
        "partial_rotary_factor": (rope.get("partial_rotary_factor") or 1.0, 1.0),
        "attention_bias": (raw.get("attention_bias") or False, False),
        "mlp_bias": (raw.get("mlp_bias") or False, False),
        "hidden_act": (raw.get("hidden_act") or "silu", "silu"),
        "quantization_config": (raw.get("quantization_config"), None),
    }
    for name, (found, supported) in found_and_supported.items():
        if found != supported:
            raise ValueError(
                f"Unsupported {name}: config.json has {found!r}, this engine supports only "
                f"{supported!r}."
            )
