"""The bases that a QLoRA adapter can be merged into, and what is left of its update in each.

    W               16 bit, as it was published
    Q(W)            its NF4 codes, read back: what training saw
    Q(Q(W) + dW)    4 bit again: what merging into a 4-bit layer gives

dW = (alpha / r) B A. Dettmers et al., "QLoRA", 2023, section 3, https://arxiv.org/abs/2305.14314:
training computes with Q(W) x + dW x, so W - Q(W) is what the first base adds to it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from utils.engine.models.weights import read_safetensors
from utils.pipeline.stages.merge import ADAPTER_FILES, TOKENIZER_FILES, AdapterError, check_adapter
from utils.pipeline.studies.lora import LoRALinear
from utils.quant import create_normal_map, quantize_nf4

Weights = dict[str, Tensor]  # of linear layers, by name: "model.layers.0.self_attn.q_proj"

PREFIX = "base_model.model."  # what peft writes before each name


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter as its file holds it.

    Attributes:
        matrices: A [r, in] and B [out, r] of each layer, float32; from the first to the last.
        r, lora_alpha: see `LoRALinear`.
    """

    matrices: dict[str, tuple[Tensor, Tensor]]
    r: int
    lora_alpha: float

    @property
    def scaling(self) -> float:
        """What B A is multiplied by."""
        return self.lora_alpha / self.r

    def delta(self, name: str) -> Tensor:
        """The update of one layer's weight, float32 [out, in]."""
        a, b = self.matrices[name]
        return self.scaling * (b @ a)


def load_adapter(folder: Path, device: torch.device | str = "cpu") -> Adapter:
    """Read an adapter that peft saved as safetensors.

    Raises:
        AdapterError: a file is missing, the adapter is no plain LoRA, or an A is without its B.
    """
    check_adapter(folder)
    config = json.loads((folder / ADAPTER_FILES[0]).read_text())
    special = [key for key in ("use_dora", "use_rslora", "rank_pattern") if config.get(key)]
    if config.get("peft_type") != "LORA" or special:
        raise AdapterError(
            f"{folder} holds {config.get('peft_type')} with {special}; expected plain LoRA. "
            "Merge it with peft."
        )
    tensors = load_file(folder / ADAPTER_FILES[1], device=str(device))
    suffix = ".lora_{}.weight"
    matrices = {}
    first = [key for key in tensors if key.endswith(suffix.format("A"))]
    for key in sorted(first, key=lambda key: [part.zfill(4) for part in key.split(".")]):
        name = key.removesuffix(suffix.format("A"))
        other = name + suffix.format("B")
        if other not in tensors:
            raise AdapterError(f"{folder}: {key} has no B beside it. The adapter is damaged.")
        a, b = tensors[key].float(), tensors[other].float()
        matrices[name.removeprefix(PREFIX)] = (a, b)
    if not matrices or 2 * len(matrices) != len(tensors):
        raise AdapterError(f"{folder}: expected pairs of A and B, got {len(tensors)} tensors.")
    return Adapter(matrices, config["r"], config["lora_alpha"])


def linear_weights(model: nn.Module, names: Iterable[str]) -> Weights:
    """Copies of these layers' weights, [out, in] each.

    Raises:
        AdapterError: the model has no such linear layer.
    """
    return {name: _linear(model, name).weight.detach().clone() for name in names}


def set_weights(model: nn.Module, weights: Weights) -> None:
    """Write these weights into a model's linear layers, in the model's own type.

    Raises:
        AdapterError: a layer is missing, or has another shape.
    """
    with torch.no_grad():
        for name, weight in weights.items():
            target = _linear(model, name).weight
            if target.shape != weight.shape:
                raise AdapterError(
                    f"{name} is {list(target.shape)} in the model and {list(weight.shape)} here: "
                    "the adapter was trained on another base."
                )
            target.copy_(weight)


def put_beside(model: nn.Module, adapter: Adapter) -> None:
    """Replace each adapted layer by a `LoRALinear` that holds the adapter. Changes the model."""
    for name, (a, b) in adapter.matrices.items():
        layer = LoRALinear(_linear(model, name), adapter.r, adapter.lora_alpha)
        layer.lora_A.data.copy_(a)
        layer.lora_B.data.copy_(b)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer)


def nf4_read_back(weight: Tensor, *, compress_statistics: bool = True) -> Tensor:
    """Q(W): the weight as a 4-bit layer of bitsandbytes spells it out, in the weight's type.

    Args:
        weight: [out, in], floating point.
        compress_statistics: double quantization, as the pipeline trains with.
    """
    read = quantize_nf4(weight, compress_statistics=compress_statistics).dequantize()
    return read.to(weight.dtype)


def merge_into(base: Weights, adapter: Adapter, dtype: torch.dtype = torch.float32) -> Weights:
    """W + dW for each layer: added in float32, rounded to `dtype` once.

    Raises:
        AdapterError: the layers or their shapes are not those of the adapter.
    """
    if strangers := set(base) ^ set(adapter.matrices):
        raise AdapterError(f"Not in both, base and adapter: {min(strangers)}.")
    merged = {}
    for name, weight in base.items():
        update = adapter.delta(name).to(weight.device)
        if update.shape != weight.shape:
            raise AdapterError(
                f"{name}: the base has {list(weight.shape)}, the adapter {list(update.shape)}. "
                "It was trained on another base."
            )
        merged[name] = (weight.float() + update).to(dtype)
    return merged


def surviving_share(before: Tensor, after: Tensor, update: Tensor) -> float:
    """How much of an update a rounded weight has taken over: its part along the update.

    1: on average all of it, whatever else rounding did. 0: nothing.

    Args:
        before, after: the rounded weight without and with the update, [out, in].
        update: what was added before rounding.

    Raises:
        ValueError: the update is zero.
    """
    size = update.float().square().sum()
    if size == 0:
        raise ValueError("The update is zero, so no share of it can survive.")
    return float(((after.float() - before.float()) * update).sum() / size)


def room_in_nf4(weight: Tensor, update: Tensor) -> Tensor:
    """How far each weight is from where its NF4 code changes, in the direction of its update.

    Of a weight that has been read back from NF4, that is half the step to the next level. It is
    inf at the outermost levels: beyond them, the block's scale grows.

    Args:
        weight, update: [out, in].
    """
    quantized = quantize_nf4(weight)
    levels = create_normal_map().to(weight.device)
    middles = (levels[:-1] + levels[1:]) / 2
    inf = torch.full_like(middles[:1], torch.inf)
    upper, lower = torch.cat([middles, inf]), torch.cat([-inf, middles])
    codes = quantized.codes.long()
    scale = quantized.block_absmax().repeat_interleave(quantized.blocksize)
    scale = scale[: weight.numel()].view(weight.shape)
    edge = torch.where(update > 0, upper[codes], lower[codes])
    return (edge * scale - weight.float()).abs()


def room_in_bfloat16(weight: Tensor) -> Tensor:
    """Half the step of bfloat16 at each weight, float32: it keeps 8 bits of a number."""
    exponent = torch.frexp(weight.float().abs()).exponent
    return torch.ldexp(torch.ones_like(weight, dtype=torch.float32), exponent - 9)


def save_checkpoint(weights: Weights, base_dir: Path, out_dir: Path) -> None:
    """Write the base with these weights in place of its own: a plain folder, in the base's types.

    Raises:
        AdapterError: the base has no such layer, or one of another shape.
    """
    tensors = dict(read_safetensors(base_dir))
    for name, weight in weights.items():
        old = tensors.get(f"{name}.weight")
        if old is None or old.shape != weight.shape:
            raise AdapterError(f"{base_dir} has no {name} of {list(weight.shape)}.")
        tensors[f"{name}.weight"] = weight.detach().to("cpu", old.dtype).contiguous()
    out_dir.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out_dir / "model.safetensors", metadata={"format": "pt"})
    for pattern in (*TOKENIZER_FILES, "config.json", "generation_config.json"):
        for path in base_dir.glob(pattern):
            shutil.copy2(path, out_dir / path.name)


def _linear(model: nn.Module, name: str) -> nn.Linear:
    try:
        layer = model.get_submodule(name)
    except AttributeError as error:
        raise AdapterError(
            f"The model has no layer {name}: the adapter was trained on another base."
        ) from error
    layer = layer.base_layer if isinstance(layer, LoRALinear) else layer
    if type(layer) is not nn.Linear:
        raise AdapterError(f"{name} is a {type(layer).__name__}; expected a plain linear layer.")
    return layer
