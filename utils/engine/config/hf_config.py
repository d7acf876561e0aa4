"""Reading Hugging Face's `config.json`, and refusing what the engine would run wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
# What the entries of config.json are, where they are there: (in words, what holds for it, which).
KINDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "a whole number above 0",
        lambda v: type(v) is int and v > 0,
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
        "num_key_value_heads head_dim max_position_embeddings sliding_window",
    ),
    ("a number above 0", lambda v: type(v) in (int, float) and v > 0, "rms_norm_eps rope_theta"),
    ("true or false", lambda v: isinstance(v, bool), "tie_word_embeddings"),
    ("a text", lambda v: isinstance(v, str), "dtype torch_dtype"),
    ("an object", lambda v: isinstance(v, dict), "rope_parameters rope_scaling"),
    ("a list", lambda v: isinstance(v, list), "architectures"),
)
NEVER_NULL = ("max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON file's object.

    Raises:
        ValueError: there is no such file, or something else is in it.
    """
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise ValueError(f"{file} does not exist: no Hugging Face model folder.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds no JSON object.")
    return found


def rope_parameters(raw: dict[str, Any]) -> dict[str, Any]:
    # transformers 5 writes `rope_parameters`; transformers 4 wrote `rope_scaling`, null for none.
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def sliding_window(raw: dict[str, Any]) -> int | None:
    """How many tokens attention looks back; None: to the beginning."""
    # Qwen2's files may name a window, and say that it is not used.
    return raw.get("sliding_window") if raw.get("use_sliding_window", True) else None


def eos_token_ids(path: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    """The tokens that end an answer.

    Raises:
        ValueError: they are no whole numbers.
    """
    file = path / "generation_config.json"
    generation = read_json(file) if file.is_file() else {}
    eos = generation.get("eos_token_id", raw.get("eos_token_id"))
    if eos is None:
        return ()
    ids = eos if isinstance(eos, list) else [eos]
    if any(type(token) is not int for token in ids):
        raise ValueError(f"eos_token_id is {eos!r} in {path}. Expected a token's number, or more.")
    return tuple(ids)


def refuse_unsupported(raw: dict[str, Any]) -> None:
    """Check that the engine runs a model with this `config.json`.

    Raises:
        ValueError: an entry has a wrong type, or its numbers would silently be wrong.
    """
    _refuse_wrong_types(raw)
    _refuse_wrong_types(rope_parameters(raw))
    architectures = raw.get("architectures") or ["none named"]
    if architectures[0] not in SUPPORTED_ARCHITECTURES:
        raise ValueError(
            f"Unsupported architecture {architectures[0]}. "
            f"This engine runs {', '.join(SUPPORTED_ARCHITECTURES)}."
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


def _refuse_wrong_types(entries: dict[str, Any]) -> None:
    for expected, is_right, names in KINDS:
        for name in set(names.split()) & entries.keys():
            value = entries[name]
            if not (is_right(value) or (value is None and name not in NEVER_NULL)):
                raise ValueError(f"config.json has {name}={value!r}. Expected {expected}.")
