"""Write what `utils.quant` quantized as a checkpoint that vLLM and transformers load."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from utils.pipeline.quantizers.checkpoint import quantization_config, write_checkpoint
from utils.quant.model import Quantized, checkpoint_tensors
from utils.quant.rtn import QuantizedWeight

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOOL, VERSION = "utils.quant", "1"


def save_checkpoint(
    model: PreTrainedModel,
    quantized: dict[str, Quantized],
    layout: str,
    model_dir: Path,
    out_dir: Path,
) -> None:
    """Write a 4-bit checkpoint: it appears complete or not at all.

    Args:
        model, quantized: as `quantize_model` left and returned them.
        layout: "gptq" (for RTN and GPTQ with sym=True) or "awq".
        model_dir: the folder of the model that was quantized: its config and tokenizer are kept.
        out_dir: a new folder.

    Raises:
        ValueError: `out_dir` exists, nothing was quantized, or the layout cannot hold the weights.
    """
    from safetensors.torch import save_file

    model_dir, out_dir = Path(model_dir), Path(out_dir)
    if out_dir.exists():
        raise ValueError(f"{out_dir} exists already. Remove it, or name another folder.")
    first = next(iter(quantized.values()), None)
    if not isinstance(first, QuantizedWeight):
        raise ValueError(
            f"Expected the quantized weights of RTN, GPTQ or AWQ; got {type(first).__name__}. "
            "NF4 is stored by bitsandbytes, not in a GPTQ or AWQ checkpoint."
        )
    if layout == "gptq":
        _check_gptq(quantized)
    tensors = checkpoint_tensors(model, quantized, layout)
    config = quantization_config(layout, first.group_size, TOOL, VERSION)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}-", dir=out_dir.parent))
    try:
        weights, result = work / "weights", work / "result"
        weights.mkdir()
        result.mkdir()
        save_file(tensors, weights / "model.safetensors", metadata={"format": "pt"})
        write_checkpoint(model_dir, weights, result, config)
        os.replace(result, out_dir)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_gptq(quantized: dict[str, Quantized]) -> None:
    """What config.json says about a GPTQ checkpoint must be true: sym, and no act-order."""
    for name, weight in quantized.items():
        if not isinstance(weight, QuantizedWeight):
            continue
        if (weight.zeros != 8).any():
            raise ValueError(
                f"{name} is asymmetric. Quantize with sym=True, or use the awq layout."
            )
        if (weight.g_idx.diff() < 0).any():
            raise ValueError(
                f"{name} was quantized with desc_act=True, which vLLM refuses. Use "
                "act_group_aware=True: it orders the channels too, and keeps groups together."
            )
